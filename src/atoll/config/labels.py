"""Name runs in tables and directories."""

import re
from collections.abc import Sequence
from pathlib import Path


def label_of(method: str, terms: Sequence[str]) -> str:
    """Join method and regularisers to a label, such as ``"fedavg+dw:mu=0.1"``; files have their names alone."""
    base, sign, variant = method.partition(":")
    name = Path(base).stem if base.endswith(".py") else base
    return "+".join([name + sign + variant, *(t.rpartition("/")[2] if t.startswith("/") else t for t in terms)])


def split_terms(name: str) -> list[str]:
    """Split ``"fedavg+dw:mu=0.1"`` into method and regularisers; the plus of ``1e+3`` belongs to the number."""
    return re.split(r"\+(?!\d)", name)
