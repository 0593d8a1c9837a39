"""Sums in fixed point: exact, in any order, and the same under masks."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
import torch
from support.small_runs import setup
from torch import Tensor

from atoll.aggregation.averaging import mean
from atoll.aggregation.fixed_point import (
    CAPACITY,
    SCALE,
    Fixed,
    Masks,
    Sum,
    mask_upload,
    quantise,
    total,
    unmasked_sum,
)
from atoll.aggregation.policy import AggregationPolicy
from atoll.clients import method_calls
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.core.batch import Batch
from atoll.core.client import Client
from atoll.core.losses import cross_entropy
from atoll.core.method import Method
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing, Params, about, payload
from atoll.core.prng import Key, fold, key, normal
from atoll.core.replies import Replies, with_policy_of
from atoll.core.schema import tensors_of
from atoll.core.serialization import encode
from atoll.core.task import Reply, Round, Task
from atoll.core.traits import Need, Reads, Traits
from atoll.engine.build import build_experiment, run_experiment
from atoll.engine.compatibility import check
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.typing import ClientId

METHODS = sorted(_registry.methods())
UNABLE = {"dcpfl", "fd", "feddf", "fedfed", "fedgen", "fedgh", "fedhkd", "fedkd", "fedpd", "fedtgp", "ktpfl", "local"}
ABLE = [name for name in METHODS if name not in UNABLE]


def fixed(parts: list[Tensor]) -> Tensor:
    return total(parts, Fixed(lambda words: None))


# -- arithmetic -------------------------------------------------------------------------------------------------------


def test_quantise_rounds_to_known_integers() -> None:
    """2^24 x, rounded: 1 is 16777216; 2^-25 is half of a step and goes to the even 0, 3 * 2^-25 to the even 2."""
    v = torch.tensor([1.0, -0.5, 2.0**-25, 3 * 2.0**-25, 2.0**-24, 0.0], dtype=torch.double)
    assert quantise(v).tolist() == [16777216, -8388608, 0, 2, 1, 0]


def test_any_order_gives_the_same_bits() -> None:
    """200 numbers each: in floating point the order shows, in fixed point it does not, and the sum is as exact."""
    parts = [normal(key("part", i), 4096) * 10.0 ** (i % 5) for i in range(200)]
    exact, dice = torch.stack(parts).double().sum(0), Random(1)
    seen, floats = set(), set()
    for _ in range(5):
        dice.shuffle(parts)
        seen.add(fixed(parts).numpy().tobytes())
        floats.add(sum(parts[1:], start=parts[0]).numpy().tobytes())
    assert len(seen) == 1
    assert len(floats) > 1
    assert float((fixed(parts) - exact).abs().max()) <= 200 / SCALE / 2


@pytest.mark.parametrize(
    "parts", [[2.0**39], [-(2.0**39)], [2.0**38, 2.0**38], [2.0**38, -(2.0**38)], [float("nan")], [float("inf")]]
)
def test_sum_that_may_overflow_is_refused(parts: list[float]) -> None:
    """2^39 * 2^24 = 2^63. A sum of sizes decides, so that no order of terms can pass where another fails."""
    with pytest.raises(AtollError, match="--sums float"):
        fixed([torch.tensor([p], dtype=torch.double) for p in parts])
    near = torch.tensor([2.0**38 - 1], dtype=torch.double)
    assert float(fixed([near, near])) == 2.0**39 - 2
    assert CAPACITY / SCALE == 2.0**39


def test_sum_without_terms_and_of_empty_terms() -> None:
    assert float(Sum().value()) == float(fixed([])) == 0
    assert fixed([torch.zeros(0), torch.zeros(0)]).shape == (0,)


# -- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cohorts", [150, pytest.param(1000, marks=pytest.mark.chaos)])
def test_masked_sums_are_exact_for_any_dropouts(cohorts: int) -> None:
    """Cohorts of 2 to 10 clients, of whom up to 30 % send nothing: the sum of the others, to the bit."""
    exact = 0
    for trial in range(cohorts):
        dice = Random(trial)
        cohort = [f"client {i}" for i in range(dice.randint(2, 10))]
        away = set(dice.sample(cohort, dice.randint(0, int(0.3 * len(cohort)))))
        values = {i: normal(key(trial, i), 3) * 10.0 ** dice.randint(-3, 5) for i in cohort}
        masks = Masks(trial.to_bytes(8, "little"), (3,))
        sent = {i: mask_upload(i, values[i], cohort, masks) for i in cohort if i not in away}
        order = dice.sample(list(sent), len(sent))
        found = unmasked_sum({i: sent[i] for i in order}, cohort, masks)
        exact += torch.equal(found, fixed([values[i] for i in cohort if i not in away]))
    assert exact == cohorts


def test_masked_upload_differs_from_the_upload() -> None:
    """Its bits are even: of 64,000 about half are 1 (five standard deviations are 633). Alone, a client has no mask."""
    masks, v = Masks(b"secret", (1000,)), torch.zeros(1000)
    hidden = mask_upload("a", v, ["a", "b", "c"], masks)
    ones = sum(bin(n & (2**64 - 1)).count("1") for n in hidden.tolist())
    assert abs(ones - 32_000) < 633
    assert not torch.equal(hidden, mask_upload("a", v, ["a", "b", "c"], Masks(b"other", (1000,))))
    assert torch.equal(mask_upload("a", v, ["a"], masks), quantise(v))


def test_masks_differ_for_pairs_whose_names_join_to_the_same_text() -> None:
    """'ab' with 'c' is another pair than 'a' with 'bc'."""
    masks = Masks(b"secret", (4,))
    assert not torch.equal(masks.of("ab", ["c"]), masks.of("a", ["bc"]))


# -- methods ----------------------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"clients": 4, "rows": 240, "rounds": 1, "eval_every": 1, "sums": "fixed"}


def test_declared_methods_work_from_sums() -> None:
    """FD computes sums too, but its server stores the upload of each client."""
    for name in METHODS:
        made = setup(name)
        try:
            check(made.method, made.pool, name, "loop", sums="fixed")
        except AtollError:
            assert name in UNABLE
        else:
            assert name in ABLE


@pytest.mark.parametrize("name", ["dcpfl", "fedpd"])
def test_methods_without_sums_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(AtollError, match=f"that of {name} cannot: the server .* each client, on that client's own"):
        setup(name, **SMALL)


@payload
class Clusters:
    first: Params = about("the model of the first cluster")
    second: Params = about("the model of the second cluster")


@payload
class Choice:
    params: Params = about("the chosen model after local training")
    n: Tensor = about("number of training rows", count=True)
    cluster: Tensor = about("0 or 1: the cluster whose model fits the client better")


@dataclass(frozen=True)
class IFCA(Method[Clusters, Nothing, Clusters, Choice]):
    """Clients train the better of two models; the server reads who chose what, and averages within clusters."""

    optim: SGD = field(default=SGD(), metadata={"about": "local training"})

    traits = Traits(needs=frozenset({Need.SAME_ARCHITECTURE}))

    def init_server(self, task: Task, k: Key) -> Clusters:
        first = task.model.init()
        second = {name: v + 0.01 * normal(fold(k, i), *v.shape) for i, (name, v) in enumerate(first.items())}
        return Clusters(first, second)

    def broadcast(self, server: Clusters, to: ClientId, task: Task, r: Round, k: Key) -> Clusters:
        return server

    def client_update(self, down: Clusters, state: Nothing, client: Client, r: Round, k: Key) -> tuple[Choice, Nothing]:
        rows = Batch(client.x, client.y, torch.ones(len(client.y)), k, {})
        losses = [cross_entropy(client.model(params, client.x), rows) for params in (down.first, down.second)]
        cluster = (losses[1] < losses[0]).float()
        start = {name: torch.where(cluster > 0, down.second[name], v) for name, v in down.first.items()}
        params = self.optim.fit(client.objective(), start, client, k)
        return Choice(params, client.n, cluster), state

    def aggregate(self, server: Clusters, replies: Iterable[Reply[Choice]], task: Task, r: Round, k: Key) -> Clusters:
        chosen: dict[int, list[Choice]] = {0: [], 1: []}
        for reply in replies:
            chosen[int(reply.upload.cluster)].append(reply.upload)
        held = {c: with_policy_of(replies, uploads) for c, uploads in chosen.items() if uploads}
        means = {c: mean(uploads, "params", weight="n") for c, uploads in held.items()}
        return Clusters(means.get(0, server.first), means.get(1, server.second))

    def personal_params(self, down: Clusters, up: Choice | None, state: Nothing, client: Client) -> Params:
        return up.params if up else down.first


class DeclaredIFCA(IFCA):
    traits = IFCA.traits._replace(server_reads=Reads.SUMS)


def test_server_that_reads_single_uploads_is_refused_unless_it_declares_otherwise() -> None:
    """It takes means, which add up, but only after reading every upload."""
    config = replace(setup("fedavg", **SMALL).config, method="ifca")
    with pytest.raises(AtollError, match="ifca does not declare that its server does") as caught:
        build_setup(config, method=IFCA())
    assert str(caught.value).endswith("Traits(server_reads=Reads.SUMS).")
    assert run_experiment(build_setup(config, method=DeclaredIFCA())).summary["status"] == "finished"


def test_robust_rules_and_fixed_sums_exclude_each_other() -> None:
    with pytest.raises(AtollError, match="exclude each other"):
        setup("fedavg", **SMALL, robust="median")


@pytest.mark.parametrize("name", ABLE)
def test_fixed_sums_do_not_depend_on_the_order_of_replies(name: str) -> None:
    """The server's next state, to the bit; and near to what floating point gives."""
    made = setup(name, **SMALL)
    task, method, r = made.pool.task(), made.method, Round(0)
    server, server_side = method.init_server(task, key(0)), ServerSideStates(method, task, 0, MemoryStore())
    replies = []
    for i in made.pool.ids:
        client = made.pool.client(i)
        with torch.no_grad():
            down = server_side.download(server, i, r)
            state = method_calls.init_client(method, client, key(i))
            upload, _ = method_calls.client_update(method, r, down, state, client, key(1, i))
        replies.append(Reply(i, upload))

    def after(order: list[Any], how: Fixed | None) -> Any:
        served = Replies(server_side.serve_replies(server, iter(order), r), AggregationPolicy(fixed=how))
        with torch.no_grad():
            return method_calls.aggregate(method, server, served, task, r, key(2))

    orders = [replies, replies[::-1], replies[2:] + replies[:2]]
    states = [after(order, Fixed(lambda words: None)) for order in orders]
    assert len({encode(state) for state in states}) == 1
    near, far = tensors_of(after(replies, None)), tensors_of(states[0])
    assert near.keys() == far.keys()
    for what, v in near.items():
        torch.testing.assert_close(far[what], v, rtol=1e-5, atol=1e-5)


