"""What an honest but curious server can read off one round: attacks on real uploads, as they leave the clients.

The server knows the method, what it sent, and what it received; for membership it also has the candidates' features.
Every attack is plain arithmetic that anybody could do. Attacks that train models of their own are not tried, so a low
figure means that this attack fails, not that none succeeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ..clients import method_calls
from ..clients.dry_run import dry_run
from ..clients.participation import take_part
from ..clients.pool import ClientPool, replace_rows
from ..clients.server_side import ServerSideStates
from ..clients.state_store import MemoryStore
from ..clients.tasks import ClientTask
from ..core.client import Client
from ..core.contract import exchanges_of
from ..core.hooks import HasOptimiser, KeepsStatePerClient
from ..core.losses import objective
from ..core.optim.sgd import SGD
from ..core.params import BUFFERS, sub
from ..core.payloads import Params
from ..core.prng import Key, fold, key, normal, permutation
from ..core.schema import constraints_at, constraints_of, tensors_of
from ..core.task import Round
from ..engine.setup import Setup
from ..privacy.disclosure import class_tables, count_by_class

Way = Callable[[ClientTask, Client, Any], Any]  # an outlet
FEW = 2  # rows of a class that can be solved for
CLOSE = 1e-3  # relative error at which a row counts as found
CANDIDATES = 200  # strangers tried against a class
BATCH = 4  # rows whose gradient is matched
STEPS = 150  # of matching


class Figure(NamedTuple):
    """How well one attack does, on uploads as each way out leaves them; None: there was nothing to attack."""

    attack: str
    measure: str
    tried: int
    found: dict[str, float | None]


@dataclass(frozen=True)
class Seen:
    """One upload, what is known of it, and what is not."""

    job: ClientTask
    client: Client
    upload: Any  # as it left
    params: Params  # of the client's own model: the truth that attacks are measured by

    @property
    def counts(self) -> Tensor:
        return count_by_class(self.client)


class Tables(NamedTuple):
    """The tables of classes in an upload."""

    n: Tensor | None  # rows of each class [C], if told
    held: Tensor | None  # whether there are any
    mean: Tensor | None  # features [C, d]
    sigma: Tensor | None


def attack(setup: Setup, ways: Mapping[str, Way]) -> list[Figure]:
    """All attacks that suit the method, for each way out."""
    method, pool, seed = setup.method, setup.pool, setup.config.seed
    made = list(dry_run(method, pool, seed, clients=pool.clients()))
    seen: dict[str, list[Seen]] = {}
    for name, way in ways.items():
        seen[name] = []
        for e in made:
            job, client = ClientTask(e.client, e.round, e.download), pool.client(e.client)
            with torch.no_grad():
                left = way(job, client, e.upload)
                params = method.personal_params(e.download, e.upload, e.state, client)
            if tensors_of(left):
                seen[name].append(Seen(job, client, left, params))
    figures = [
        *_each(seen, lambda s: labels(s, setup)),
        *_each(seen, lambda s: few_rows(s, setup)),
        *_each(seen, lambda s: membership(s, setup, _by_covariance, "covariance")),
        *_each(seen, lambda s: membership(s, setup, _by_mean, "means")),
        *_each(seen, lambda s: copied(s, setup)),
        *_each({name: [way] for name, way in ways.items()}, lambda w: inverted(cast(Way, w[0]), setup)),
    ]
    return [f for f in figures if f.tried]


def _each(seen: Mapping[str, Sequence[Any]], measure: Callable[[Any], list[Figure]]) -> Iterator[Figure]:
    """The same attack on every way out, side by side."""
    by_way = {name: measure(list(uploads)) for name, uploads in seen.items()}
    for parts in zip(*by_way.values(), strict=True):
        found = {name: figure.found[""] for name, figure in zip(by_way, parts, strict=True)}
        yield parts[0]._replace(tried=max(figure.tried for figure in parts), found=found)


def _figure(attack: str, measure: str, values: Sequence[float]) -> Figure:
    return Figure(attack, measure, len(values), {"": sum(values) / len(values) if values else None})


def tables(upload: Any, setup: Setup) -> Tables:
    declared, tensors = constraints_of(setup.method), tensors_of(upload)
    names = list(class_tables(tensors, declared))
    marks = {name: constraints_at(name, declared) for name in names}
    counts = [tensors[name] for name in names if marks[name].count]
    markers = [tensors[str(marks[name].rows)] for name in names if marks[name].rows]
    means = [tensors[name] for name in names if marks[name].rows and not marks[name].psd and not marks[name].count]
    wide = [m for m in means if m.ndim == 2 and m.shape[1] == setup.pool.task().feature_dim]
    sigma = [tensors[name] for name in names if marks[name].psd]
    n = counts[0] if counts else None
    held = markers[0] != 0 if markers else n > 0 if n is not None else None
    return Tables(n, held, wide[0] if wide else None, sigma[0] if sigma else None)


# ---------------------------------------------------------------------------------------------------------------------
# Labels


def labels(seen: Sequence[Seen], setup: Setup) -> list[Figure]:
    """Which labels a client has: read off counts or marks, otherwise guessed from what training did to the head."""
    exact, apart, uniform = [], [], []
    for s in seen:
        truth, told = s.counts, tables(s.upload, setup)
        guess = told.n if told.n is not None else told.held if told.held is not None else _guess(s)
        exact.append(float(told.n is not None and torch.equal(told.n.double(), truth.double())))
        apart.append(_distance(_shares(guess if guess is not None else torch.ones_like(truth)), _shares(truth)))
        uniform.append(_distance(_shares(torch.ones_like(truth)), _shares(truth)))
    return [
        _figure("label histogram", "share of clients whose counts are known exactly", exact),
        _figure("label guess", "distance of the guessed from the true distribution (0: equal, 1: disjoint)", apart),
        _figure("blind label guess", "the same for who guesses that all labels are alike", uniform),
    ]


def _guess(s: Seen) -> Tensor | None:
    """Training raises the outputs of labels that are there: more for those with more rows."""
    sent, got = tensors_of(s.upload), tensors_of(s.job.download)
    for end in ("head.bias", "head.weight"):
        for name in sent:
            if name.endswith(end) and name in got and len(sent[name]) == s.client.num_classes:
                rise = (sent[name] - got[name]).reshape(s.client.num_classes, -1).sum(1)
                return rise - rise.min()
    return None


def _shares(v: Tensor) -> Tensor:
    v = v.double()
    return v / v.sum() if float(v.sum()) > 0 else torch.full_like(v, 1 / len(v))


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().sum()) / 2


# ---------------------------------------------------------------------------------------------------------------------
# Rows behind statistics


def few_rows(seen: Sequence[Seen], setup: Setup) -> list[Figure]:
    """One row is its mean; two are the mean plus and minus the only axis of their covariance."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for s in seen:
        told, z = tables(s.upload, setup), s.client.model.features(s.params, s.client.x)
        for c in (s.counts == 1).logical_or(s.counts == FEW).nonzero().flatten().tolist():
            rows = z[s.client.y == c].double()
            guess = solved(told, c, len(rows))
            if told.mean is not None:
                found[len(rows)].append(float(guess is not None and _same(guess, rows)))
    return [
        _figure("reconstruction, 1 row", "share of such classes whose features are found", found[1]),
        _figure("reconstruction, 2 rows", "share of such classes whose features are found", found[2]),
    ]


