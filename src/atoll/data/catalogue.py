"""List the data sets that can be loaded by name: facts, official files and how to read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .arrays import RawDataset
from .class_names import CIFAR10, CIFAR100, DIGITS, FASHION, LETTERS, LOWER_CASE, MERGED
from .dataset import Kind
from .downloads import File
from .readers import official
from .readers.images import SIZE
from .readers.text import LENGTH


@dataclass(frozen=True)
class DatasetInfo:
    """Facts about a data set: one line of the printed catalogue."""

    name: str
    kind: Kind
    rows: tuple[int, int]  # training, test
    shape: tuple[int, ...]
    classes: int
    source: str
    licence: str
    found: bool = False  # whether the data folder has the files


@dataclass(frozen=True)
class CatalogueEntry:
    """A data set of the catalogue: facts, files, class names, and the function that reads the files."""

    info: DatasetInfo
    files: tuple[File, ...]
    names: tuple[str, ...] | None  # names of the classes; None if the files contain them
    read: Callable[[Sequence[Path], int, Sequence[int] | None], RawDataset]  # of paths, image size, wanted labels


def _mnist_files(folder: str, base: str, sums: Sequence[tuple[str, int]]) -> tuple[File, ...]:
    names = [f"{part}-{content}-ubyte.gz" for part in ("train", "t10k") for content in ("images-idx3", "labels-idx1")]
    return tuple(File(f"{folder}/{name}", base + name, *facts) for name, facts in zip(names, sums, strict=True))


_EMNIST = {  # variant: rows, names of the classes
    "byclass": ((697_932, 116_323), (*LETTERS, *LOWER_CASE)),
    "bymerge": ((697_932, 116_323), MERGED),
    "balanced": ((112_800, 18_800), MERGED),
    "letters": ((124_800, 20_800), LOWER_CASE),
    "digits": ((240_000, 40_000), DIGITS),
    "mnist": ((60_000, 10_000), DIGITS),
}
_INATURALIST = "https://ml-inat-competition-datasets.s3.amazonaws.com/2017/"
_NO_LICENCE = "no formal licence; made for research, cite the authors"

_SETS = [
    CatalogueEntry(
        DatasetInfo(
            "digits",
            "image",
            (1_442, 355),
            (1, 8, 8),
            10,
            "scikit-learn; UCI Optical Recognition of Handwritten Digits",
            "CC BY 4.0",
        ),
        (),
        DIGITS,
        official.read_digits,
    ),
    CatalogueEntry(
        DatasetInfo(
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
        DIGITS,
        official.read_idx,
    ),
    CatalogueEntry(
        DatasetInfo(
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
        FASHION,
        official.read_idx,
    ),
    *(
        CatalogueEntry(
            DatasetInfo(
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
            partial(official.read_emnist, variant),
        )
        for variant, (rows, names) in _EMNIST.items()
    ),
    CatalogueEntry(
        DatasetInfo(
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
        CIFAR10,
        official.read_cifar10,
    ),
    CatalogueEntry(
        DatasetInfo(
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
        CIFAR100,
        official.read_cifar100,
    ),
    CatalogueEntry(
        DatasetInfo(
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
        official.read_imdb,
    ),
    CatalogueEntry(
        DatasetInfo(
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
        official.read_inaturalist,
    ),
]

KNOWN = {known.info.name: known for known in _SETS}
ALIASES = {"emnist": "emnist:byclass"}
