"""Whether an upload can be used: decided before anything is touched, for all of it or none.

What form an upload must have follows from the method: a stand-in for the client, who has blank rows and does not train,
answers the same message. So nothing is kept by hand, and no client's upload is the measure of another's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import calls
from .core import Client, ClientId, Reply, Round, contract
from .errors import AtollError
from .fleet import Fleet
from .key import key
from .payload import Params, Role, as_rows, kinds_of, nbytes
from .train import no_training
from .wire import FROM_OUTSIDE, Limits, Unreadable

if TYPE_CHECKING:
    from .rounds import AnyMethod

STAND_INS = (20, 30)  # rows of each: a dimension in which their uploads differ is one of rows
TOLERANCE = 1e-4  # relative: single precision and long sums leave less
SUM_TOLERANCE = 1e-3  # of probabilities
LARGEST = 1e15  # of any number: its square still fits single precision, so that no sum of squares overflows


class Flaw(NamedTuple):
    """Why an upload cannot be used."""

    field: str
    reason: str


class Leaf(NamedTuple):
    """The form of one tensor."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]  # None: as many as there are rows

    def __str__(self) -> str:
        sizes = ", ".join("rows" if size is None else str(size) for size in self.shape)
        return f"{str(self.dtype).removeprefix('torch.')} [{sizes}]"

    def nbytes(self, rows: int) -> int:
        return self.dtype.itemsize * prod(rows if size is None else size for size in self.shape)


Form = dict[str, Leaf]  # names as in a packed payload; tables of classes are dense, whichever classes are held


@dataclass(frozen=True)
class Marks:
    """What ``about`` says of a tensor; fields are named as in a packed payload."""

    rows: str | None = None
    symmetric: bool = False
    count: bool = False
    probabilities: bool | str = False
    psd: bool = False
    labels: bool = False
    role: Role | None = field(default=None, compare=False)  # roles promise nothing that values are checked against
    of: str | None = field(default=None, compare=False)

    @property
    def by_class(self) -> bool:
        """Return True if the rows of a tensor, where that is no scalar, are classes."""
        sums = isinstance(self.probabilities, str)
        return bool(self.rows) or sums or self.of_rows or self.role is Role.CLASS_TABLE

    @property
    def of_rows(self) -> bool:
        """Return True if a tensor counts rows."""
        return self.count or self.role is Role.COUNT


_NO_MARKS = Marks()


class Bounds(NamedTuple):
    """What uploads are measured by; None: nobody knows."""

    rows: int | None = None  # of the sender
    classes: int | None = None
    largest: float = LARGEST  # of any number


def flaw(upload: Any, kind: type[Any]) -> Flaw | None:
    """What is wrong with an upload, as far as its class tells: types of fields, finite values, marks."""
    return next(chain(_by_type(upload, kind), _by_value(upload, marks_of(kind), Bounds())), None)


@dataclass(frozen=True)
class Expected:
    """What one message must be answered with."""

    form: Form
    open: tuple[str, ...]  # beginnings of names that are free, as their sizes depend on what was learnt
    spare: int  # bytes that these may take beyond those of the form

    def most_bytes(self, rows: int) -> int:
        return sum(leaf.nbytes(rows) for leaf in self.form.values()) + self.spare


