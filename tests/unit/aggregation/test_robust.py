"""Robust aggregation: averages of uploads under a rule, attacks, notes, and the methods that support it."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from support import toy_models
from support.small_runs import gap_params, run, setup
from torch import Tensor

from atoll.aggregation import robust
from atoll.aggregation.averaging import mean, table_mean
from atoll.aggregation.policy import AggregationPolicy
from atoll.aggregation.robust import RobustAggregation, guard_for
from atoll.backends.loop import LoopBackend
from atoll.clients import method_calls
from atoll.clients.evaluation import predict
from atoll.clients.pool import ClientPool
from atoll.clients.state_store import MemoryStore, Store
from atoll.core import Traits
from atoll.core.payloads import Params, about, equal, pack, payload, unpack
from atoll.core.prng import key, normal
from atoll.core.replies import Replies, with_policy_of
from atoll.core.scores import accuracy
from atoll.core.task import Reply
from atoll.engine.compatibility import check
from atoll.engine.round import RoundPolicy, run_round
from atoll.engine.setup import Setup
from atoll.engine.vmap_trial import largest_gap
from atoll.errors import AtollError
from atoll.methods import _registry, fedhkd
from atoll.methods._factory import make
from atoll.methods.fedavg import FedAvg, Global, Update
from atoll.methods.fedproto import FedProto, Means, Prototypes

METHODS = sorted(_registry.methods())
ABLE = [
    "apfl", "ditto", "fedadagrad", "fedadam", "fedala", "fedapen", "fedavg", "fedavg_ft", "fedavgm", "fedbabu", "fedbn",
    "feddc", "feddf", "feddistill", "feddw", "feddyn", "fedfed", "fedgen", "fedhkd", "fedkd", "fednova", "fedpac",
    "fedper", "fedproto", "fedprox", "fedrep", "fedrod", "feduv", "fedyogi", "fml", "ifca", "lgfedavg", "moon",
    "perfedavg", "pfedes", "pfedme", "scaffold", "scd",
]  # fmt: skip
RULES = ("median", "trimmed:0.2", "geometric", "krum:1", "clip:1e6")
VOTES = RULES[:4]  # those that outvote an attacker; clipping only bounds what it can do


class Sent(NamedTuple):
    params: Params
    n: Tensor


def sent(*values: Any, n: Any = None) -> list[Sent]:
    """Uploads of a tensor ``w`` and a counter, which is the position of the upload."""
    rows = [1.0] * len(values) if n is None else n
    return [
        Sent({"w": torch.tensor(v), "count": torch.tensor(i)}, torch.tensor(float(m)))
        for i, (v, m) in enumerate(zip(values, rows, strict=True))
    ]


class Guarded:
    """Puts uploads under a rule that guards params, and keeps the notes of the rule."""

    def __init__(self, text: str, server: Any = None):
        self.notes: list[str] = []
        self._policy = AggregationPolicy(RobustAggregation(text, ("params",), self.notes.append), server=server)

    def __call__(self, uploads: Iterable[Any]) -> Replies[Any]:
        return Replies(uploads, self._policy)


# -- averages of uploads ----------------------------------------------------------------------------------------------


def test_krum_rule_averages_selected_uploads_by_capped_weight() -> None:
    """Chosen are 3 (6 rows, of which the median of 4 counts) and 1 (2 rows): (12 + 2) / 6. 100 is left out."""
    uploads = sent(100.0, 3.0, 0.0, 4.5, 1.0, n=[1e9, 6, 1, 4, 2])
    got = mean(Guarded("krum:1")(uploads), "params", weight="n")
    assert got["w"].item() == pytest.approx(14 / 6)


def test_clip_rule_measures_updates_from_the_server_state() -> None:
    """Weights 1 and 3 from 10: 30 comes to 12, 11 stays; (12 + 3 * 11) / 4 = 11.25. Around 0: (2 + 3 * 2) / 4 = 2."""
    uploads = sent(30.0, 11.0, n=[1, 3])
    guarded = Guarded("clip:2", Sent({"w": torch.tensor(10.0)}, torch.tensor(0.0)))
    assert mean(guarded(uploads), "params", weight="n")["w"].item() == 11.25
    assert mean(guarded(uploads), "params", weight="n", around={"w": torch.tensor(0.0)})["w"].item() == 2


@pytest.mark.parametrize("server", [None, Sent({"v": torch.tensor(1.0)}, torch.tensor(0.0))])
def test_clip_rule_is_refused_if_the_server_lacks_the_tensors(server: Any) -> None:
    with pytest.raises(AtollError, match="does not hold the same tensors"):
        mean(Guarded("clip:2", server)(sent(1.0, 2.0)), "params")


def test_krum_rule_takes_all_tensors_of_a_model_together() -> None:
    """Tensors apart, medians of (0, 0), (2, 1), (3, 9) are 2 and 1; Krum must not mix tensors of several clients."""
    uploads = [
        Sent({"a": torch.tensor([x]), "b": torch.tensor(y)}, torch.tensor(1.0)) for x, y in [(0, 0), (2, 1), (3, 9)]
    ]
    uploads = [Sent({name: v.float() for name, v in up.params.items()}, up.n) for up in uploads]
    both = mean(Guarded("median")(uploads), "params")
    assert (both["a"].tolist(), both["b"].item()) == ([2], 1)
    one = mean(Guarded("krum:0")(uploads), "params")  # squared distances: 5 between the first two, 65 and more else
    assert (one["a"].tolist(), one["b"].item()) == ([0], 0)


# -- equalities -------------------------------------------------------------------------------------------------------


def model(i: int) -> Params:
    net = toy_models.mlp(seed=i)
    return net.init() | {"buffers.count": torch.tensor(i), "buffers.half": normal(key(i), 4).half()}


def updates(*which: int) -> list[Update]:
    return [Update(model(i), torch.tensor(float(3 * i + 1)), {}) for i in which]


@pytest.mark.parametrize("text", RULES)
def test_robust_mean_of_one_upload_is_that_upload(text: str) -> None:
    got = mean(Guarded(text, Global(model(9), {}))(updates(4)), "params", weight="n")
    assert list(got) == list(model(4))
    assert all(torch.equal(v, got[name]) and v.dtype == got[name].dtype for name, v in model(4).items())


@pytest.mark.parametrize("text", RULES)
def test_robust_mean_of_equal_uploads_is_that_upload(text: str) -> None:
    got = mean(Guarded(text, Global(model(9), {}))(updates(4, 4, 4, 4, 4)), "params", weight="n")
    assert largest_gap(Global(got, {}), Global(model(4), {})) < 1e-7


def test_trimmed_rule_with_share_zero_equals_the_mean() -> None:
    plain = mean(Replies(updates(1, 2, 3)), "params")
    trimmed = mean(Guarded("trimmed:0")(updates(1, 2, 3)), "params")
    assert largest_gap(Global(trimmed, {}), Global(plain, {})) < 1e-6


@pytest.mark.parametrize("weight", ["n", None])
def test_clip_rule_with_a_huge_norm_equals_the_mean_to_the_bit(weight: str | None) -> None:
    plain = mean(Replies(updates(1, 2, 3)), "params", weight=weight)
    clipped = mean(Guarded("clip:1e9", Global(model(9), {}))(updates(1, 2, 3)), "params", weight=weight)
    assert equal(Global(clipped, {}), Global(plain, {}))


@pytest.mark.parametrize("text", RULES)
def test_robust_mean_of_counters_is_the_largest(text: str) -> None:
    guarded = Guarded(text, Sent({"w": torch.tensor(0.0)}, torch.tensor(0.0)))
    assert mean(guarded(sent(1.0, 2.0, 3.0, 4.0, 5.0)), "params")["count"].item() == 4


def test_negative_and_zero_weights_are_tolerated() -> None:
    guarded = Guarded("median")
    assert mean(guarded(sent(1.0, 2.0, 50.0, n=[1, 1, -9])), "params", weight="n")["w"].item() == 1.5
    assert mean(guarded(sent(1.0, 2.0, 50.0, n=[0, 0, 0])), "params", weight="n")["w"].item() == 2


# -- resistance -------------------------------------------------------------------------------------------------------


def hostile(upload: Any) -> Any:
    """Signs flipped, and a hundred times as large; what it says of its rows is true."""
    packed = pack(upload)
    for name, v in packed.tensors.items():
        if name.startswith(("params/", "means")) and v.is_floating_point():
            packed.tensors[name] = -100 * v
    return unpack(type(upload), *packed)


def outside(got: Params, honest: list[Update]) -> float:
    """How far the furthest coordinate is from the range of those of the honest models."""
    rows = {name: torch.stack([up.params[name] for up in honest]).float() for name in got if name != "buffers.count"}
    return max(float(torch.maximum(v.amin(0) - got[name], got[name] - v.amax(0)).max()) for name, v in rows.items())


@pytest.mark.parametrize("text", VOTES)
def test_one_attacker_of_five_cannot_move_the_result_out_of_the_honest_range(text: str) -> None:
    honest = [Update(model(i), torch.tensor(7.0), {}) for i in range(4)]
    uploads = [*honest, hostile(honest[0])]
    assert outside(mean(Guarded(text)(uploads), "params", weight="n"), honest) <= 1e-6
    assert outside(mean(Replies(uploads), "params", weight="n"), honest) > 10


class Saboteur(LoopBackend):
    """One client of a federation sends the opposite of what it learnt."""

    def train(self, method: Any, seed: int, jobs: Any) -> Any:
        for outcome in super().train(method, seed, jobs):
            bad = outcome.sender == self.pool.ids[2]
            yield outcome._replace(upload=hostile(outcome.upload)) if bad else outcome


def attacked(
    made: Setup, text: str | None, rounds: int, backend: Callable[[ClientPool, Store], LoopBackend] = Saboteur
) -> tuple[Any, list[str]]:
    """The server after some rounds, and the notes."""
    notes: list[str] = []
    guard = guard_for(made.method, text, notes.append) if text else None
    task, clients = made.pool.task(), backend(made.pool, MemoryStore())
    server = made.method.init_server(task, key(0))
    for t in range(rounds):
        server, log = run_round(
            made.method, task, clients, server, t=t, seed=0, cohort=task.clients, policy=RoundPolicy(guard=guard)
        )
        assert not log.rejected
    return server, notes


def right(made: Setup, server: Any) -> float:
    """Accuracy of the server's model."""
    predictor, test = method_calls.generic_predictor(made.method, server, made.pool.task()), made.pool.test.all
    assert predictor is not None
    return accuracy(predict(predictor, test.x), test.y)


