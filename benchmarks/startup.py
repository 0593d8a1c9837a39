"""How long one waits for the first answer: ``atoll --help``, and the first round on digits.

Seconds of processor time since the start of a new process, everything imported in it; on an idle machine that is what
the clock on the wall shows. The first round is that of FedAvg with default settings, up to its line of results.
"""

import os
import subprocess
import sys
from statistics import median

ROUND = "import time, atoll; atoll.run(rounds=1, watch=lambda t, line: print(time.process_time()))"


def figures(quick: bool) -> dict[str, float]:
    repeats = 1 if quick else 5
    return {
        "startup.help_seconds": median(_help() for _ in range(repeats)),
        "startup.first_round_digits_seconds": median(_first_round() for _ in range(repeats)),
    }


def _help() -> float:
    before = os.times()
    _python("-m", "atoll", "--help")
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _first_round() -> float:
    return float(_python("-c", ROUND))


def _python(*words: str) -> bytes:
    return subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE).stdout