class Validator:
    """The checks of one run."""

    def __init__(
        self,
        method: "AnyMethod",
        fleet: Fleet,
        seed: int,
        max_norm: float | None = None,
        most: float = LARGEST,
        spare: int = 0,
    ):
        """``spare`` rows may be counted beyond those that a client has: noise on counts is no lie."""
        self._method, self._fleet, self._task, self._seed = method, fleet, fleet.task(), seed
        self._kind, self._max_norm, self._spare = contract(method).upload, max_norm, spare
        self._marks = promises(method)
        self._bounds = Bounds(classes=self._task.num_classes, largest=most)
        self._known: dict[Any, Expected] = {}
        self._first: Any = None  # the server's first state, made when it is needed

    def flaw(self, sender: ClientId, download: Any, upload: Any) -> Flaw | None:
        """What is wrong with the answer of a client to a message, or None; nothing is changed."""
        with torch.no_grad():
            return next(self._flaws(sender, download, upload), None)

    def sound(self, uploads: Mapping[ClientId, Any], download: Any, stack: Any) -> bool:
        """Whether the uploads of some clients, which are views of one stack, have no flaw between them.

        ``download`` has the form of what all of them answered. False may also mean that only a look at each can tell.
        """
        rows = [self._fleet.train.size(self._fleet.position(i)) for i in uploads]
        sender, one = next(iter(uploads.items()))
        expected = self.expected(sender, download)
        if self._max_norm is not None or expected.open:
            return False
        with torch.no_grad():
            flaws = chain(
                _by_type(one, self._kind),
                _by_size(one, expected.most_bytes(min(rows))),
                _by_form(tensors_of(one), expected, min(rows)),
            )
            return next(flaws, None) is None and self._plausible(uploads, rows, tensors_of(stack))

    def _plausible(self, uploads: Mapping[ClientId, Any], rows: list[int], stack: Params) -> bool:
        """Whether the values are."""
        marked = {name: self._marks[name] for name in stack if self._marks.get(name, _NO_MARKS) != _NO_MARKS}
        if not _all_plausible(stack, self._bounds.largest):
            return False
        if marked == {name: Marks(count=True) for name in marked}:
            most = np.array(rows) + self._spare
            return all(_all_counts(stack[name], most) for name in marked)
        bounds = [self._bounds._replace(rows=n + self._spare) for n in rows]
        return all(not any(_by_marks(up, marked, b)) for up, b in zip(uploads.values(), bounds, strict=True))

    def _flaws(self, sender: ClientId, download: Any, upload: Any) -> Iterator[Flaw]:
        """In this order: later checks rely on earlier ones."""
        yield from _by_type(upload, self._kind)
        rows, tensors = self._fleet.train.size(self._fleet.position(sender)), tensors_of(upload)
        expected = self.expected(sender, download)
        yield from _by_size(upload, expected.most_bytes(rows))
        yield from _by_form(tensors, expected, rows)
        yield from _by_value(upload, self._marks, self._bounds._replace(rows=rows + self._spare))
        if self._max_norm is not None:
            yield from _by_norm(tensors, self._max_norm)
        if expected.open:
            yield from self._by_trial(sender, upload)

    def limits(self, sender: ClientId, download: Any) -> Limits:
        """What to take of the bytes of an answer before they are read: twice what an honest one can have."""
        rows = self._fleet.train.size(self._fleet.position(sender))
        return FROM_OUTSIDE._replace(size=FROM_OUTSIDE.header + 2 * self.expected(sender, download).most_bytes(rows))

    # -- what is expected ---------------------------------------------------------------------------------------------

    def expected(self, to: ClientId, download: Any) -> Expected:
        """The form of an answer; messages of one form to clients of one architecture have answers of one form."""
        name = self._fleet.models[to].name, *form_of(download).items(), *_switches(download)
        if name not in self._known:
            with torch.no_grad(), no_training():
                self._known[name] = self._rehearsed(to, download)
        return self._known[name]

    def _rehearsed(self, to: ClientId, download: Any) -> Expected:
        few, many = (form_of(self._answer(self._stand_in(to, rows), to, download)) for rows in STAND_INS)
        if [(n, leaf.dtype, len(leaf.shape)) for n, leaf in few.items()] != [
            (n, leaf.dtype, len(leaf.shape)) for n, leaf in many.items()
        ]:
            raise AtollError(
                f"{type(self._method).__name__} uploads other tensors from other numbers of rows. "
                "Give them fixed names and types: the server has to know what to expect."
            )
        form = {name: _common(leaf, many[name]) for name, leaf in few.items()}
        hints = get_type_hints(self._kind) if self._method.varying_bytes else {}
        free = tuple(f"{name}/" for name, kind in hints.items() if kind == Params)
        return Expected(form, free, nbytes(self._first_server()) if free else 0)

    def _stand_in(self, of: ClientId, rows: int) -> Client:
        """A client of the same architecture without anything private: blank rows, of each class in turn."""
        client = self._fleet.client(of)
        blank = client.x.new_zeros(rows, *client.x.shape[1:])
        y = torch.arange(rows) % client.num_classes
        return replace(client, x=blank, y=y, n=torch.tensor(float(rows)))

    def _answer(self, client: Client, of: ClientId, download: Any) -> Any:
        """The stand-in's upload; it has taken part once before, as some messages rely on an earlier one."""
        method, k, r = self._method, key(self._seed, "stand-in"), Round(0)
        server, state = self._first_server(), calls.init_client(method, client, k)
        desk = calls.init_desk(method, self._task, of, k) if method.keeps_desks else None
        first = calls.download(method, server, desk, of, self._task, r)
        _, state = calls.local(method, first, state, client, k)
        upload, _ = calls.local(method, download, state, client, k)
        return upload

    def _first_server(self) -> Any:
        if self._first is None:
            self._first = calls.init_server(self._method, self._task, key(self._seed, "init", "server"))
        return self._first

    # -- forms that depend on what was learnt -------------------------------------------------------------------------

    def _by_trial(self, sender: ClientId, upload: Any) -> Iterator[Flaw]:
        """The server's first state must be able to take the upload in, and keep its own form."""
        before = form_of(self._first_server())
        try:
            after = form_of(self._taken_in(sender, upload))
        except Exception as reason:  # whatever it is, it would have ended the run
            yield Flaw("payload", f"cannot be aggregated: {type(reason).__name__}: {reason}")
            return
        kept = {name.partition("/")[0] for name in before}  # fields that are empty at first may become anything
        for name in before.keys() | {name for name in after if name.partition("/")[0] in kept}:
            if after.get(name) != before.get(name):
                yield Flaw("payload", f"would turn the server's {name} from {before.get(name)} into {after.get(name)}")

    def _taken_in(self, sender: ClientId, upload: Any) -> Any:
        method, k, r = self._method, key(self._seed, "stand-in"), Round(0)
        server = self._first_server()
        if method.keeps_desks:
            desk = method.init_desk(self._task, sender, k)
            upload, _ = method.serve(server, desk, Reply(sender, upload), self._task, r, k)
        return method.aggregate(server, iter([Reply(sender, upload)]), self._task, r, k)


