"""Loading data sets: each format on small files made here, each mistake with its message. Nothing is downloaded."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from atoll.data import catalogue, loading
from atoll.data.dataset import Array, Dataset
from atoll.data.downloads import File, data_folder, fetch
from atoll.data.loading import base_name, load
from atoll.data.natural_sets import NATURAL
from atoll.data.readers import digits, text
from atoll.data.tables.columns import Column
from atoll.errors import AtollError

RNG = np.random.default_rng(0)


def images(count: int, *shape: int) -> Array:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def idx(array: Array) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def npz(folder: Path, name: str = "data.npz", **arrays: Any) -> str:
    np.savez(folder / name, **arrays)
    return str(folder / name)


def csv(folder: Path, content: str) -> str:
    (folder / "table.csv").write_text(content)
    return str(folder / "table.csv")


def png(path: Path, pixels: Array | Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)).save(path)


def labels(data: Dataset) -> list[str]:
    """The names of the training labels, row by row."""
    return [data.classes[label] for label in data.y_train]


# ---------------------------------------------------------------------------------------------------- named data sets


def test_digits_are_scaled_and_split_by_every_fifth_row_of_a_class() -> None:
    """16 becomes 255. A class of n rows has floor(n / 5) test rows; scikit-learn's sizes 178 182 177 183 181 182 181
    179 174 180 give 35 36 35 36 36 36 36 35 34 36 = 355."""
    data = load("digits")
    assert data.shape == (1, 8, 8)
    assert data.x_train.dtype == np.uint8
    assert data.x_train.max() == 255
    assert np.bincount(data.y_test).tolist() == [35, 36, 35, 36, 36, 36, 36, 35, 34, 36]
    assert len(data.y_train) + len(data.y_test) == 1797
    again = load("digits")
    assert np.array_equal(again.x_test, data.x_test)


def test_every_fifth_counts_rows_within_each_class() -> None:
    """Class 0 holds rows 0 to 4 and 10 (its fifth is row 4), class 1 rows 5 to 9 (its fifth is row 9)."""
    assert np.flatnonzero(digits.every_fifth(np.array([0] * 5 + [1] * 5 + [0]))).tolist() == [4, 9]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_idx_files_are_read(tmp_path: Path, name: str) -> None:
    x_train, x_test = images(3, 28, 28), images(2, 28, 28)
    y_train, y_test = np.array([3, 0, 9], np.uint8), np.array([1, 1], np.uint8)
    for part, x, y in (("train", x_train, y_train), ("t10k", x_test, y_test)):
        for content, array in (("images-idx3", x), ("labels-idx1", y)):
            path = tmp_path / name / f"{part}-{content}-ubyte.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.compress(idx(array)))
    data = load(name, tmp_path)
    assert np.array_equal(data.x_train[:, 0], x_train)
    assert np.array_equal(data.x_test[:, 0], x_test)
    assert data.y_train.tolist() == [3, 0, 9]
    assert data.num_classes == 10
    assert data.x_train.flags.writeable


def test_a_broken_idx_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    good = gzip.compress(idx(images(2, 28, 28)))
    for file in catalogue.KNOWN["mnist"].files:
        (tmp_path / file.name).write_bytes(good)
    first = tmp_path / catalogue.KNOWN["mnist"].files[0].name
    for broken in (b"not gzip", good[:-20], gzip.compress(b"\0\0\x08"), gzip.compress(idx(images(2, 28, 28))[:-1])):
        first.write_bytes(broken)
        with pytest.raises(AtollError, match="train-images-idx3"):
            load("mnist", tmp_path)


def test_emnist_is_turned_upright_and_letters_start_at_a(tmp_path: Path) -> None:
    upright = images(2, 28, 28)
    stored = upright.transpose(0, 2, 1)
    (tmp_path / "emnist").mkdir()
    with zipfile.ZipFile(tmp_path / "emnist/gzip.zip", "w") as archive:
        for variant, y in (("letters", [1, 26]), ("byclass", [0, 61])):
            for part in ("train", "test"):
                base = f"gzip/emnist-{variant}-{part}"
                archive.writestr(f"{base}-images-idx3-ubyte.gz", gzip.compress(idx(np.ascontiguousarray(stored))))
                archive.writestr(f"{base}-labels-idx1-ubyte.gz", gzip.compress(idx(np.array(y, np.uint8))))
    letters, everything = load("emnist:letters", tmp_path), load("emnist", tmp_path)
    assert np.array_equal(letters.x_train[:, 0], upright)
    assert labels(letters) == ["a", "z"]
    assert labels(everything) == ["0", "z"]
    assert everything.num_classes == 62
    with pytest.raises(AtollError, match="emnist-digits"):  # the zip of this test lacks it
        load("emnist:digits", tmp_path)


def test_emnist_merges_the_letters_that_look_alike() -> None:
    """47 classes: ten digits, 26 capitals, and the eleven small letters a b d e f g h n q r t."""
    names = catalogue.KNOWN["emnist:balanced"].names
    assert names is not None
    assert len(names) == 47
    assert "".join(names[36:]) == "abdefghnqrt"


def test_cifar_binary_archives_are_read(tmp_path: Path) -> None:
    x = images(6, 3, 32, 32)
    batches = {f"cifar-10-batches-bin/data_batch_{i + 1}.bin": bytes([i]) + x[i].tobytes() for i in range(5)}
    tar(
        tmp_path / "cifar-10-binary.tar.gz",
        {"cifar-10-batches-bin/test_batch.bin": b"\x09" + x[5].tobytes(), **dict(reversed(batches.items()))},
    )
    tar(  # coarse label first, fine label second
        tmp_path / "cifar-100-binary.tar.gz",
        {
            "cifar-100-binary/train.bin": b"\x02\x63" + x[0].tobytes() + b"\x01\x00" + x[1].tobytes(),
            "cifar-100-binary/test.bin": b"\x00\x05" + x[2].tobytes(),
        },
    )
    ten, hundred = load("cifar10", tmp_path), load("cifar100", tmp_path)
    assert np.array_equal(ten.x_train, x[:5])
    assert ten.y_train.tolist() == [0, 1, 2, 3, 4]
    assert ten.classes[ten.y_test[0]] == "truck"
    assert np.array_equal(hundred.x_train, x[:2])
    assert labels(hundred) == ["worm", "apple"]
    assert hundred.y_test.tolist() == [5]


@pytest.mark.parametrize("files", [{}, {"cifar-10-batches-bin/test_batch.bin": b"short"}])
def test_truncated_cifar_archive_is_refused(tmp_path: Path, files: dict[str, bytes]) -> None:
    tar(tmp_path / "cifar-10-binary.tar.gz", files)
    with pytest.raises(AtollError, match=r"data_batch_1\.bin is missing or cut short"):
        load("cifar10", tmp_path)


def test_imdb_from_its_archive_and_from_parquet(tmp_path: Path) -> None:
    reviews = {
        "train/pos/1_9.txt": "good film",
        "train/neg/0_2.txt": "a bad bad film",
        "test/pos/0_10.txt": "good grief",
        "test/neg/9_1.txt": "BAD",
        "train/unsup/5_0.txt": "ignored",
    }
    tar(tmp_path / "aclImdb_v1.tar.gz", {f"aclImdb/{name}": review.encode() for name, review in reviews.items()})
    data = load("imdb", tmp_path)
    assert data.kind == "text"
    assert data.shape == (200,)
    assert data.columns == (Column("text", "text", ("a", "bad", "film", "good", "grief")),)
    assert data.x_train[0, :5].tolist() == [2, 3, 3, 4, 0]
    assert labels(data) == ["negative", "positive"]
    assert data.x_test[:, :3].tolist() == [[3, 0, 0], [5, 6, 0]]

    table = {"text": ["good film", "BAD"], "label": [1, 0], "split": ["train", "test"], "rating": [9, 1]}
    other = tmp_path / "other"
    other.mkdir()
    pa.parquet.write_table(pa.table(table), other / "imdb.parquet")
    data = load("imdb", other)
    assert labels(data) == ["positive"]
    assert data.classes == ("negative", "positive")
    assert data.x_test[0, :2].tolist() == [2, 0]  # "bad", before "film" and "good"


@pytest.fixture
def inaturalist(tmp_path: Path) -> Path:
    """Three species (ids out of order), four training images and one validation image, each of one grey level."""
    categories = [{"id": i, "name": f"species {i}", "supercategory": "Aves"} for i in (2, 0, 1)]
    rows = {"train": [(10, 0), (11, 1), (12, 2), (13, 1)], "val": [(14, 1)]}
    pictures = {}
    with zipfile.ZipFile(tmp_path / "train_val2017.zip", "w") as archive:
        for part, pairs in rows.items():
            listed = [{"id": i, "file_name": f"train_val_images/Aves/s{label}/{i}.jpg"} for i, label in pairs]
            marks = [{"image_id": i, "category_id": label} for i, label in pairs]
            content = {"categories": categories, "images": listed, "annotations": marks}
            archive.writestr(f"train_val2017/{part}2017.json", json.dumps(content))
            for image in listed:
                data = io.BytesIO()
                Image.new("RGB", (100, 80), (10 * int(image["id"]),) * 3).save(data, "jpeg")
                pictures[str(image["file_name"])] = data.getvalue()
    tar(tmp_path / "train_val_images.tar.gz", pictures)
    return tmp_path


def test_inaturalist_is_read_from_archive_and_unpacked_folder(inaturalist: Path) -> None:
    data = load("inaturalist2017", inaturalist)
    assert data.x_train.shape == (4, 3, 64, 64)
    assert np.abs(data.x_train[:, 0, 0, 0].astype(int) - [100, 110, 120, 130]).max() <= 2  # JPEG is not exact
    assert labels(data) == ["species 0", "species 1", "species 2", "species 1"]
    assert abs(int(data.x_test[0, 2, 63, 63]) - 140) <= 2

    with tarfile.open(inaturalist / "train_val_images.tar.gz") as archive:
        archive.extractall(inaturalist, filter="data")
    (inaturalist / "train_val_images/Aves/s0/10.jpg").unlink()  # not needed for class 1
    few = load("inaturalist2017?size=16@1", inaturalist)
    assert few.x_train.shape == (2, 3, 16, 16)
    assert few.classes == ("species 1",)
    with pytest.raises(AtollError, match=r"10\.jpg"):
        load("inaturalist2017", inaturalist)


def test_inaturalist_archive_without_an_image_is_refused(inaturalist: Path) -> None:
    tar(inaturalist / "train_val_images.tar.gz", {})
    with pytest.raises(AtollError, match="lacks 5 images"):
        load("inaturalist2017", inaturalist)


def test_catalogue_data_set_is_read_from_npz_in_the_data_folder(tmp_path: Path) -> None:
    """Channels move first; the labels keep their meaning even where the file holds only some of the classes."""
    x = images(3, 32, 32, 3)
    npz(tmp_path, "cifar100.npz", x_train=x, y_train=[[19], [0], [3]], x_test=x[:1], y_test=[[7]])
    data = load("cifar100", tmp_path)
    assert np.array_equal(data.x_train, x.transpose(0, 3, 1, 2))
    assert data.num_classes == 100
    assert labels(data) == ["cattle", "apple", "bear"]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (images(2, 32, 32), [0, 1], r"shape \(1, 32, 32\), but those of mnist have \(1, 28, 28\)"),
        (images(2, 28, 28), [0, 10], "labels run from 0 to 10"),
        (images(2, 28, 28), [0, 1, 2], "2 samples but 3 labels"),
        (images(2, 28, 28), [0, 0.5], "0.5 is no class"),
        (images(2, 28, 28), ["a", "b"], "labels must be class numbers"),
    ],
)
def test_npz_of_a_catalogue_data_set_with_wrong_content_is_refused(
    tmp_path: Path, x: Array, y: list[Any], message: str
) -> None:
    npz(tmp_path, "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(AtollError, match=message):
        load("mnist", tmp_path)


def test_catalogue_marks_available_data_sets_and_has_their_facts(tmp_path: Path) -> None:
    x = images(1, 28, 28)
    npz(tmp_path, "emnist_letters.npz", x_train=x, y_train=[0], x_test=x, y_test=[0])
    entries = {entry.name: entry for entry in loading.catalogue(tmp_path)}
    assert [name for name, entry in entries.items() if entry.found and name not in NATURAL] == [
        "digits",
        "emnist:letters",
    ]
    assert load("emnist:letters", tmp_path).classes[0] == "a"
    digits = load("digits")
    assert entries["digits"].rows == (len(digits.y_train), len(digits.y_test))
    for entry in entries.values():
        names = None if entry.name in NATURAL else catalogue.KNOWN[entry.name].names
        assert names is None or len(set(names)) == entry.classes
        assert entry.source
        assert entry.licence


# -------------------------------------------------------------------------------------------------- names and subsets


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion_mnst", "Did you mean 'fashion_mnist'"),
        ("emnist:leters", "Did you mean 'emnist:letters'"),
        ("nothing/of/this/kind", "no file or folder"),
        ("gone.npz", "no file or folder 'gone.npz'"),
        ("pfllib:gone", "no file or folder 'gone'"),
        ("", "Unknown data set"),
        ("digits?label=x", "takes no options"),
        ("digits?label", "'label' has no name and '=' before its value. Write NAME\\?OPTION=VALUE"),
        ("table.csv?label=", "label has no value"),
    ],
)
def test_malformed_or_unknown_names_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        load(name, tmp_path)


def test_subsets_keep_and_renumber_classes() -> None:
    data = load("digits@7,0-2")
    full = load("digits")
    assert data.classes == ("7", "0", "1", "2")
    assert np.array_equal(data.x_train[data.y_train == 0], full.x_train[full.y_train == 7])
    assert np.array_equal(data.x_test[data.y_test == 3], full.x_test[full.y_test == 2])
    assert len(data.y_train) == np.isin(full.y_train, [7, 0, 1, 2]).sum()


@pytest.mark.parametrize("subset", ["x", "", "3-1", "1,1", "0-2,1", "0,", "-1", "1-"])
def test_malformed_class_subsets_are_refused(subset: str) -> None:
    with pytest.raises(
        AtollError, match=r"The data set cannot be .*(no choice of classes|a class is named twice).* Write NAME@CLASSES"
    ):
        load(f"digits@{subset}")


def test_class_out_of_range_is_refused_before_a_download(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="no class 10: its classes run from 0 to 9"):
        load("cifar10@3,10", tmp_path)


def test_a_subset_of_a_file_whose_path_holds_an_at_sign(tmp_path: Path) -> None:
    (tmp_path / "me@home").mkdir()
    path = npz(tmp_path / "me@home", x=images(4, 5, 5), y=[0, 1, 2, 1], owner=["a", "b", "c", "d"])
    assert load(path).num_classes == 3
    data = load(f"{path}@1")
    assert data.y_train.tolist() == [0, 0]
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["b", "d"]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("cifar100@0-9", "cifar100"),
        ("emnist:letters@1", "emnist"),
        ("emnist", "emnist"),
        ("a/b.csv?label=c", "a/b.csv"),
        ("my@own", "my"),
    ],
)
def test_base_name_drops_variant_options_and_classes(name: str, base: str) -> None:
    assert base_name(name) == base


def test_data_folder_is_the_argument_else_the_variable_else_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder("/other") == Path("/other")
    npz(tmp_path, "mine.npz", x=images(2, 4, 4), y=[0, 1])
    assert load("mine").shape == load("mine.npz").shape == (1, 4, 4)
    monkeypatch.delenv("ATOLL_DATA")
    assert data_folder().name == "atoll"


# ---------------------------------------------------------------------------------------------------------- npz files


@pytest.mark.parametrize(
    ("x", "kind", "shape", "dtype"),
    [
        (images(2, 5, 6), "image", (1, 5, 6), "uint8"),
        (images(2, 5, 6, 3), "image", (3, 5, 6), "uint8"),
        (images(2, 3, 5, 6), "image", (3, 5, 6), "uint8"),
        (images(2, 1, 4, 4), "image", (1, 4, 4), "uint8"),
        (images(2, 4, 4, 3), "image", (3, 4, 4), "uint8"),
        (images(2, 5, 6).astype(np.int64), "image", (1, 5, 6), "uint8"),
        (np.zeros((2, 5, 6, 1)), "image", (1, 5, 6), "float32"),
        (np.zeros((2, 7)), "table", (7,), "float32"),
        (np.ones((2, 7), np.int32), "text", (7,), "int64"),
    ],
)
def test_kind_of_rows_follows_from_shape_and_type(
    tmp_path: Path, x: Array, kind: str, shape: tuple[int, ...], dtype: str
) -> None:
    data = load(npz(tmp_path, x=x, y=[0, 1]))
    assert (data.kind, data.shape, str(data.x_train.dtype)) == (kind, shape, dtype)
    assert data.x_test.shape == (0, *shape)
    assert len(data.y_test) == 0


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(2), "neither a table"),
        (images(2, 5, 5, 5), "no axis of 1, 3 or 4 channels"),
        (np.full((2, 5, 5), 256), "pixels run from 256 to 256"),
        (np.full((2, 5), -1), "token id -1 is negative"),
        (np.array([["a"], ["b"]]), "samples are of type"),
        (np.array([[0.0], [np.nan]]), "sample 1 contains NaN"),
    ],
)
def test_rows_of_wrong_shape_or_type_are_refused(tmp_path: Path, x: Array, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        load(npz(tmp_path, x=x, y=[0, 1]))


def test_labels_become_classes_in_sorted_order(tmp_path: Path) -> None:
    """Gaps close (2, 10, 30), numbers sort as numbers, names as text, whole floats count as integers."""
    x = np.zeros((3, 2))
    for y, classes, numbers in (
        ([10, 2, 30], ("2", "10", "30"), [1, 0, 2]),
        (["b", "a", "b"], ("a", "b"), [1, 0, 1]),
        ([1.0, 0.0, 1.0], ("0", "1"), [1, 0, 1]),
        ([True, False, True], ("0", "1"), [1, 0, 1]),
    ):
        data = load(npz(tmp_path, x=x, y=y))
        assert data.classes == classes
        assert data.y_train.tolist() == numbers


def test_test_label_without_training_rows_is_refused(tmp_path: Path) -> None:
    x = np.zeros((2, 2))
    path = npz(tmp_path, x_train=x, y_train=[0, 1], x_test=x, y_test=[1, 7])
    with pytest.raises(AtollError, match=r"a test sample has the label '7', .* the 2 classes \(0, 1\)"):
        load(path)
    data = load(f"{path}?classes=0-7")
    assert data.num_classes == 8
    assert data.y_test.tolist() == [1, 7]


def test_listed_classes_fix_their_order(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((2, 2)), y=["b", "a"])
    assert load(f"{path}?classes=c,b,a").y_train.tolist() == [1, 2]
    for wrong in ("a,,b", "a,a"):
        with pytest.raises(AtollError, match="no list of classes"):
            load(f"{path}?classes={wrong}")
    with pytest.raises(AtollError, match="Unknown option"):
        load(f"{path}?clases=a,b")


def test_an_npz_may_name_its_classes(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((2, 2)), y=[1, 1], classes=["cat", "dog", "emu"])
    data = load(path)
    assert labels(data) == ["dog", "dog"]
    assert data.num_classes == 3
    with pytest.raises(AtollError, match="already names its classes"):
        load(f"{path}?classes=1-3")


def test_owners_are_read_as_names_and_must_match_the_rows(tmp_path: Path) -> None:
    data = load(npz(tmp_path, x=images(3, 4, 4), y=[0, 1, 0], owner=np.array([7, 7, 12], np.uint8)))
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["7", "7", "12"]
    assert data.owner_test is not None
    assert len(data.owner_test) == 0
    with pytest.raises(AtollError, match="3 samples but 2 owners"):
        load(npz(tmp_path, x=images(3, 4, 4), y=[0, 1, 0], owner=[1, 2]))


def test_malformed_npz_files_are_refused(tmp_path: Path) -> None:
    x = np.zeros((2, 2))
    for arrays, message in (
        ({"x": x}, "holds x, but needs x_train"),
        ({"x": x, "y": [[0, 1], [1, 0]]}, "one value for each sample"),
        ({"x_train": x, "y_train": [0, 1], "x_test": x.astype(int), "y_test": [0, 1]}, "Store both in the same type"),
        ({"x_train": x, "y_train": [0, 1], "x_test": x[:, :1], "y_test": [0, 1]}, "same shape"),
        ({"x": np.array([{}, {}]), "y": [0, 1]}, "not a plain npz file"),
    ):
        with pytest.raises(AtollError, match=message):
            load(npz(tmp_path, **arrays))
    broken = tmp_path / "broken.npz"
    for content in (b"", b"nonsense", pickle.dumps({})):
        broken.write_bytes(content)
        with pytest.raises(AtollError, match=r"broken\.npz"):
            load(str(broken))
    other = tmp_path / "data.mat"
    other.write_bytes(b"")
    with pytest.raises(AtollError, match="unknown format"):
        load(str(other))


# ------------------------------------------------------------------------------------------------------------- tables


def test_a_table_keeps_its_raw_cells_until_a_run_prepares_them(tmp_path: Path) -> None:
    content = "age,one,label,split,owner\n1,4,sick,train,h1\n3,4,well,train,h2\n5,4,well,test,h1\n"
    data = load(csv(tmp_path, content))
    assert data.kind == "table"
    assert data.columns == (Column("age", "number"), Column("one", "number"))
    assert data.x_train.tolist() == [[1, 4], [3, 4]]
    assert data.x_test.tolist() == [[5, 4]]
    assert labels(data) == ["sick", "well"]
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["h1", "h2"]
    assert data.owner_test is not None
    assert data.owner_test.tolist() == ["h1"]


def test_options_in_the_name_select_columns(tmp_path: Path) -> None:
    path = csv(tmp_path, "hospital,diagnosis,a,y\nx,1,0.5,0\nz,2,1.5,1\n")
    data = load(f"{path}?label=diagnosis&owner=hospital")
    assert data.classes == ("1", "2")
    assert data.shape == (2,)  # a and y
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["x", "z"]
    with pytest.raises(AtollError, match=r"Unknown column 'diagnose' of .*'diagnosis'"):
        load(f"{path}?label=diagnose")
    assert load(path).columns[0] == Column("hospital", "category", ("x", "z"))


def test_the_last_column_is_the_label(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pa.parquet.write_table(pa.table({"a": [1.0, 2.0], "b": [True, False], "grade": [5, 6], "owner": [1, 2]}), path)
    data = load(str(path))
    assert data.classes == ("5", "6")
    assert data.x_train.tolist() == [[1, 1], [2, 0]]


def test_a_text_column_makes_a_text_data_set(tmp_path: Path) -> None:
    data = load(csv(tmp_path, "text,label\nto be or not to be,poem\nbe,prose\n"))
    assert data.kind == "text"
    assert data.columns == (Column("text", "text", ("be", "not", "or", "to")),)
    assert data.x_train[0, :7].tolist() == [5, 2, 4, 3, 5, 2, 0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,label\n1,0\ninf,1\n", r"table\.csv line 3: column 'a' holds infinity"),
        ("a,owner,label\n1,x,0\n2,,1\n", r"table\.csv line 3: column 'owner' is empty there"),
        ("a,label\n1,\n2,?\n", "no row has a value in the label column 'label'"),
        ("a,label,split\n1,0,train\n2,1,valid\n", "'split' holds 'valid'"),
        ("a,a,label\n1,2,0\n", "several columns called 'a'"),
        ("a,label\n", "0 rows"),
        ("label\n1\n", "1 columns"),
        ("owner,split\n1,train\n", "no column for the label"),
        ("a,label\n1,0.5\n2,1\n", r"table\.csv line 2: the label 0.5 in column 'label' is no class"),
        ("a,label,split\n1,0,test\n", "no training samples"),
        ('"a,label\n1', "Cannot read"),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(AtollError, match=message):
        load(csv(tmp_path, content))


def test_words_are_in_lower_case_with_apostrophes_inside_and_two_ids_are_reserved() -> None:
    (ids,), column = text.encode(["It's 'it's' 2 good_ones: été!"])
    assert column.levels == ("2", "good", "it's", "ones", "été")
    assert ids[0, :7].tolist() == [4, 4, 2, 3, 5, 6, 0]
    (train, test), _ = text.encode(["a " * 300], [""])
    assert train.shape == (1, 200)
    assert (train == 2).all()
    assert (test == 0).all()


# ------------------------------------------------------------------------------------------------------ image folders


def test_an_image_folder_of_one_size_is_kept_as_it_is(tmp_path: Path) -> None:
    x = images(3, 6, 9)
    for i, label in enumerate(["cat", "dog", "cat"]):
        png(tmp_path / label / f"{i}.png", x[i])
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    data = load(str(tmp_path))
    assert data.shape == (1, 6, 9)
    assert labels(data) == ["cat", "cat", "dog"]
    assert np.array_equal(data.x_train[:, 0], x[[0, 2, 1]])
    assert load(f"{tmp_path}?size=3").shape == (1, 3, 3)
    with pytest.raises(AtollError, match="number of pixels"):
        load(f"{tmp_path}?size=0")


def test_an_image_folder_with_parts_sizes_and_modes(tmp_path: Path) -> None:
    """One colour image makes all RGB, two sizes make all 64 by 64; a flat image stays flat when it is stretched."""
    png(tmp_path / "train/a/1.png", np.full((5, 5), 100, np.uint8))
    png(tmp_path / "train/b/1.png", Image.new("RGBA", (8, 4), (1, 2, 3, 0)))
    png(tmp_path / "test/b/1.png", Image.new("RGB", (5, 5), (9, 8, 7)))
    data = load(str(tmp_path))
    assert data.shape == (3, 64, 64)
    assert (data.x_train[0] == 100).all()
    assert data.x_train[1, :, 0, 0].tolist() == [1, 2, 3]
    assert data.x_test[0, :, 63, 63].tolist() == [9, 8, 7]
    png(tmp_path / "test/c/1.png", Image.new("RGB", (5, 5)))
    with pytest.raises(AtollError, match="a test sample has the label 'c'"):
        load(str(tmp_path))


def test_malformed_image_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="one folder per class"):
        load(str(tmp_path))
    png(tmp_path / "a" / "deep.png", np.full((4, 4), 40_000, np.uint16))
    with pytest.raises(AtollError, match=r"deep\.png has more than 8 bits"):
        load(str(tmp_path))
    (tmp_path / "a" / "deep.png").write_bytes(b"no image")
    with pytest.raises(AtollError, match=r"Cannot read .*deep\.png"):
        load(str(tmp_path))


# ------------------------------------------------------------------------------------------------------- client files


def test_npz_files_of_clients_are_read(tmp_path: Path) -> None:
    """Numbered files in the order of their numbers, then named ones; the name is the owner."""
    for stem, y in (("10", [0, 1]), ("9", [1]), ("clinic", [2])):
        npz(tmp_path, f"{stem}.npz", x=np.full((len(y), 3), float(len(y))), y=y)
    data = load(str(tmp_path))
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["9", "10", "10", "clinic"]
    assert data.y_train.tolist() == [1, 0, 1, 2]
    assert data.x_train[:, 0].tolist() == [1, 2, 2, 1]
    npz(tmp_path, "odd.npz", x=np.zeros((1, 4)), y=[0])
    with pytest.raises(AtollError, match=r"odd\.npz: x has shape \(1, 4\)"):
        load(str(tmp_path))


def pfllib(folder: Path, files: Mapping[str, Any]) -> str:
    for name, data in files.items():
        path = folder / f"{name}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez_compressed(path, data=np.array(data, dtype=object))
    return f"pfllib:{folder}"


def test_pfllib_files_are_read_with_their_clients(tmp_path: Path) -> None:
    x = RNG.normal(size=(5, 1, 4, 4)).astype(np.float32)
    name = pfllib(
        tmp_path,
        {
            "train/0": {"x": x[:2], "y": np.array([0, 2])},
            "train/1": {"x": x[2:3], "y": np.array([1])},
            "test/0": {"x": x[3:4], "y": np.array([2])},
            "test/1": {"x": x[4:], "y": [np.int64(1)]},
        },
    )
    data = load(name)
    assert np.array_equal(data.x_train, x[:3])
    assert data.y_test.tolist() == [2, 1]
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["0", "0", "1"]
    assert data.owner_test is not None
    assert data.owner_test.tolist() == ["0", "1"]
    assert (data.kind, data.x_train.dtype) == ("image", np.float32)
    with pytest.raises(AtollError, match="not a plain npz file"):  # without 'pfllib:' no pickle is touched
        load(str(tmp_path))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pfllib_files_of_old_and_new_numpy(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps(np.array({"x": np.eye(2), "y": np.arange(2)}, dtype=object), protocol)
    old = content.replace(b"numpy._core", b"numpy.core") if protocol == 2 else content  # lengths are explicit later on
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    (tmp_path / "train").mkdir()
    with zipfile.ZipFile(tmp_path / "train/0.npz", "w") as archive:
        archive.writestr("data.npy", header.getvalue() + old)
    assert load(f"pfllib:{tmp_path}").x_train.tolist() == [[1, 0], [0, 1]]


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path, call: Any = exec) -> None:
        self.path, self.call = path, call

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, (f"open({str(self.path)!r}, 'w').close()",)


def test_a_hostile_pickle_does_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "sang"
    pickle.loads(pickle.dumps(Canary(canary)))
    assert canary.exists()  # it does sing where nobody stops it
    canary.unlink()
    for call, asked in ((exec, "builtins.exec"), (eval, "builtins.eval"), (np.load, "numpy.load")):
        name = pfllib(tmp_path, {"train/0": {"x": np.eye(2), "y": Canary(canary, call)}})
        with pytest.raises(AtollError, match=rf"0\.npz is refused: it asks for {asked}"):
            load(name)
    assert not canary.exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1, 2], "should be a dictionary"),
        ({"x": np.eye(2)}, "should be a dictionary with x and y"),
        ({"x": np.array([{}, {}], dtype=object), "y": [0, 1]}, "Python objects"),
        ({"x": [np.eye(2), np.eye(3)], "y": [0, 1]}, "Cannot read|unequal shape"),
    ],
)
def test_malformed_pfllib_files_are_refused(tmp_path: Path, data: Any, message: str) -> None:
    holder = np.empty((), dtype=object)
    holder[()] = data
    (tmp_path / "train").mkdir()
    np.savez(tmp_path / "train/0.npz", data=holder)
    with pytest.raises(AtollError, match=message):
        load(f"pfllib:{tmp_path}")


def test_damaged_pfllib_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(AtollError, match=r"holds no \.npz files"):
        load(f"pfllib:{tmp_path}")
    path = tmp_path / "train/0.npz"
    np.savez(path, data=np.eye(2))
    with pytest.raises(AtollError, match="not one pickled dictionary"):
        load(f"pfllib:{tmp_path}")
    np.savez(path, x=np.eye(2), y=[0, 1])
    with pytest.raises(AtollError, match="no array 'data'"):
        load(f"pfllib:{tmp_path}")
    path.write_bytes(b"nonsense")
    with pytest.raises(AtollError, match="Cannot read"):
        load(f"pfllib:{tmp_path}")


# -------------------------------------------------------------------------------------------------------- Hugging Face


class FakeSplit:
    """The part of a hub data set that is used: features, length, a row, a column."""

    def __init__(self, features: dict[str, Any], columns: dict[str, list[Any]]) -> None:
        self.features, self.columns = features, columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, item: int | str) -> Any:
        if isinstance(item, str):
            return self.columns[item]
        return {name: column[item] for name, column in self.columns.items()}


def hub(monkeypatch: pytest.MonkeyPatch, features: dict[str, Any], **splits: dict[str, list[Any]]) -> None:
    def load_dataset(name: str, config: str | None) -> dict[str, FakeSplit]:
        if (name, config) not in (("o/n", None), ("o/n", "small")):
            raise FileNotFoundError(f"no {name} {config}")
        return {split: FakeSplit(features, columns) for split, columns in splits.items()}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


Picture = type("Image", (), {})
STRING = SimpleNamespace(dtype="string")
NUMBER = SimpleNamespace(dtype="int64")


def test_hub_images_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x = images(3, 4, 4)
    pictures = [Image.fromarray(pixels) for pixels in x]
    features = {"writer": STRING, "img": Picture(), "kind": SimpleNamespace(dtype="int64", names=["cat", "dog", "emu"])}
    train = {"writer": ["p", "q"], "img": pictures[:2], "kind": [1, 0]}
    hub(monkeypatch, features, train=train, validation={"writer": ["p"], "img": pictures[2:], "kind": [2]})
    data = load("hf:o/n?config=small&owner=writer")
    assert np.array_equal(data.x_train[:, 0], x[:2])
    assert np.array_equal(data.x_test[:, 0], x[2:])
    assert labels(data) == ["dog", "cat"]
    assert data.num_classes == 3
    assert data.owner_train is not None
    assert data.owner_train.tolist() == ["p", "q"]
    with pytest.raises(AtollError, match="Unknown column"):
        load("hf:o/n?label=kinds")
    with pytest.raises(AtollError, match=r"Cannot load 'hf:o/m'"):
        load("hf:o/m")


def test_hub_texts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"title": STRING, "text": STRING, "label": STRING}
    hub(monkeypatch, features, train={"title": ["t", "t"], "text": ["a b a", "c"], "label": ["x", "y"]})
    data = load("hf:o/n@1")
    assert data.x_train[0, :2].tolist() == [4, 0]
    assert data.classes == ("y",)
    assert len(data.y_test) == 0


def test_unsuitable_hub_data_sets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, {"a": NUMBER}, train={"a": [1]})
    with pytest.raises(AtollError, match="no label column"):
        load("hf:o/n")
    with pytest.raises(AtollError, match="neither an image nor a text column"):
        load("hf:o/n?label=a")
    hub(monkeypatch, {"a": NUMBER}, test={"a": [1]})
    with pytest.raises(AtollError, match="no split 'train'"):
        load("hf:o/n")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(AtollError, match="pip install datasets"):
        load("hf:o/n")


# ---------------------------------------------------------------------------------------------------------- downloads


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which this machine serves it to itself."""
    monkeypatch.setenv("NO_PROXY", "*")
    root = tmp_path / "site"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_missing_data_set_is_downloaded_once(
    tmp_path: Path, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, address = site
    folder = tmp_path / "data"
    x = images(1, 3, 32, 32)
    tar(
        root / "c.tar.gz",
        {
            "cifar-100-binary/train.bin": b"\x00\x07" + x[0].tobytes(),
            "cifar-100-binary/test.bin": b"\x00\x08" + x[0].tobytes(),
        },
    )
    content = (root / "c.tar.gz").read_bytes()
    file = File("c.tar.gz", address + "c.tar.gz", hashlib.md5(content).hexdigest(), len(content))
    monkeypatch.setitem(loading.KNOWN, "cifar100", replace(catalogue.KNOWN["cifar100"], files=(file,)))
    assert np.array_equal(load("cifar100", folder).x_train, x)
    assert (folder / "c.tar.gz").read_bytes() == content
    (root / "c.tar.gz").unlink()
    assert load("cifar100", folder).y_train.tolist() == [7]


def test_download_with_wrong_checksum_leaves_no_file(tmp_path: Path, site: tuple[Path, str]) -> None:
    root, address = site
    (root / "file").write_bytes(b"tampered")
    file = File("sub/file", address + "file", hashlib.md5(b"official").hexdigest(), 8)
    with pytest.raises(AtollError, match=r"place it at .*/data/sub/file"):
        fetch(file, tmp_path / "data")
    assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []


def test_failed_downloads_say_where_to_place_the_file(tmp_path: Path, site: tuple[Path, str]) -> None:
    _, address = site
    for file, message in (
        (File("gone", address + "gone", "0" * 32, 1), "404.*place it at .*/gone"),
        (File("far", "http://127.0.0.1:9/far", "0" * 32, 1), "place it at .*/far"),
        (File("huge", address + "gone", "0" * 32, 10**18), "needs 1,000,000,000,000,000,000 bytes"),
    ):
        with pytest.raises(AtollError, match=message):
            fetch(file, tmp_path)
