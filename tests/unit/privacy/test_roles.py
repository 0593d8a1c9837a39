"""Roles of the fields of an upload: what differential privacy and the gate take a method's word for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import atoll
from atoll.core.class_statistics import class_means
from atoll.core.client import Client
from atoll.core.contract import contract
from atoll.core.losses import Term
from atoll.core.optim.sgd import SGD
from atoll.core.payloads import Nothing, Params, Role, about, payload
from atoll.core.prng import Key
from atoll.core.regularisers import Regulariser, Regularisers
from atoll.core.schema import constraints_of, declared_constraints
from atoll.core.task import Reply, Round, Task
from atoll.core.traits import Traits
from atoll.engine.result import Result
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods._factory import make
from atoll.methods.fedavg import FedAvg, Global
from atoll.privacy.disclosure import DisclosureControl, Undeclared, count_by_class
from atoll.privacy.policy import Privacy
from atoll.privacy.update_mechanism import UpdateMechanism

CLASSES = 10  # of the digits
DP = {"dp": "8", "dp_seed": 1}
GATED = {"min_class_count": 12}

Made = Callable[[Params, Params, Client], Any]  # an upload, of what was received and the trained model


def sending(kind: type[Any], made: Made) -> Any:
    """Make a method that trains the global model and sends a payload of its own; the server changes nothing."""

    @dataclass(frozen=True)
    class Sending(FedAvg):
        def client_update(self, down: Global, state: Nothing, client: Client, r: Round, k: Key) -> Any:
            return made(down.params, self.train(down, client, k).params, client), state

        def aggregate(self, server: Global, replies: Iterable[Reply[Any]], task: Task, r: Round, k: Key) -> Global:
            return server

        def personal_params(self, down: Global, up: Any, state: Nothing, client: Client) -> Params:
            return down.params

    Sending.client_update.__annotations__["return"] = tuple[kind, Nothing]
    return Sending(optim=SGD(epochs=1))


def run(method: Any, **options: Any) -> Result:
    return atoll.run(method, rows=400, clients=4, partition="dirichlet:0.5", rounds=2, backend="loop", **options)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything that leaves a client in a run, in order."""
    seen: list[Any] = []
    real = Privacy.upload_filter

    def watched(self: Privacy, *given: Any) -> Any:
        seen.append(real(self, *given))
        return seen[-1]

    monkeypatch.setattr(Privacy, "upload_filter", watched)
    return seen


def difference(start: Params, trained: Params) -> Params:
    return {name: trained[name] - start[name] for name in trained}


def test_every_field_of_an_upload_of_the_package_declares_a_role() -> None:
    """Reports of regularisers do so one by one."""
    found = {
        (kind.__name__, f.name)
        for kind in (messages.upload for name in _registry.methods() for messages in contract(make(name)).exchanges)
        for f in fields(kind)
        if f.metadata.get("role") is None
    }

    assert found == {("Update", "extra")}
    for name in ("feddw", "feddistill"):
        reports = [marks for place, marks in constraints_of(make(name)).items() if place.startswith("extra/")]
        assert {marks.role for marks in reports} == {Role.CLASS_TABLE, Role.COUNT}


def test_of_names_a_field_for_models_and_changes_only() -> None:
    with pytest.raises(TypeError, match=r"of='params' is for role=Role.MODEL and role=Role.CHANGE"):
        about("rows", role=Role.WEIGHT, of="params")


# ---------------------------------------------------------------------------------------------------------------------
# Differential privacy


@payload
class Nova:
    params: Params = about("the trained model")
    steps: Tensor = about("how many steps that took []")


@payload
class ModelAndSteps:
    params: Params = about("the trained model", role=Role.MODEL)
    steps: Tensor = about("how many steps that took []", role=Role.OTHER)


@payload
class ModelAndCount:
    params: Params = about("the trained model", role=Role.MODEL)
    n: int = about("number of rows", role=Role.WEIGHT)


@payload
class Weighed:
    params: Params = about("the trained model", role=Role.MODEL)
    n: Tensor = about("number of rows", role=Role.WEIGHT)


@payload
class Unsaid:
    params: Params = about("the change of the model")


@payload
class Difference:
    params: Params = about("the change of the model", role=Role.CHANGE)
    n: Tensor = about("number of rows", role=Role.WEIGHT)


@payload
class Renamed:
    trained: Params = about("the trained model", role=Role.MODEL, of="params")


@payload
class Astray:
    trained: Params = about("the trained model", role=Role.MODEL)


