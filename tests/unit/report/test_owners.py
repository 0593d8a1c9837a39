"""What owners gain over training alone, by hand numbers."""

from pathlib import Path

import pytest
from support.run_files import make_run

from atoll.errors import AtollError
from atoll.report import figures, plots
from atoll.report.figures.base import by_case
from atoll.report.groups import groups
from atoll.report.html import render
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
    assert [round(gap, 6) for gap in gains.by_owner.values()] == [-1.0] * 4 + [5.0] * 4
    # Ranks of losses 2.5, of gains 6.5. Of 256 choices of signs, 36 have a sum of at most 10, and 36 of at least 26.
    assert gains.p == pytest.approx(72 / 256)
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


def test_report_shows_gains_of_clients_first(tmp_path: Path) -> None:
    """Of eight bars of the panel four lose, and its title has the mean."""
    runs = [
        run(tmp_path, "local", 0, 0.70), run(tmp_path, "fedgh", 0, 0.75),
        run(tmp_path, "local", 1, 0.70), run(tmp_path, "fedgh", 1, 0.69),
    ]  # fmt: skip

    page = render(runs, tmp_path)
    (ax,) = figures.draw("gains", runs).axes

    assert page.index('id="gains"') < page.index('id="comparison"')
    assert [round(bar.get_height(), 6) for bar in ax.patches] == [-1.0] * 4 + [5.0] * 4  # type: ignore[attr-defined]
    assert {text.get_text() for text in ax.texts} == {"4 lose", "4 gain"}
    assert ax.get_title(loc="left").startswith("fedgh: +2.00, p ")


def test_few_named_clients_have_the_same_order_in_all_panels() -> None:
    """With the second method south gains 2 and north 1; the first method has them the other way round."""
    found = [plots.Gains("a", {"south": -1.0, "north": 3.0}), plots.Gains("b", {"north": 1.0, "south": 2.0})]

    panels = plots.gains(found, "gain").axes

    assert [[label.get_text() for label in ax.get_xticklabels()] for ax in panels] == [["south", "north"]] * 2
    assert [[bar.get_height() for bar in ax.patches] for ax in panels] == [[-1, 3], [2, 1]]  # type: ignore[attr-defined]


def test_gains_need_a_run_that_trained_alone(tmp_path: Path) -> None:
    runs = [run(tmp_path, "fedgh", 0, 0.75)]

    assert 'id="gains"' not in render(runs, tmp_path)
    with pytest.raises(AtollError, match="Add the method local"):
        figures.make_figures([figures.parse_request("gains")], by_case(runs))