def test_fixed_sums_note_sums_of_a_single_client() -> None:
    """Two classes each for five clients and ten classes: each has one owner. Of FedAvg's models there are four."""
    (words,) = run_experiment(setup("fedproto", **SMALL | {"partition": "pathological:2", "clients": 5})).notes
    assert words == ("--sums fixed: 10 classes, such as 0, are held by one client each, so their sum is its upload.")
    plain = run_experiment(setup("fedavg", **SMALL))
    assert plain.notes == []
    one = run_experiment(setup("fedavg", **SMALL | {"rate": 0.25}))
    assert one.notes == ["--sums fixed: a round had one client, so the sum of params is that client's upload."]


def test_a_client_cannot_make_a_sum_overflow() -> None:
    """1e9 times the rows of all would not fit: the upload is refused, and the run goes on without it."""
    made = setup("fedavg", **SMALL)
    run = build_experiment(made)
    honest, bad = run.rounds.backend.upload_filter, made.pool.ids[0]

    def upload_filter(job: Any, client: Any, upload: Any) -> Any:
        up = honest(job, client, upload)
        grown = {n: v * 0 + 1e11 for n, v in up.params.items()}
        return replace(up, params=grown) if job.client == bad else up

    run.rounds.backend.upload_filter = upload_filter
    result = run.run(lambda t, line: None)
    (rejected,) = result.history[0]["rejected"]
    assert rejected["client"] == bad
    assert "above the limit" in rejected["reason"]


def test_sum_does_not_change_its_terms() -> None:
    """Also what is in double precision already, of which no copy is needed for the sum's sake."""
    rows, total = torch.ones(3, 2).double(), Sum()
    total.add_all(rows, torch.tensor([1.0, 2.0, 3.0]).double())
    total.add(rows[0], 4.0)
    assert total.value().tolist() == [10.0, 10.0]
    assert torch.equal(rows, torch.ones(3, 2).double())