def test_a_run_keeps_its_accuracy_under_attack() -> None:
    """Of a linear model, whose worst is all signs turned round. Each mean does that, so the number of rounds is odd."""
    made = setup("fedavg", partition="iid", lr=0.1, models=("linear",))
    peace = right(made, attacked(made, None, 5, LoopBackend)[0])
    assert peace > 0.9
    assert right(made, attacked(made, None, 5)[0]) < 0.1
    for text in ("median", "trimmed:0.25", "geometric", "krum:1", "clip:1"):
        assert right(made, attacked(made, text, 5)[0]) > peace - 0.08, text


def test_median_of_prototypes_changes_little_under_attack() -> None:
    made = setup("fedproto", partition="iid")
    honest, _ = attacked(made, None, 1, LoopBackend)
    poisoned, _ = attacked(made, None, 1)
    guarded, notes = attacked(made, "median", 1)
    assert notes == []  # iid: all clients have rows of every class
    assert float((poisoned.means - honest.means).norm()) > 5 * float(honest.means.norm())
    assert float((guarded.means - honest.means).norm()) < 0.2 * float(honest.means.norm())


# -- prototypes -------------------------------------------------------------------------------------------------------


def proto(rows: list[list[float]], n: list[float]) -> Means:
    return Means(torch.tensor(rows), torch.tensor(n))


