"""Who gets which rows: ways to divide one labelled pool among clients.

    iid                       equal random parts
    pathological:K            K classes for every client, every class with equally many owners
    pathological:K:code       the same as published code does it: a client may be handed one class twice
    dirichlet:BETA            every class is cut by one Dirichlet draw over the clients
    dirichlet:BETA:capped     the same, full clients are passed over, and every client has at least 10 rows
    dirichlet:BETA:masked=P   a client takes part in a class with probability P
    dirichlet:BETA:client     every client draws its own mix of classes
    natural                   the owners the data name
    file:PATH                 an exported division

Every division ends: draws are bounded, then mended and reported. No client gets fewer than two rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.random import Generator

from ..errors import AtollError, unknown
from ..utils.parsing import Field, Spec, number, whole, word
from .dataset import Array

FLOOR = 2  # rows every client needs: one to learn from, one to be tested on
CAPPED_FLOOR = 10
DRAWS = 100  # attempts of a random division before it is mended instead
TURNS = 10  # instalments in which clients with their own mixes draw, so that none is left with the others' leavings
LOW, HIGH = 0.4, 0.6  # the range of an owner's weight in a class before weights are normalised
LARGEST_BETA = 1e6
ROUNDING = 1e-9  # a product that is a whole number up to floating-point error counts as that number


@dataclass(frozen=True)
class Pool:
    """The rows to divide: their labels and, where the data say so, their owners."""

    labels: Array  # int64 [n]
    classes: tuple[str, ...]
    owners: Array | None = None  # str [n]

    def totals(self) -> Array:
        """Rows of every class, [C]."""
        return np.bincount(self.labels, minlength=len(self.classes))


@dataclass(frozen=True)
class Partition:
    """Disjoint rows for every client, as sorted positions in the pool; some rows may belong to nobody."""

    clients: tuple[str, ...]
    rows: tuple[Array, ...]
    notes: tuple[str, ...] = ()


class Scheme(Protocol):
    """A way to divide a pool; ``str(scheme)`` is its spec in normal form."""

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition: ...


@dataclass(frozen=True)
class File:
    """A division read from a file; it brings its own clients and splits."""

    path: Path


@dataclass(frozen=True)
class Iid:
    """Equal parts of a shuffled pool."""

    def __str__(self) -> str:
        return "iid"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = _feasible(pool, clients, FLOOR)
        parts = np.array_split(rng.permutation(len(pool.labels)), n)
        return Partition(numbered(n), tuple(np.sort(part) for part in parts))


@dataclass(frozen=True)
class Pathological:
    """The same number of classes for every client and of owners for every class (Shamsian et al., 2021).

    With ``code`` a client may draw one class twice, as in published code; otherwise its classes are distinct.
    """

    classes: int
    code: bool = False

    def __str__(self) -> str:
        return f"pathological:{self.classes}" + (":code" if self.code else "")

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = _feasible(pool, clients, FLOOR)
        totals = pool.totals()
        present = np.flatnonzero(totals)
        owners = self._owners(n, len(present))
        least = FLOOR if self.classes == 1 else 1
        self._check_rows(pool, totals, present, owners * least, owners)
        picks = self.pick(n, len(present), rng)
        counts = np.zeros((n, len(totals)), dtype=np.int64)
        mended = 0
        for j, c in enumerate(present):
            shares = rng.uniform(LOW, HIGH, owners)
            exact = portions(shares, totals[c])
            sizes = raise_to(exact, least, totals[c])
            mended += int(np.maximum(sizes - exact, 0).sum())
            np.add.at(counts[:, c], np.nonzero(picks == j)[0], sizes)
        left = int(totals.sum() - counts.sum())
        notes = _if(mended, f"{mended} rows were moved so that every owner of a class holds some of it.")
        notes += _if(left, f"{left} rows are left over from rounding and belong to nobody.")
        return Partition(numbered(n), deal(pool.labels, counts, rng), notes)

    def pick(self, clients: int, classes: int, rng: Generator) -> Array:
        """The classes of every client, [clients, K]: each draw is among the classes with most places left."""
        left = np.full(classes, clients * self.classes // classes)
        picks = np.empty((clients, self.classes), dtype=np.int64)
        for i in range(clients):
            held = np.zeros(classes, dtype=bool)
            for k in range(self.classes):
                places = left if self.code else np.where(held, -1, left)
                best = np.flatnonzero(places == places.max())
                c = best[rng.integers(len(best))]
                left[c] -= 1
                held[c] = True
                picks[i, k] = c
        return picks

    def _owners(self, clients: int, classes: int) -> int:
        """Owners per class, or the error that says which numbers would do."""
        if self.classes > classes:
            raise AtollError(
                f"Partition '{self}': {self.classes} classes per client, but the data have {classes}. "
                f"Use at most pathological:{classes}."
            )
        if self.classes * clients % classes:
            per_client = _multiples(self.classes, classes // math.gcd(clients, classes), classes)
            of_clients = _multiples(clients, classes // math.gcd(self.classes, classes))
            ways = [f"{many} clients" for many in of_clients] + [f"pathological:{k}" for k in per_client]
            raise AtollError(
                f"Partition '{self}' with {clients} clients: {self.classes} x {clients} = {self.classes * clients} "
                f"places cannot be shared equally by {classes} classes. Use {' or '.join(ways)}."
            )
        return self.classes * clients // classes

    def _check_rows(self, pool: Pool, totals: Array, present: Array, needed: int, owners: int) -> None:
        scarce = present[totals[present] < needed]
        if len(scarce):
            c = int(scarce[totals[scarce].argmin()])
            raise AtollError(
                f"Partition '{self}': class {pool.classes[c]!r} has {totals[c]} rows, but its {owners} owners need "
                f"{needed}. Use fewer clients or fewer classes per client."
            )


@dataclass(frozen=True)
class Dirichlet:
    """Every class is cut at the cumulated proportions of one draw from Dir(beta) over the clients."""

    beta: float

    def __str__(self) -> str:
        return f"dirichlet:{_text(self.beta)}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = _feasible(pool, clients, FLOOR)
        totals = pool.totals()

        def draw() -> Array:
            return cut(rng.dirichlet(np.full(n, self.beta), len(totals)).T, totals)

        return _settled(pool, draw, FLOOR, rng)


@dataclass(frozen=True)
class Capped:
    """As ``Dirichlet``, class after class; a client that has its fair share already is passed over."""

    beta: float

    def __str__(self) -> str:
        return f"dirichlet:{_text(self.beta)}:capped"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = _feasible(pool, clients, CAPPED_FLOOR)
        totals = pool.totals()
        fair = len(pool.labels) / n

        def draw() -> Array:
            counts = np.zeros((n, len(totals)), dtype=np.int64)
            for c in np.flatnonzero(totals):
                room = counts.sum(1) < fair
                odds = rng.dirichlet(np.full(n, self.beta)) * room
                # With a small beta everything may fall on clients that are full.
                odds = odds if odds.sum() > ROUNDING else room
                counts[:, c] = cut(odds[:, None] / odds.sum(), totals[c : c + 1])[:, 0]
            return counts

        return _settled(pool, draw, CAPPED_FLOOR, rng)


@dataclass(frozen=True)
class Masked:
    """A coin with probability ``share`` decides who takes part in a class; its rows fall independently on those."""

    beta: float
    share: float

    def __str__(self) -> str:
        return f"dirichlet:{_text(self.beta)}:masked={_text(self.share)}"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = _feasible(pool, clients, FLOOR)
        totals = pool.totals()
        present = np.flatnonzero(totals)

        def draw() -> Array:
            takes = self.mask(n, len(present), rng)
            counts = np.zeros((n, len(totals)), dtype=np.int64)
            for j, c in enumerate(present):
                who = np.flatnonzero(takes[:, j])
                counts[who, c] = rng.multinomial(totals[c], rng.dirichlet(np.full(len(who), self.beta)))
            return counts

        return _settled(pool, draw, FLOOR, rng)

    def mask(self, clients: int, classes: int, rng: Generator) -> Array:
        """Who takes part in which class, bool [clients, classes]; no row and no column is empty."""
        takes = rng.random((clients, classes)) < self.share
        for j in np.flatnonzero(~takes.any(0)):
            takes[rng.integers(clients), j] = True
        for i in np.flatnonzero(~takes.any(1)):
            takes[i, rng.integers(classes)] = True
        return takes


@dataclass(frozen=True)
class ByClient:
    """Equally large clients, each with its own mix of classes from Dir(beta * class frequencies)."""

    beta: float

    def __str__(self) -> str:
        return f"dirichlet:{_text(self.beta)}:client"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        n = _feasible(pool, clients, FLOOR)
        totals = pool.totals()
        present = np.flatnonzero(totals)
        stock = totals[present]
        mixes = rng.dirichlet(self.beta * stock / stock.sum(), n)
        sizes = np.array([len(part) for part in np.array_split(pool.labels, n)])
        counts = np.zeros((n, len(totals)), dtype=np.int64)
        for turn in range(1, TURNS + 1):
            for i in rng.permutation(n):
                want = int(sizes[i] * turn // TURNS - counts[i].sum())
                taken = take(mixes[i], want, stock, rng)
                stock = stock - taken
                counts[i, present] += taken
        return Partition(numbered(n), deal(pool.labels, counts, rng))


@dataclass(frozen=True)
class Natural:
    """The owners named by the data; a number of clients keeps that many of the largest."""

    def __str__(self) -> str:
        return "natural"

    def divide(self, pool: Pool, clients: int | None, rng: Generator) -> Partition:
        if pool.owners is None:
            raise AtollError(
                "Partition 'natural': the data set does not say who owns a row. "
                "Choose another partition, such as dirichlet:0.5, or give the data an owner column."
            )
        unique, which, sizes = np.unique(pool.owners.astype(str), return_inverse=True, return_counts=True)
        names: list[str] = unique.tolist()
        able = np.flatnonzero(sizes >= FLOOR)
        if not len(able) or (clients is not None and not 1 <= clients <= len(able)):
            raise AtollError(
                f"Partition 'natural' with {clients or 'all'} clients: {len(able)} owners have at least {FLOOR} rows. "
                f"Use from 1 to {len(able)} clients, or leave the number out to take all of them."
            )
        kept = able[np.argsort(-sizes[able], kind="stable")][:clients].tolist()
        kept = sorted(kept, key=lambda i: names[i].zfill(20) if names[i].isdecimal() else names[i])
        groups = np.split(np.argsort(which, kind="stable"), np.cumsum(sizes)[:-1])
        dropped = len(names) - len(able)
        notes = _if(dropped, f"{dropped} owners with fewer than {FLOOR} rows were dropped.")
        smaller = len(able) - len(kept)
        notes += _if(smaller, f"{smaller} smaller owners were left out; the {len(kept)} largest are the clients.")
        return Partition(tuple(names[i] for i in kept), tuple(groups[i] for i in kept), notes)


def parse(spec: str) -> Scheme | File:
    """Make the scheme that a value of ``--partition`` names, such as ``dirichlet:0.5:capped``."""
    text = spec.strip()
    name = text.partition(":")[0]
    if name not in _SCHEMES:
        raise unknown("partition", name, _SCHEMES)
    make, form = _SCHEMES[name]
    return make(*form.parse("--partition", text, skip=1))


def numbered(clients: int) -> tuple[str, ...]:
    return tuple(str(i) for i in range(clients))


def portions(weights: Array, rows: int) -> Array:
    """Whole rows for owners in proportion to their weights, rounded down; what remains belongs to nobody."""
    whole: Array = np.floor(weights / weights.sum() * rows + ROUNDING).astype(np.int64)
    return whole


def raise_to(sizes: Array, least: int, rows: int) -> Array:
    """The sizes with none below ``least``: from rows nobody has, then from the largest. Needs enough rows."""
    raised = np.maximum(sizes, least)
    for _ in range(int(raised.sum() - rows)):
        raised[raised.argmax()] -= 1
    return raised


def cut(proportions: Array, totals: Array) -> Array:
    """Rows [clients, classes] when every class is cut at its cumulated proportions, rounded down."""
    edges = np.floor(np.cumsum(proportions, 0) * totals + ROUNDING).astype(np.int64)
    edges[-1] = totals
    return np.diff(edges, axis=0, prepend=0)


def lift(counts: Array, floor: int) -> tuple[Array, int]:
    """The counts with every client at ``floor`` rows or more, and how many rows moved.

    Each comes from the largest client at that moment that holds what the poor one has most of, so that this can be
    trained and tested on; a client with nothing begins with the largest class of the largest client.
    """
    counts = counts.copy()
    sizes = counts.sum(1)
    moved = 0
    for poor in np.flatnonzero(sizes < floor):
        while sizes[poor] < floor:
            wanted = counts[poor].argmax()
            able = np.where((counts[:, wanted] > 0) & (sizes > floor), sizes, 0)
            rich = able.argmax()
            if sizes[poor] == 0 or not able[rich]:
                rich = sizes.argmax()
                wanted = counts[rich].argmax()
            counts[[rich, poor], wanted] += (-1, 1)
            sizes[[rich, poor]] += (-1, 1)
            moved += 1
    return counts, moved


def deal(labels: Array, counts: Array, rng: Generator) -> tuple[Array, ...]:
    """Random rows for every client, ``counts[client, class]`` of each class, as sorted positions."""
    clients, classes = counts.shape
    shuffled = np.lexsort((rng.random(len(labels)), labels))
    spare = np.bincount(labels, minlength=classes) - counts.sum(0)
    holders = np.tile(np.arange(clients + 1), classes)  # the last holder is nobody
    holder = np.repeat(holders, np.vstack([counts, spare]).T.ravel())
    order = np.lexsort((shuffled, holder))
    return tuple(np.split(shuffled[order], np.cumsum(counts.sum(1)))[:clients])


def take(mix: Array, want: int, stock: Array, rng: Generator) -> Array:
    """``want`` rows by class, drawn from ``mix`` among the classes in stock; every pass ends it or empties a class."""
    taken = np.zeros_like(stock)
    while want > 0:
        odds = mix * (stock > taken)
        if odds.sum() <= ROUNDING:
            odds = (stock - taken).astype(float)
        got = np.minimum(rng.multinomial(want, odds / odds.sum()), stock - taken)
        taken += got
        want -= int(got.sum())
    return taken


def _feasible(pool: Pool, clients: int | None, floor: int) -> int:
    """The number of clients, if the pool has ``floor`` rows for each."""
    if clients is None:
        raise AtollError("This partition needs to know the number of clients. Say how many, for example 10.")
    if clients < 1:
        raise AtollError(f"{clients} clients cannot share anything. Use at least 1.")
    rows = len(pool.labels)
    if rows < floor * clients:
        raise AtollError(
            f"{rows} rows cannot give each of {clients} clients the {floor} rows it needs. "
            f"Use at most {rows // floor} clients, or more data."
        )
    return clients


def _settled(pool: Pool, draw: Callable[[], Array], floor: int, rng: Generator) -> Partition:
    """Draws until every client has ``floor`` rows; after ``DRAWS`` attempts the best one is mended."""
    best, draws = draw(), 1
    while _lacking(best, floor) and draws < DRAWS:
        best, draws = min(best, draw(), key=lambda counts: _lacking(counts, floor)), draws + 1
    poor = int((best.sum(1) < floor).sum())
    best, moved = lift(best, floor)
    notes = _if(draws > 1 and not moved, f"Drawn {draws} times until every client had {floor} rows.")
    notes += _if(
        moved,
        f"In {DRAWS} draws some client always had fewer than {floor} rows; in the best of them {poor} clients "
        f"were given {moved} rows of the largest clients.",
    )
    return Partition(numbered(len(best)), deal(pool.labels, best, rng), notes)


def _lacking(counts: Array, floor: int) -> int:
    return int(np.maximum(floor - counts.sum(1), 0).sum())


def _multiples(near: int, step: int, most: int | None = None) -> list[int]:
    """The multiples of ``step`` on either side of ``near``, from ``step`` to ``most``."""
    below = near // step * step
    return [m for m in (below, below + step) if m > 0 and (most is None or m <= most)]


def _if(condition: object, note: str) -> tuple[str, ...]:
    return (note,) if condition else ()


def _text(value: float) -> str:
    """The shortest text that reads back as ``value``; ``1`` rather than ``1.0``."""
    return repr(value).removesuffix(".0")


def _pathological(classes: int, mode: str = "strict") -> Scheme:
    return Pathological(classes, mode == "code")


def _dirichlet(beta: float, make: Callable[[float], Scheme] = Dirichlet) -> Scheme:
    return make(beta)


def _mode(text: str) -> Callable[[float], Scheme]:
    """Read the last field of a Dirichlet partition: the variant, as a function of BETA."""
    kind, sign, value = text.partition("=")
    if kind == "masked" and sign:
        share = _TAKES_PART.read(value)
        return lambda beta: Masked(beta, share)
    plain: dict[str, Callable[[float], Scheme]] = {"capped": Capped, "client": ByClient}
    if text not in plain:
        raise ValueError(text)
    return plain[text]


_TAKES_PART = number("P", above=0, most=1)
_SCHEMES: dict[str, tuple[Callable[..., Scheme | File], Spec]] = {
    "iid": (Iid, Spec("iid")),
    "pathological": (
        _pathological,
        Spec(
            "pathological:K or pathological:K:code, with K classes per client, such as pathological:2",
            whole("K", least=1, most=10**9 - 1),
            word("MODE", ("strict", "code"), optional=True),
        ),
    ),
    "dirichlet": (
        _dirichlet,
        Spec(
            "dirichlet:BETA, dirichlet:BETA:capped, dirichlet:BETA:masked=P or dirichlet:BETA:client, such as "
            "dirichlet:0.5; for equal clients, iid",
            number("BETA", above=0, most=LARGEST_BETA),
            Field("MODE", f"capped, client or masked=P, with P {_TAKES_PART.wanted}", _mode, optional=True),
        ),
    ),
    "natural": (Natural, Spec("natural")),
    "file": (
        File,
        Spec(
            "file:PATH, with the file of an exported partition, or a partition.pkl of FL-bench",
            Field("PATH", "a path", Path),
        ),
    ),
}
