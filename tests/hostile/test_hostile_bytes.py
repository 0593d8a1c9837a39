"""Bytes that anybody may have sent or left on a disk: oversized, booby-trapped, or nonsense."""

import ast
import io
import json
import os
import pickle
import struct
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.payloads import Flagged, Mixed, Table, mixed, table
from support.small_runs import setup

import atoll
from atoll.config import Config, from_dict, read_yaml
from atoll.core.contract import Contract, Messages
from atoll.core.payloads import Nothing, Params, equal
from atoll.core.schema import tensors_of
from atoll.core.serialization import FROM_OUTSIDE, OWN, Limits, Unreadable, WireError, decode, decode_upload, encode
from atoll.data.dataset import Dataset
from atoll.data.federate import federate
from atoll.data.loading import load
from atoll.data.partition_files import export
from atoll.engine.build import run_experiment
from atoll.errors import AtollError
from atoll.storage import run_reader
from atoll.storage.audit_log import NAME, AuditLog, read, verify
from atoll.storage.checkpoint import Checkpoints, Snapshot
from atoll.storage.run_dir import RunDir

SOURCE = Path(atoll.__file__).parent


def message(header: Any, body: bytes = b"") -> bytes:
    """A container with this header, which is JSON or, as bytes, anything."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(*shape: int, dtype: str = "F32", at: int = 0, size: int = 0) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}


def ours(names: list[str], classes: int = 3) -> dict[str, str]:
    head = {"payload": "Table", "scalars": {"n#classes": classes}, "order": names}
    return {"atoll": json.dumps(head)}


# -- too much ---------------------------------------------------------------------------------------------------------


def claims() -> dict[str, Callable[[], bytes]]:
    """Messages that claim more than they are, or are more than anybody wants."""
    hollow = {"mu": entry(0, 2), "n": entry(0), "n#held": entry(0, dtype="I32")}
    one = {"mu": entry(1, 10**5, size=400_000), "n": entry(1, at=400_000, size=4)}
    one |= {"n#held": entry(1, dtype="I32", at=400_004, size=4)}

    def triangle(side: int) -> bytes:
        return message({"__metadata__": ours([*hollow, "sigma"]), **hollow, "sigma": entry(0, side * (side + 1) // 2)})

    def only(what: dict[str, Any]) -> bytes:
        return message({"__metadata__": ours(["n"]), "n": what}, bytes(16))

    return {
        "a header of 10 GB": lambda: struct.pack("<Q", 10**10) + b"{}",
        "a tensor of 10 GB": lambda: only(entry(25 * 10**8, size=10**10)),
        "a tensor of 10 MB": lambda: only(entry(25 * 10**5, size=10**7)),
        "sides of 2^31": lambda: only(entry(2**31, 2**31)),
        "sides of 2^31 and 0": lambda: only(entry(2**31, 2**31, 0)),
        "an empty triangle of side 20,000": lambda: triangle(20_000),
        "an empty triangle of side 40,000": lambda: triangle(40_000),
        "one row for 65,000 classes": lambda: message(
            {"__metadata__": ours(list(one), classes=65_000), **one}, struct.pack("<f", 1) * 100_001 + bytes(4)
        ),
        "10^6 keys": lambda: message(b"{%s}" % b",".join(b'"%d":{}' % i for i in range(10**6))),
        "5,000 keys": lambda: message({"__metadata__": ours([])} | {f"k{i}": entry(0) for i in range(5000)}),
        "deep nesting": lambda: message(b'{"__metadata__":' + b"[" * 900_000),
        "really 64 MB": lambda: encode(Table(torch.ones(1), torch.zeros(1, 2**24), None)),
    }  # fmt: skip


def peak() -> int:
    """The most memory that this process had since :func:`forget_peak`, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


SIXTEEN_MB = Limits(size=2**24)