# ---------------------------------------------------------------------------------------------------------------------
# Forms


def tensors_of(p: Any) -> Params:
    """All tensors of a payload, under the names that they travel by."""
    found: Params = {}
    for place in kinds_of(type(p)):
        value = getattr(p, place)
        if isinstance(value, dict):
            found |= {f"{place}/{name}": v for name, v in value.items()}
        elif isinstance(value, Tensor):
            found[place] = value
    return found


def form_of(p: Any) -> Form:
    return {name: Leaf(v.dtype, tuple(v.shape)) for name, v in tensors_of(p).items()}


def _switches(p: Any) -> Iterator[tuple[str, Any]]:
    """Scalars that a form may depend on: numbers that are not whole decide values only."""
    for f in fields(p):
        if isinstance(value := getattr(p, f.name), int | str):
            yield f.name, value


def _common(a: Leaf, b: Leaf) -> Leaf:
    return Leaf(a.dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)))


def _by_form(tensors: Params, expected: Expected, rows: int) -> Iterator[Flaw]:
    fixed = {name: v for name, v in tensors.items() if not name.startswith(expected.open)}
    form = {name: leaf for name, leaf in expected.form.items() if not name.startswith(expected.open)}
    yield from _by_names(list(fixed), list(form))
    yield from _by_shapes(fixed, form, rows)
    kinds = {leaf.dtype for name, leaf in expected.form.items() if name not in form}
    for name, v in tensors.items():
        if name not in fixed and v.dtype not in kinds:
            yield Flaw(name, f"is {v.dtype}, which is none of the types expected")


def _by_names(found: list[str], expected: list[str]) -> Iterator[Flaw]:
    """All of them, no others, in their order: that in which sums over a model run."""
    for name in expected:
        if name not in found:
            yield Flaw(name, "is missing")
    for name in found:
        if name not in expected:
            yield Flaw(name, "is not expected")
    for name, other in zip(found, expected, strict=True):
        if name != other:
            yield Flaw(name, f"comes where {other} is expected")


def _by_shapes(tensors: Params, form: Form, rows: int) -> Iterator[Flaw]:
    """Dimensions of rows are of one size, at most the number of the client's rows."""
    common: int | None = None
    for name, leaf in form.items():
        v = tensors[name]
        if v.dtype != leaf.dtype or v.ndim != len(leaf.shape):
            yield Flaw(name, f"is {Leaf(v.dtype, tuple(v.shape))}, not {leaf}")
        for size, wanted in zip(v.shape, leaf.shape, strict=True):
            if wanted is None:
                wanted = common = size if common is None else common
            if size != wanted or (common or 0) > rows:
                yield Flaw(name, f"is {Leaf(v.dtype, tuple(v.shape))}, not {leaf} of a client with {rows} rows")


# ---------------------------------------------------------------------------------------------------------------------
# Types, sizes, values


