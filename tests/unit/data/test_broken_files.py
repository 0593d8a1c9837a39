"""Data files that are broken or hostile: one sentence each, at once, without a traceback and without memory."""

import io
import os
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.data.loading import load
from atoll.errors import AtollError


def npy(array: Any, header: dict[str, Any] | None = None) -> bytes:
    file = io.BytesIO()
    if header:
        np.lib.format.write_array_header_1_0(file, header)
    else:
        np.lib.format.write_array(file, np.asarray(array))
    return file.getvalue()


def good() -> dict[str, bytes]:
    return {"x.npy": npy(np.zeros((20, 3))), "y.npy": npy(np.arange(20) % 2)}


def write_npz(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def huge_npz(folder: Path) -> Path:
    claim = {"descr": "<f8", "fortran_order": False, "shape": (2**19, 2**20)}  # 2^39 numbers of 8 bytes: 4 TB
    return write_npz(folder / "a.npz", good() | {"x.npy": npy(None, claim)})


def patched_npz(folder: Path, at: int, value: int) -> Path:
    """Change a two-byte entry of all headers: 6 of a local and 8 of a central header are flags, 8 and 10 the method."""
    path = write_npz(folder / "a.npz", good())
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\3\4", at), (b"PK\1\2", at + 2)):
        start = data.find(mark)
        while start >= 0:
            data[start + place : start + place + 2] = struct.pack("<H", value)
            start = data.find(mark, start + 4)
    path.write_bytes(data)
    return path


def padded_npz(folder: Path) -> Path:
    """A gigabyte behind an array of 20 rows, packed into a megabyte."""
    path = folder / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("y.npy", good()["y.npy"])
        with archive.open("x.npy", "w") as member:
            member.write(good()["x.npy"])
            for _ in range(16):
                member.write(bytes(2**26))
    return path


def wide_csv(folder: Path) -> Path:
    path = folder / "a.csv"
    names = [f"c{n}" for n in range(30_000)]
    path.write_text(",".join([*names, "c0"]) + "\n" + ",".join("1" for _ in [*names, "c0"]) + "\n")
    return path


def truncated_npz(folder: Path) -> Path:
    path = write_npz(folder / "a.npz", good())
    path.write_bytes(path.read_bytes()[:-60])
    return path


def tokens_npz(folder: Path) -> Path:
    return write_npz(folder / "a.npz", good() | {"x.npy": npy(np.full((20, 3), 2**40))})


def latin_csv(folder: Path) -> Path:
    path = folder / "a.csv"
    path.write_bytes("größe,label\n1,gut\n2,böse\n".encode("latin-1"))
    return path


def latin_values(folder: Path) -> Path:
    path = folder / "a.csv"
    path.write_bytes("size,label\n1,gut\n2,böse\n".encode("latin-1"))
    return path


def damaged_parquet(folder: Path) -> Path:
    path = folder / "a.parquet"
    path.write_bytes(b"PAR1" + bytes(40))
    return path


def pipe(folder: Path, name: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def image_folder(folder: Path, data: bytes) -> Path:
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        (folder / "images" / name / "1.png").write_bytes(data)
    return folder / "images"


def pipe_among_images(folder: Path) -> Path:
    path = image_folder(folder, png(8, 8))
    pipe(path, "cat/2.png")
    return path


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "npz of 4 TB": (huge_npz, "claims 4,398,046,511,104 bytes"),
    "npz with more than it claims": (padded_npz, "claims 480 bytes and holds 1,073,742,304"),
    "encrypted npz": (lambda folder: patched_npz(folder, 6, 1), "encrypted"),
    "unknown compression": (lambda folder: patched_npz(folder, 8, 97), "compression"),
    "truncated npz": (truncated_npz, "zip"),
    "tokens of 2^40": (tokens_npz, "token id 1099511627776 is too large"),
    "latin-1 names": (latin_csv, "UTF-8"),
    "latin-1 values": (latin_values, "UTF-8"),
    "30,000 columns of which two have one name": (wide_csv, "several columns called 'c0'"),
    "damaged parquet": (damaged_parquet, "Cannot read"),
    "pipe as npz": (lambda folder: pipe(folder, "a.npz"), "pipe"),
    "pipe as csv": (lambda folder: pipe(folder, "a.csv"), "pipe"),
    "pipe as text": (lambda folder: pipe(folder, "a.txt"), "pipe"),
    "pipe among images": (pipe_among_images, "pipe"),
    "pipe among npz files": (lambda folder: pipe(folder, "all/0.npz").parent, "pipe"),
    "huge image": (lambda folder: image_folder(folder, png(60_000, 60_000)), r"pixels.*attack\. The"),
    "image of absurd size": (lambda folder: image_folder(folder, png(10**6, 10**6)), "pixels"),
    "truncated image": (lambda folder: image_folder(folder, png(8, 8)[:40]), "Cannot read"),
}


@pytest.mark.parametrize("kind", FILES)
def test_broken_file_gets_a_sentence_within_a_second_of_processor_time(kind: str, tmp_path: Path) -> None:
    make, words = FILES[kind]
    path = make(tmp_path)
    started = time.process_time()

    with pytest.raises(AtollError, match=words):
        load(str(path))

    assert time.process_time() - started < 1


def test_command_refuses_a_pipe_with_exit_code_2(tmp_path: Path, refused: Callable[..., str]) -> None:
    assert "pipe" in refused("run", "fedavg", "--data", pipe(tmp_path, "a.csv"))