@pytest.mark.parametrize("kind", claims())
def test_oversized_messages_are_refused_before_allocation(kind: str) -> None:
    """Within 100 ms and 64 MB, in a process that has decoded something before."""
    data = claims()[kind]()
    decode(Nothing, encode(Nothing()))
    forget_peak()
    before, taken = peak(), []
    for _ in range(3):  # what the interpreter tidies up meanwhile is not the decoder's doing
        started = time.thread_time()
        with pytest.raises(WireError):
            decode(Table, data, SIXTEEN_MB)
        taken.append(time.thread_time() - started)
    assert min(taken) < 0.1
    assert peak() - before < 64 * 2**20


def test_empty_triangle_is_refused_before_allocation() -> None:
    """Side 20,000, in 400 bytes: its indices alone would be 3.2 GB, and usual limits would let that pass."""
    forget_peak()
    before = peak()
    with pytest.raises(WireError):
        decode(Table, claims()["an empty triangle of side 20,000"]())
    assert peak() - before < 64 * 2**20


def test_decode_limits_accept_large_models() -> None:
    """2,000 tensors with long names; a server that keeps one for each of 10,000 clients reads its own files."""
    wide: Params = {f"body.layer{i}.block.conv.weight.of.some.length": torch.zeros(1) for i in range(2000)}
    large = Mixed(wide, torch.zeros(2, 2), None, "warm", 3, 0.5, True)
    assert equal(decode(Mixed, encode(large)), large)
    many: Params = {f"client {i}": torch.zeros(()) for i in range(10_000)}
    own = Mixed(many, torch.zeros(2, 2), None, "warm", 3, 0.5, True)
    with pytest.raises(WireError, match="10001 tensors, and at most 4096"):
        decode(Mixed, encode(own), FROM_OUTSIDE._replace(header=2**22))
    assert equal(decode(Mixed, encode(own), OWN), own)


def test_decode_refuses_flag_bytes_other_than_0_and_1() -> None:
    """Packed flags travel as labels; a plain field of flags does not."""
    p = mixed(torch.tensor([True, False, True]))
    data = bytearray(encode(p))
    assert decode(Mixed, bytes(data)).square is not None
    at = bytes(data).rfind(b"\1\0\1")
    data[at] = 2
    with pytest.raises(WireError, match="neither true nor false"):
        decode(Mixed, bytes(data))


def test_undecodable_upload_is_rejected_with_the_reason() -> None:
    assert decode_upload(Nothing, encode(Nothing())) is not None
    found = decode_upload(Table, b"nonsense")
    assert isinstance(found, Unreadable)
    assert found.reason.startswith("These 8 bytes are not a Table")


# -- booby traps ------------------------------------------------------------------------------------------------------


