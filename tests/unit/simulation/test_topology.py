"""Values of ``--topology``: neighbours by name and from files."""

from pathlib import Path

import pytest

from atoll.errors import AtollError
from atoll.simulation.topology import read_topology

CLIENTS = ("a", "b", "c", "d")


def test_star_has_no_neighbours() -> None:
    assert read_topology("star", CLIENTS) is None


def test_ring_links_each_client_with_the_next() -> None:
    assert read_topology("ring", CLIENTS) == {"a": ("b", "d"), "b": ("a", "c"), "c": ("b", "d"), "d": ("a", "c")}


def test_ring_of_two_clients_has_one_edge() -> None:
    assert read_topology("ring", ("a", "b")) == {"a": ("b",), "b": ("a",)}


def test_single_client_has_no_neighbour() -> None:
    assert read_topology("ring", ("a",)) == read_topology("complete", ("a",)) == {"a": ()}


def test_complete_graph_links_all_clients() -> None:
    found = read_topology("complete", CLIENTS)
    assert found is not None
    assert found["c"] == ("a", "b", "d")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("graph.txt", "# a line graph\na b\nb, c\n\nc d\nb a\n"),
        ("graph.yaml", "a: [b]\nb: [c]\nd: [c]\n"),
    ],
)
def test_edges_of_a_file_work_both_ways(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert read_topology(str(tmp_path / name), CLIENTS) == {"a": ("b",), "b": ("a", "c"), "c": ("b", "d"), "d": ("c",)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("graph.txt", "a b\nb c e\n", "line 2 has 3 names. Write two clients on each line"),
        ("graph.txt", "a b\nb x\n", "names client 'x', which is not in the run. Its clients are a, b, c, d"),
        ("graph.txt", "a b\nb c\n", "client 'd' has no edge"),
        ("graph.yaml", "a: b\n", "must list the neighbours of each client"),
        ("graph.yaml", "a: [", "is not readable YAML"),
    ],
)
def test_wrong_file_is_refused_with_a_sentence(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AtollError, match=message):
        read_topology(str(tmp_path / name), CLIENTS)


def test_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(AtollError, match="--topology rng is none of star, ring, complete, and no file"):
        read_topology("rng", CLIENTS)
