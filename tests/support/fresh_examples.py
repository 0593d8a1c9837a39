"""Run Python files one after the other, each in a fork of an interpreter that has imported nothing but atoll.

    python fresh_examples.py FOLDER FILE...

What a file prints goes to FOLDER/NAME.txt. Runs are cut to one round.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import atoll


def run_briefly(method: Any = "fedavg", *args: Any, **options: Any) -> Any:
    """Call ``atoll.run`` for one round; a method that is an object has epochs of its own."""
    return run(method, *args, **options | {"rounds": 1} | ({"epochs": 1} if isinstance(method, str) else {}))


def run_file(path: Path, output: Path) -> int:
    """Run a file as a user would, with its output in a file; return the exit code."""
    sys.argv = [str(path)]
    sys.stdout = sys.stderr = output.open("w", encoding="utf-8", buffering=1)
    try:
        runpy.run_path(str(path), run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


run, atoll.run = atoll.run, run_briefly

if __name__ == "__main__":
    folder, files = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    failed = False
    for file in files:
        child = os.fork()
        if child == 0:
            os._exit(run_file(file, folder / f"{file.name}.txt"))
        failed |= os.waitpid(child, 0)[1] != 0
    sys.exit(failed)
