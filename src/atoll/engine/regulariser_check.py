"""Check before a run that a method uses the regularisers that it was given."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from ..clients.dry_run import dry_run, select_representatives
from ..clients.pool import ClientPool
from ..core.method import AnyMethod
from ..core.optim.base import no_training
from ..core.regularisers import Regulariser, Regularisers
from ..errors import AtollError
from ..utils.runtime import on_device

HOOKS = ("bind", "report")  # methods of a regulariser that local() has to call

Calls = set[tuple[str, str]]  # class names of regularisers, and their hooks


def check_terms(method: AnyMethod, pool: ClientPool) -> None:
    """Raise an AtollError if a dry run of one round shows that the method ignores a regulariser.

    A method that inherits ``regularisers`` and overrides ``local`` may have forgotten the terms of the loss.
    """
    terms = getattr(method, "regularisers", ())
    if not terms:
        return
    missing = {(type(term).__name__, hook) for term in terms for hook in HOOKS if hook == "bind" or _has_report(term)}
    watched = replace(cast(Any, method), regularisers=Regularisers(_record_calls(term, missing) for term in terms))
    exchanges = len(select_representatives(method, pool)) * method.phases
    with no_training(), on_device(pool.train.all.x.device.type):
        # Leave out the server's last step: without reports it may fail, and its error would hide the reason.
        for _ in islice(dry_run(watched, pool, 0), exchanges):
            if not missing:
                return
    name, ignored = type(method).__name__, sorted({term.lower() for term, _ in missing})
    forgotten = " and ".join(sorted({f"{hook}()" for _, hook in missing}))
    raise AtollError(
        f"{name} does not use the regulariser {', '.join(ignored)}: its local() never calls {forgotten}. "
        "Train with self.train(...), which does, or call bind() and report() of self.terms() in local(). "
        f"To run the method as it is, leave out {' '.join(f'--with {term}' for term in ignored)}."
    )


def _has_report(term: Regulariser) -> bool:
    return type(term).report is not Regulariser.report


def _record_calls(term: Regulariser, missing: Calls) -> Regulariser:
    """Copy a regulariser so that each call of a hook is removed from ``missing``; its class keeps its name."""
    kind: Any = type(term)

    def watching(hook: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **named: Any) -> Any:
            missing.discard((kind.__name__, hook))
            return getattr(kind, hook)(self, *args, **named)

        return call

    made = copy(term)
    watcher = type(kind.__name__, (kind,), {"__slots__": ()} | {hook: watching(hook) for hook in HOOKS})
    object.__setattr__(made, "__class__", watcher)  # also works for a frozen regulariser
    return made
