"""Divide the connections of the gate between known sites and everybody else."""

from collections import Counter

MAX_CONNECTIONS = 512
MAX_STRANGERS = 128  # connections in all that have not shown a known key yet
MAX_STRANGERS_PER_ADDRESS = 8


class Places:
    """Count open connections. A connection takes a stranger's place until it shows a key of the federation.

    So strangers who hold connections open cannot keep sites out.
    """

    def __init__(self) -> None:
        self._strangers: Counter[str] = Counter()
        self._sites = 0

    def enter(self, address: str) -> bool:
        """Take a stranger's place for a new connection; return False if there is none."""
        held = self._strangers.total()
        if self._strangers[address] >= MAX_STRANGERS_PER_ADDRESS or held >= MAX_STRANGERS:
            return False
        self._strangers[address] += 1
        return True

    def recognise(self, address: str) -> bool:
        """Move a connection to a site's place; return False if there is none."""
        if self._sites >= MAX_CONNECTIONS - MAX_STRANGERS:
            return False
        self._leave_strangers(address)
        self._sites += 1
        return True

    def leave(self, address: str, known: bool) -> None:
        """Free the place of a connection that ends."""
        if known:
            self._sites -= 1
        else:
            self._leave_strangers(address)

    def _leave_strangers(self, address: str) -> None:
        self._strangers[address] -= 1
        self._strangers += Counter()  # Drops addresses without connections, so that the table does not grow.