TABLES = (
    proto([[1, 1], [5, 0], [0, 0]], [1, 1, 0]),
    proto([[2, 3], [7, 0], [0, 0]], [1, 4, 0]),
    proto([[90, 2], [0, 0], [0, 0]], [8, 0, 0]),
)


def merged(text: str, times: int = 1, **settings: Any) -> tuple[Prototypes, list[str]]:
    """The server's prototypes after ``times`` rounds with the same tables, and the notes of the run."""
    method = FedProto(**settings)
    server = Prototypes(torch.tensor([[0.0, 0.0], [0.0, 0.0], [4.0, 4.0]]), torch.tensor([False, False, True]))
    notes: list[str] = []
    guard = guard_for(method, text, notes.append)
    for _ in range(times):
        policy, t = AggregationPolicy(guard, server=server), toy_models.task(toy_models.identity_body(2, 3))
        got = toy_models.aggregate(method, server, list(TABLES), t, policy=policy)
    guard.close(["cat", "dog", "fox"])
    return got, notes


def test_prototypes_are_combined_class_by_class() -> None:
    """Class 0 has (1, 1), (2, 3), (90, 2): medians 2 and 2. Class 1 has 5 and 7: halfway, 6. Class 2 stays."""
    got, notes = merged("median", times=2)
    assert got.means.tolist() == [[2, 2], [6, 0], [4, 4]]
    assert got.seen.tolist() == [True, True, True]
    assert notes == [
        "--robust median: 1 of 3 classes came from too few clients in some rounds to be protected from any one of them "
        "(fewest in brackets): dog (2)."
    ]


