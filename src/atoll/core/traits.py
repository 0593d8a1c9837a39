"""Define the declarations of a method: what it needs, how it is listed, and what it promises."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from .problems import NextToken
from .task import Task

_EMPTY: Mapping[str, Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True)
class Need:
    """A requirement that a method has of a federation, checked before a run starts.

    Args:
        name: the requirement in a few words, as ``atoll methods`` lists it.
        find_problem: returns a sentence with problem and remedy if the federation does not meet the requirement,
            otherwise None.

    Example:
        >>> Need("two classes", lambda task: None if task.num_classes == 2 else "Use data with two classes.").name
        'two classes'
    """

    name: str
    find_problem: Callable[[Task], str | None] = lambda task: None

    SAME_ARCHITECTURE: ClassVar["Need"]
    SAME_WIDTH: ClassVar["Need"]
    SEPARATE_HEAD: ClassVar["Need"]
    CLASSES: ClassVar["Need"]
    ROW_FEATURES: ClassVar["Need"]
    BATCH_NORM: ClassVar["Need"]
    PUBLIC_DATA: ClassVar["Need"]
    PROXY: ClassVar["Need"]
    SHARED_MODEL: ClassVar["Need"]
    SERVER_MODELS: ClassVar["Need"]


def _different_architectures(task: Task) -> str | None:
    names = list(dict.fromkeys(model.name for model in task.models.values()))
    if len(names) < 2:
        return None
    listed = ", ".join(names)
    return f"all clients need one architecture, but --models, --adapter and --columns give {listed}. Give one of each."


def _different_widths(task: Task) -> str | None:
    widths = {model.name: model.feature_dim for model in task.models.values()}
    if len(set(widths.values())) < 2:
        return None
    listed = ", ".join(f"{name} {width}" for name, width in widths.items())
    return (
        f"all models need one feature width, because heads are shared or features compared, but they have {listed}. "
        f"Add --width {min(widths.values())}, or choose models that agree."
    )


def _no_head(task: Task) -> str | None:
    built = {model.name: model for model in task.models.values()}
    tied = [name for name, model in built.items() if "head.weight" not in model.init()]
    if not tied:
        return None
    return (
        f"every model needs a last layer with weights of its own, and {', '.join(tied)} has none, because its weights "
        "are tied to another layer. Choose a model with a separate last layer."
    )


def _no_classes(task: Task) -> str | None:
    if task.problem.num_classes:
        return None
    return (
        f"labels must be classes, which the equations use, but with --task {task.problem.task} they are "
        f"{task.problem.labels}. Take a method without the need 'classes' in `atoll methods`, or data with classes."
    )


def _no_row_features(task: Task) -> str | None:
    if task.problem.task != NextToken.task:
        return None
    return (
        "every sample needs one feature vector, which is compared between models, but models of the next token have "
        "one for each position. Take a method without the need 'row features' in `atoll methods`."
    )


def _no_batch_norm(task: Task) -> str | None:
    names = dict.fromkeys(model.name for model in task.models.values() if not model.batch_norms)
    if not names:
        return None
    return (
        f"every model needs BatchNorm layers, and {', '.join(names)} has none. Choose a model with BatchNorm, such as "
        "mlp:norm=true or resnet18."
    )


def _no_public_rows(task: Task) -> str | None:
    if task.public is not None:
        return None
    return f"clients distil on public data, and there is none. Add --public {100 * (task.problem.num_classes or 1)}."


Need.SAME_ARCHITECTURE = Need("same architecture", _different_architectures)
Need.SAME_WIDTH = Need("same feature width", _different_widths)
Need.SEPARATE_HEAD = Need("separate head", _no_head)
Need.CLASSES = Need("classes", _no_classes)
Need.ROW_FEATURES = Need("row features", _no_row_features)
Need.BATCH_NORM = Need("BatchNorm", _no_batch_norm)
Need.PUBLIC_DATA = Need("public data", _no_public_rows)
# The models of these three are built because the method needs them, so that they are always present.
Need.PROXY = Need("proxy model")
Need.SHARED_MODEL = Need("shared model")
Need.SERVER_MODELS = Need("server models")


class Reads(Enum):
    """Say which part of the uploads a server uses."""

    SUMS = "sums"  # sums and means over clients; never a single upload
    UPLOADS = "uploads"  # single uploads


class Traits(NamedTuple):
    """Declarations of a method class. Everything has a safe default.

    Those from ``server_reads`` on are promises about the functions of one class. A subclass without ``traits`` of its
    own inherits the other declarations, and none of the promises, because its functions may do something else.

    Args:
        family: group in listings.
        needs: requirements of the method on the federation.
        variants: ablations, by name, as the settings that differ.
        wait_free: settings with which clients upload before their personal training; None if they cannot.
        vmap: whether vmap can run many clients in one call; None if not known, then ``--backend auto`` tries.
        varying_bytes: whether the size of a message depends on trained values.
        star_only: why the method runs only with a server in every synchronous round; None if it does not matter.
        server_reads: the part of the uploads that the server uses. ``Reads.SUMS`` admits ``--sums fixed``.
        why_uploads: why the server needs single uploads, as part of a sentence, for the error of ``--sums fixed``.
        guards: fields given to ``mean`` whose average ``--robust`` may replace by its rule.
        as_sent: what the server uses of single uploads despite ``guards``, for the note under ``--robust``.
        bounded_statistics: whether uploads consist of counts and moments, by class, of ``client.features``.
        private_training: whether uploads depend only on weights that ``optim`` trained and on the number of rows.
    """

    family: str = "weights"
    needs: frozenset[Need] = frozenset()
    variants: Mapping[str, Mapping[str, object]] = _EMPTY
    wait_free: Mapping[str, object] | None = None
    vmap: bool | None = None
    varying_bytes: bool = False
    star_only: str | None = None
    server_reads: Reads = Reads.UPLOADS
    why_uploads: str | None = None
    guards: tuple[str, ...] = ()
    as_sent: str | None = None
    bounded_statistics: bool = False
    private_training: bool = False

    def without_promises(self) -> "Traits":
        """Return the declarations that a subclass inherits."""
        return Traits(
            family=self.family,
            needs=self.needs,
            variants=self.variants,
            wait_free=self.wait_free,
            vmap=self.vmap,
            varying_bytes=self.varying_bytes,
            star_only=self.star_only,
        )
