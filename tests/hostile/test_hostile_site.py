"""What a hostile site sends to the server: a model that is code, impossible scores, digests that are none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import small_runs
from support.local_sites import SMALL, Sites

from atoll.core.problems import Classes
from atoll.deploy.server.handshake import read_description
from atoll.deploy.server.reply_checks import BadReply, read_score
from atoll.deploy.transport import flower
from atoll.deploy.transport.protocol import Frame, pack, unpack
from atoll.errors import AtollError

Change = Callable[[Frame], Frame]


def federation(folder: Path, method: str = "fedavg", **changes: Any) -> Sites:
    return Sites(folder, small_runs.setup(method, **SMALL | {"strikes": 0} | changes))


def hostile(sites: Sites, change: Change) -> Any:
    """A line on which site 1 changes its replies."""
    line = sites.line()
    answer = line.sites["1"]
    line.sites["1"] = lambda data: pack(change(unpack(answer(data))))
    return line


def with_head(kind: str, **values: Any) -> Change:
    return lambda reply: reply._replace(head=reply.head | values) if reply.kind == kind else reply


@pytest.mark.parametrize(
    "model",
    ["os.py:system:command=id>marker", "timm:resnet18", "torchvision:resnet18", "mlp:hidden=2000000000", "nonsense"],
)
def test_model_on_a_card_that_is_no_registered_name_ends_the_start_of_a_run(model: str, tmp_path: Path) -> None:
    sites = federation(tmp_path)

    with pytest.raises(AtollError, match=r"Site '1' names the model|weights, and at most"):
        sites.run(hostile(sites, with_head("card", model=model)))

    assert not (tmp_path / "marker").exists()


def test_file_named_on_a_card_is_not_imported(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    source = tmp_path / "evil.py"
    source.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\ndef f():\n    pass\n")
    sites = federation(tmp_path / "sites")

    with pytest.raises(AtollError, match="no registered one"):
        sites.run(hostile(sites, with_head("card", model=f"{source}:f")))

    assert not marker.exists()


@pytest.mark.parametrize("dtype", ["(2,", "object", "O", "U8", "float32,float32", "V1000000000"])
def test_impossible_dtype_on_a_card_gets_a_sentence(dtype: str, tmp_path: Path) -> None:
    sites = federation(tmp_path)

    with pytest.raises(AtollError, match="impossible values"):
        sites.run(hostile(sites, with_head("card", dtype=dtype)))


IMPOSSIBLE: dict[str, list[Any]] = {
    "kind": ["sound", 3],
    "site": [3],
    "version": [3],
    "model": [3],
    "labels": [3],
    "task": ["tokens", 3],
    "shape": [[0], [2**16], [True], 3],
    "classes": [0, 2**16, "3", True],
    "rows": [[9, 9], [0, 9, 9], [9, -1, 9], [9, 9, 2**60], [True, 9, 9]],
    "gaps": [1],
    "open_classes": [1],
    "has": [[3], 3],
    "target_bounds": [[[0, 1]], [[1, 0]] * 10, 3],
    "columns": [3, [{}]],
    "unknown": [3],
}


@pytest.mark.parametrize(("entry", "value"), [(entry, value) for entry in IMPOSSIBLE for value in IMPOSSIBLE[entry]])
def test_impossible_entry_of_a_card_gets_a_sentence(entry: str, value: Any, tmp_path: Path) -> None:
    sites = federation(tmp_path)
    card = sites.site("1").card(sites.setup.config)
    read_description("1", card)

    with pytest.raises(AtollError, match="Site '1' sent a description with impossible values"):
        read_description("1", card | {entry: value})


SCORES: dict[str, Any] = {
    "of 400 digits": {"accuracy": 10**400},
    "of 1e308": {"accuracy": 1e308},
    "of 7": {"accuracy": 7},
    "below 0": {"val": -0.5},
    "that are text": {"accuracy": "0.9"},
    "that are true": {"accuracy": True},
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("entry", ["before", "after"])
def test_impossible_scores_make_the_site_absent(kind: str, entry: str, tmp_path: Path) -> None:
    sites = federation(tmp_path)

    result = sites.run(hostile(sites, with_head("upload", **{entry: SCORES[kind]})), min_clients=1)

    assert result.summary["digest"] == absent("fedavg").summary["digest"]
    assert result.summary["personal"]["final"] <= 1


@pytest.mark.parametrize("loss", [1e308, -1e13, 10**400])
def test_impossible_loss_which_is_no_share_makes_the_site_absent(loss: float, tmp_path: Path) -> None:
    sites = federation(tmp_path)

    result = sites.run(hostile(sites, with_head("upload", after={"accuracy": 0.5, "loss": loss})), min_clients=1)

    assert result.summary["digest"] == absent("fedavg").summary["digest"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e13, True, "1", [1]])
def test_number_that_no_score_has_is_refused(value: object) -> None:
    """Python's JSON reads NaN and Infinity, which no frame of Atoll holds."""
    with pytest.raises(BadReply):
        read_score({"loss": value}, 30, Classes(3))


