"""Check before a run that the method can run on these clients with these options."""

from collections.abc import Callable, Collection

from ..aggregation import robust, robust_rules
from ..clients.dry_run import dry_run
from ..clients.pool import ClientPool
from ..core.contract import check_functions
from ..core.hooks import TakesRegularisers
from ..core.method import AnyMethod, traits_of
from ..core.optim import base
from ..core.payloads import equal
from ..core.prng import key
from ..core.schema import constraints_of
from ..core.task import Task
from ..core.traits import Need, Reads, Traits
from ..errors import AtollError
from ..methods import _registry
from ..simulation.byzantine import ALIE, corrupt, upload_tensors
from ..simulation.clock import Devices
from .regulariser_check import check_terms

IMAGE_AXES = 4  # row, channel, height, width

DECLARE = "declare this in the `traits` of the class itself, because a subclass inherits no promises"


def check(
    method: AnyMethod, pool: ClientPool, name: str, backend: str, rule: str | None = None, sums: str = "float"
) -> None:
    """Check that a method can run on the clients of a pool.

    Args:
        method: the method.
        pool: the clients.
        name: name of the method in messages.
        backend: value of ``--backend``.
        rule: value of ``--robust``, if given.
        sums: value of ``--sums``.

    Raises:
        AtollError: the method cannot run. The message names the remedy.
    """
    check_functions(type(method), type(method).__name__)
    _check_needs(method, pool, name)
    if rule is not None:
        _check_rule(method, pool, name, rule, sums)
    if sums == "fixed" and traits_of(method).server_reads is not Reads.SUMS:
        raise AtollError(_no_sum(method, name))
    check_terms(method, pool)
    if backend == "vmap" and not (traits_of(method).vmap is not False):
        raise AtollError(f"--backend vmap cannot batch {name}. Use --backend processes or loop.")
    unbatched = sorted({pool.models[i].name for i in pool.ids if not pool.models[i].vectorisable})
    if backend == "vmap" and unbatched:
        raise AtollError(f"--backend vmap cannot batch {', '.join(unbatched)}. Use --backend loop.")


def _check_needs(method: AnyMethod, pool: ClientPool, name: str) -> None:
    """Raise an AtollError for the first requirement of the method that the federation does not meet."""
    task = pool.task()
    terms = method.terms() if isinstance(method, TakesRegularisers) else ()
    if problem := _find_problem(traits_of(method).needs, task):
        need, reason = problem
        others = f" Methods for heterogeneous models: {_methods_that_can(pool)}."
        raise AtollError(f"For {name}, {reason}{others if need is Need.SAME_ARCHITECTURE else ''}")
    for term in terms:
        if problem := _find_problem(term.needs, task):
            raise AtollError(f"For --with {type(term).__name__.lower()}, {problem[1]}")


def _find_problem(needs: Collection[Need], task: Task) -> tuple[Need, str] | None:
    """Return the first requirement that the federation does not meet, and what is wrong."""
    for need in sorted(needs, key=lambda need: need.name):
        if problem := need.find_problem(task):
            return need, problem
    return None


def _check_rule(method: AnyMethod, pool: ClientPool, name: str, rule: str, sums: str) -> None:
    """Raise an AtollError that names the remedy if a robust rule has no field to guard, or cannot work."""
    guards: object = traits_of(method).guards
    if not guards:
        raise AtollError(
            f"--robust {rule} replaces averages of models or prototypes, and {name} declares none that its server "
            f"takes. Leave it out, or take one of: {_names(lambda traits: bool(traits.guards))}. If {name} is yours, "
            f"and its server averages with `mean`, {DECLARE}: Traits(guards=('params',))."
        )
    if isinstance(guards, str):
        raise AtollError(f"`guards` of {name} is a text, not a tuple of names. Write guards=({guards!r},).")
    if sums == "fixed":
        raise AtollError(
            f"--robust {rule} and --sums fixed exclude each other: a robust rule compares single uploads, and sums "
            "exist so that the server need not see single uploads. Leave out one of them."
        )
    if robust_rules.parse(rule).clips:
        # The dry run raises an error if the server has no state from which to measure updates.
        with base.no_training():
            list(dry_run(method, pool, 0, guard=robust.guard_for(method, rule, lambda note: None)))


def _no_sum(method: AnyMethod, name: str) -> str:
    """Explain why --sums fixed is refused and, if only a declaration may be missing, name it."""
    needed = "--sums fixed is for servers that work from sums of what clients send"
    remedy = f"Leave it out, or take one of: {_names(lambda traits: traits.server_reads is Reads.SUMS)}."
    if why := traits_of(method).why_uploads:
        return f"{needed}, and that of {name} cannot: {why}. {remedy}"
    return (
        f"{needed}, and {name} does not declare that its server does. {remedy} If {name} is yours, and its server "
        f"adds up with `mean` or `Sum` and reads no single upload, {DECLARE}: Traits(server_reads=Reads.SUMS)."
    )


def check_clock(devices: Devices, deadline: float | None) -> None:
    """Raise an AtollError if a deadline is combined with measured seconds, which differ from run to run."""
    if deadline is not None and devices.compute == "measured":
        raise AtollError(
            "--deadline needs counted operations: with measured seconds, late clients would differ from run to run. "
            "Leave out compute=measured in --clock."
        )


def has_effect(kind: str, method: AnyMethod, pool: ClientPool) -> bool:
    """Return True if an attack of byzantine clients changes an upload of the method's first round.

    Args:
        kind: the attack, as in ``--poison``.
        method: the method.
        pool: the clients.
    """
    constraints = constraints_of(method)
    classes = pool.problem.num_classes
    k = key("trial")
    for exchange in dry_run(method, pool, 0):
        down, up = exchange.download, exchange.upload
        if kind == ALIE and any(upload_tensors(up, down, classes, constraints, k)):
            return True
        if not equal(up, corrupt(kind, up, down, classes, constraints, k)):
            return True
    return False


def _methods_that_can(pool: ClientPool) -> str:
    """Return the names of the methods that run on the federation as it is. A proxy reads images."""
    task, images = pool.task(), pool.train.all.x.ndim == IMAGE_AXES
    return _names(
        lambda traits: _find_problem(traits.needs, task) is None and (images or Need.PROXY not in traits.needs)
    )


def _names(holds: Callable[[Traits], bool]) -> str:
    """Return the names of all known methods with certain traits."""
    return ", ".join(name for name, cls in _registry.methods().items() if holds(traits_of(cls)))