class Canary:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Where the folder would be; the trap itself works."""
    pickle.loads(pickle.dumps(Canary(tmp_path / "proof")))
    assert (tmp_path / "proof").is_dir()
    return tmp_path / "fired"


def npy(value: Any) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.array(value, dtype=object), allow_pickle=True)
    return sink.getvalue()


def npz(**arrays: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return sink.getvalue()


def saved(value: Any) -> bytes:
    sink = io.BytesIO()
    torch.save(value, sink)
    return sink.getvalue()


def test_pickle_in_a_message_is_not_executed(canary: Path) -> None:
    trap = pickle.dumps(Canary(canary))
    text = trap.decode("latin1")
    raw = {"__metadata__": ours(["n"]), "n": entry(len(trap), dtype="U8", size=len(trap))}
    scalars = {"atoll": json.dumps({"payload": "Mixed", "scalars": {"stage": text}, "order": []})}
    for data in (
        trap,
        saved(Canary(canary)),
        npy([Canary(canary)]),
        message(raw, trap),
        message({"__metadata__": scalars}),
    ):
        for kind in (Table, Mixed, Flagged, Nothing):
            with pytest.raises(WireError):
                decode(kind, data)
    assert not canary.exists()


def test_pickle_in_a_data_set_is_not_executed(canary: Path, tmp_path: Path) -> None:
    trap = npy([Canary(canary)] * 2)
    for name, data in {
        "a.npz": npz(x=trap, y=trap),
        "b.npz": pickle.dumps(Canary(canary)),
        "c.npy": trap,
        "d.pt": saved(Canary(canary)),
        "e.pkl": pickle.dumps(Canary(canary)),
    }.items():
        (tmp_path / name).write_bytes(data)
        for spec in (str(tmp_path / name), f"pfllib:{tmp_path / name}"):
            with pytest.raises(AtollError):
                load(spec)
    assert not canary.exists()


YAML_TRAPS = (
    "method: !!python/object/apply:os.mkdir ['{}']",
    "!!python/object/apply:os.mkdir ['{}']",
    "settings: {{lr: !!python/object/new:os.mkdir ['{}']}}",
    "method: !!python/name:os.mkdir ''",
)


def test_code_in_a_configuration_is_not_executed(canary: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    yaml.unsafe_load(YAML_TRAPS[0].format(tmp_path / "second proof"))
    assert (tmp_path / "second proof").is_dir()
    for text in (*(trap.format(canary) for trap in YAML_TRAPS), pickle.dumps(Canary(canary), 0).decode()):
        path.write_text(text)
        with pytest.raises(AtollError):
            from_dict(read_yaml(path))
    assert not canary.exists()


def test_yaml_aliases_that_expand_beyond_memory_are_refused(tmp_path: Path) -> None:
    """Nine lists of nine aliases each: 9^9 values if they were written out."""
    path = tmp_path / "config.yaml"
    path.write_text("a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)))
    with pytest.raises(AtollError, match="alias"):
        read_yaml(path)


def checkpoint(folder: Path) -> Checkpoints:
    """Two rounds of a small run."""
    made = Checkpoints(folder, Contract((Messages(Nothing, Nothing),), Table, Mixed))
    name = made.put_state(table(torch.tensor([4.0, 0.0, 1.0]), 2))
    made.save(Snapshot(1, mixed(), {"a": name}, {"run_state": {}}, b""))
    return made


def put_in(folder: Path, part: str, data: bytes) -> None:
    """Replace a part of the checkpoint, and what the manifest says of it."""
    (latest,) = (folder / "checkpoints").iterdir()
    old = sha256((latest / part).read_bytes()).hexdigest()
    (latest / part).write_bytes(data)
    manifest = latest / "manifest.json"
    if part != manifest.name:
        manifest.write_text(manifest.read_text().replace(old, sha256(data).hexdigest()))


@pytest.mark.parametrize("part", ["server.safetensors", "progress.json", "states.json", "manifest.json"])
def test_pickle_in_a_checkpoint_is_not_executed(part: str, canary: Path, tmp_path: Path) -> None:
    made = checkpoint(tmp_path)
    for trap in (pickle.dumps(Canary(canary)), saved(Canary(canary)), npy([Canary(canary)])):
        put_in(tmp_path, part, trap)
        with pytest.raises(AtollError):
            made.load(lambda words: None)
    assert not canary.exists()


# -- what the code may not use ----------------------------------------------------------------------------------------

FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "torch.load", "yaml.load", "yaml.load_all", "yaml.full_load",
    "yaml.unsafe_load", "os.system", "os.popen", "pd.read_pickle",
}  # fmt: skip
# A reader of foreign pickles that builds nothing but our own stand-ins, by a list of seven names. And the nodes of a
# Ray cluster, who run what the machine sends that starts the simulation: that is what such a cluster is for.
ALLOWED = {("data/readers/pickles.py", "import pickle")} | {
    ("backends/ray_backend.py", fault) for fault in ("import pickle", "exec", "compile")
}
# Pipes between this program and the workers that it forks itself; they pickle what they carry.
PIPES = {"backends/shared_memory.py", "backends/multiprocess.py", "experiments/runner.py"}


def spelt(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def faults(tree: ast.AST) -> list[str]:
    """What a module does that could run what a file or a message says."""
    found = []
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"import {name}" for name in names if name.partition(".")[0] in FORBIDDEN_MODULES]
        if not isinstance(node, ast.Call):
            continue
        call, words = spelt(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        if call in FORBIDDEN_CALLS:
            found.append(call)
        if call in ("np.load", "numpy.load") and words.get("allow_pickle") != "False":
            found.append(f"{call} without allow_pickle=False")
        if words.get("allow_pickle", "False") != "False" or words.get("shell", "False") != "False":
            found.append(f"{call} with {words}")
    return found


@cache
def modules() -> dict[str, ast.AST]:
    return {str(p.relative_to(SOURCE)): ast.parse(p.read_text(encoding="utf-8")) for p in sorted(SOURCE.rglob("*.py"))}


def test_package_uses_no_function_that_executes_input() -> None:
    assert {(name, fault) for name, tree in modules().items() for fault in faults(tree)} == ALLOWED


def test_only_worker_modules_import_multiprocessing() -> None:
    users = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and "multiprocessing" in ast.unparse(node)
    }
    assert users <= PIPES


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from dill import loads", "import torch; torch.load('x', weights_only=True)", "eval('1')",
        "np.load(p)", "np.load(p, allow_pickle=True)", "np.savez(p, allow_pickle=True)", "yaml.load(t, Loader=L)",
        "exec(code)", "subprocess.run(x, shell=True)",
    ],
)  # fmt: skip
def test_search_finds_functions_that_execute_input(text: str) -> None:
    assert faults(ast.parse(text))


# -- nonsense ---------------------------------------------------------------------------------------------------------

FIXED = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
SHARE = 10  # one in so many examples is tried each time, all of them (10,000 in this file) with the long tests


def fuzz(examples: int, *strategies: Any) -> Callable[[Any], Any]:
    """A test with a share of the examples and, in the module too, a long one with all of them."""

    def made(f: Any) -> Any:
        both = [settings(FIXED, max_examples=n)(given(*strategies)(f)) for n in (examples // SHARE, examples)]
        globals()[f"{f.__name__}_at_length"] = pytest.mark.chaos(both[1])
        return both[0]

    return made


PAYLOADS: tuple[Any, ...] = (
    table(torch.tensor([4.0, 0.0, 1.0]), 2),
    table(torch.ones(3), 2, covariances=False),
    Flagged(torch.ones(2, 3), torch.ones(2, dtype=torch.bool)),
    mixed(torch.arange(3)),
    Nothing(),
)
BYTES = [encode(p) for p in PAYLOADS]
EDITS = st.lists(st.tuples(st.integers(0, 2**12), st.integers(0, 255)), min_size=1, max_size=4)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def edited(data: bytes, edits: list[tuple[int, int]], cut: int = 0) -> bytes:
    out = bytearray(data)
    for at, value in edits:
        out[at % len(out)] = value
    return bytes(out[: len(out) - cut])


def decoded(kind: type[Any], data: bytes) -> None:
    """It is a payload of that class, which can be written again, or a WireError; nothing else."""
    with suppress(WireError):
        found = decode(kind, data)
        assert type(found) is kind
        assert equal(decode(kind, encode(found)), found) or has_nan(found)


def has_nan(p: Any) -> bool:
    return any(v.is_floating_point() and bool(v.isnan().any()) for v in tensors_of(p).values())


@fuzz(3000, st.integers(0, len(PAYLOADS) - 1), EDITS, st.integers(0, 3))
def test_edited_messages_decode_or_raise_wire_error(which: int, edits: list[tuple[int, int]], cut: int) -> None:
    decoded(type(PAYLOADS[which]), edited(BYTES[which], edits, cut))


@fuzz(1000, st.integers(0, 2), st.binary(max_size=120))
def test_random_bytes_decode_or_raise_wire_error(which: int, data: bytes) -> None:
    decoded(type(PAYLOADS[which + 1]), data)
    decoded(Table, message(data))


NAMES = st.sampled_from(["n", "n#held", "mu", "sigma", "params/a", "__metadata__", "more"])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I32", "BOOL", "U8", "F64", "F8_E4M3", "STR"]) | JUNK,
        "shape": st.lists(st.integers(0, 4) | st.sampled_from([-1, 2**31, 2**63, 2**64]), max_size=3) | JUNK,
        "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2) | JUNK,
    }
)
HEADS = st.fixed_dictionaries(
    {
        "payload": st.just("Table") | JUNK,
        "scalars": st.dictionaries(st.just("n#classes") | st.text(max_size=4), st.integers(-2, 2**17) | JUNK) | JUNK,
        "order": st.lists(NAMES, max_size=4, unique=True) | JUNK,
    }
)


@fuzz(1500, st.dictionaries(NAMES, ENTRIES | JUNK, max_size=4), HEADS | JUNK, st.integers(0, 64))
def test_random_headers_decode_or_raise_wire_error(entries: dict[str, Any], head: Any, size: int) -> None:
    header = entries | {"__metadata__": {"atoll": json.dumps(head)}}
    decoded(Table, message(header, bytes(size)))


VALUES = st.lists(st.floats(width=32) | st.just(-0.0), max_size=6)


@fuzz(
    1000,
    VALUES,
    st.lists(st.floats(0, 100, width=32), min_size=1, max_size=4),
    st.text(max_size=20),
    st.floats(),
    st.integers(),
)
def test_decode_restores_random_payloads_bit_for_bit(
    values: list[float], counts: list[float], word: str, x: float, i: int
) -> None:
    """NaN, infinities and minus zero included; numbers too large for a scalar's text are the only thing refused."""
    params = {"b": torch.tensor(values), "a": torch.tensor([values]).double()}
    p = Mixed(params, torch.eye(2), torch.tensor([i % 7]), word, i, x, i % 2 == 0)
    back = decode(Mixed, encode(p))
    assert encode(back) == encode(p)
    assert [v.numpy().tobytes() for v in back.params.values()] == [v.numpy().tobytes() for v in params.values()]
    n = torch.tensor(counts)
    t = table(n, 2)
    assert encode(decode(Table, encode(t))) == encode(t)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("log") / NAME
    writer = AuditLog(path)
    for i in range(3):
        writer.add(1, 0, f"client {i}", 10, "0" * 64, ("n", "is wrong") if i else None)
    return path


