"""Check that a method can run with the options of rounds: schedule, topology, bounded training and early end."""

from ..clients.pool import ClientPool
from ..config import Config
from ..core.hooks import takes_budget
from ..core.limits import why_star, why_synchronous
from ..core.method import AnyMethod
from ..errors import AtollError
from ..methods import _registry
from ..simulation.clock import Devices
from ..simulation.schedule import read_schedule
from ..simulation.topology import STAR
from .cohort import cohort_size


def check_round_options(method: AnyMethod, config: Config, devices: Devices, pool: ClientPool) -> None:
    """Check that a method can run with the options of rounds.

    Args:
        method: the method.
        config: the options.
        devices: simulated devices of the clients.
        pool: the clients.

    Raises:
        AtollError: the method or an option does not fit. The message names the remedy.
    """
    _check_schedule(method, config, devices, len(pool.ids))
    _check_topology(method, config)
    _check_budget(method, config, devices)
    check_stopping(config, pool)


def describe_cohorts(config: Config, clients: int) -> tuple[str, ...]:
    """Return a note if the share of clients in a round rounds to no client."""
    if round(config.rate * clients) > 0:
        return ()
    share = f"--rate {config.rate:g} of {clients} client{'s' * (clients > 1)}"
    return (f"{share} rounds to none, so one client takes part in each round.",)


def _check_schedule(method: AnyMethod, config: Config, devices: Devices, clients: int) -> None:
    buffer = read_schedule(config.schedule).buffer
    if buffer is None:
        return
    given = f"--schedule {config.schedule}"
    if why := why_synchronous(method):
        raise AtollError(f"{given} cannot run {config.method}: {why}. Use --schedule synchronous.")
    if config.deadline is not None:
        raise AtollError(
            f"{given} and --deadline exclude each other: the server waits for uploads and not for clients, so that no "
            "upload is late. Leave out --deadline."
        )
    if devices.compute == "measured":
        raise AtollError(
            f"{given} needs counted operations: with measured seconds, uploads would arrive in another order in every "
            "run. Leave out compute=measured in --clock."
        )
    at_work = cohort_size(clients, config.rate)
    if buffer > at_work:
        raise AtollError(
            f"{given} waits for {buffer} uploads, but only {at_work} of {clients} clients work at a time "
            f"(--rate {config.rate:g}). Give a smaller buffer or a larger rate."
        )


def _check_topology(method: AnyMethod, config: Config) -> None:
    if config.topology == STAR:
        return
    given = f"--topology {config.topology}"
    if why := why_star(method):
        raise AtollError(f"{given} cannot run {config.method}: {why}. Use --topology star.")
    if read_schedule(config.schedule).buffer is not None or config.deadline is not None:
        other = "--deadline" if config.deadline is not None else f"--schedule {config.schedule}"
        raise AtollError(f"{given} and {other} exclude each other: there is no server to end a round. Leave out one.")


def _check_budget(method: AnyMethod, config: Config, devices: Devices) -> None:
    if not config.until_download:
        return
    if not config.wait_free:
        raise AtollError("--until-download is for clients that train after their upload. Add --wait-free.")
    if not takes_budget(type(method)):
        able = [name for name, cls in _registry.methods().items() if takes_budget(cls)]
        raise AtollError(
            f"--until-download cannot bound the personal training of {config.method}: its after_upload() has no "
            f"parameter `budget`. Leave it out, or take one of: {', '.join(able)}."
        )
    conflicts = {
        "--topology": config.topology != STAR,
        "--deadline": config.deadline is not None,
        "compute=measured": devices.compute == "measured",
        "communication=equal_to_personal": devices.communication == "equal_to_personal",
    }
    for other in (name for name, given in conflicts.items() if given):
        raise AtollError(
            f"--until-download and {other} exclude each other: the time of the next download is not known then. "
            "Leave out one of them."
        )
    if config.backend == "vmap":
        raise AtollError(
            "--backend vmap runs clients step by step together, and with --until-download each has its own number of "
            "steps. Use --backend processes or loop."
        )


def check_stopping(config: Config, pool: ClientPool) -> None:
    """Raise an AtollError if a run is to end by validation scores and no client has validation rows."""
    given = [flag for flag, value in (("--patience", config.patience), ("--until", config.until)) if value is not None]
    if given and not any(pool.val.size(at) for at in range(len(pool.ids))):
        raise AtollError(
            f"{given[0]} ends a run by scores on validation samples, and no client has any. "
            "Use --split client_811, or leave it out."
        )