def test_prototypes_are_weighted_by_rows_of_the_class() -> None:
    """Rows of class 0: 1, 1, 8, of which 1 counts; of class 1: 1 and 4, of which 1 counts: as if alike."""
    got, notes = merged("median", aggregation="weighted")
    assert got.means.tolist() == [[2, 2], [6, 0], [4, 4]]
    assert "dog (2)" in notes[0]


def test_krum_notes_classes_with_too_few_clients() -> None:
    """It wants 2 * 1 + 3 = 5."""
    assert [note.partition("brackets): ")[2] for note in merged("krum:1")[1]] == ["cat (3), dog (2)."]


def test_note_gives_the_fewest_clients_of_a_class_over_all_rounds() -> None:
    notes: list[str] = []
    guard = RobustAggregation("median", (), notes.append)
    for c, count in ((1, 2), (0, 1), (1, 1), (0, 2)):
        guard.record_unprotected(c, count)
    assert notes == []
    guard.close([str(c) for c in range(4)])
    assert notes[0].endswith(
        "2 of 4 classes came from too few clients in some rounds to be protected from any one of "
        "them (fewest in brackets): 0 (1), 1 (1)."
    )
    many = RobustAggregation("median", (), notes.append)
    for c in range(25):
        many.record_unprotected(c, 1)
    many.close([str(c) for c in range(30)])
    assert notes[1].endswith("19 (1) and 5 more.")


def test_prototypes_are_clipped_around_the_servers() -> None:
    """Around (0, 0) to length 5: class 1 has (5, 0) and (7, 0), which becomes (5, 0)."""
    got, notes = merged("clip:5")
    assert got.means[1].tolist() == [5, 0]
    assert notes == []


# -- notes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rows", "said"),
    [
        ("median", [1, 1, 1], None),
        ("median", [1, 1], "one of 2 clients counts for 50% of it, and the rule withstands less than 50%"),
        ("geometric", [1, 1000, 1], None),  # its rows count for no more than those of the others
        ("geometric", [1000, 1], "one of 2 clients counts for 50%"),
        ("trimmed:0.2", [1] * 5, None),
        ("trimmed:0.2", [1] * 4, "one of 4 clients counts for 25% of it, and the rule withstands 20%"),
        ("trimmed:0", [1] * 50, "counts for 2% of it, and the rule withstands 0%"),
        ("krum:1", [1] * 5, None),
        ("krum:1", [1] * 4, "it comes from 4 clients, and the rule wants 5"),
        ("krum:0", [1], "it comes from 1 client, and the rule wants 3"),
        ("clip:1", [1], None),
    ],
)
def test_weakness_of_a_rule_is_noted_once(text: str, rows: list[float], said: str | None) -> None:
    guarded = Guarded(text, Sent({"w": torch.tensor(0.0)}, torch.tensor(0.0)))
    for _ in range(2):
        mean(guarded(sent(*[1.0] * len(rows), n=rows)), "params", weight="n")
    notes = guarded.notes
    assert len(notes) == (said is not None)
    assert all(note.startswith(f"--robust {text}: the average of params is not guarded in full: ") for note in notes)
    assert said is None or said in notes[0]


