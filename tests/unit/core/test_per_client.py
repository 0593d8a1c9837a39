"""The server's states of all clients as a method reads them."""

import pytest

from atoll.core.per_client import PerClient
from atoll.errors import AtollError


def view() -> tuple[PerClient[int], list[str]]:
    """Two clients that were served, and a record of what was loaded."""
    states, loaded = {"b": 2, "a": 1}, list[str]()

    def load(i: str) -> int | None:
        loaded.append(i)
        return states.get(i)

    return PerClient(load, lambda: sorted(states)), loaded


def test_clients_come_in_order_without_loading_a_state() -> None:
    states, loaded = view()
    assert list(states) == ["a", "b"]
    assert len(states) == 2
    assert "a" in states
    assert "c" not in states
    assert loaded == []


def test_each_state_is_loaded_when_asked_for() -> None:
    states, loaded = view()
    assert (states["b"], states.get("a", 7), states.get("c", 7)) == (2, 1, 7)
    assert loaded == ["b", "a", "c"]


def test_client_that_was_never_served_is_named_in_a_sentence() -> None:
    with pytest.raises(AtollError, match="no state for client 'c': it has not served that client yet"):
        view()[0]["c"]
