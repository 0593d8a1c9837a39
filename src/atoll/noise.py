"""Dropout that draws from a key instead of a global generator."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from .key import Key, fold, uniform

_current: ContextVar[Key | None] = ContextVar("noise", default=None)


@contextmanager
def noise(k: Key) -> Iterator[None]:
    """Dropout layers inside draw from ``k``."""
    token = _current.set(k)
    try:
        yield
    finally:
        _current.reset(token)


class KeyedDropout(nn.Module):
    """Zero each element (or each channel) with probability ``p``; the others grow to keep the mean."""

    def __init__(self, p: float, stream: int, channels: bool):
        super().__init__()
        self.p, self.stream, self.channels = p, stream, channels

    def forward(self, x: Tensor) -> Tensor:
        k = _current.get()
        if not self.training or k is None or self.p == 0:
            return x
        shape = (*x.shape[:2], *(1,) * (x.ndim - 2)) if self.channels else x.shape
        return x * (uniform(fold(k, self.stream), *shape) >= self.p) / (1 - self.p)


def key_dropout(net: nn.Module) -> nn.Module:
    """Replace every dropout layer of ``net`` by a keyed one, each with a stream of its own."""
    stream = 0
    for parent in list(net.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(parent, name, KeyedDropout(child.p, stream, channels=not isinstance(child, nn.Dropout)))
                stream += 1
    return net
