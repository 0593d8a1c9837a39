"""Time to a target, taken apart into rounds and time per round."""

from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from click.testing import CliRunner

from atoll.api import run
from atoll.cli import main
from atoll.errors import AtollError
from atoll.report.speedup import arrival, speedup
from atoll.storage.run_reader import Run, load


def a_run(*rounds: tuple[float, float, float]) -> Run:
    """Rounds of (weighted accuracy, seconds with waiting, seconds without)."""
    lines = tuple(
        {
            "round": t,
            "personal": {"post": {"weighted": accuracy, "accuracy": accuracy - 0.1}},
            "clock": {"waiting": {"personal": waiting}, "wait_free": {"personal": free}},
        }
        for t, (accuracy, waiting, free) in enumerate(rounds, 1)
    )
    return Run(Path("somewhere"), {"label": "ditto"}, lines, pyarrow.table({}), {}, {})


def test_total_speedup_is_the_product_of_rounds_and_round_time() -> None:
    """Waiting: 3 rounds in 12 s, 4 s each. Wait-free: 2 rounds in 5 s, 2.5 s each. 12/5 = (3/2) (4/2.5) = 2.4."""
    first = a_run((0.2, 4, 3), (0.5, 8, 6), (0.8, 12, 9))
    second = a_run((0.4, 3, 2.5), (0.9, 6, 5))
    found = speedup(first, second, 0.8)
    assert (found.waiting.rounds, found.waiting.seconds) == (3, 12)
    assert (found.wait_free.rounds, found.wait_free.seconds) == (2, 5)
    assert found.rounds == pytest.approx(1.5)
    assert found.round_time == pytest.approx(1.6)
    assert found.total == pytest.approx(2.4)


def test_speedup_of_one_run_comes_from_round_times_only() -> None:
    found = speedup(*[a_run((0.2, 3, 2), (0.9, 6, 4))] * 2, target=0.9)
    assert (found.rounds, found.total) == (1.0, pytest.approx(1.5))


def test_arrival_uses_the_mean_over_clients_for_measure_accuracy() -> None:
    assert arrival(a_run((0.8, 1, 1), (0.9, 2, 2)), "waiting", 0.8, "accuracy").rounds == 2


def test_a_target_that_was_never_reached_is_an_error() -> None:
    with pytest.raises(AtollError, match=r"never reached 95.00%; its best is 90.00%"):
        arrival(a_run((0.9, 1, 1)), "waiting", 0.95)
    silent = replace(a_run((0.9, 1, 1)), metrics=({"round": 1, "personal": {"post": {"weighted": 1.0}}},))
    with pytest.raises(AtollError, match="no simulated time"):
        arrival(silent, "waiting", 0.5)


def test_the_command_prints_both_clocks(tmp_path: Path) -> None:
    run("ditto", rows=300, clients=3, rounds=2, epochs=1, out=str(tmp_path / "run"))
    made = load(tmp_path / "run")
    target = made.metrics[-1]["personal"]["post"][
        "weighted"
    ]  # of the second round: in the first no client has waited yet
    result = CliRunner().invoke(main, ["speedup", str(tmp_path / "run"), "--target", str(target)])
    assert result.exit_code == 0, result.output
    assert "wait-free" in result.output
    by_hand = speedup(made, made, target).total
    assert f"{by_hand:.3f}" in result.output
    assert by_hand > 1
