"""What owners gain over training alone, by hand numbers."""

from pathlib import Path

import pytest
from support.run_files import make_run

from atoll.report.groups import groups
from atoll.report.owners import compare_with_alone, describe_gains
from atoll.storage.run_reader import Run, load


def run(folder: Path, label: str, seed: int, best: float, **more: object) -> Run:
    """Return a run whose first client has the score ``best`` in the selected round, and others a little more."""
    return load(make_run(folder / f"{label}-{seed}", label, seed, accuracies=(0.5, best, 0.6), **more))  # type: ignore[arg-type]


def test_gains_are_counted_over_owners_of_all_seeds(tmp_path: Path) -> None:
    """Four owners gain 5 points with seed 0, and lose 1 point with seed 1: of divided data, eight owners."""
    runs = [
        run(tmp_path, "local", 0, 0.70), run(tmp_path, "fedgh", 0, 0.75),
        run(tmp_path, "local", 1, 0.70), run(tmp_path, "fedgh", 1, 0.69),
    ]  # fmt: skip

    (gains,) = compare_with_alone(groups(runs))

    assert (gains.method, gains.owners, gains.gain, gains.lose) == ("fedgh", 8, 4, 4)
    assert gains.mean == pytest.approx(2.0)
    assert -1 <= gains.low < 2 < gains.high <= 5
    assert describe_gains(gains, percent=True).startswith(
        "With fedgh, 4 of 8 owners gain over training alone and 4 lose: +2.00 points on average (95 % interval"
    )


def test_natural_owners_are_the_same_under_every_seed(tmp_path: Path) -> None:
    """The mean over seeds of +5 and -1 is +2 for each of four owners."""
    more = {"partition": "natural"}
    runs = [
        run(tmp_path, "local", 0, 0.70, **more), run(tmp_path, "fedgh", 0, 0.75, **more),
        run(tmp_path, "local", 1, 0.70, **more), run(tmp_path, "fedgh", 1, 0.69, **more),
    ]  # fmt: skip

    (gains,) = compare_with_alone(groups(runs))

    assert (gains.owners, gains.gain, gains.lose) == (4, 4, 0)
    assert gains.mean == pytest.approx(2.0)


def test_without_training_alone_there_is_no_comparison(tmp_path: Path) -> None:
    assert compare_with_alone(groups([run(tmp_path, "fedgh", 0, 0.75)])) == []
