"""Run the recipe of a paper's table or figure, and write the paper's numbers beside the measured ones."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .._version import __version__
from ..config import Config
from ..engine.experiment import Watch
from ..report import figures, html
from ..report.figures.base import FigureSpec, RunsByCase, head
from ..report.sheets import Sheet, as_csv, latex, markdown
from ..storage.group_dir import RESULTS, check_free_for_recipe
from ..storage.run_reader import Run
from ..utils import notebook
from ..utils.files import to_json, write_whole
from ..utils.parsing import Json
from ..utils.progress import silent
from . import paper_comparison
from .comparison import Comparison
from .paper_planning import PlannedRun, plan_runs
from .papers import Recipe, Scale, read_recipe
from .runner import run_cases
from .sweep import Follow

WHERE = Path("runs") / "papers"
FIGURES = "figures"  # the folder of figures, among the results


@dataclass(frozen=True, repr=False)
class PaperResult:
    """The numbers of a paper beside the measured ones."""

    root: Path  # the directory of results.json, results.md, results.csv, results.tex, report.html and figures
    document: Json  # the contents of results.json
    comparison: Comparison  # of all runs

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the runs."""
        return self.comparison.notes

    @property
    def sheets(self) -> list[Sheet]:
        """The tables: one for each case, those of the figures, and the paper's claims."""
        return sheets_of(self.document)

    def __repr__(self) -> str:
        d = self.document
        return f"<PaperResult {d['recipe']} at scale {d['scale']}: {len(self.comparison.runs)} runs in {self.root}>"

    def _repr_html_(self) -> str:
        return "".join(notebook.html(sheet.title, sheet.columns, sheet.rows) for sheet in self.sheets)


