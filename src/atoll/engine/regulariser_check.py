"""Check before a run that a method uses the regularisers that it was given."""

from dataclasses import replace
from itertools import islice
from typing import Any, cast

from ..clients.dry_run import dry_run, select_representatives
from ..clients.pool import ClientPool
from ..core.contract import exchanges_of
from ..core.hooks import TakesRegularisers
from ..core.losses import Term
from ..core.method import AnyMethod
from ..core.optim.base import no_training
from ..core.payloads import Params
from ..core.regularisers import Regulariser, Regularisers
from ..errors import AtollError
from ..utils.runtime import on_device

HOOKS = ("bind", "report")  # methods of a regulariser that client_update() has to call

Calls = set[tuple[str, str]]  # class names of regularisers, and their hooks


def check_terms(method: AnyMethod, pool: ClientPool) -> None:
    """Raise an AtollError if a dry run of one round shows that the method ignores a regulariser.

    A method that inherits ``regularisers`` and overrides ``client_update`` may have forgotten the terms of the loss.
    """
    if not isinstance(method, TakesRegularisers) or not method.regularisers:
        return
    terms = method.regularisers
    missing = {(type(term).__name__, hook) for term in terms for hook in HOOKS if hook == "bind" or _has_report(term)}
    watched = replace(cast(Any, method), regularisers=Regularisers(_record_calls(term, missing) for term in terms))
    exchanges = len(select_representatives(method, pool)) * len(exchanges_of(method))
    with no_training(), on_device(pool.train.all.x.device.type):
        # Leave out the server's last step: without reports it may fail, and its error would hide the reason.
        for _ in islice(dry_run(watched, pool, 0), exchanges):
            if not missing:
                return
    name, ignored = type(method).__name__, sorted({term.lower() for term, _ in missing})
    forgotten = " and ".join(sorted({f"{hook}()" for _, hook in missing}))
    raise AtollError(
        f"{name} does not use the regulariser {', '.join(ignored)}: its client_update() never calls {forgotten}. "
        "Train with client.objective(...), which calls bind(), and add self.terms().report(...) to the upload. "
        f"To run the method as it is, leave out {' '.join(f'--with {term}' for term in ignored)}."
    )


def _has_report(term: Regulariser) -> bool:
    return type(term).report is not Regulariser.report


def _record_calls(term: Regulariser, missing: Calls) -> Regulariser:
    """Return a regulariser that does the same, and removes each hook that is called from ``missing``.

    The class has the name of the original, because names of tensors begin with the name of the class.
    """
    name = type(term).__name__

    def bind(self: Regulariser, *args: Any) -> Term:
        missing.discard((name, "bind"))
        return term.bind(*args)

    def report(self: Regulariser, *args: Any) -> Params:
        missing.discard((name, "report"))
        return term.report(*args)

    same = {hook: staticmethod(getattr(term, hook)) for hook in ("start", "send", "merge")}
    watcher = type(name, (Regulariser,), same | {"bind": bind, "report": report})
    made: Regulariser = watcher()
    made.bias_free_head = term.bias_free_head
    return made