@fuzz(900, EDITS, st.integers(0, 3), st.binary(max_size=40) | JUNK.map(lambda v: json.dumps(v).encode() + b"\n"))
def test_edited_audit_log_is_verified_or_refused(
    log: Path, edits: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    path, whole = log.with_name("damaged.jsonl"), log.read_bytes()
    for data in (edited(whole, edits, cut), whole + more, more):
        path.write_bytes(data)
        with suppress(AtollError):
            list(read(path))
            verify(path)


@pytest.fixture(scope="module")
def saved_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checkpoints, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("run")
    made = checkpoint(folder)
    (latest,) = (folder / "checkpoints").iterdir()
    return folder, made, {p.name: p.read_bytes() for p in latest.iterdir()}


@fuzz(
    400,
    st.sampled_from(
        [
            "manifest.json",
            "progress.json",
            "states.json",
            "per_client.json",
            "servers.json",
            "server.safetensors",
            "scores.safetensors",
        ]
    ),
    EDITS,
    JUNK,
)
@example("manifest.json", [(0, 0)], {"../../../secret": ""})
@example("states.json", [(0, 0)], {"a": "../../config.yaml"})
def test_edited_checkpoint_is_loaded_or_refused(
    saved_run: Any, part: str, edits: list[tuple[int, int]], junk: Any
) -> None:
    """With a manifest that fits what was written, as only somebody who means it would leave it."""
    folder, made, parts = saved_run
    (latest,) = (folder / "checkpoints").iterdir()
    for data in (edited(parts[part], edits), json.dumps(junk).encode()):
        for name, content in parts.items():
            (latest / name).write_bytes(content)
        put_in(folder, part, data)
        with suppress(AtollError):
            made.load(lambda words: None)


@fuzz(800, st.dictionaries(st.sampled_from(list(Config.__dataclass_fields__)), JUNK, max_size=3))
@example({"robust": "krum:1:99999999999999999999999"})
@example({"lr": float("nan"), "rate": float("nan")})
@example({"models": [["a"]], "settings": {"a": [[]]}})
def test_random_configuration_values_are_read_or_refused(values: dict[str, Any]) -> None:
    with suppress(AtollError):
        config = from_dict(values)
        assert from_dict(yaml.safe_load(config.to_yaml())) == config or "nan" in repr(config)


YAML = st.text(alphabet=":-[]{}!&*|>'\"%@#? \n\tabc019.,~\\\x00é", max_size=40)


@fuzz(700, YAML)
@example("a: 2001-13-45")
@example("[" * 5000)
@example("{? {a: b}: c}")
@example("a: 1:99:99:9e999")
@example("? - \n: !!binary 'x'")
@example("a: !!timestamp x")
@example("a: 0o9\nb: 0b2\nc: 0x_\nd: 1__1")
@example("<<: 3")
@example("!!set {a, b}")
@example("= : =")
def test_random_configuration_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    with suppress(AtollError):
        from_dict(read_yaml(path), str(path))


@pytest.fixture(scope="module")
def small() -> Dataset:
    x = np.arange(24, dtype=np.uint8).reshape(12, 1, 1, 2)
    y = np.arange(12) % 2
    return Dataset("small", "image", x[:8], y[:8], x[8:], y[8:], ("a", "b"))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, small: Dataset) -> Path:
    path: Path = tmp_path_factory.mktemp("partition") / "partition.json"
    export(federate(small, 2, "iid", "client_811", 0), path)
    return path


