"""Write what was found about a paper's claim: RESULTS.md and its picture, from the stored records alone."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ..report.plots.lines import Axis, Line, Panel, Up, lines
from ..report.sheets import Sheet, markdown
from ..report.style import save
from ..utils.files import write_whole
from .claim_records import TABLE, Record
from .claim_runs import choose, finished, plan_search, plan_table
from .claim_verdicts import Decided, comparison_sheet, decide, score_sheet, search_sheet, verdict_text
from .claims import Claim
from .papers import read_recipe
from .search import Point

PICTURE = "claim.png"


class ClaimReport:
    """Everything that the records say about a claim."""

    def __init__(self, claim: Claim, records: Path):
        self.claim = claim
        searched = finished(plan_search(claim), records)
        whole = len(searched) == len(plan_search(claim))
        self.chosen: Mapping[str, Point] = choose(claim, searched) if whole else {}
        table = finished(plan_table(claim, self.chosen), records) if whole else []
        self.records: Sequence[Record] = searched + table
        self.decided: Sequence[Decided] = decide(claim, self.records)

    @property
    def verdict(self) -> str:
        """Return the verdict on the claim itself, the first comparison."""
        return verdict_text(self.claim, self.decided[0])


def write_report(report: ClaimReport, folder: Path) -> Path:
    """Write RESULTS.md and the picture into the folder of a paper; return the path of the page."""
    page = folder / "RESULTS.md"
    if any(record.part == TABLE for record in report.records):
        save(_figure(report), folder / "results" / PICTURE)
    write_whole(page, results_page(report, folder).encode())
    return page


def results_page(report: ClaimReport, folder: Path) -> str:
    """Return RESULTS.md: the verdict, the picture, tables, the search, what differs from the paper, and remarks."""
    claim = report.claim
    first = report.decided[0]
    gap = (
        first.difference if first.complete else None
    )  # A difference over some of the seeds would be read as a verdict.
    found = "" if gap is None else f" ({gap.mean:+.2f} points, 95 % interval {gap.low:+.2f} to {gap.high:+.2f})"
    parts = [
        f"# {claim.name}: what was found",
        f"**{claim.claim} In the setting below, {first.pair}: {report.verdict}{found}.**",
        _table_part(report),
        "## Search\n\nValidation scores choose the settings, with other seeds than the table has: "
        f"{', '.join(map(str, claim.search_seeds))}.\n\n" + markdown(search_sheet(report.records, report.chosen)),
        "## How the setting differs from the paper\n\n" + "\n".join(f"- {text}" for text in claim.differs),
        "A verdict is about the declared setting, not about the paper. " + claim.full,
        "## Repeat\n\n" + _command(claim) + "\n\n" + _origin(report.records),
    ]
    parts += [_stored_table(path, folder) for path in sorted((folder / "results").glob("*.json"))]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _table_part(report: ClaimReport) -> str:
    if not any(record.part == TABLE for record in report.records):
        return "The runs of the table have not been made."
    claim = report.claim
    caption = f"Test accuracy by round over {len(claim.seeds)} seeds, mean and range"
    sheets = (score_sheet(claim, report.records, report.chosen), comparison_sheet(claim, report.decided))
    tables = "\n".join(f"**{sheet.title}**\n\n{markdown(sheet)}" for sheet in sheets)
    effect = f"Smallest effect of interest, in percentage points: {claim.effect:g}. Measure: `{claim.measure}`."
    return f"![{caption}](results/{PICTURE})\n\n{tables}\n{effect}"


def _figure(report: ClaimReport) -> Figure:
    shown = []
    for name in report.claim.methods:
        curves = [r.curve for r in report.records if r.part == TABLE and r.method == name]
        if curves:
            shown.append(Line(name, [at for at, _ in curves[0]], np.array([[y for _, y in c] for c in curves])))
    return lines([Panel("", shown)], Axis("round", whole=True), Up("test accuracy, %"))


def _command(claim: Claim) -> str:
    said = f"`papers/{claim.paper}/claim.yaml` declares the experiment."
    anew = "Finished runs are read from their records; `--records DIR` begins anew in another folder."
    return f"{said} {anew}\n\n```\natoll paper claim {claim.paper}\n```"


def _stored_table(path: Path, folder: Path) -> str:
    """Write a table that was measured by a recipe, from its stored results, with the recipe's present notes.

    The comparisons of such a table are left out: they need more seeds than the tables have.
    """
    stored = json.loads(path.read_text(encoding="utf-8"))
    notes = read_recipe(stored["recipe"], folder.parent).notes
    sheets = [Sheet(entry["title"], entry["columns"], entry["rows"]) for entry in stored["tables"]]
    shown = "\n".join(f"**{sheet.title}**\n\n{markdown(sheet)}" for sheet in sheets)
    origin = f"Seeds {', '.join(map(str, stored['seeds']))}, code of {stored['version']}."
    listed = "\n".join(f"- {note}" for note in notes)
    return (
        f"## {stored['title']}\n\n{stored['note']} These stand beside the paper's numbers; so few seeds decide "
        f"nothing.\n\n```\n{stored['command']}\n```\n\n{shown}\n{listed}\n\n{origin}"
    )


def _origin(records: Sequence[Record]) -> str:
    hours = sum(record.seconds for record in records) / 3600
    versions = ", ".join(sorted({record.version for record in records})) or "none"
    return f"{len(records)} runs, {hours:.1f} hours of running time beside other work, code of {versions}."
