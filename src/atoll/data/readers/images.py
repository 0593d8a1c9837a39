"""Read image files: folders with one folder per class, and iNaturalist.

All images of a set get one layout. Channels: one if every image is greyscale, otherwise three (RGB, transparency
dropped). Size: the common size of all images if there is one; otherwise, or if a size is asked for, each image is
stretched to a square of ``size`` (64 by default) pixels with Pillow's bilinear filter.
"""

import json
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from ...errors import AtollError
from ..arrays import RawDataset, RawSplit
from ..dataset import Array
from .binary import reading

SIZE = 64
MOST_PIXELS = 2**26  # of one image: a small file can claim many more
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"))


class Source(NamedTuple):
    """An image file, opened when it is needed."""

    name: str
    open: Callable[[], Image.Image]


class Layout(NamedTuple):
    """Size and channels of all images of a data set."""

    width: int
    height: int
    channels: int


def layout(sources: Iterable[Source], size: int | None) -> Layout:
    """Return the layout that fits all images, from their headers alone."""
    sizes, grey = set(), True
    for source in sources:
        with reading(Path(source.name)), source.open() as image:
            if image.width * image.height > MOST_PIXELS:
                raise AtollError(
                    f"{source.name} has {image.width} x {image.height} pixels, and at most {MOST_PIXELS:,} are read: "
                    "make it smaller."
                )
            sizes.add(image.size)
            grey = grey and image.mode in ("1", "L")
    width, height = sizes.pop() if len(sizes) == 1 and size is None else (size or SIZE, size or SIZE)
    return Layout(width, height, 1 if grey else 3)


def stack(sources: Sequence[Source], to: Layout) -> Array:
    """Decode the images to one array of uint8 [N, channels, H, W]."""
    x = np.empty((len(sources), to.channels, to.height, to.width), np.uint8)
    for row, source in zip(x, sources, strict=True):
        row[:] = pixels(source, to)
    return x


def pixels(source: Source, to: Layout) -> Array:
    """Decode one image in the given layout."""
    with reading(source.name), source.open() as image:
        if image.mode[0] in "IF":  # Pillow would clip such values silently
            raise AtollError(
                f"{source.name} has more than 8 bits per channel (mode {image.mode}): convert it to 8 bits."
            )
        image.draft("RGB", (to.width, to.height))  # lets a JPEG decode at a smaller scale
        converted = image.convert("L" if to.channels == 1 else "RGB")
    if converted.size != (to.width, to.height):
        converted = converted.resize((to.width, to.height), Image.Resampling.BILINEAR)
    values = np.asarray(converted)
    return values[None] if to.channels == 1 else values.transpose(2, 0, 1)


def folder_parts(root: Path, size: int | None) -> RawDataset:
    """Read ``root/class/image`` files, or ``root/train/class/image`` and ``root/test/class/image``."""
    split = (root / "train").is_dir() and (root / "test").is_dir()
    found = [_class_files(root / part) for part in ("train", "test")] if split else [_class_files(root)]
    sources = [[Source(str(path), partial(Image.open, path)) for path in files] for files in found]
    to = layout(chain.from_iterable(sources), size)
    labels = [np.array([path.parent.name for path in files]) for files in found]
    parts = [RawSplit(stack(rows, to), y) for rows, y in zip(sources, labels, strict=True)]
    return RawDataset(parts[0], parts[1] if split else None, channels_first=True)


def inaturalist_parts(images: Path, annotations: Path, size: int, wanted: Sequence[int] | None) -> RawDataset:
    """Read iNaturalist 2017. The validation images are the test part.

    Args:
        images: the archive, or its unpacked folder, of which only the needed files are read.
        annotations: the archive, or train2017.json beside val2017.json.
        size: side of the resized images in pixels.
        wanted: labels to decode; None for all.
    """
    tables = [_annotations(annotations, f"{part}2017.json") for part in ("train", "val")]
    categories = sorted(tables[0]["categories"], key=lambda category: int(category["id"]))
    number = {category["id"]: i for i, category in enumerate(categories)}
    keep = set(range(len(number)) if wanted is None else wanted)
    parts, targets = [], {}
    for table in tables:
        label = {row["image_id"]: number[row["category_id"]] for row in table["annotations"]}
        chosen = [(image["file_name"], label[image["id"]]) for image in table["images"] if label[image["id"]] in keep]
        x = np.empty((len(chosen), 3, size, size), np.uint8)
        targets.update({name: row for (name, _), row in zip(chosen, x, strict=True)})
        parts.append(RawSplit(x, np.array([y for _, y in chosen], dtype=np.int64)))
    _decode(images, targets, Layout(size, size, 3))
    train, test = parts
    return RawDataset(train, test, classes=tuple(category["name"] for category in categories), channels_first=True)


def _class_files(root: Path) -> list[Path]:
    files = [path for path in sorted(root.glob("*/*")) if path.suffix.lower() in SUFFIXES]
    if not files:
        raise AtollError(
            f"{root} holds no images, and no .csv, .parquet, .npz or .txt files. Put images in one folder per class, "
            f"such as {root}/cat/1.png, or one table for each owner there, such as {root}/north.csv."
        )
    return files


def _annotations(path: Path, name: str) -> Any:
    with reading(path):
        if path.suffix != ".zip":
            return json.loads((path.parent / name).read_bytes())
        with zipfile.ZipFile(path) as archive:
            member = next((entry for entry in archive.namelist() if entry.endswith(name)), name)
            return json.loads(archive.read(member))


def _decode(images: Path, targets: dict[str, Array], to: Layout) -> None:
    """Decode each file into the target array that carries its name."""
    missing = set(targets)

    def fill(name: str, file: Path | IO[bytes]) -> None:
        targets[name][:] = pixels(Source(name, partial(Image.open, file)), to)
        missing.discard(name)

    if images.is_dir():
        for name in targets:
            fill(name, images.parent / name)
    else:
        with reading(images), tarfile.open(images, "r|gz") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.name in targets else None
                if stream:
                    fill(member.name, stream)
    if missing:
        raise AtollError(f"{images} lacks {len(missing)} images, such as {min(missing)}: replace it.")
