"""Divide the connections of the gate between known sites and everybody else."""

from collections import Counter
from ipaddress import IPv6Address, ip_address

MAX_CONNECTIONS = 512
MAX_STRANGERS = 128  # connections in all that have not shown a known key yet
MAX_STRANGERS_PER_NETWORK = 8
MAX_PER_KEY = 32  # Flower pulls and pushes 16 objects at a time.


class Places:
    """Count open connections. A connection takes a stranger's place until it shows a key of the federation.

    So strangers who hold connections open cannot keep sites out. Neither can somebody with one key, whose signature is
    not known yet when it is shown: beyond the places of a key, connections that show it stay in strangers' places.
    """

    def __init__(self) -> None:
        self._strangers: Counter[str] = Counter()  # by network
        self._sites: Counter[str] = Counter()  # by key

    def enter(self, address: str) -> bool:
        """Take a stranger's place for a new connection; return False if there is none."""
        network = network_of(address)
        if self._strangers[network] >= MAX_STRANGERS_PER_NETWORK or self._strangers.total() >= MAX_STRANGERS:
            return False
        self._strangers[network] += 1
        return True

    def recognise(self, address: str, key: str) -> bool:
        """Move a connection to a place of the key that it has shown; return False if there is none."""
        if self._sites[key] >= MAX_PER_KEY or self._sites.total() >= MAX_CONNECTIONS - MAX_STRANGERS:
            return False
        _leave(self._strangers, network_of(address))
        self._sites[key] += 1
        return True

    def leave(self, address: str, key: str | None) -> None:
        """Free the place of a connection that ends; ``key`` is the one whose place it has, if any."""
        if key is None:
            _leave(self._strangers, network_of(address))
        else:
            _leave(self._sites, key)


def network_of(address: str) -> str:
    """Return what counts as one stranger: an address of IPv4, or a network of IPv6, which has 2^64 addresses."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address) or found.ipv4_mapped is not None:
        return address
    return found.exploded[:19]  # the first 64 bits


def _leave(places: Counter[str], holder: str) -> None:
    places[holder] -= 1
    if not places[holder]:
        del places[holder]  # so that the table does not grow
