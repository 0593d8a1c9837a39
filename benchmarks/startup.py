"""How long one waits for the first answer: help, a typo, a completion, and the first round on digits.

Seconds of processor time since the start of a new process, everything imported in it; on an idle machine that is what
the clock on the wall shows. ``startup.help_seconds`` is the longest of the help texts of all commands,
``startup.typo_seconds`` that of the answers to a mistake in a method, a data set and an option. The first round is that
of FedAvg with default settings, up to its line of results; ``startup.first_round_beyond_torch_seconds`` is what it
takes beyond ``import torch``.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median

from atoll.cli import COMMANDS

ROUND = "import time, atoll; atoll.run(rounds=1, watch=lambda t, line: print(time.process_time()))"
TORCH = "import time, torch; print(time.process_time())"
TYPOS = (("fedavgg",), ("fedavg", "--data", "digitz"), ("fedavg", "--rouns", "3"))
COMPLETION = {"COMP_WORDS": "atoll run feda", "COMP_CWORD": "2", "_ATOLL_COMPLETE": "bash_complete"}
COMPLETED = "from atoll.cli import main; main(prog_name='atoll')"


def figures(quick: bool) -> dict[str, float]:
    repeats = 1 if quick else 5
    commands = ("run", "report") if quick else tuple(COMMANDS)

    def taken(measure: Callable[[], float]) -> float:
        return median(measure() for _ in range(repeats))

    first_round, torch = taken(lambda: _printed(ROUND)), taken(lambda: _printed(TORCH))
    return {
        "startup.help_seconds": max(taken(lambda name=name: _command(name, "--help")) for name in commands),
        "startup.typo_seconds": max(taken(lambda words=words: _command("run", *words)) for words in TYPOS),
        "startup.completion_seconds": taken(lambda: _spent(["-c", COMPLETED], COMPLETION)),
        "startup.first_round_digits_seconds": first_round,
        "startup.first_round_beyond_torch_seconds": max(first_round - torch, 1e-3),
    }


def _command(*words: str) -> float:
    return _spent(["-m", "atoll", *words], {})


def _spent(words: list[str], environment: dict[str, str]) -> float:
    """Return the processor seconds of a new process."""
    before = os.times()
    everything = _usual() | environment
    subprocess.run([sys.executable, *words], check=False, capture_output=True, env=everything)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _printed(code: str) -> float:
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, env=_usual())
    return float(done.stdout.split()[-1])


def _usual() -> dict[str, str]:
    """Return an environment in which Python keeps compiled modules, as it does unless told otherwise."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
