"""How long one waits for the first answer: ``atoll --help``, and a run of one round on digits from start to report.

Processor seconds of the whole command; on an idle machine that is what the clock on the wall shows.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from statistics import median


def figures(quick: bool) -> dict[str, float]:
    repeats = 1 if quick else 5
    with tempfile.TemporaryDirectory() as folder:
        first = ("run", "fedavg", "--data", "digits", "--rounds", "1", "--out", f"{folder}/run", "--force")
        return {
            "startup.help_seconds": median(_command(["--help"]) for _ in range(repeats)),
            "startup.first_round_digits_seconds": median(_command(first) for _ in range(1 if quick else 3)),
        }


def _command(words: Sequence[str]) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "atoll", *words], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
