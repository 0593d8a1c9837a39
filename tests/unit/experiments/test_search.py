"""Search strategies: axes, grids and random points."""

import pytest

from atoll.errors import AtollError
from atoll.experiments.search import Grid, Random, parse_axis


def test_grid_contains_every_combination() -> None:
    (points,) = Grid([parse_axis("lam=0.1,1"), parse_axis("lr=0.01,0.05,0.1")]).batches()
    assert [(p["lam"], p["lr"]) for p in points] == [
        ("0.1", "0.01"), ("0.1", "0.05"), ("0.1", "0.1"), ("1", "0.01"), ("1", "0.05"), ("1", "0.1")
    ]  # fmt: skip


def test_range_over_powers_of_ten_is_drawn_by_logarithm() -> None:
    """Halfway from 0.01 to 100 by size is their geometric mean, 1; from 0 to 4 it is 2."""
    assert parse_axis("lam=0.01..100").at(0.5) == "1"
    assert parse_axis("lam=0..4").at(0.5) == "2"
    assert parse_axis("lam=2..4").at(0.25) == "2.5"


def test_listed_values_are_drawn_evenly() -> None:
    a = parse_axis("optimiser=sgd,adam")
    assert [a.at(share) for share in (0, 0.49, 0.5, 0.999)] == ["sgd", "sgd", "adam", "adam"]


def test_random_points_follow_from_the_seed() -> None:
    axes = [parse_axis("lam=0.001..10"), parse_axis("lr=0.01,0.1")]
    (first,), (again,), (other,) = (list(Random(axes, 20, seed).batches()) for seed in (0, 0, 1))
    assert first == again != other
    assert len({p["lam"] for p in first}) == 20
    assert {p["lr"] for p in first} == {"0.01", "0.1"}
    assert all(0.001 <= float(p["lam"]) <= 10 for p in first)


@pytest.mark.parametrize("text", ["lam", "lam=", "=1", "lam=2..1", "lam=a..b", "lam=1,1", "lam=1..inf"])
def test_malformed_axis_is_refused(text: str) -> None:
    with pytest.raises(AtollError):
        parse_axis(text)


def test_grid_over_a_range_is_refused() -> None:
    with pytest.raises(AtollError, match="--random"):
        Grid([parse_axis("lam=0..1")])
