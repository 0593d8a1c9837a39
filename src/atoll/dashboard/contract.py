"""List the fields that a run's method declares for messages and for the server's state."""

from dataclasses import fields

from ..core.contract import Contract
from ..core.contract import contract as contract_of
from ..core.payloads import field_types
from ..methods._registry import methods
from ..storage.run_reader import Run


def contract(run: Run) -> list[dict[str, str]] | None:
    """Return every field of the messages; None if the method is not installed."""
    types = _types(run)
    return types and [
        {
            "way": way,
            "field": f.name,
            "type": _kind(field_types(cls)[f.name]),
            "meaning": str(f.metadata.get("about", "")),
        }
        for messages in types.exchanges
        for way, cls in (("up", messages.upload), ("down", messages.download))
        for f in fields(cls)
    ]


def server_fields(run: Run) -> dict[str, str]:
    """Return the fields of the server's state with their meanings."""
    types = _types(run)
    return {f.name: str(f.metadata.get("about", "")) for f in fields(types.server)} if types else {}


def _types(run: Run) -> Contract | None:
    """Return the payload types of an installed method.

    A file that a run names is never imported: looking at a run must not run code.
    """
    name = str(run.config.get("method", "")).partition(":")[0]
    return contract_of(methods()[name]()) if name in methods() else None


def _kind(kind: object) -> str:
    if isinstance(kind, type):
        return kind.__name__
    return "named tensors" if str(kind).startswith("dict") else "Tensor or nothing"