@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        (Nova, lambda start, w, c: Nova(w, c.n), "it declares no role for params and steps of Nova"),
        (Unsaid, lambda start, w, c: Unsaid(difference(start, w)), r"Role.CHANGE for a difference"),
        (ModelAndSteps, lambda start, w, c: ModelAndSteps(w, c.n), "it also uploads steps"),
        (ModelAndCount, lambda start, w, c: ModelAndCount(w, 7), "it also uploads n; only a scalar tensor"),
        (Astray, lambda start, w, c: Astray(w), "its trained is no trained form of trained"),
    ],
)
def test_dp_refuses_an_upload_whose_fields_it_cannot_cover(kind: type[Any], made: Made, message: str) -> None:
    method = sending(kind, made)

    with pytest.raises(AtollError, match=message):
        run(method, **DP)

    assert run(method).summary["status"] == "finished"  # roles are for options that need them


def test_weights_are_one_under_dp(left: list[Any]) -> None:
    run(sending(Weighed, lambda start, w, c: Weighed(w, c.n)), **DP)

    assert [float(up.n) for up in left] == [1.0] * 8  # 4 clients, 2 rounds


def test_change_with_the_name_of_the_model_is_clipped_as_a_change() -> None:
    """A change of 5 in each of 4 numbers has norm 10: clipped to 2, each is 1, whatever the model was."""
    start = Global({"w": torch.full((4,), 100.0)}, {})
    up = Difference({"w": torch.full((4,), 5.0)}, torch.tensor(17.0))

    out = UpdateMechanism(2.0, 1.0).release(start, up, declared_constraints(Difference), silence)

    torch.testing.assert_close(out.params["w"], torch.ones(4))
    assert float(out.n) == 1


def test_a_model_may_have_another_name_than_in_the_download() -> None:
    """From 100 by 5 in each of 4 numbers: clipped to norm 2, each has moved by 1."""
    start = Global({"w": torch.full((4,), 100.0)}, {})

    out = UpdateMechanism(2.0, 1.0).release(
        start, Renamed({"w": torch.full((4,), 105.0)}), declared_constraints(Renamed), silence
    )

    torch.testing.assert_close(out.trained["w"], torch.full((4,), 101.0))


def test_changes_and_renamed_models_run_under_dp() -> None:
    change = sending(Difference, lambda start, w, c: Difference(difference(start, w), c.n))
    renamed = sending(Renamed, lambda start, w, c: Renamed(w))

    for method in (change, renamed):
        assert run(method, **DP).summary["privacy"]["dp"]["mechanism"] == "updates"


def silence(shape: tuple[int, ...]) -> Tensor:
    """No noise."""
    return torch.zeros(shape, dtype=torch.double)


@payload
class Plain:
    means: Tensor = about("mean feature of each class [C, d]", rows="n")
    n: Tensor = about("rows of each class [C]", count=True)


@payload
class Dated:
    means: Tensor = about("mean feature of each class [C, d]", role=Role.CLASS_TABLE, rows="n")
    n: Tensor = about("rows of each class [C]", role=Role.COUNT, count=True)
    epochs: int = about("epochs")


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [(Plain, (), "it uploads means and n beside"), (Dated, (3,), "it uploads epochs beside")],
)
def test_dp_refuses_statistics_that_do_not_declare_their_roles(kind: type[Any], more: Any, message: str) -> None:
    method = sending(kind, lambda start, w, c: kind(*reversed(class_means(c.features(w), c.members())), *more))
    type(method).traits = Traits(bounded_statistics=True)

    with pytest.raises(AtollError, match=message):
        run(method, **DP)


# ---------------------------------------------------------------------------------------------------------------------
# The gate


def shares(start: Params, w: Params, c: Client) -> Tensor:
    """Class means times the share of each class [C, d]."""
    n, means = class_means(c.features(w), c.members())
    return means * (n / c.n)[:, None]


@payload
class Open:
    h: Tensor = about("class means times shares [C, d]")


@payload
class Table:
    params: Params = about("the trained model", role=Role.MODEL)
    h: Tensor = about("class means times shares [C, d]", role=Role.CLASS_TABLE)
    steps: Tensor = about("steps of training []", role=Role.OTHER)


@payload
class Tables:
    h: Params = about("tables of classes [C, d], by name", role=Role.CLASS_TABLE)
    n: Tensor = about("number of rows", role=Role.COUNT)
    counts: Tensor = about("rows of each class [C]", role=Role.COUNT)


@payload
class Declared:
    h: Tensor = about("something of as many rows as there are classes [C, d]", role=Role.OTHER)


@payload
class Short:
    h: Tensor = about("a table of too few rows", role=Role.CLASS_TABLE)


