"""Whether the code that runs stands for one client or, under vmap, for many at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_mapping: ContextVar[bool] = ContextVar("mapping", default=False)


@contextmanager
def functional_gradients() -> Iterator[None]:
    """Take gradients through ``torch.func``, which vmap can batch."""
    token = _mapping.set(True)
    try:
        yield
    finally:
        _mapping.reset(token)


def mapping_clients() -> bool:
    """Whether this runs for many clients at once, so that nothing may depend on a client's values but the values."""
    return _mapping.get()
