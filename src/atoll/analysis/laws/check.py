"""Check all laws of a method, and collect what holds."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...errors import AtollError
from .execution import (
    complete_graph_equals_star,
    finishes,
    order_changes_nothing,
    processes_equal_loop,
    resume_equals_whole_run,
    store_changes_nothing,
    takes_mixed_models,
    vmap_equals_loop,
)
from .messages import broken_uploads_leave_no_trace, payloads_survive_the_wire, uploads_declare_roles
from .options import option_laws
from .purity import inputs_stay_unchanged, randomness_comes_from_keys
from .trial import BrokenLaw, NotApplicable, Trial

HOLDS, BROKEN, NOT_APPLICABLE = "holds", "broken", "not applicable"


class Law(NamedTuple):
    """A law of methods.

    Args:
        name: the law in a few words.
        check: returns a detail for the user; raises BrokenLaw or NotApplicable.
    """

    name: str
    check: Callable[[Trial], str]


class Finding(NamedTuple):
    """The verdict on one law: ``holds``, ``broken`` or ``not applicable``, with a sentence or a few words."""

    law: str
    verdict: str
    detail: str


LAWS = (
    Law("A run finishes", finishes),
    Law("Functions leave their inputs unchanged", inputs_stay_unchanged),
    Law("Random numbers come from keys", randomness_comes_from_keys),
    Law("The order of clients changes no bit", order_changes_nothing),
    Law("States on disk give the same bits", store_changes_nothing),
    Law("Worker processes give the same bits", processes_equal_loop),
    Law("vmap gives the same numbers", vmap_equals_loop),
    Law("A resumed run gives the same bits", resume_equals_whole_run),
    Law("A complete graph equals a server", complete_graph_equals_star),
    Law("Payloads survive the wire", payloads_survive_the_wire),
    Law("Fields of uploads have roles", uploads_declare_roles),
    Law("A broken upload leaves no trace", broken_uploads_leave_no_trace),
    Law("Heterogeneous models run", takes_mixed_models),
    *(Law(name, check) for name, check in option_laws()),
)


def check_method(trial: Trial) -> Iterator[Finding]:
    """Yield the verdict on each law, in order. A run that does not finish ends the check."""
    for law in LAWS:
        finding = check_law(law, trial)
        yield finding
        if law is LAWS[0] and finding.verdict == BROKEN:
            return


def check_law(law: Law, trial: Trial) -> Finding:
    """Return the verdict on one law."""
    try:
        return Finding(law.name, HOLDS, law.check(trial))
    except NotApplicable as reason:
        return Finding(law.name, NOT_APPLICABLE, str(reason))
    except (BrokenLaw, AtollError) as reason:
        return Finding(law.name, BROKEN, str(reason))
    except Exception as reason:  # Code of a method may raise anything.
        return Finding(law.name, BROKEN, f"{type(reason).__name__}: {reason}")
