"""Write tables as Markdown, CSV or LaTeX, by the ending of the file name."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import AtollError
from ..utils.files import write_whole

_TEX = str.maketrans(
    {
        "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "±": r"$\pm$",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "–": "--",
        "<": "$<$", ">": "$>$",
    }
)  # fmt: skip


class Sheet(NamedTuple):
    """A table of plain text; the first column holds names, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def markdown(sheet: Sheet) -> str:
    cells = [[c.replace("|", r"\|") for c in row] for row in (sheet.columns, *sheet.rows)]
    rule = ["---", *["---:"] * (len(sheet.columns) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (cells[0], rule, *cells[1:])) + "\n"


def as_csv(sheet: Sheet) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([sheet.columns, *sheet.rows])
    return text.getvalue()


def latex(sheet: Sheet) -> str:
    """Return a LaTeX tabular for the booktabs package."""
    lines = [" & ".join(c.translate(_TEX) for c in row) + r" \\" for row in (sheet.columns, *sheet.rows)]
    form = "l" + "r" * (len(sheet.columns) - 1)
    return "\n".join(
        [
            f"% {sheet.title}", rf"\begin{{tabular}}{{{form}}}", r"\toprule", lines[0], r"\midrule", *lines[1:],
            r"\bottomrule", r"\end{tabular}", "",
        ]
    )  # fmt: skip


FORMS = {".md": markdown, ".csv": as_csv, ".tex": latex}


def check_form(path: Path) -> None:
    if path.suffix not in FORMS:
        raise AtollError(f"Cannot tell the form of {str(path)!r}: it should end in {', '.join(FORMS)}.")


def export(sheet: Sheet, path: Path) -> None:
    check_form(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, FORMS[path.suffix](sheet).encode())