def solved(told: Tables, c: int, n: int) -> Tensor | None:
    """The features of a class of one or two rows, as far as mean and covariance tell."""
    if told.mean is None or told.held is None or not bool(told.held[c]):
        return None
    mean = told.mean[c].double()
    if n == 1 or told.sigma is None:
        return mean.expand(n, -1)
    values, vectors = torch.linalg.eigh(told.sigma[c].double())
    half = (values[-1].clamp(min=0) / 2).sqrt() * vectors[:, -1]
    return torch.stack([mean - half, mean + half])


def _same(guess: Tensor, rows: Tensor) -> bool:
    """In either order."""
    most = CLOSE * float(rows.norm())
    return any(float((guess - order).norm()) <= most for order in (rows, rows.flip(0)))


# ---------------------------------------------------------------------------------------------------------------------
# Membership

Score = Callable[[Tables, int, Tensor, Tensor], Tensor | None]  # (tables, class, features, those of others) -> [rows]


def membership(seen: Sequence[Seen], setup: Setup, score: Score, by: str) -> list[Figure]:
    """Can members of a class be told from strangers of the same class? The mean AUC over clients and classes."""
    d = setup.pool.task().feature_dim
    few: list[float] = []
    many: list[float] = []
    for s in seen:
        told = tables(s.upload, setup)
        for c in (s.counts > FEW).nonzero().flatten().tolist():
            if told.mean is None or (by == "covariance" and told.sigma is None and not _sends_sigma(setup)):
                continue
            members, test, known = _candidates(s, c, setup.pool)
            inside, outside = (score(told, c, z, known) for z in (members, test))
            value = 0.5 if inside is None or outside is None else auc(inside, outside)
            (few if len(members) <= d else many).append(value)
    what = "AUC of telling members from strangers of the same class (0.5: not at all)"
    return [
        _figure(f"membership by {by}, n <= {d}", what, few),
        _figure(f"membership by {by}, n > {d}", what, many),
    ]


