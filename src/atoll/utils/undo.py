"""A dictionary whose latest changes can be undone, without a copy of the whole."""

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Any = object()


class UndoDict(dict[K, V]):
    """A dictionary that remembers the entries that changed since :meth:`begin`. Entries are set one at a time.

    Example:
        >>> counts = UndoDict({"a": 1})
        >>> counts.begin()
        >>> counts["a"] = 2
        >>> counts.undo()
        >>> counts["a"]
        1
    """

    def __init__(self, *entries: Any) -> None:
        super().__init__(*entries)
        self._before: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        self._before.setdefault(key, self.get(key, _MISSING))
        super().__setitem__(key, value)

    def begin(self) -> None:
        """Forget how to undo earlier changes."""
        self._before = {}

    def undo(self) -> None:
        """Undo all changes since :meth:`begin`."""
        for key, value in self._before.items():
            if value is _MISSING:
                del self[key]
            else:
                super().__setitem__(key, value)
        self.begin()