@payload
class Weights:
    w: Tensor = about("a weight for each class [C]", role=Role.WEIGHT)


@payload
class Late:
    h: Tensor | None = about("class means times shares [C, d], from the second round on")


@payload
class Loose:
    h: Params = about("what there is")


@pytest.mark.parametrize(
    ("kind", "made", "message"),
    [
        (Open, lambda start, w, c: Open(shares(start, w, c)), "field h of Open has as many rows as there are classes"),
        (Nova, lambda start, w, c: Nova(w, c.n), "field params/.* of Nova declares no role"),
        (Short, lambda start, w, c: Short(torch.ones(3, 2)), f"has 3 rows for {CLASSES} classes"),
        (Weights, lambda start, w, c: Weights(torch.ones(CLASSES)), "Role.WEIGHT, which is for scalars"),
        (Late, lambda start, w, c: Late(None), "field h of Late declares no role"),
        (Loose, lambda start, w, c: Loose({"a": torch.ones(3)}), "field h/a of Loose declares no role"),
    ],
)
def test_gate_refuses_an_upload_without_declared_roles(kind: Any, made: Made, message: str) -> None:
    method = sending(kind, made)

    with pytest.raises(Undeclared, match=message):
        run(method, **GATED)

    assert run(method).summary["status"] == "finished"


def test_gate_refuses_an_undeclared_field_of_later_rounds() -> None:
    """The dry run before the run saw an empty dictionary."""
    upload = Loose({"a": torch.ones(CLASSES, 2)})

    with pytest.raises(Undeclared, match="as many rows as there are classes"):
        DisclosureControl(1).filter_upload(upload, torch.full((CLASSES,), 5.0), declared_constraints(Loose))


def test_gate_removes_classes_from_a_table_without_marker(left: list[Any]) -> None:
    result = run(sending(Table, lambda start, w, c: Table(w, shares(start, w, c), c.n)), **GATED)

    counts = torch.stack([count_by_class(result.pool.client(i)) for i in result.pool.ids])
    assert bool(((counts > 0) & (counts < 12)).any())
    for up, own in zip(left, counts.repeat(2, 1), strict=True):
        assert not up.h[own < 12].any()
        assert bool(up.h[own >= 12].any(1).all())
    gate = result.summary["privacy"]["gate"]
    assert (gate["covers"], gate["passes"]) == (["h"], ["params", "steps"])
    assert gate["withheld"] > 0
    acted, passed = result.summary["privacy"]["statement"]
    assert acted.startswith("The gate acted on h:")
    assert passed.startswith("The gate let params (model), steps (other) pass unchanged")


def test_tables_in_a_dictionary_and_counts_without_marks_are_covered() -> None:
    """Of 3 + 20 rows in two classes the 3 stay at home: the number of rows beside the counts is then 20."""
    counts = torch.tensor([3.0, 20.0])
    upload = Tables({"a": torch.ones(2, 2)}, torch.tensor(23.0), counts)

    passed = DisclosureControl(10).filter_upload(upload, counts, declared_constraints(Tables))

    assert passed.h["a"].tolist() == [[0, 0], [1, 1]]
    assert (float(passed.n), passed.counts.tolist()) == (20, [0, 20])


def test_field_with_role_other_passes_and_is_recorded() -> None:
    method = sending(Declared, lambda start, w, c: Declared(shares(start, w, c)))

    privacy = run(method, **GATED).summary["privacy"]

    assert (privacy["gate"]["covers"], privacy["gate"]["passes"]) == ([], ["h"])
    assert "h (other)" in privacy["statement"][0]


class Silent(Regulariser):
    """Reports a table of classes and says nothing of it."""

    marks: ClassVar[dict[str, Any]] = {}

    def bind(self, sent: Params, anchor: Params, client: Client) -> Term:
        return lambda step: torch.zeros(())

    def report(self, params: Params, client: Client) -> Params:
        return {"table": torch.ones(client.num_classes, 2)}


class Outspoken(Silent):
    marks: ClassVar[dict[str, Any]] = {"table": {"role": Role.CLASS_TABLE}}


def test_a_report_of_a_regulariser_is_covered_once_it_is_declared() -> None:
    with pytest.raises(Undeclared, match=r"field extra/Silent.table .* in the marks of a regulariser"):
        run(FedAvg(regularisers=Regularisers([Silent()])), **GATED)

    gate = run(FedAvg(regularisers=Regularisers([Outspoken()])), **GATED).summary["privacy"]["gate"]

    assert (gate["covers"], gate["passes"]) == (["extra/Outspoken.table"], ["n", "params"])
