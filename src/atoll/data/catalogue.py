"""The data sets that can be loaded by name: facts, official files and how to read them."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .arrays import RawDataset, RawSplit
from .dataset import Array, Kind
from .downloads import File
from .readers.binary import cifar_parts, emnist_parts, idx_parts, imdb_parts
from .readers.images import SIZE, inaturalist_parts
from .readers.text import LENGTH


@dataclass(frozen=True)
class Entry:
    """One line of the printed catalogue."""

    name: str
    kind: Kind
    rows: tuple[int, int]  # training, test
    shape: tuple[int, ...]
    classes: int
    source: str
    licence: str
    found: bool = False  # in the data folder: nothing needs to be downloaded


@dataclass(frozen=True)
class CatalogueEntry:
    """Where to find and how to read a data set of the catalogue."""

    entry: Entry
    files: tuple[File, ...]
    names: tuple[str, ...] | None  # of the classes; None: the files hold them
    read: Callable[[Sequence[Path], int, Sequence[int] | None], RawDataset]  # files, image size, the only labels needed


def _mnist_files(folder: str, base: str, sums: Sequence[tuple[str, int]]) -> tuple[File, ...]:
    names = [f"{part}-{content}-ubyte.gz" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")]
    return tuple(File(f"{folder}/{name}", base + name, *facts) for name, facts in zip(names, sums, strict=True))


def _digits(*_: object) -> RawDataset:
    """Load scikit-learn's digits, scaled from 0..16 to 0..255. Every fifth row of each class is a test row."""
    package = find_spec("sklearn")  # its file is read without it: importing it takes longer than a first round
    assert package is not None
    assert package.submodule_search_locations is not None
    table = np.loadtxt(Path(package.submodule_search_locations[0]) / "datasets/data/digits.csv.gz", delimiter=",")
    x, y = np.round(table[:, :-1].reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8), table[:, -1].astype(int)
    test = every_fifth(y)
    return RawDataset(RawSplit(x[~test], y[~test]), RawSplit(x[test], y[test]))


def every_fifth(y: Array) -> Array:
    """Return a mask of the fifth, tenth, ... row of each class."""
    mask = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        mask[np.flatnonzero(y == label)[4::5]] = True
    return mask


def _idx(paths: Sequence[Path], *_: object) -> RawDataset:
    return idx_parts(paths)


def _emnist(variant: str, paths: Sequence[Path], *_: object) -> RawDataset:
    return emnist_parts(paths[0], variant, first_label=1 if variant == "letters" else 0)


def _cifar10(paths: Sequence[Path], *_: object) -> RawDataset:
    train = [f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)]
    return cifar_parts(paths[0], train, "cifar-10-batches-bin/test_batch.bin", label_bytes=1)


def _cifar100(paths: Sequence[Path], *_: object) -> RawDataset:
    return cifar_parts(paths[0], ["cifar-100-binary/train.bin"], "cifar-100-binary/test.bin", label_bytes=2)


def _imdb(paths: Sequence[Path], *_: object) -> RawDataset:
    return imdb_parts(paths[0])


def _inaturalist(paths: Sequence[Path], size: int, wanted: Sequence[int] | None) -> RawDataset:
    return inaturalist_parts(paths[0], paths[1], size, wanted)


_DIGITS = tuple(string.digits)
_LETTERS = _DIGITS + tuple(string.ascii_uppercase)
_MERGED = (*_LETTERS, *"abdefghnqrt")  # the other small letters look like their capitals
_FASHION = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
_EMNIST = {  # variant: rows, names of the classes
    "byclass": ((697_932, 116_323), (*_LETTERS, *string.ascii_lowercase)),
    "bymerge": ((697_932, 116_323), _MERGED),
    "balanced": ((112_800, 18_800), _MERGED),
    "letters": ((124_800, 20_800), tuple(string.ascii_lowercase)),
    "digits": ((240_000, 40_000), _DIGITS),
    "mnist": ((60_000, 10_000), _DIGITS),
}
_INATURALIST = "https://ml-inat-competition-datasets.s3.amazonaws.com/2017/"
_NO_LICENCE = "no formal licence; made for research, cite the authors"

