"""Read the declared experiments that decide the main claims of papers, ``papers/PAPER/claim.yaml``.

A declaration is written before its runs. It has these entries:

- ``name``: the method's name; ``claim``: the sentence to decide;
- ``differs``: how the setting differs from the paper's, one sentence each;
- ``full``: what a larger machine would have to run to decide in the paper's setting;
- ``options``: options of all runs;
- ``measure``: the entry of a run's summary that is compared, a share; ``validation``: the one that the search looks at;
- ``effect``: the smallest effect of interest, in percentage points;
- ``search_seeds`` and ``seeds``: no seed may be in both, so that the search does not see the rows of the table;
- ``methods``: by their names in the table. ``run`` names the method, ``search`` lists the points that are tried, the
  same number for every method that has a search, and ``like`` takes the point that was chosen for another method.
  ``options``, ``measure`` and ``validation`` of a method override those of the claim;
- ``compare``: pairs ``A > B``; the first one is the claim.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from ..errors import AtollError, unknown
from ..utils.parsing import Json
from .papers import DECLARED, check_entries, recipes_dir
from .search import Point

FILE = f"{DECLARED}.yaml"
ENTRIES = (
    "name", "claim", "differs", "full", "options", "measure", "validation", "effect", "search_seeds", "seeds",
    "methods", "compare",
)  # fmt: skip
METHOD_ENTRIES = ("run", "search", "like", "options", "measure", "validation")


class ClaimMethod(NamedTuple):
    """A method of a claim: the method to run, the points that are searched, or the method whose point is taken."""

    run: str
    search: Sequence[Point]
    like: str | None
    options: Json
    measure: str | None  # in place of those of the claim, for a method that has no such model
    validation: str | None


class Pair(NamedTuple):
    """The claim that one method is above another."""

    better: str
    worse: str

    def __str__(self) -> str:
        return f"{self.better} > {self.worse}"


@dataclass(frozen=True)
class Claim:
    """A declared experiment."""

    paper: str
    name: str
    claim: str
    differs: Sequence[str]
    full: str
    options: Json
    measure: str
    validation: str
    effect: float
    search_seeds: Sequence[int]
    seeds: Sequence[int]
    methods: Mapping[str, ClaimMethod]
    compare: Sequence[Pair]

    def measures(self, method: str) -> tuple[str, str]:
        """Return the summary entries of a method that are compared and searched by."""
        own = self.methods[method]
        return own.measure or self.measure, own.validation or self.validation


def list_claims(folder: Path | None = None) -> list[str]:
    """List the papers that have a declared experiment."""
    return sorted(path.parent.name for path in (folder or recipes_dir()).glob(f"*/{FILE}"))


def read_claim(paper: str, folder: Path | None = None) -> Claim:
    """Read and check the declared experiment of a paper.

    Args:
        paper: such as ``"dcpfl"``.
        folder: the folder of recipes; without it, the one that comes with the package.

    Raises:
        AtollError: the paper has no declaration, or the declaration is unfair or incomplete.
    """
    root = folder or recipes_dir()
    if paper not in list_claims(root):
        raise unknown("paper with a declared claim", paper, list_claims(root))
    path = root / paper / FILE
    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as reason:
        raise AtollError(f"{path} is not readable YAML: {reason}") from reason
    check_entries(entries, ENTRIES, str(path))
    for name in ENTRIES:
        if name not in entries:
            raise AtollError(f"{path} has no entry {name!r}. Add it: a declaration is complete before anything runs.")
    methods = {name: _method(said, f"{path}, {name}") for name, said in entries.pop("methods").items()}
    pairs = [_pair(text, methods, path) for text in entries.pop("compare")]
    claim = Claim(paper, **entries, methods=methods, compare=pairs)
    _check_fair(claim, path)
    return claim


def _method(said: Json, where: str) -> ClaimMethod:
    check_entries(said, METHOD_ENTRIES, where)
    search = [{name: str(value) for name, value in point.items()} for point in said.get("search", [])]
    others = (said.get(name) for name in ("like", "options", "measure", "validation"))
    like, options, measure, validation = others
    return ClaimMethod(said["run"], search, like, options or {}, measure, validation)


def _pair(text: str, methods: Mapping[str, ClaimMethod], path: Path) -> Pair:
    names = [name.strip() for name in text.split(">")]
    if len(names) != 2:
        raise AtollError(f"{path}: {text!r} is not a comparison of two methods. Write 'A > B'.")
    for name in names:
        if name not in methods:
            raise unknown("method", name, methods, f"in {path}")
    return Pair(*names)


def _check_fair(claim: Claim, path: Path) -> None:
    """Raise an AtollError if methods get different numbers of trials, or if the search sees the seeds of the table."""
    both = sorted(set(claim.seeds) & set(claim.search_seeds))
    if both:
        raise AtollError(f"{path}: seeds {both} are in the search and in the table. Search with other seeds.")
    trials = {name: len(method.search) for name, method in claim.methods.items() if method.search}
    if len(set(trials.values())) > 1:
        raise AtollError(f"{path}: every search needs the same number of points, but these have {trials}.")
    for name, method in claim.methods.items():
        if method.like is not None and not (method.like in claim.methods and claim.methods[method.like].search):
            raise AtollError(f"{path}: {name} takes the settings of {method.like!r}, which has no search of its own.")
        if method.like is not None and method.search:
            raise AtollError(f"{path}: {name} has a search and takes settings of {method.like!r}. Keep one of them.")