def test_note_lists_fields_that_are_not_guarded() -> None:
    up = Update({"w": torch.zeros(1)}, torch.tensor(1.0), {"DW.sum": torch.zeros(1)})
    assert notes_on(up) == ["--robust median: it guards params alone. Not guarded: extra."]


def test_uploads_without_parameters_have_nothing_to_guard() -> None:
    assert notes_on(Update({}, torch.tensor(1.0), {})) == [
        "--robust median: it guards nothing. Not guarded: n.",
        "--robust median: there was nothing to guard: the server averaged no params.",
    ]


def notes_on(upload: Update) -> list[str]:
    """Return the notes of a run whose server averages three copies of an upload."""
    notes: list[str] = []
    guard = RobustAggregation("median", ("params",), notes.append)
    assert mean(Replies([upload] * 3, AggregationPolicy(guard)), "params", weight="n") == upload.params
    guard.close([])
    return notes


def test_run_without_a_round_left_has_no_notes() -> None:
    """As a resumed run that was finished before."""
    notes: list[str] = []
    RobustAggregation("median", ("params",), notes.append).close([])
    assert notes == []


# -- a rule is not lost on the way to a mean --------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [list, iter, tuple])
def test_uploads_that_carry_no_policy_are_refused(lost: Any) -> None:
    """As in an aggregate() that makes a list of its replies: the rule of the round would be lost."""
    with pytest.raises(AtollError, match=r"does not say how .* mean\(replies, 'params'\)"):
        mean(lost(updates(1, 2, 3)), "params")
    with pytest.raises(AtollError, match="does not say how"):
        table_mean(lost(TABLES), "means", "n", torch.zeros(3, 2))


def test_with_policy_of_keeps_the_policy_of_changed_replies() -> None:
    """Of 1, 2 and 60, each doubled, the median is 4; replies and uploads are taken alike."""
    replies = Guarded("median")([Reply("a", up) for up in sent(1.0, 2.0, 60.0)])
    doubled = (Sent({name: 2 * v for name, v in up.params.items()}, up.n) for _, up in replies)

    assert mean(with_policy_of(replies, doubled), "params")["w"].item() == 4
    assert mean(replies, "params")["w"].item() == 2


# -- every method has robust averages, or is refused with the reason --------------------------------------------------


@pytest.mark.parametrize("name", ABLE)
def test_methods_with_guards_follow_the_robust_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that trims nothing, and caps nothing, is the mean again: nothing else about the method has changed."""
    monkeypatch.setattr(robust, "cap_weights", lambda w: w)
    plain, by_median, by_nothing = map(averaged, after_a_round(name, None, "median", "trimmed:0"))
    assert gap_params(plain, by_median) > 1e-4
    assert gap_params(plain, by_nothing) < 1e-5


def averaged(server: Any) -> Params:
    """What the server holds: a model, or prototypes."""
    return server.params if hasattr(server, "params") else {"means": server.means}


class Repeating(LoopBackend):
    """Clients train in the first exchange of each phase, and answer the same ever after: only the server may differ."""

    def train(self, method: Any, seed: int, jobs: Any) -> Any:
        known = self.__dict__.setdefault("known", {})
        if jobs[0].round not in known:
            known[jobs[0].round] = list(super().train(method, seed, jobs))
        yield from known[jobs[0].round]


# Five clients in four clusters would leave no cluster of three, and of two replies the median is the mean.
TOGETHER: dict[str, Any] = {"ifca": {"clusters": 1}}


def after_a_round(name: str, *rules: str | None) -> list[Any]:
    """The server's states that the same uploads lead to under several rules."""
    made = setup(name)
    made = replace(made, method=replace(made.method, **TOGETHER.get(name, {})))
    clients = Repeating(made.pool, MemoryStore())
    return [attacked(made, text, 1, lambda pool, store: clients)[0] for text in rules]


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ABLE])
def test_methods_without_guards_are_refused_and_unchanged_by_a_rule(name: str) -> None:
    made = setup(name)
    with pytest.raises(AtollError, match=f"--robust median replaces averages .* and {name} declares none") as caught:
        check(made.method, made.pool, name, "loop", "median")
    assert f"take one of: {', '.join(ABLE)}." in str(caught.value)
    assert equal(*after_a_round(name, None, "median"))


