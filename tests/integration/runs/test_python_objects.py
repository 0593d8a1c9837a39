"""Data, networks and methods that a user gives as Python objects."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import atoll
from atoll.config.python_words import to_python
from atoll.core.method import Method
from atoll.core.model import Predictor
from atoll.data.objects import make_dataset
from atoll.errors import AtollError
from atoll.methods.ditto import Ditto
from atoll.methods.fedavg import FedAvg

SHORT: dict[str, Any] = {"clients": 3, "rounds": 1}
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(90, 4)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
AGE = np.round(X[:, 0].astype(float) * 8) / 8  # exact in a text file
TABLE = {"age": AGE, "sex": np.where(X[:, 2] > 0, "f", "m"), "ward": np.repeat(["a", "b", "c"], 30), "label": Y}


class Pairs(torch.utils.data.Dataset[Any]):
    """A map-style data set without tensors of its own."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(X[at]), int(Y[at])


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        (X.tolist(), Y.tolist()),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Pairs(),
        Subset(Pairs(), range(90)),
    ],
    ids=["arrays", "tensors", "lists", "TensorDataset", "pairs", "Subset"],
)
def test_rows_and_labels_of_any_form_give_the_same_data_set(data: Any) -> None:
    made = make_dataset(data)

    assert made.kind == "table"
    np.testing.assert_allclose(made.x_train, X, rtol=1e-6)
    assert made.y_train.tolist() == Y.tolist()
    assert len(made.y_test) == 0


def test_four_arrays_are_training_and_test_rows() -> None:
    made = make_dataset((X[:60], Y[:60], X[60:], Y[60:]))

    assert (len(made.y_train), len(made.y_test)) == (60, 30)


def test_images_of_a_torch_data_set_have_channels_first() -> None:
    images = torch.zeros(6, 3, 4, 4)  # Read with channels last, these would be images of 3 by 4 with 4 channels.

    assert make_dataset(TensorDataset(images, torch.arange(6))).shape == (3, 4, 4)


def test_mapping_of_clients_names_the_owner_of_each_row() -> None:
    made = make_dataset({"north": (X[:40], Y[:40]), "south": (X[40:], Y[40:])})
    result = atoll.run("fedavg", {"north": (X[:40], Y[:40]), "south": (X[40:], Y[40:])}, rounds=1)

    assert made.owner_train is not None
    assert made.owner_train.tolist() == ["north"] * 40 + ["south"] * 50
    assert result.pool.ids == ("north", "south")


def test_columns_of_a_table_are_read_like_those_of_a_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TABLE)
    frame.to_csv(tmp_path / "table.csv", index=False)
    options: dict[str, Any] = {"rounds": 2}

    from_file = atoll.run("fedavg", f"{tmp_path / 'table.csv'}?owner=ward", **options)
    from_frame = atoll.run("fedavg", make_dataset(frame, owner="ward"), **options)
    from_arrow = atoll.run("fedavg", make_dataset(pa.table(TABLE), owner="ward"), **options)
    by_ward = {ward: rows.drop(columns="ward") for ward, rows in frame.groupby("ward")}
    from_mapping = atoll.run("fedavg", by_ward, **options)

    wanted = from_file.summary["digest"]
    assert [r.summary["digest"] for r in (from_frame, from_arrow, from_mapping)] == [wanted] * 3


def test_hugging_face_data_are_read_by_their_columns() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"a": X[:, 0].tolist(), "b": X[:, 1].tolist(), "label": Y.tolist()})

    whole, parts = make_dataset(rows), make_dataset(rows.train_test_split(0.5, shuffle=False))
    texts = make_dataset(datasets.Dataset.from_dict({"text": ["good film", "bad film"], "label": [1, 0]}))

    assert (whole.kind, len(whole.y_train), len(whole.y_test)) == ("table", 90, 0)
    assert (len(parts.y_train), len(parts.y_test)) == (45, 45)
    assert texts.kind == "text"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (7, "data is of type int. Give a name or a path; (X, y)"),
        ((X, Y[:5]), "90 samples but 5 labels"),
        ({}, "The mapping of clients is empty"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, "samples of the clients have different shapes (a: (4,); b: (2,))"),
        (TensorDataset(torch.zeros(3)), "a sample has 1 parts"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "samples have different shapes"),
    ],
)
def test_data_of_another_form_are_refused_in_one_sentence(data: Any, says: str) -> None:
    with pytest.raises(AtollError) as refused:
        atoll.run("fedavg", data, **SHORT)

    assert says in str(refused.value)


# -- methods and networks ---------------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_network_without_named_parts_is_split_at_its_last_layer() -> None:
    result = atoll.run("fedper", (X, Y), network(), **SHORT)

    assert result.pool.models["0"].net.get_submodule("head").out_features == 2  # type: ignore[union-attr]


def test_network_that_cannot_read_the_rows_is_refused() -> None:
    with pytest.raises(AtollError, match=r"Sequential .*mat1 and mat2 shapes"):
        atoll.run("fedavg", (X[:, :3], Y), network(), **SHORT)


def test_comparison_takes_methods_data_and_networks_as_objects(tmp_path: Path) -> None:
    found = atoll.run_compare(
        {"weak": Ditto(lam=0.0), "strong": Ditto(lam=5.0)}, (X, Y), network(), workers=2, out=tmp_path / "both", **SHORT
    )
    alone = atoll.run(Ditto(lam=5.0), (X, Y), network(), **SHORT)

    digests = {run.label: run.summary["digest"] for run in found.runs}
    assert digests["strong"] == alone.summary["digest"] != digests["weak"]
    assert (tmp_path / "both" / "report.html").exists()


def test_comparison_takes_names_beside_objects() -> None:
    found = atoll.run_compare([FedAvg(), "local"], (X, Y), **SHORT)

    assert {run.label for run in found.runs} == {"fedavg", "local"}


