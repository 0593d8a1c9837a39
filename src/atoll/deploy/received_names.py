"""Read the configurations and names that another machine sends: names of registered parts, never code.

A text that arrives is looked up in a registry. A text that names a file or another package is refused, unless the
receiver's own file lists that very text. Entries of a configuration that a site does not need are dropped, so that a
new option reaches sites only when it is added here.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields
from pathlib import Path

from .. import models
from ..config import Config, from_dict
from ..errors import AtollError
from ..methods import _registry

# Entries of a configuration that decide what a client computes. Paths, metrics and options of the server stay there.
SENT_ENTRIES = frozenset({
    "method", "settings", "terms", "optimiser", "lr", "lr_schedule", "epochs", "steps", "batch_size", "seed", "rounds",
    "data", "split", "transform", "standardise", "missing", "columns", "adapter", "width", "proxy", "shared_model",
    "server_model", "init", "wait_free", "min_class_count", "cov_source", "dp", "dp_clip", "dp_rounds",
})  # fmt: skip


REGISTRIES: dict[str, Callable[[], Collection[str]]] = {
    "method": _registry.methods,
    "regulariser": _registry.regularisers,
    "model": models.names,
}


class ForeignName(AtollError):
    """Raised for a text from another machine that is no registered name and that the receiver does not list."""

    def __init__(self, message: str, kind: str):
        super().__init__(message)
        self.kind = kind


def read_config(document: object, code: Collection[str] = (), method_files: Collection[str] = ()) -> Config:
    """Return the configuration that another machine sent, with registered names alone.

    Args:
        document: the entries as they arrived.
        code: texts of files and packages that the receiver's own file lists.
        method_files: names, without folders, of method files of which the receiver has copies of its own.

    Raises:
        ForeignName: if a text is neither a registered name nor in ``code``.
        AtollError: if an entry is malformed, or fixes the noise of differential privacy.
    """
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        raise AtollError("A configuration is a table of entries.")
    if document.get("dp_seed") is not None:
        raise AtollError("--dp-seed is for tests on one machine: whoever knows the seed can subtract the noise.")
    known = {f.name for f in fields(Config)} & SENT_ENTRIES
    config = from_dict({name: value for name, value in document.items() if name in known})
    own_method = Path(config.method.partition(":")[0]).name in method_files
    for kind, text in _names(config):
        if not (kind == "method" and own_method):
            check_name(kind, text, code)
    return config


def _names(config: Config) -> Iterator[tuple[str, str]]:
    yield "method", config.method
    yield from (("regulariser", text) for text in config.terms)
    yield from (("model", text) for text in (config.shared_model, config.server_model) if text)


def check_name(kind: str, text: str, code: Collection[str] = ()) -> None:
    """Raise ForeignName unless a text is a registered name with options, or listed in ``code`` word for word.

    Args:
        kind: "method", "regulariser" or "model".
        text: the text, such as ``mlp:hidden=32``.
        code: texts that the receiver's own file lists.
    """
    if text.partition(":")[0] not in REGISTRIES[kind]() and text not in code:
        raise ForeignName(
            f"{text[:200]!r} is no registered {kind}, and names from other machines are never used as code. If you "
            "want it, list this very text under 'code' in your own file.",
            kind,
        )
