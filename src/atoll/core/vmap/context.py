"""Whether code runs for one client or for many clients at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# A context variable and no argument: code below a batched call reaches a training loop, a layer or a statistic through
# methods and losses that users write for one client, and none of these could hand an argument on.
_batched: ContextVar[bool] = ContextVar("batched", default=False)


@contextmanager
def functional_gradients() -> Iterator[None]:
    """Take gradients through ``torch.func``, which vmap can batch."""
    token = _batched.set(True)
    try:
        yield
    finally:
        _batched.reset(token)


def is_batched() -> bool:
    """Return True if the code runs for many clients at once, so that no branch may depend on a client's values."""
    return _batched.get()