def test_methods_with_guards_pass_the_compatibility_check() -> None:
    for name in ABLE:
        check(setup(name).method, setup(name).pool, name, "loop", "median")


# -- only declared fields are guarded ---------------------------------------------------------------------------------


@payload
class Steps:
    params: Params = about("the model")
    n: Tensor = about("number of training rows", count=True)
    tau: Params = about("number of local steps")


class Normalising(FedAvg):
    """As FedNova: the server divides by the mean number of steps."""

    traits = Traits(guards=("params",))

    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        kept = with_policy_of(replies, list(replies))
        params, tau = mean(kept, "params", weight="n"), mean(kept, "tau", weight="n")
        return Global(params, tau)


@pytest.mark.parametrize("text", ["median", "clip:1"])
def test_robust_rule_leaves_undeclared_fields_to_the_mean(text: str) -> None:
    """Steps 48, 23 and 9 of rows 1, 2 and 5: (48 + 46 + 45) / 8 = 17.375. Models 0, 1 and 100 are guarded."""
    notes: list[str] = []
    method, values = Normalising(), [(0.0, 1.0, 48.0), (1.0, 2.0, 23.0), (100.0, 5.0, 9.0)]
    uploads = [Steps({"w": torch.tensor(w)}, torch.tensor(n), {"steps": torch.tensor(steps)}) for w, n, steps in values]
    server, guard = Global({"w": torch.tensor(0.0)}, {}), guard_for(method, text, notes.append)

    policy = AggregationPolicy(guard, server=server)
    got = toy_models.aggregate(method, server, uploads, toy_models.task(toy_models.mlp()), policy=policy)
    guard.close([])

    assert got.extra["steps"].item() == 17.375
    assert got.params["w"].item() == pytest.approx({"median": 1.0, "clip:1": 7 / 8}[text])
    assert f"--robust {text}: it guards params alone. Not guarded: tau." in notes


def test_note_lists_no_field_that_a_later_mean_guards() -> None:
    """As FedPAC: a mean of models and one of class tables, both guarded."""
    notes: list[str] = []
    guard = RobustAggregation("median", ("params", "features"), notes.append)
    uploads = [update_with_features(i) for i in range(3)]

    replies = Replies(uploads, AggregationPolicy(guard))
    mean(replies, "params", weight="n")
    table_mean(replies, "features", "counts", torch.zeros(1, 1))
    guard.close(["cat"])

    assert notes == ["--robust median: it guards params and features alone. Not guarded: predictions."]


def update_with_features(i: int) -> Any:
    one = torch.ones(1)
    return fedhkd.Update({"w": i * one}, one[0], one, one[:, None], one[:, None])


def test_undeclared_class_table_is_a_plain_mean() -> None:
    means, mass = table_mean(Guarded("median")(TABLES), "means", "n", torch.zeros(3, 2))
    plain, plain_mass = table_mean(Replies(TABLES), "means", "n", torch.zeros(3, 2))
    assert torch.equal(means, plain)
    assert torch.equal(mass, plain_mass)


def test_declared_field_that_is_never_averaged_is_noted() -> None:
    notes: list[str] = []
    guard = RobustAggregation("median", ("parms",), notes.append)
    mean(Replies(updates(1, 2, 3), AggregationPolicy(guard)), "params", weight="n")
    guard.close([])
    assert notes == [
        "--robust median: it guards nothing. Not guarded: params, n.",
        "--robust median: there was nothing to guard: the server averaged no parms.",
    ]


WRITTEN = """
from atoll.core import Traits
from atoll.methods.fedavg import FedAvg, Global
{above}

class Mine(FedAvg):
    traits = Traits(guards=("params",))

    def aggregate(self, server, replies, task, r, k):
        {inside}
        return Global({call}(replies, "params"), {{}})
"""