def run_paper(
    name: str,
    scale: str = "cpu",
    *,
    workers: int = 1,
    data_dir: str | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> PaperResult:
    """Run a recipe and compare with the paper, like ``atoll paper run``.

    Interrupted runs continue, and finished ones are not run again.

    Args:
        name: a recipe, such as ``"dcpfl/table1"``; ``atoll paper`` lists them.
        scale: how much to run: ``"smoke"``, ``"cpu"`` or ``"full"``.
        workers: runs at the same time.
        data_dir: folder with data sets; without it, ATOLL_DATA or a cache folder.
        out: directory of runs and results; without it, ``runs/papers/NAME/SCALE``.
        watch: called with the number of rounds done by a run and, after an evaluation, its metrics.

    Returns:
        The tables, with the paper's numbers beside the measured ones.

    Raises:
        AtollError: before anything runs, if there is no such recipe or scale, or if a case cannot be run.

    Example:
        >>> found = atoll.run_paper("dcpfl/table1", "smoke")
        >>> found.document["claims"]["rows"]
    """
    made = plan(read_recipe(name), scale, None if out is None else Path(out), data_dir)
    return run_plan(made, lambda config: watch or silent, workers)


class PaperPlan(NamedTuple):
    """The runs of a recipe at a scale, and the directory of the results."""

    recipe: Recipe
    scale: Scale
    root: Path
    runs: list[PlannedRun]


def plan(recipe: Recipe, scale: str, out: Path | None, data_dir: str | None) -> PaperPlan:
    """Plan the runs of a recipe below ``out``, or else below runs/papers."""
    chosen, root = recipe.scale(scale), out or WHERE / recipe.name / scale
    return PaperPlan(recipe, chosen, root, plan_runs(recipe, chosen, root, data_dir=data_dir))


def run_plan(made: PaperPlan, follow: Follow, workers: int = 1) -> PaperResult:
    """Run all cases of a recipe in one queue, so that no worker is idle, and write the results."""
    check_free_for_recipe(made.root, made.recipe.name)
    cases: dict[str, list[Config]] = defaultdict(list)
    for p in made.runs:
        cases[p.case].append(p.config)
    started = time.monotonic()
    runs, notes = run_cases(cases, follow, workers)
    document = write_results(made, runs, time.monotonic() - started)
    return PaperResult(made.root, document, Comparison(tuple(runs), tuple(notes)))


def write_results(made: PaperPlan, runs: Sequence[Run], seconds: float) -> Json:
    """Write results.json, .md, .csv and .tex, the figures and the report; return the contents of results.json."""
    recipe, scale, root, planned = made
    loaded: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for p, run in zip(planned, runs, strict=True):
        loaded[p.case, p.method].append(run)
    tables = paper_comparison.result_sheets(paper_comparison.compare_numbers(recipe, loaded), loaded)
    # A run of seconds on other data says nothing about a paper.
    claims = [] if scale.name == "smoke" else paper_comparison.check_claims(recipe, loaded)
    own, others = _figures(recipe, loaded, scale.name)
    files = figures.write([*own, *others], root / FIGURES)
    document = {
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": scale.name,
        "note": scale.note,
        "notes": list(recipe.notes),
        "seeds": list(scale.seeds),
        "command": f"atoll paper run {recipe.name} --scale {scale.name}",
        "version": __version__,
        "seconds": seconds,
        "run_seconds": sum(float(run.summary["seconds"]) for run in runs),
        "tables": [sheet._asdict() for sheet in tables],
        "claims": paper_comparison.claim_sheet(claims)._asdict(),
        "figures": [_figure(drawn) for drawn in own],
        "files": [str(path.relative_to(root)) for path in files],
    }
    _write(document, root)
    html.write_runs(runs, root / "report.html", own)
    return document


def _figures(recipe: Recipe, shown: RunsByCase, scale: str) -> tuple[list[FigureSpec], list[FigureSpec]]:
    """Return the figures that the recipe asks for, and the others that any runs have.

    The words above a figure name the data that really ran, because the cases have the names of the paper.
    """
    own = figures.make_figures(recipe.figures, shown)
    there = {drawn.name for drawn in own}
    others = [drawn for drawn in figures.default_figures(shown) if drawn.name not in there]
    data = dict.fromkeys(str(run.summary["data"]) for runs in shown.values() for run in runs)
    words = f"Run on {', '.join(data)} at scale {scale}"
    return [head(drawn, words) for drawn in own], [head(drawn, words) for drawn in others]


def _figure(drawn: FigureSpec) -> Json:
    numbers = drawn.numbers._asdict() if drawn.numbers else None
    return {"file": f"{FIGURES}/{drawn.name}.png", "caption": drawn.caption, "numbers": numbers}


def _write(document: Json, root: Path) -> None:
    write_whole(root / RESULTS, (to_json(document, indent=1) + "\n").encode())
    for ending, form in ((".csv", as_csv), (".tex", latex)):
        text = "\n".join(form(sheet) for sheet in sheets_of(document))
        write_whole(root / f"results{ending}", text.encode())
    write_whole(root / "results.md", page(document).encode())


def page(document: Json) -> str:
    """Write the results of a recipe as a Markdown section."""
    lines = [f"## {document['title']}", "", document["note"], "", "```", document["command"], "```", ""]
    for figure in document["figures"]:
        lines += [f"![{figure['caption']}]({figure['file']})", ""]
    for sheet in sheets_of(document):
        lines += [f"**{sheet.title}**", "", markdown(sheet)]
    lines += [f"- {note}" for note in document["notes"]]
    minutes = document["run_seconds"] / 60
    lines += ["", f"Version {document['version']}, seeds {document['seeds']}, {minutes:.0f} minutes of runs.", ""]
    return "\n".join(lines)


def sheets_of(document: Json) -> list[Sheet]:
    """Return the tables of results.json that have rows: of the cases, of the figures, and of the claims."""
    numbers = [figure["numbers"] for figure in document["figures"] if figure["numbers"]]
    listed = [*document["tables"], *numbers, document["claims"]]
    return [Sheet(entry["title"], entry["columns"], entry["rows"]) for entry in listed if entry["rows"]]