def _by_type(upload: Any, kind: type[Any]) -> Iterator[Flaw]:
    """The declared class, and in each field what it declares."""
    if isinstance(upload, Unreadable):
        yield Flaw("payload", upload.reason)
    if type(upload) is not kind:
        yield Flaw("payload", f"is a {type(upload).__name__}, not a {kind.__name__}")
    for name, declared in kinds_of(kind).items():
        value = getattr(upload, name, None)
        if declared == Params:
            if type(value) is not dict or not all(type(n) is str and _plain(v) for n, v in value.items()):
                yield Flaw(name, "is not a dictionary of named tensors")
        elif declared in (Tensor, Tensor | None):
            if not _plain(value) and (value is not None or declared is Tensor):
                yield Flaw(name, f"is {_called(value)}, not a plain tensor")
        elif type(value) is not declared and not (declared is float and type(value) is int):
            yield Flaw(name, f"is {_called(value)}, not a {declared.__name__}")
        elif isinstance(value, float) and not isfinite(value):
            yield Flaw(name, "is NaN or infinite")


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_quantized)


def _called(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _by_size(upload: Any, most: int) -> Iterator[Flaw]:
    size = sum(v.numel() * v.element_size() for v in tensors_of(upload).values())
    if size > most:
        yield Flaw("payload", f"has {size} bytes, and {most} are the most that can be expected")


def _by_norm(tensors: Params, most: float) -> Iterator[Flaw]:
    norm = sum(float(v.double().square().sum()) for v in tensors.values() if v.is_floating_point()) ** 0.5
    if norm > most:
        yield Flaw("payload", f"has norm {norm:.4g}, above the limit of {most:g}")


def _by_value(upload: Any, marks: Mapping[str, Marks], bounds: Bounds) -> Iterator[Flaw]:
    """Numbers of a plausible size, then what the marks promise."""
    tensors = tensors_of(upload)
    for name, v in tensors.items():
        for reason in _implausible(v, bounds.largest):
            yield Flaw(name, reason)
    yield from _by_marks(upload, marks, bounds)


def _by_marks(upload: Any, marks: Mapping[str, Marks], bounds: Bounds) -> Iterator[Flaw]:
    tensors = tensors_of(upload)
    for name, v in tensors.items():
        if name in marks:
            for reason in _broken(v, marks[name], tensors, bounds):
                yield Flaw(name, reason)


def is_finite(p: Any) -> bool:
    """Whether a payload holds neither NaN nor infinity."""
    return all(bool(v.isfinite().all()) for v in tensors_of(p).values())


def not_finite(stack: Any) -> set[int]:
    """The places in a stack of payloads at which there is NaN or infinity."""
    found = [as_rows(v.isfinite()).all(1).logical_not_() for v in tensors_of(stack).values()]
    return {at for flags in found if bool(flags.any()) for at in flags.nonzero().flatten().tolist()}


def _implausible(v: Tensor, most: float) -> Iterator[str]:
    """From the extremes, which NaN spreads to: nothing of the tensor's size is made."""
    if not v.is_floating_point() or not v.numel():
        return
    low, high = (float(extreme) for extreme in v.aminmax())
    largest = max(-low, high)
    if not (isfinite(low) and isfinite(high)):
        yield "holds NaN or infinity"
    if largest > most:
        yield f"holds a number of size {largest:.4g}, above the limit of {most:.4g}"
    if 0 < largest < torch.finfo(v.dtype).tiny:
        yield "holds only numbers that are subnormal, which slow arithmetic down and carry nothing"


def _all_plausible(stack: Params, most: float) -> bool:
    """The same of each tensor of a stack."""
    numbers = [as_rows(v) for v in stack.values() if v.is_floating_point() and v.numel()]
    if not numbers:
        return True
    if not all(abs(float(extreme)) <= most for v in numbers for extreme in v.aminmax()):  # also if it is NaN
        return False
    first, tiny = torch.cat([v[:, 0] for v in numbers]), max(torch.finfo(v.dtype).tiny for v in numbers)
    # One number of each is enough, and the first will nearly always do.
    return bool((first.abs() >= tiny).all()) or not any(_some_subnormal(v) for v in numbers)


def _some_subnormal(rows: Tensor) -> bool:
    """Whether all numbers of some row are, and not all of them 0."""
    largest = rows.abs().amax(1)
    return bool(((largest > 0) & (largest < torch.finfo(rows.dtype).tiny)).any())


def _all_counts(v: Tensor, most: NDArray[np.int64]) -> bool:
    """Whether each tensor of a stack has counts, with at most so many rows."""
    if v.is_complex() or v.dtype == torch.bool:
        return False
    counts = as_rows(v).double().cpu().numpy()
    if ((counts != np.floor(counts)) | (counts < 0)).any():
        return False
    totals = counts.sum(1)
    return bool((totals <= most).all() and (v.ndim > 1 or ((totals > 0) | (most == 0)).all()))


def marks_of(kind: type[Any]) -> dict[str, Marks]:
    """What the fields of a payload class declare."""
    names = [mark.name for mark in fields(Marks) if mark.name != "labels"]
    found = {f.name: Marks(**{name: f.metadata[name] for name in names if name in f.metadata}) for f in fields(kind)}
    lists = {f.name: f.metadata.get("labels") for f in fields(kind)}
    return found | {f"{name}/{inner}": Marks(labels=True) for name, inner in lists.items() if inner}


def marks_at(name: str, declared: Mapping[str, Marks]) -> Marks:
    """Return what is declared of one tensor; a tensor in a dictionary has the role of the dictionary's field."""
    own, whole = declared.get(name, _NO_MARKS), declared.get(field_of(name), _NO_MARKS)
    return own if own.role else replace(own, role=whole.role, of=whole.of)


def field_of(name: str) -> str:
    """Return the field of a payload that a tensor travels in."""
    return name.partition("/")[0]


def promises(method: "AnyMethod") -> dict[str, Marks]:
    """What the tensors of a method's uploads declare, its regularisers' included."""
    return marks_of(contract(method).upload) | _reported(method)


def _reported(method: "AnyMethod") -> dict[str, Marks]:
    """What a method's regularisers declare of their reports."""
    found = {}
    for term in method.terms() if hasattr(method, "terms") else ():
        place = f"extra/{type(term).__name__}."
        for name, marks in getattr(term, "marks", {}).items():
            by = marks.get("probabilities", False)
            found[place + name] = Marks(**marks | {"probabilities": place + by if isinstance(by, str) else by})
    return found


def _broken(v: Tensor, marks: Marks, tensors: Params, bounds: Bounds) -> Iterator[str]:
    """Promises that a tensor breaks."""
    if marks.count:
        yield from _not_counts(v, bounds.rows)
    if marks.labels:
        yield from _not_labels(v, bounds.classes)
    if marks.rows is not None:
        held = tensors[marks.rows] != 0
        if v.shape[:1] != held.shape:
            yield f"has {list(v.shape)} for {held.numel()} classes"
        if bool(v[~held].any()):
            yield "says something of classes that are not held"
        v = v[held]
    if marks.symmetric:
        yield from _not_symmetric(v)
    if marks.psd:
        yield from _indefinite(v)
    if marks.probabilities:
        total = tensors.get(marks.probabilities) if isinstance(marks.probabilities, str) else torch.ones(())
        yield from _not_probabilities(v, torch.zeros(()) if total is None else total)


def _not_counts(v: Tensor, most: int | None) -> Iterator[str]:
    if v.is_complex() or v.dtype == torch.bool or bool((v != v.floor()).any()):
        yield "holds a count that is not whole"
    if bool((v < 0).any()):
        yield "holds a count below 0"
    total = float(v.double().sum())
    if most is not None and total > most:
        yield f"counts {total:g} rows, and the client has {most}"
    if v.ndim == 0 and most and total == 0:
        yield "counts no rows at all"


def _not_labels(v: Tensor, classes: int | None) -> Iterator[str]:
    if v.is_floating_point() or v.is_complex() or v.dtype == torch.bool:
        yield "holds labels that are not whole numbers"
    if v.numel() and (int(v.min()) < 0 or (classes is not None and int(v.max()) >= classes)):
        yield f"holds labels from {int(v.min())} to {int(v.max())}, and there are {classes} classes"


def _not_symmetric(v: Tensor) -> Iterator[str]:
    if v.ndim < 2 or v.shape[-1] != v.shape[-2]:
        yield f"has shape {list(v.shape)}, and no matrix of such a shape is symmetric"
    for matrix in _matrices(v):
        if float((matrix - matrix.mT).abs().max()) > TOLERANCE * float(matrix.abs().max()):
            yield "is not symmetric"


def _indefinite(v: Tensor) -> Iterator[str]:
    """A factor must exist once a little has been added to the diagonal, which rounding may have taken away."""
    for matrix in _matrices(v):
        raised = matrix.clone()
        raised.diagonal().add_(TOLERANCE * matrix.diagonal().abs().max() + 1e-12)
        if int(torch.linalg.cholesky_ex(raised).info) != 0:
            yield "is not positive semi-definite"


def _matrices(v: Tensor) -> Iterator[Tensor]:
    """One at a time: all at once would take their memory again."""
    if v.numel():
        yield from v.reshape(-1, *v.shape[-2:])


def _not_probabilities(v: Tensor, total: Tensor) -> Iterator[str]:
    off = (v.sum(-1) - total).abs() > SUM_TOLERANCE * total.clamp(min=1)
    if bool((v < -SUM_TOLERANCE).any()) or bool(off.any()):
        yield "holds rows that do not sum to what probabilities should"
