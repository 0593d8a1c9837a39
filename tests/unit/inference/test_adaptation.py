"""New clients after a run: every method serves them from the server's state, or is refused with a reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Atoll

import atoll as package
from atoll.api import run
from atoll.config import Config
from atoll.core.prng import key
from atoll.core.serialization import digest
from atoll.core.task import Round
from atoll.data.dataset import Dataset
from atoll.data.loading import load
from atoll.engine.build import run_experiment
from atoll.engine.result import Result
from atoll.engine.setup import build_setup
from atoll.errors import AtollError
from atoll.inference.adaptation import adapt, read_shots
from atoll.inference.adaptation_files import open_adapted
from atoll.inference.adaptation_result import Adaptation
from atoll.methods import _registry
from benchmarks.digests import short_options

SMALL: dict[str, Any] = {
    "clients": 4, "new_clients": 1, "rows": 400, "rounds": 1, "epochs": 1, "models": "mlp:hidden=16", "backend": "loop",
}  # fmt: skip
CLOSED = {"fedamp", "fedmd", "fedpac", "ktpfl"}


def short(name: str) -> Result:
    options = SMALL | short_options(name)
    if name == "fedfed":  # so that features are shared by the end
        options |= {"settings": {"distil_rounds": 0}}
    return run_experiment(build_setup(Config(method=name, **options)))


def predictions(made: Adaptation) -> torch.Tensor:
    i = made.models.client(None)
    x = made.models.pool.test[0].x
    with torch.no_grad():
        return made.models.personal(i)(x)


def without_knowledge(result: Result) -> Result:
    """The same run, as if its server were where it began."""
    setup = result.setup
    with torch.no_grad():
        first = setup.method.init_server(setup.pool.task(), key(setup.config.seed, "init", "server"))
    return replace(result, server=first)


@pytest.mark.parametrize("name", [n for n in _registry.methods() if n not in CLOSED])
def test_new_clients_use_the_server_state_without_changing_it(name: str) -> None:
    result = short(name)
    before = digest(result.server)
    made = adapt(result, shots=5)
    assert digest(result.server) == before
    (row,) = made.to_table().to_pylist()
    assert row["client"] == "3"  # the one that stayed out
    assert 0 <= row["personal"] <= 1
    assert (row["shared"] is None) == (result.generic() is None)
    assert row["epochs_alone"] >= 1
    known, unknowing = predictions(made), predictions(adapt(without_knowledge(result), shots=5))
    assert torch.equal(known, unknowing) == (name == "local")


@pytest.mark.parametrize(
    ("name", "reason"), [("fedmd", "consensus"), ("ktpfl", "each client of the run"), ("fedpd:v1", "mean of features")]
)
def test_methods_without_lasting_knowledge_say_so(name: str, reason: str) -> None:
    options = SMALL | short_options(name.partition(":")[0]) | {"models": ("mlp:hidden=16",)}
    made = build_setup(Config(method=name, **options))
    with pytest.raises(AtollError, match=f"nothing for clients that come after the run: .*{reason}"):
        adapt(Result(made, {"rounds": 1}, [], None, None, None, None, []))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------------
# One run in a directory


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, module_without_report: None) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("host") / "fedavg"
    return folder, run("fedavg", out=folder, **{**SMALL, "clients": 6, "new_clients": 2})


def test_last_clients_are_held_out_of_the_run(host: tuple[Path, Result]) -> None:
    """Four of six clients train and are measured; the two others are those of the same partition without the option."""
    folder, result = host
    all_clients = build_setup(replace(result.setup.config, new_clients=0)).federation
    assert result.pool.ids == all_clients.clients[:4]
    assert {row["client"] for row in result.clients} == set(all_clients.clients[:4])
    assert json.loads((folder / "holdings.json").read_text())["clients"] == list(all_clients.clients[:4])
    guests = adapt(folder, shots="all")
    assert guests.models.clients == all_clients.clients[4:]
    for at in (0, 1):
        assert guests.table["rows"][at].as_py() == len(all_clients.train[4 + at])
        assert len(guests.models.pool.test[at].y) == len(all_clients.test[4 + at])


def test_new_client_of_fedavg_trains_the_server_model_on_its_rows(host: tuple[Path, Result]) -> None:
    """What the method does in one round, called by hand, for as many passes as asked for."""
    result = host[1]
    made = adapt(host[0], epochs=2)
    i = made.models.clients[0]
    method = replace(result.setup.method, optim=replace(result.setup.method.optim, epochs=2))  # type: ignore[type-var,attr-defined]
    with torch.no_grad():
        up, _ = method.client_update(result.server, None, made.models.pool.client(i), Round(0), key(0, "adapt", 0, i))
    params = made.models.params(i)
    assert all(torch.equal(params[name], v) for name, v in up.params.items())
    assert made.table["epochs_alone"].to_pylist() == [2, 2]


def test_shared_score_is_that_of_the_server_model(host: tuple[Path, Result]) -> None:
    folder, result = host
    made, generic = adapt(folder), result.generic()
    assert generic is not None
    for at, row in enumerate(made.table.to_pylist()):
        x, y = made.models.pool.test[at]
        with torch.no_grad():
            assert row["shared"] == pytest.approx((generic(x).argmax(1) == y).double().mean().item())


def test_shots_are_rows_of_each_class_and_nested(host: tuple[Path, Result]) -> None:
    made = adapt(host[0], shots=[3, 1, "all"], repeats=2)
    assert made.plan.shots == (1, 3, None)
    counts = made.models.pool.train[0].y.bincount()
    rows = [row for row in made.table.to_pylist() if row["client"] == made.models.clients[0]]
    expected = {str(k): int(counts.clamp(max=k).sum()) for k in (1, 3)} | {"all": int(counts.sum())}
    assert [(r["shots"], r["repeat"], r["rows"]) for r in rows] == [
        (shots, repeat, expected[shots]) for repeat in (0, 1) for shots in ("1", "3", "all")
    ]
    one, three = (adapt(host[0], shots=k).models.source(made.models.clients[0])[3] for k in (1, 3))
    held = {tuple(x.flatten().tolist()) for x in three.x}
    assert all(tuple(x.flatten().tolist()) in held for x in one.x)


def test_curve_is_the_mean_over_new_clients_with_deviation_over_repeats(host: tuple[Path, Result]) -> None:
    made = adapt(host[0], shots=2, repeats=2)
    means = [
        np.mean([r["personal"] for r in made.table.to_pylist() if r["repeat"] == repeat]).item() for repeat in (0, 1)
    ]
    (point,) = made.curve()
    assert point.personal.mean == pytest.approx(sum(means) / 2)
    assert point.personal.std == pytest.approx(abs(means[0] - means[1]) / 2**0.5)


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "1,none"])
def test_malformed_shots_are_refused(text: str) -> None:
    with pytest.raises(AtollError, match="--shots wants"):
        read_shots(text)


# ---------------------------------------------------------------------------------------------------------------------
# Data of their own


def test_classes_of_new_clients_are_matched_by_name(host: tuple[Path, Result], tmp_path: Path) -> None:
    """Rows of sevens and threes alone are numbered 0 and 1 by their file, and 3 and 7 by the run."""
    digits = load("digits")
    chosen = np.isin(digits.y_train, (3, 7))
    np.savez(tmp_path / "mine.npz", x=digits.x_train[chosen], y=digits.y_train[chosen])
    made = adapt(host[0], str(tmp_path / "mine.npz"))
    assert set(made.models.pool.train[0].y.tolist()) == {3, 7}
    assert made.models.clients == ("new-0",)  # the run has a client 0 of its own
    assert made.notes == ()


def test_owners_are_new_clients_unless_a_partition_is_given(host: tuple[Path, Result]) -> None:
    digits = load("digits")
    owners = np.array(["north", "south"])[np.arange(len(digits.y_train)) % 2]
    empty = np.array([], dtype=str)
    owned = replace(digits, x_test=digits.x_test[:0], y_test=digits.y_test[:0], owner_train=owners, owner_test=empty)
    assert adapt(host[0], owned, shots=1).models.clients == ("north", "south")
    assert len(adapt(host[0], owned, shots=1, clients=3, partition="dirichlet:1").models.clients) == 3


def test_note_warns_if_new_clients_have_rows_of_the_run(host: tuple[Path, Result]) -> None:
    same = host[1].setup.federation.dataset
    assert "have trained on its samples" in adapt(host[0], same, shots=1).notes[0]


def test_data_of_another_kind_or_with_unknown_classes_are_refused(host: tuple[Path, Result]) -> None:
    x, y = np.zeros((20, 4), np.float32), np.arange(20) % 2
    wide = Dataset("wide", "table", x, y, x[:0], y[:0], ("0", "1"))
    with pytest.raises(AtollError, match="table samples of shape"):
        adapt(host[0], wide)
    x = np.zeros((20, 1, 8, 8), np.uint8)
    strange = Dataset("strange", "image", x, y, x[:0], y[:0], ("0", "ten"))
    with pytest.raises(AtollError, match=r"Unknown class 'ten' in the data 'strange'"):
        adapt(host[0], strange)


def test_run_without_held_out_clients_is_refused_with_a_remedy(tmp_path: Path) -> None:
    result = run("local", **{**SMALL, "new_clients": 0})
    with pytest.raises(AtollError, match=r"No client was held out of this run.*--new-clients N"):
        adapt(result)
    with pytest.raises(AtollError, match="of 4 clients, 1 to 3 can stay out"):
        run("local", **{**SMALL, "new_clients": 4})


# ---------------------------------------------------------------------------------------------------------------------
# The command


def test_command_writes_scores_curve_and_models(host: tuple[Path, Result], atoll: Atoll, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    shown = atoll("adapt", host[0], "--new-clients", "--shots", "2,5", "--repeats", "2", "--out", folder)
    assert "fedavg: 2 new clients" in shown.stdout
    assert {"adapt.json", "adapt.csv", "adapt.png", "adapt.svg"} <= {path.name for path in folder.iterdir()}
    told = json.loads((folder / "adapt.json").read_text())
    assert [point["shots"] for point in told["curve"]] == ["2", "5"]
    assert len((folder / "adapt.csv").read_text().splitlines()) == 1 + 2 * 2 * 2
    same = json.loads(atoll("adapt", host[0], "--new-clients", "--shots", "2,5", "--repeats", "2", "--json").stdout)
    assert same["curve"] == told["curve"]
    again, made = open_adapted(folder), adapt(host[0], shots="2,5", repeats=2)
    for at, i in enumerate(again.clients):
        x = made.models.pool.test[at].x
        with torch.no_grad():
            assert torch.equal(again.personal(i)(x), made.models.personal(i)(x))
    whose = again.clients[0]
    assert "class" in atoll("predict", folder, "--client", whose).stdout
    assert "checked on" in atoll("export", folder, "--client", whose, "--out", tmp_path / "export").stdout


def test_prototypes_of_few_rows_predict_the_same_when_opened_again(tmp_path: Path, without_report: None) -> None:
    """FedProto asks which classes a client holds: those among the rows that it learnt from."""
    folder = tmp_path / "run"
    run("fedproto", out=folder, **SMALL, settings={"readout": "prototype", "proto_own_classes": True})
    made = adapt(folder, shots=1, out=tmp_path / "later")
    again = open_adapted(tmp_path / "later")
    assert torch.equal(predictions(made), again.personal("3")(again.pool.test[0].x))
    assert len(again.source("3")[3].y) == made.table["rows"][0].as_py()


def test_command_requires_either_data_or_new_clients(host: tuple[Path, Result], refused: Any) -> None:
    assert "Give either --data" in refused("adapt", host[0])
    assert "Give either --data" in refused("adapt", host[0], "--new-clients", "--data", "digits")
    assert "setting 'lam' of fedavg" in refused("adapt", host[0], "--new-clients", "--set", "lam=1", "--out", "new")


def test_adapt_from_python_returns_repr_html_and_plot(host: tuple[Path, Result]) -> None:
    made = package.adapt(host[0], shots="1,all")
    assert repr(made).startswith("<Adaptation fedavg: 2 new clients, personal ")
    assert made._repr_html_().count("<tr>") == 3
    assert len(made.plot().axes[0].get_lines()) >= 3