def test_two_methods_of_one_class_need_names() -> None:
    with pytest.raises(AtollError, match="Two methods are called 'ditto'"):
        atoll.run_compare([Ditto(lam=0.1), Ditto(lam=1.0)], (X, Y), **SHORT)


def test_sweep_takes_a_method_as_object_and_returns_numbers() -> None:
    data = (np.tile(X, (4, 1)), np.tile(Y, 4))

    found = atoll.run_sweep(Ditto(), {"lam": [0.1, 5]}, data, **SHORT)
    alone = atoll.run(Ditto(lam=5.0), data, **SHORT)

    assert found.best.point["lam"] in (0.1, 5)
    assert {trial.point["lam"]: trial.test for trial in found.tried}[5] == alone.summary["personal"]["best_by_val"]


def test_frames_of_runs_and_comparisons_have_the_same_unit() -> None:
    result = atoll.run("fedavg", (X, Y), **SHORT)
    found = atoll.run_compare(["fedavg"], (X, Y), **SHORT)

    assert found.to_table()["final"].to_pylist() == result.to_table()["personal"].to_pylist()[-1:]


# -- models and options -----------------------------------------------------------------------------------------------


def test_personal_model_is_a_module_with_its_weights(tmp_path: Path) -> None:
    result = atoll.run("fedavg_ft", (X, Y), **SHORT)
    model = result.personal(1)
    torch.save(model.state_dict(), tmp_path / "model.pt")

    again = atoll.run("fedavg_ft", (X, Y), clients=3, rounds=2, seed=1).personal("1")
    again.load_state_dict(torch.load(tmp_path / "model.pt"))

    x = torch.from_numpy(X)
    assert isinstance(model, nn.Module)
    assert not model.training
    assert torch.equal(again(x), result.personal("1")(x))


def test_method_that_predicts_by_prototypes_gives_a_module_too() -> None:
    result = atoll.run("fedproto", (X, Y), **SHORT)
    model: Predictor = result.personal(0)

    assert isinstance(model, nn.Module)
    assert "network.head.weight" in model.state_dict()
    assert model(torch.from_numpy(X)).shape == (90, 2)


def test_personal_model_of_an_unknown_client_names_the_known_ones() -> None:
    with pytest.raises(AtollError, match=r"Unknown client '99'. Known: 0, 1, 2."):
        atoll.run("fedavg", (X, Y), **SHORT).personal(99)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ({"rouds": 2}, "Unknown option 'rouds'. Did you mean 'rounds'?"),
        ({"lam": 2}, "'lam' is a setting of ditto, not an option of runs: write settings={'lam': 2}."),
        ({"set": {"lam": 2}}, "In Python, write settings={'lam': 0.5}."),
        ({"with": ["proximal"]}, "In Python, write terms=['dw:mu=0.1']."),
        ({"rounds": -1}, "rounds must be at least 1, not -1."),
        ({"task": "classes", "models": ["mlp", "mlp:hidden=8"]}, "models, adapter and columns give mlp, mlp:hidden=8"),
    ],
)
def test_unknown_option_says_what_to_write(option: dict[str, Any], says: str) -> None:
    with pytest.raises(AtollError) as refused:
        atoll.run("ditto", (X, Y), **option)

    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("Add --width 32, or choose models that agree.", "Add width=32, or choose models that agree."),
        ("Predict numbers with --task regression.", "Predict numbers with task='regression'."),
        ("Use --partition dirichlet:0.5.", "Use partition='dirichlet:0.5'."),
        ("Repeat it with --new-clients N.", "Repeat it with new_clients=N."),
        ("Add --force, or choose another --out.", "Add force=True, or choose another out."),
        ("Write --with dw:mu=VALUE.", "Write terms='dw:mu=VALUE'."),
        ("Continue with `atoll run --resume runs/a`.", "Continue with `atoll run --resume runs/a`."),
        ("pip install --quiet", "pip install --quiet"),
    ],
)
def test_errors_in_python_name_arguments_and_not_options(message: str, says: str) -> None:
    assert to_python(message) == says


def test_data_that_are_a_list_of_numbers_are_refused_with_the_forms() -> None:
    with pytest.raises(AtollError, match=r"a list of numbers. Give .*\(X, y\)"):
        atoll.run("fedavg", [1, 2, 3])


def test_method_class_in_place_of_an_object_is_refused() -> None:
    with pytest.raises(AtollError, match=r"FedAvg is a class. Give an object of it: FedAvg\(...\)"):
        atoll.run(FedAvg, (X, Y), **SHORT)  # type: ignore[arg-type]


@dataclass
class Counting(Method[Any, Any, Any, Any]):
    rounds: int = 0


class Undecorated(Method[Any, Any, Any, Any]):
    pass


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (
            Counting(),
            r"Counting must be frozen: write @dataclass\(frozen=True\) above it. What a method notes in itself",
        ),
        (Undecorated(), r"Undecorated must be a dataclass: write @dataclass\(frozen=True\)"),
        (3, r"3 is no method. Give a name such as 'fedavg', or an object such as FedAvg\(\)"),
        (None, "None is no method"),
    ],
)
def test_object_that_is_no_frozen_method_is_refused_by_name(method: Any, says: str) -> None:
    with pytest.raises(AtollError, match=says):
        atoll.run(method, (X, Y), **SHORT)


def test_payloads_print_shapes_and_no_numbers() -> None:
    shown = repr(atoll.run("fedavg", (X, Y), **SHORT).server)

    assert re.fullmatch(r"Global\(params=\{\d tensors, [\d,]+ numbers\}, extra=\{0 tensors, 0 numbers\}\)", shown), (
        shown
    )