_SETS = [
    CatalogueEntry(
        Entry(
            "digits",
            "image",
            (1_442, 355),
            (1, 8, 8),
            10,
            "scikit-learn; UCI Optical Recognition of Handwritten Digits",
            "CC BY 4.0",
        ),
        (),
        _DIGITS,
        _digits,
    ),
    CatalogueEntry(
        Entry(
            "mnist",
            "image",
            (60_000, 10_000),
            (1, 28, 28),
            10,
            "LeCun, Cortes and Burges, http://yann.lecun.com/exdb/mnist/",
            "CC BY-SA 3.0",
        ),
        _mnist_files(
            "mnist",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            [
                ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
                ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
                ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
                ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
            ],
        ),
        _DIGITS,
        _idx,
    ),
    CatalogueEntry(
        Entry(
            "fashion_mnist",
            "image",
            (60_000, 10_000),
            (1, 28, 28),
            10,
            "Xiao, Rasul and Vollgraf, https://github.com/zalandoresearch/fashion-mnist",
            "MIT",
        ),
        _mnist_files(
            "fashion_mnist",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            [
                ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
                ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
                ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
                ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
            ],
        ),
        _FASHION,
        _idx,
    ),
    *(
        CatalogueEntry(
            Entry(
                f"emnist:{variant}",
                "image",
                rows,
                (1, 28, 28),
                len(names),
                "Cohen et al., https://www.nist.gov/itl/products-and-services/emnist-dataset",
                "no formal licence; derived from NIST Special Database 19",
            ),
            (
                File(
                    "emnist/gzip.zip",
                    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                    "58c8d27c78d21e728a6bc7b3cc06412e",
                    561_753_746,
                ),
            ),
            names,
            partial(_emnist, variant),
        )
        for variant, (rows, names) in _EMNIST.items()
    ),
    CatalogueEntry(
        Entry(
            "cifar10",
            "image",
            (50_000, 10_000),
            (3, 32, 32),
            10,
            "Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html",
            _NO_LICENCE,
        ),
        (
            File(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
            ),
        ),
        _CIFAR10,
        _cifar10,
    ),
    CatalogueEntry(
        Entry(
            "cifar100",
            "image",
            (50_000, 10_000),
            (3, 32, 32),
            100,
            "Krizhevsky, https://www.cs.toronto.edu/~kriz/cifar.html",
            _NO_LICENCE,
        ),
        (
            File(
                "cifar-100-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        tuple(_CIFAR100.split()),
        _cifar100,
    ),
    CatalogueEntry(
        Entry(
            "imdb",
            "text",
            (25_000, 25_000),
            (LENGTH,),
            2,
            "Maas et al., https://ai.stanford.edu/~amaas/data/sentiment/",
            _NO_LICENCE,
        ),
        (
            File(
                "aclImdb_v1.tar.gz",
                "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                "7c2ac02c03563afcf9b574c7e56c153a",
                84_125_825,
            ),
        ),
        ("negative", "positive"),
        _imdb,
    ),
    CatalogueEntry(
        Entry(
            "inaturalist2017",
            "image",
            (579_184, 95_986),
            (3, SIZE, SIZE),
            5_089,
            "Van Horn et al., https://github.com/visipedia/inat_comp/tree/master/2017",
            "non-commercial research and education only; images must not be passed on",
        ),
        (
            File(
                "train_val_images.tar.gz",
                f"{_INATURALIST}train_val_images.tar.gz",
                "7c784ea5e424efaec655bd392f87301f",
                199_332_058_343,
                unpacked="train_val_images",
            ),
            File(
                "train_val2017.zip",
                f"{_INATURALIST}train_val2017.zip",
                "444c835f6459867ad69fcb36478786e7",
                26_000_000,
                unpacked="train2017.json",
            ),
        ),
        None,
        _inaturalist,
    ),
]

KNOWN = {known.entry.name: known for known in _SETS}
ALIASES = {"emnist": "emnist:byclass"}