def _sends_sigma(setup: Setup) -> bool:
    return any(marks.psd for marks in constraints_of(setup.method).values())


def _candidates(s: Seen, c: int, pool: ClientPool) -> tuple[Tensor, Tensor, Tensor]:
    """Features of the class: of members, of strangers, and of further strangers whom the attacker knows to be none."""
    others = [pool.client(i) for i in pool.ids if i != s.job.client]
    x = torch.cat([o.x[o.y == c] for o in others] + [s.client.x[:0]])
    x = x[permutation(key("strangers", s.job.client, c), len(x))][:CANDIDATES]
    z = s.client.model.features(s.params, torch.cat([s.client.x[s.client.y == c], x])).double()
    n = int(s.counts[c])
    return z[:n], z[n::2], z[n + 1 :: 2]


def _by_covariance(told: Tables, c: int, z: Tensor, known: Tensor) -> Tensor | None:
    """Minus the squared Mahalanobis distance; whatever sticks out of the span of the members counts by far the most."""
    if told.sigma is None or told.mean is None or told.held is None or not bool(told.held[c]):
        return None
    values, vectors = torch.linalg.eigh(told.sigma[c].double())
    if float(values[-1]) <= 0:
        return None
    seen = values > 1e-5 * values[-1]
    along = (z - told.mean[c].double()) @ vectors
    outside = along[:, ~seen].square().sum(1) / values[-1]
    inside: Tensor = (along[:, seen].square() / values[seen]).sum(1)
    far: Tensor = 1e6 * outside.where(outside > 1e-4, 0.0)
    return -inside - far


def _by_mean(told: Tables, c: int, z: Tensor, known: Tensor) -> Tensor | None:
    """Whether a row is nearer to the client's mean than to that of strangers, in units of their spread."""
    if told.mean is None or told.held is None or not bool(told.held[c]) or len(known) < 2:
        return None
    mean, usual, spread = told.mean[c].double(), known.mean(0), known.var(0) + 1e-6 * known.var(0).max() + 1e-12
    return (((z - usual).square() - (z - mean).square()) / spread).sum(1)


def auc(inside: Tensor, outside: Tensor) -> float:
    """How often a member scores higher than a stranger; ties count half."""
    if not len(inside) or not len(outside):
        return 0.5
    gap = inside[:, None] - outside
    return float((gap > 0).double().mean() + (gap == 0).double().mean() / 2)


# ---------------------------------------------------------------------------------------------------------------------
# Outputs for public rows


def copied(seen: Sequence[Seen], setup: Setup) -> list[Figure]:
    """A linear model of what a client said of public rows: how well it foretells what it would say of private ones."""
    public, values = setup.pool.public, []
    for s in seen if public is not None else ():
        assert public is not None
        told = next((v for v in tensors_of(s.upload).values() if v.ndim == 2 and len(v) == len(public)), None)
        if told is None:
            continue
        model, private = s.client.model, s.client.x
        truth = model(s.params, private) if told.shape[1] != model.feature_dim else model.features(s.params, private)
        if told.shape[1] == truth.shape[1]:
            values.append(_foretold(_with_one(public), told.double(), _with_one(private), truth.double()))
    return [_figure("copy of the model", "share of the variance of outputs for private rows that it explains", values)]


def _foretold(x: Tensor, y: Tensor, unseen: Tensor, truth: Tensor) -> float:
    ridge = x.T @ x + 1e-1 * torch.eye(x.shape[1], dtype=torch.double)
    said = unseen @ torch.linalg.solve(ridge, x.T @ y)
    return float(1 - (said - truth).square().sum() / (truth - truth.mean(0)).square().sum().clamp(min=1e-12))


def _with_one(x: Tensor) -> Tensor:
    flat = x.reshape(len(x), -1).double()
    return torch.cat([flat, torch.ones(len(flat), 1, dtype=torch.double)], 1)


# ---------------------------------------------------------------------------------------------------------------------
# Update inversion


