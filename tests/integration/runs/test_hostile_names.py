"""Names from elsewhere: whatever clients, data sets and files are called, a run writes only into its own directory."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.killable_cli import Victim

from atoll import Dataset, run
from atoll.config import Config
from atoll.data.federate import federate
from atoll.data.partition_files import export
from atoll.errors import AtollError
from atoll.experiments.planning import assign_directories, to_file_name
from atoll.storage.run_dir import RunDir

pytestmark = pytest.mark.usefixtures("without_report")

NASTY = [
    "..", ".", "../../escaped", "/tmp/escaped", "a/b", "a\\b", "a\0b", "a\nb", "\0", "~", "~root", "-rf", "$HOME",
    "n" * 300, "客" * 300, "CON", "a:b", "%2e%2e%2f", "..%2f..", ".lock", "new-000001", "é", "\u202egnp", " ", "🏝",
]  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {  # what of the arguments of an event is changed
    "os.mkdir": slice(0, 1), "os.rmdir": slice(0, 1), "os.remove": slice(0, 1), "os.truncate": slice(0, 1),
    "os.rename": slice(0, 2), "os.symlink": slice(1, 2), "os.link": slice(1, 2),
}  # fmt: skip
LINKED = [
    ".lock", "config.yaml", "metrics.jsonl", "summary.json", "clients.parquet", "holdings.json", "report.html",
    "checkpoints", "objects", "states", "per_client",
]  # fmt: skip


def watch_writes(*allowed: Path) -> None:
    """From here on, print every path that this process changes outside of the allowed folders. It cannot be undone."""
    roots = [os.path.realpath(folder) for folder in allowed]

    def tell(path: Any, folder: int = -1) -> None:
        if isinstance(path, int):
            return
        base = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
        whole = os.path.join(base, os.fsdecode(path))
        real = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        if not any(real == root or real.startswith(root + os.sep) for root in roots):
            print(f"outside: {real}", flush=True)

    def hook(event: str, args: Any) -> None:
        if event == "open" and isinstance(args[2], int) and args[2] & WRITING and args[0] != os.devnull:
            tell(args[0])
        elif event in CHANGES:
            folders = [value for value in args if isinstance(value, int)]
            for path in args[CHANGES[event]]:
                tell(path, folders[-1] if folders else -1)

    sys.addaudithook(hook)


def owned(owners: list[str]) -> Dataset:
    """Twelve rows for each owner."""
    rng = np.random.default_rng(0)
    n = 12 * len(owners)
    x, y = rng.standard_normal((n, 4), dtype=np.float32), np.arange(n) % 3
    owner = np.repeat(np.array(owners, dtype=object), 12).astype(str)
    return Dataset("toy", "table", x, y, x[:0], y[:0], ("a", "b", "c"), owner, owner[:0])


@cache
def warm_up() -> None:
    """Torch makes folders of its own when it is first used."""
    run("ditto", owned(["a", "b"]), partition="natural", rounds=1, epochs=1, models="linear")


def ran_inside(tmp_path: Path, act: Callable[[Path], object]) -> str:
    """What a process said that did something in a run directory; nothing, if all went well."""
    out = tmp_path / "run"
    warm_up()

    def watched() -> None:
        watch_writes(out, tmp_path / "cache")  # the second: partitions, by the hash of their content
        act(out)

    with Victim(watched, tmp_path / "log") as victim:
        return victim.finish()


def listing(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))


@pytest.mark.parametrize("kind", ["natural", "file"])
def test_client_names_cannot_leave_the_run_directory(kind: str, tmp_path: Path) -> None:
    """States on disk have a file for each client."""
    ids = [i for i in NASTY if not i.endswith("\0")]  # numpy takes zeros off the end of texts
    data, file = owned(ids), tmp_path / "partition.json"
    export(federate(data, None, "natural", "client_811", 0), file)
    partition = {"natural": "natural", "file": f"file:{file}"}[kind]

    def act(out: Path) -> None:
        options: dict[str, Any] = {"partition": partition, "rounds": 2, "epochs": 1, "models": "linear"}
        result = run("ditto", data, out=out, store="disk", cache=1, backend="loop", **options)
        assert sorted(result.pool.ids) == sorted(ids)
        assert list(result.backend.store) == sorted(ids)
        again = run("ditto", data, out=out, store="disk", cache=1, backend="loop", resume=True, **options)
        assert again.summary["digest"] == result.summary["digest"]

    assert ran_inside(tmp_path, act) == ""
    assert {p.name for p in tmp_path.iterdir()} <= {"run", "log", "cache", "partition.json"}


def test_client_names_with_lone_surrogates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"client '\\ud800'"):
        run("local", owned(["a", "\ud800"]), partition="natural", rounds=1, out=tmp_path / "run")


@pytest.mark.parametrize("name", NASTY)
def test_any_data_set_and_method_name_gives_one_directory(name: str, tmp_path: Path) -> None:
    for text in (name, f"x/{name}", f"{name}.py"):
        part = to_file_name(text)
        assert len(part.encode()) <= 240
        assert not set(part) & set("/\\\0\n~$%:")
        (made,) = assign_directories([Config(method=f"{text}.py", terms=("dw:mu=../../x",))], tmp_path)
        inside = Path(str(made.out))
        assert inside.parent == tmp_path
        assert inside.name not in ("..", ".")
        inside.mkdir(exist_ok=True)  # the file system takes it


def test_data_set_names_cannot_leave_the_run_directory(tmp_path: Path) -> None:
    data = owned(["a", "b"])

    def act(out: Path) -> None:
        for at, name in enumerate(NASTY):
            renamed = Dataset(name, *[getattr(data, f) for f in list(data.__dataclass_fields__)[1:]])
            run("local", renamed, partition="natural", rounds=1, epochs=1, models="linear", out=out / str(at))

    assert ran_inside(tmp_path, act) == ""


@pytest.mark.parametrize("name", LINKED)
def test_symlink_in_run_directory_is_refused_and_its_target_unchanged(name: str, tmp_path: Path) -> None:
    out, outside = tmp_path / "run", tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (outside / "precious").write_text("mine")
    target = outside if "." not in name else outside / "precious"
    (out / name).symlink_to(target)
    before = listing(outside)
    for force in (False, True):
        with pytest.raises(AtollError, match="is a symbolic link"):
            run("local", owned(["a", "b"]), partition="natural", rounds=1, out=out, force=force)
    assert listing(outside) == before
    assert (outside / "precious").read_text() == "mine"


@pytest.mark.parametrize("name", ["config.yaml.new", "metrics.jsonl.new", "checkpoints/new-000001", "objects/x.new"])
def test_symlink_at_temporary_file_is_not_followed(name: str, tmp_path: Path) -> None:
    out, outside = tmp_path / "run", tmp_path / "outside"
    (out / name).parent.mkdir(parents=True)
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (out / name).symlink_to(outside if "new-" in name else outside / "precious")

    def act(out: Path) -> None:
        with suppress(OSError):  # "too many links": refused
            run("local", owned(["a", "b"]), partition="natural", rounds=1, out=out, checkpoint_every=1)

    assert ran_inside(tmp_path, act) == ""
    assert listing(outside) == ["precious"]
    assert (outside / "precious").read_text() == "mine"


def test_run_directory_behind_a_symlink_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "large disk")
    run("local", owned(["a", "b"]), partition="natural", rounds=1, out=tmp_path / "run")
    assert (tmp_path / "large disk" / "summary.json").exists()


@pytest.mark.parametrize("out", ["n" * 300, "a\0b", "\ud800"])
def test_run_directory_that_cannot_be_created_is_refused(out: str) -> None:
    with pytest.raises(AtollError, match="Cannot write to the run directory"), RunDir(Path(out)):
        pass
    assert listing(Path()) == []


def test_watched_file_operations_outside_the_folder_are_found(tmp_path: Path) -> None:
    """Or else it could not tell anything of the others."""

    def act(out: Path) -> None:
        out.mkdir()
        (out / "link").symlink_to(tmp_path)
        (out / "inside").write_text("")
        (out / "link" / "one").write_text("")
        (out / ".." / "two").mkdir()
        (out / "inside").rename(tmp_path / "three")

    said = ran_inside(tmp_path, act).splitlines()
    assert said == [f"outside: {tmp_path / name}" for name in ("one", "two", "three")]
