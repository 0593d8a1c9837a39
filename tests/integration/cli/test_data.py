"""``atoll data`` as a user sees it."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from atoll.cli.data import data
from atoll.errors import AtollError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    return tmp_path


def atoll_data(*args: object):
    return CliRunner().invoke(data, [str(arg) for arg in args])


def printed(*args: object) -> str:
    result = atoll_data(*args)
    assert result.exit_code == 0, result.exception
    return result.output


def line(output: str, first: str) -> list[str]:
    """The words of the table's line that begins with ``first``."""
    return next(words for words in map(str.split, output.splitlines()) if words and words[0] == first)


def test_the_list_has_every_data_set(here):
    output = printed("list", "--data-dir", here)
    assert line(output, "mnist")[:5] == ["mnist", "image", "60,000", "10,000", "10"]
    assert "cifar10" in output
    assert printed() == printed("list")


def test_the_list_as_json(here):
    entries = {entry["name"]: entry for entry in json.loads(printed("list", "--data-dir", here, "--json"))}
    assert entries["mnist"]["rows"] == [60000, 10000]
    assert entries["digits"]["found"]
    assert not entries["cifar10"]["found"]


def test_data_show_prints_and_draws_rows_of_each_client(here):
    """1797 digits, all of them owned: the table's totals are the data set's."""
    output = printed("show", "digits", "--clients", 5)
    assert line(output, "client") == ["client", *"0123456789", "all", "train", "val", "test"]
    totals = [int(word.replace(",", "")) for word in line(output, "all")[1:]]
    assert sum(totals[:10]) == totals[10] == sum(totals[11:]) == 1797
    assert "dirichlet:0.5, 5 clients, client_811, 0 public rows, seed 0" in output
    assert "Chart: holdings.png" in output
    assert (here / "holdings.png").read_bytes().startswith(b"\x89PNG")


def test_chart_is_written_to_out(here):
    assert "Chart: charts/mine.svg" in printed("show", "digits", "--out", "charts/mine.svg")
    assert "<svg" in (here / "charts" / "mine.svg").read_text()
    assert not (here / "holdings.png").exists()


def test_a_hundred_clients_stay_readable(here):
    """20 clients are listed; the totals are over all 100."""
    output = printed("show", "digits", "--clients", 100, "--partition", "iid")
    assert line(output, "19")
    assert not any(words.split()[:1] == ["20"] for words in output.splitlines())
    assert line(output, "all")[11] == "1,797"
    assert "Not shown: 80 clients. --json lists everything." in output
    assert max(map(len, output.splitlines())) <= 120


def test_many_classes_stay_readable(here):
    y = np.repeat(np.arange(60), 4)
    np.savez(here / "many.npz", x=np.zeros((240, 3), dtype=np.float32), y=y)
    output = printed("show", "many.npz", "--clients", 2, "--partition", "iid")
    shown = len(line(output, "client")) - 5
    assert 1 <= shown < 60
    assert f"Not shown: {60 - shown} classes." in output
    assert "…" not in output


def test_notes_and_public_rows_are_printed(here):
    output = printed("show", "digits", "--clients", 10, "--partition", "pathological:2", "--public", 30)
    assert "Public samples: 30" in output
    assert "left over from rounding and are not used" in output


def test_json_has_every_client(here):
    facts = json.loads(printed("show", "digits", "--clients", 50, "--public", 10, "--json", "--seed", 3))
    assert [client["id"] for client in facts["clients"]] == [str(i) for i in range(50)]
    assert facts["public"] == 10
    assert facts["chart"] == "holdings.png"
    assert sum(sum(client["classes"]) for client in facts["clients"]) == 1787
    for client in facts["clients"]:
        assert client["train"] + client["val"] + client["test"] == sum(client["classes"])


def test_an_exported_partition_is_shown_again(here):
    first = printed("show", "digits", "--clients", 7, "--split", "official", "--export", "mine.json")
    assert "Exported: mine.json (use it with --partition file:mine.json)" in first
    again = printed("show", "digits", "--partition", "file:mine.json")
    assert again == first[: first.index("Exported")]


def test_natural_partition_has_one_client_for_each_owner(here):
    np.savez(
        here / "owned.npz",
        x=np.zeros((40, 3), dtype=np.float32),
        y=np.tile([0, 1], 20),
        owner=np.repeat(["[ann]", "bob"], [10, 30]),
    )
    output = printed("show", "owned.npz", "--partition", "natural")
    assert line(output, "[ann]")[1:4] == ["5", "5", "10"]
    assert line(output, "bob")[1:4] == ["15", "15", "30"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["digit"], "Did you mean 'digits'"),
        (["digits", "--partition", "pathological:3", "--clients", "5"], "Use 10 clients"),
        (["digits", "--partition", "natural"], "names no owners of its samples"),
        (["digits", "--split", "offical"], "Did you mean 'official'"),
        (["digits", "--out", "chart.pdf"], "ends in .png or .svg"),
    ],
)
def test_wrong_data_options_are_refused(here, args, message):
    result = atoll_data("show", *args)
    assert isinstance(result.exception, AtollError)
    assert message in str(result.exception)
    assert list(here.iterdir()) == []
