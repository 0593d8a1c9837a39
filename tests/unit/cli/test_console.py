"""Progress of runs on terminals and in log files."""

import os
import pty
import subprocess
import sys
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

from atoll.cli import console
from atoll.utils.progress import quiet

LINE: Any = {"personal": {"post": {"accuracy": 0.935}}, "generic": None}


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


def test_log_lines_tell_round_score_and_time_left(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    watch = console._log_lines("fedavg seed 0", 100, lambda: clock[0])

    watch(0, None)
    for done in range(1, 21):  # two seconds a round: lines after 10 s, and 30 s later
        clock[0] += 2
        watch(done, LINE if done % 2 else None)

    # After 5 rounds in 10 s, 95 rounds are left: 190 s. After 20 rounds in 40 s, 80 rounds: 160 s.
    assert capsys.readouterr().err.splitlines() == [
        "fedavg seed 0: round 5 of 100, personal 93.50%, about 3 min left",
        "fedavg seed 0: round 20 of 100, personal 93.50%, about 3 min left",
    ]


def test_average_of_personal_models_is_marked() -> None:
    generic = {"source": "average", "global": {"accuracy": 0.7437}}

    assert console._score(LINE | {"generic": generic}) == "personal 93.50%, generic ~74.37%"
    assert console._score(LINE | {"generic": generic | {"source": "server"}}) == "personal 93.50%, generic 74.37%"


def test_bars_tell_waiting_running_and_finished_runs_apart_in_60_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(console._BarConsole, "is_terminal", True)
    generic = {"source": "server", "global": {"accuracy": 0.7437}}

    with console.progress(False) as bars:
        watches = [console.follow(bars, f"fedavg seed {seed}", 300) for seed in range(3)]
        watches[0](300, LINE | {"generic": generic})
        watches[1](20, LINE | {"generic": generic})
        plain = Console(width=bars.console.width, file=StringIO())
        plain.print(bars.get_renderable())

    shown = cast(StringIO, plain.file).getvalue()
    finished, running, waiting = (line.rstrip() for line in shown.splitlines())
    assert "300/300 93.50% took 00:00" in finished
    assert " 20/300 93.50% " in running
    assert running.endswith(" left")
    assert waiting.endswith("waiting")
    assert bars.console.width == 57  # ^C fits beside them


def test_no_lines_with_quiet_or_in_short_runs(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with quiet(), console.progress(True) as bars:
        assert console.follow(bars, "fedavg", 3) is console.silent
    with console.progress(False) as bars:
        watch = console.follow(bars, "fedavg", 3)
        watch(1, LINE)
        watch(2, LINE)

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "text"), [(7250, "2 h"), (600, "10 min"), (119, "119 s"), (0.4, "0 s")])
def test_durations_are_in_the_largest_unit_that_suits(seconds: float, text: str) -> None:
    assert console._duration(seconds) == text


def test_terminal_shows_something_before_modules_are_loaded() -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-m", "atoll", "run", "fedavg", "--data", "missing.csv"]
    with subprocess.Popen(command, stderr=side, stdout=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}) as made:
        os.close(side)
        first = os.read(main, 100)
        made.wait()
    os.close(main)

    assert first.startswith(b"Loading ...")