def inverted(way: Way, setup: Setup) -> list[Figure]:
    """Inputs from the change of a model: of a client with one row by division, of one batch by matching gradients."""
    one = [abs(v) for v in _trials(way, setup, 1)]
    batch = [abs(v) for v in _trials(way, setup, BATCH)]
    return [
        _figure("inversion, 1 row", "correlation of the input that is found with the true one", one),
        _figure(f"inversion, {BATCH} rows", "mean correlation of the inputs found with the nearest true one", batch),
    ]


def _trials(way: Way, setup: Setup, rows: int) -> Iterator[float]:
    """For the first three clients with so many rows."""
    method, pool, seed = setup.method, setup.pool, setup.config.seed
    optim = method.optim if isinstance(method, HasOptimiser) else None
    if isinstance(method, KeepsStatePerClient) or len(exchanges_of(method)) > 1 or not isinstance(optim, SGD):
        return
    step = replace(optim, epochs=optim.epochs if rows == 1 else 1, batch_size=rows)
    method = replace(cast(Any, method), optim=step)
    server = method.init_server(pool.task(), key(seed, "init", "server"))
    for i in pool.ids[:3]:
        whole = pool.client(i)
        x = whole.x[:rows]
        client = replace_rows(whole, x, whole.y[:rows])
        server_side = ServerSideStates(method, pool.task(), seed, MemoryStore())
        job = ClientTask(i, Round(0), server_side.download(server, i, Round(0)))
        state = method_calls.init_client(method, client, key(seed, "init", i))
        part = take_part(method, job.round, job.download, state, client, key(seed, "local", 0, i))
        with torch.no_grad():
            up = way(job, client, part.upload)
        start, change = _change(job.download, up)
        if _first_layer(change, x) is None:
            return
        if rows == 1:
            yield _correlation(_by_division(change, x), x.flatten())
        elif set(client.model.init()) == set(start):
            guess = _by_matching(client, start, change, step, key("inversion", i))
            yield sum(max(_correlation(g, t) for t in x.flatten(1)) for g in guess.flatten(1)) / rows


def _change(download: Any, upload: Any) -> tuple[Params, Params]:
    """Weights that went down and came back, and by how much they changed."""
    start = getattr(download, "params", {})
    sent = getattr(upload, "params", {})
    both = {n: v for n, v in start.items() if n in sent and not n.startswith(BUFFERS)}
    return both, sub({n: sent[n] for n in both}, both)


def _first_layer(change: Params, x: Tensor) -> str | None:
    """A linear layer with a bias that the inputs meet first."""
    inputs = x[0].numel()
    names = (n.removesuffix("weight") for n, v in change.items() if n.endswith("weight") and v.shape[1:] == (inputs,))
    return next((n for n in names if n + "bias" in change), None)


def _by_division(change: Params, x: Tensor) -> Tensor:
    """Every unit's weights move by its error times the input, and its bias by the error."""
    layer = _first_layer(change, x)
    bias = change[f"{layer}bias"]
    unit = int(bias.abs().argmax())
    return change[f"{layer}weight"][unit] / bias[unit]


def _by_matching(client: Client, start: Params, change: Params, step: SGD, k: Key) -> Tensor:
    """Inputs whose gradient points where the client's did; the labels are known."""
    goal = {n: -v / step.lr - step.weight_decay * start[n] for n, v in change.items()}
    x = (normal(fold(k, 0), *client.x.shape) * client.x.std() + client.x.mean()).requires_grad_()
    descent = torch.optim.LBFGS([x], lr=1.0, max_iter=STEPS, history_size=20, line_search_fn="strong_wolfe")
    loss = objective(client.model)
    batch = next(client.batches(k, 1, len(client.y)))

    def apart() -> Tensor:
        descent.zero_grad()
        with torch.enable_grad():
            leaves = {n: v.detach().requires_grad_() for n, v in start.items()}
            value = loss(leaves, batch._replace(x=x, y=client.y, stats={}))
            grads = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
            gap = sum((g - goal[n]).square().sum() for n, g in zip(leaves, grads, strict=True)) / _size(goal)
            gap.backward()
        return gap.detach()

    descent.step(apart)
    return x.detach()


def _size(v: Params) -> Tensor:
    return sum((t.square().sum() for t in v.values()), start=torch.zeros(())).clamp(min=1e-20)


def _correlation(a: Tensor, b: Tensor) -> float:
    a, b = a.flatten().double() - a.double().mean(), b.flatten().double() - b.double().mean()
    scale = float(a.norm() * b.norm())
    return float(a @ b) / scale if scale > 0 and torch.isfinite(a).all() else 0.0
