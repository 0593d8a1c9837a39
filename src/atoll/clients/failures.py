"""Record an error of one client's code, which ends the part of that client in a round and not the run."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import AtollError

CLIENT_ERRORS = (Exception, SystemExit)  # KeyboardInterrupt is the user's wish to stop, not an error of a client


class ClientFailure(NamedTuple):
    """Takes the place of an upload or a state that a client's code failed to make.

    Args:
        reason: what happened, as the end of a sentence.
        error: the exception, raised again if all clients of a round fail.
    """

    reason: str
    error: BaseException


def failure_of(error: BaseException) -> ClientFailure:
    """Describe an exception of a client's code, with the place where it was raised."""
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(where[-1].filename).name} line {where[-1].lineno})" if where else ""
    if isinstance(error, SystemExit):
        code, trace = error.code, error.__traceback__
        error = AtollError(f"A client's code called sys.exit({code!r}). Raise an exception instead.")
        return ClientFailure(f"was not made: sys.exit({code!r}){place}", error.with_traceback(trace))
    return ClientFailure(f"was not made: {type(error).__name__}: {str(error)[:300]}{place}", error)


def for_another_process(failure: ClientFailure) -> ClientFailure:
    """Return a failure that pickles, with the traceback of this process as a note of its exception.

    Exceptions of other classes than Python's own may pickle badly in any way and become a RuntimeError.
    """
    error = failure.error
    known = type(error).__module__ == "builtins" or type(error) is AtollError
    if known and all(type(value) in (str, int, float, bool) for value in error.args):
        sent: BaseException = type(error)(*error.args)
    else:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note("In the worker process:\n" + "".join(traceback.format_tb(error.__traceback__)))
    return failure._replace(error=sent)


def raise_if_all_failed(failures: Sequence[ClientFailure], clients: int, round: int) -> None:
    """Raise the error of the first client if all clients failed: the mistake is then in the method.

    Args:
        failures: the failures among the clients.
        clients: number of clients that worked.
        round: the round, counted from 1.
    """
    if failures and len(failures) == clients:
        error = failures[0].error
        error.add_note(f"Raised in round {round}, where the code of all clients failed ({clients} of {clients}).")
        raise error