@pytest.mark.parametrize("digest", ["", "x" * 64, "a" * 900_000, "\ud800" * 64, 7, None, ["a"]])
def test_digest_that_is_none_makes_the_site_absent(digest: Any, tmp_path: Path) -> None:
    sites = federation(tmp_path)

    result = sites.run(hostile(sites, with_head("upload", state=digest)), min_clients=1)

    assert result.summary["digest"] == absent("fedavg").summary["digest"]


NO_UPLOAD = {
    "without a record": b"",
    "that is no frame": b"no frame",
    "of another kind": pack(Frame("card", {})),
    "without a head": pack(Frame("upload", {})),
}


@pytest.mark.parametrize("kind", NO_UPLOAD)
@pytest.mark.parametrize("method", [("fedavg", {}), ("ditto", {"wait_free": True})], ids=lambda method: method[0])
def test_reply_without_an_upload_makes_the_site_absent(
    method: tuple[str, dict[str, Any]], kind: str, tmp_path: Path
) -> None:
    """The site does not work, and knows no result if the server asks for one after the upload."""
    name, options = method
    sites = federation(tmp_path, name, **options)
    line = sites.line()
    answer = line.sites["1"]
    line.sites["1"] = lambda data: NO_UPLOAD[kind] if unpack(data).kind == "exchange" else answer(data)

    result = sites.run(line, min_clients=1)

    assert result.summary["digest"] == absent(name, **options).summary["digest"]


def test_upload_without_a_state_makes_the_site_absent_if_it_does_not_train_any_more(tmp_path: Path) -> None:
    def without_state(reply: Frame) -> Frame:
        return reply._replace(head={name: v for name, v in reply.head.items() if name != "state"})

    sites = federation(tmp_path)

    result = sites.run(hostile(sites, without_state), min_clients=1)

    assert result.summary["digest"] == absent("fedavg").summary["digest"]


def test_impossible_scores_after_personal_training_keep_the_last_good_state(tmp_path: Path) -> None:
    sites = federation(tmp_path, "ditto", wait_free=True)

    result = sites.run(hostile(sites, with_head("rest", after={"accuracy": 5})), min_clients=1)

    assert result.summary["status"] == "finished"
    assert result.summary["personal"]["final"] <= 1


def absent(method: str, **changes: Any) -> Any:
    """The same run in which client 1 never answers."""
    return small_runs.run(method, **SMALL, strikes=0, drop="client:1", **changes)


@pytest.mark.parametrize("content", [{}, {"other": 1}, None, {flower.RECORD: {}}, {flower.RECORD: {flower.RECORD: 5}}])
def test_message_without_a_record_holds_no_frame(content: Any) -> None:
    assert flower.unwrapped(content) == b""
