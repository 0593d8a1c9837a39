"""Read the name of a partition, such as ``dirichlet:0.5:capped``."""

from collections.abc import Callable
from pathlib import Path

from ...errors import unknown
from ...utils.parsing import Field, Spec, number, whole, word
from .base import File, Scheme
from .dirichlet import ByClient, Capped, Dirichlet, Masked
from .few_classes import FewClasses
from .natural import Natural
from .pathological import Pathological
from .quantity import Quantity
from .shards import Shards
from .uniform import Iid

LARGEST_BETA = 1e6
AUTO = "auto"  # natural where the data name owners, otherwise the default
DEFAULT = "dirichlet:0.5"


def resolve(spec: str, has_owners: bool) -> str:
    """Return the partition that ``auto`` stands for; other values stay as they are.

    Args:
        spec: a value of ``--partition``.
        has_owners: whether the data name the owners of rows.
    """
    return spec if spec != AUTO else "natural" if has_owners else DEFAULT


def parse(spec: str) -> Scheme | File:
    """Return the scheme that a value of ``--partition`` names.

    Raises:
        AtollError: the name is unknown, or a parameter is missing or out of range.

    Example:
        >>> parse("dirichlet:0.5:capped")
        Capped(beta=0.5)
    """
    text = spec.strip()
    name = text.partition(":")[0]
    if name not in _SCHEMES:
        raise unknown("partition", name, _SCHEMES)
    make, form = _SCHEMES[name]
    return make(*form.parse("--partition", text, skip=1))


def _pathological(classes: int, mode: str = "strict") -> Scheme:
    return Pathological(classes, mode == "code")


def _dirichlet(beta: float, make: Callable[[float], Scheme] = Dirichlet) -> Scheme:
    return make(beta)


def _mode(text: str) -> Callable[[float], Scheme]:
    """Read the last field of a Dirichlet partition: the variant, as a function of BETA."""
    kind, sign, value = text.partition("=")
    if kind == "masked" and sign:
        share = _SHARE.read(value)
        return lambda beta: Masked(beta, share)
    plain: dict[str, Callable[[float], Scheme]] = {"capped": Capped, "client": ByClient}
    if text not in plain:
        raise ValueError(text)
    return plain[text]


_SHARE = number("P", above=0, most=1)
_SCHEMES: dict[str, tuple[Callable[..., Scheme | File], Spec]] = {
    "iid": (Iid, Spec("iid")),
    "pathological": (
        _pathological,
        Spec(
            "pathological:K or pathological:K:code, with K classes per client, such as pathological:2",
            whole("K", least=1, most=10**9 - 1),
            word("MODE", ("strict", "code"), optional=True),
        ),
    ),
    "dirichlet": (
        _dirichlet,
        Spec(
            "dirichlet:BETA, dirichlet:BETA:capped, dirichlet:BETA:masked=P or dirichlet:BETA:client, such as "
            "dirichlet:0.5; for equal clients, iid",
            number("BETA", above=0, most=LARGEST_BETA),
            Field("MODE", f"capped, client or masked=P, with P {_SHARE.wanted}", _mode, optional=True),
        ),
    ),
    "quantity": (
        Quantity,
        Spec(
            "quantity:BETA, sizes of clients by a draw from Dir(BETA), such as quantity:0.5",
            number("BETA", above=0, most=LARGEST_BETA),
        ),
    ),
    "shards": (
        Shards,
        Spec(
            "shards:K, with K shards of sorted labels per client, such as shards:2", whole("K", least=1, most=10**9 - 1)
        ),
    ),
    "classes": (
        FewClasses,
        Spec(
            "classes:K:BETA, K classes per client in shares by a draw from Dir(BETA), such as classes:3:0.5",
            whole("K", least=1, most=10**9 - 1),
            number("BETA", above=0, most=LARGEST_BETA),
        ),
    ),
    "natural": (Natural, Spec("natural")),
    "file": (
        File,
        Spec(
            "file:PATH, with the file of an exported partition, or a partition.pkl of FL-bench",
            Field("PATH", "a path", Path),
        ),
    ),
}