@fuzz(400, EDITS, JUNK, st.sampled_from(["clients", "public", "version", "digest", "notes", "name"]))
@example([(0, 0)], {"id": "a"}, "clients")
@example([(0, 0)], [[{"id": "a", "train": [2**70]}]], "clients")
def test_edited_partition_files_are_read_or_refused(
    small: Dataset, exported: Path, edits: list[tuple[int, int]], junk: Any, place: str
) -> None:
    whole, path = exported.read_bytes(), exported.with_name("damaged.json")
    for data in (edited(whole, edits), json.dumps(json.loads(whole) | {place: junk}).encode()):
        path.write_bytes(data)
        with suppress(AtollError):
            federate(small, None, f"file:{path}", "client_811", 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("finished") / "run"
    made = setup("fedavg", clients=2, rows=60, rounds=1)
    with RunDir(folder) as opened:
        opened.start(made.config, resume=False, force=False)
        run_experiment(made, opened)
    return folder


@fuzz(
    300,
    st.sampled_from(["summary.json", "metrics.jsonl", "holdings.json", "config.yaml", "clients.parquet"]),
    EDITS,
    JUNK,
)
def test_edited_run_files_are_read_or_refused(
    finished: Path, name: str, edits: list[tuple[int, int]], junk: Any
) -> None:
    whole = (finished / name).read_bytes()
    try:
        for data in (edited(whole, edits), json.dumps(junk).encode()):
            (finished / name).write_bytes(data)
            with suppress(AtollError):
                run_reader.load(finished)
    finally:
        (finished / name).write_bytes(whole)


def test_name_of_a_column_that_is_no_text_is_refused(finished: Path) -> None:
    file = finished / "clients.parquet"
    whole = file.read_bytes()
    try:
        file.write_bytes(whole.replace(b"accuracy", b"\x80ccuracy"))
        with pytest.raises(AtollError, match="is damaged"):
            run_reader.load(finished)
    finally:
        file.write_bytes(whole)
