"""FedAvg with one client that makes uploads which cannot be sent, or whose code fails."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from atoll.core.payloads import Nothing
from atoll.core.task import Round
from atoll.methods.fedavg import FedAvg, Global, Update


class Unpicklable:
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


class Explosive:
    """Pickles, and fails where it is read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class BadError(Exception):
    """Pickles, and cannot be made again from its text alone."""

    def __init__(self, one: str, two: str):
        super().__init__(one + two)


def raise_bad_error(v: torch.Tensor) -> Any:
    raise BadError("complaint of ", "one client")


def quantised(v: torch.Tensor) -> Any:
    return torch.quantize_per_tensor(v, 0.1, 0, torch.qint8)


def nested(v: torch.Tensor) -> Any:
    return torch.nested.nested_tensor([v, v])


ODD: dict[str, Callable[[torch.Tensor], Any]] = {
    "sparse": lambda v: v.to_sparse(),
    "csr": lambda v: v.to_sparse_csr(),
    "quantised": quantised,
    "meta": lambda v: v.to("meta"),
    "mkldnn": lambda v: v.to_mkldnn(),
    "nested": nested,
    "lambda": lambda v: lambda: v,
    "unpicklable": lambda v: Unpicklable(),
    "explosive": lambda v: Explosive(),
    "exception": lambda v: {}["no such key"],
    "own exception": raise_bad_error,
    "exit": lambda v: sys.exit(0),
}


@dataclass(frozen=True)
class Odd(FedAvg):
    """FedAvg in which the client with ``bad`` rows replaces the first matrix of its uploads.

    If ``bad`` is 0, all clients do so in round 4: a mistake in the first three is found by a dry run before.
    """

    kind: str = ""
    bad: float = 0.0

    def client_update(self, down: Global, state: Nothing, client: Any, r: Round, k: Any) -> tuple[Update, Nothing]:
        up, state = super().client_update(down, state, client, r, k)
        if float(client.n) == self.bad or (not self.bad and r.t == 3):
            name = next(name for name, v in up.params.items() if v.ndim == 2)
            up = replace(up, params=up.params | {name: ODD[self.kind](up.params[name])})
        return up, state