@pytest.mark.parametrize(
    ("above", "inside", "call"),
    [
        ("import atoll.aggregation as T", "pass", "T.mean"),
        ("", "from atoll.aggregation import mean as average", "average"),
    ],
)
def test_declared_mean_is_guarded_however_it_was_imported(above: str, inside: str, call: str, tmp_path: Path) -> None:
    """Four honest clients and an outlier, with a user's file that the check lets through."""
    path = tmp_path / "mine.py"
    path.write_text(WRITTEN.format(above=above, inside=inside, call=call))
    made = setup(str(path), partition="iid", robust="median")

    honest, guarded, plain = (
        attacked(made, text, 1, backend)[0]
        for text, backend in ((None, LoopBackend), ("median", Saboteur), (None, Saboteur))
    )

    assert gap_params(honest.params, guarded.params) < 0.1
    assert gap_params(honest.params, plain.params) > 1


class Undeclared(FedAvg):
    def aggregate(self, server: Any, replies: Any, task: Any, r: Any, k: Any) -> Any:
        return super().aggregate(server, replies, task, r, k)


def test_method_without_guards_is_refused_with_the_declaration_to_add() -> None:
    made = setup("fedavg")
    with pytest.raises(AtollError, match="mine declares none") as caught:
        check(Undeclared(), made.pool, "mine", "loop", "median")
    assert "If mine is yours" in str(caught.value)
    assert str(caught.value).endswith("Traits(guards=('params',)).")


class OneName(FedAvg):
    traits = Traits(guards="params")  # type: ignore[arg-type]


def test_guards_that_are_no_tuple_are_refused() -> None:
    with pytest.raises(AtollError, match=r"Write guards=\('params',\)"):
        check(OneName(), setup("fedavg").pool, "mine", "loop", "median")


# -- whole runs -------------------------------------------------------------------------------------------------------


def test_run_with_a_robust_rule_changes_results_and_collects_notes() -> None:
    plain, by_rule = run("fedproto"), run("fedproto", robust="krum:2")
    assert by_rule.summary["digest"] != plain.summary["digest"]
    assert len([note for note in by_rule.notes if "10 of 10 classes came from too few clients" in note]) == 1
    assert not any("--robust" in note for note in plain.notes)


@pytest.mark.parametrize("text", RULES)
def test_every_rule_with_one_client_gives_the_run_without_a_rule(text: str) -> None:
    alone: dict[str, Any] = {"clients": 1, "partition": "iid"}
    assert run("fedavg", **alone, robust=text).summary["digest"] == run("fedavg", **alone).summary["digest"]


def test_robust_run_of_a_method_without_guards_is_refused_at_setup() -> None:
    with pytest.raises(AtollError, match="ktpfl declares none"):
        setup("ktpfl", robust="median")


@pytest.mark.parametrize("name", [name for name in ABLE if name != "fedfed"])
def test_clip_rule_of_every_method_measures_from_its_server_state(name: str) -> None:
    """To a huge norm nothing is clipped; to almost nothing, the average is where the server was."""
    made = without_distillation() if name == "feddf" else setup(name)
    clients = Repeating(made.pool, MemoryStore())
    plain, huge, tiny = (
        averaged(attacked(made, text, 1, lambda pool, store: clients)[0]) for text in (None, "clip:1e9", "clip:1e-9")
    )
    assert gap_params(plain, huge) < 1e-6
    first = averaged(made.method.init_server(made.pool.task(), key(0)))
    assert gap_params(first, tiny) < 1e-6 < gap_params(first, huge)


def without_distillation() -> Setup:
    """FedDF, whose server keeps on training after it has averaged."""
    made = setup("feddf")
    return replace(made, method=make("feddf", {"steps": 0}, optimiser=made.config.optimiser_options))


def test_clip_rule_is_refused_if_the_server_starts_without_the_clients_tensors() -> None:
    """FedFed's clients make up their first autoencoders themselves."""
    with pytest.raises(AtollError, match="the server does not hold the same tensors"):
        setup("fedfed", robust="clip:1")
    with pytest.raises(AtollError, match="the server does not hold the same tensors"):
        attacked(setup("fedfed"), "clip:1", 1, LoopBackend)


@pytest.mark.parametrize(
    ("name", "what"), [("feddf", "public samples, which teach"), ("fedgen", "heads"), ("fedfed", "one pool")]
)
def test_use_of_single_uploads_is_noted(name: str, what: str) -> None:
    notes = run(name, robust="median", rounds=1).notes
    assert len([note for note in notes if "it guards averages alone" in note and what in note]) == 1
