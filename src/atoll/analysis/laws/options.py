"""Try the options of a run that depend on what a method declares."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...errors import AtollError
from .trial import BrokenLaw, NotApplicable, Trial

OPTIONS: dict[str, dict[str, Any]] = {
    "--dp 8": {"dp": "8", "dp_seed": 0},
    "--robust median": {"robust": "median"},
    "--sums fixed": {"sums": "fixed"},
    "--min-class-count 5": {"min_class_count": 5},
}
OTHER_METHODS = re.compile(
    r" Leave it out, or take (one of: [^.]*|another method)\."
)  # no help to the author of a method


def option_laws() -> Iterator[tuple[str, Callable[[Trial], str]]]:
    """Yield the name and the check of every option: a run with it finishes, or is refused with a reason."""
    for name, changes in OPTIONS.items():
        yield f"A run with {name}", partial(_runs_or_is_refused, changes)


def _runs_or_is_refused(changes: dict[str, Any], trial: Trial) -> str:
    try:
        result = trial.run(**changes)
    except AtollError as reason:
        raise NotApplicable(OTHER_METHODS.sub("", str(reason))) from None
    if result.summary["status"] not in ("finished", "exhausted"):
        raise BrokenLaw(f"The run ended as {result.summary['status']!r}.")
    return "admitted by what the method declares"
