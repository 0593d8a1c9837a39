"""Write the report of runs as one self-contained HTML file that requests nothing from other hosts."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..core.criterion import ACCURACY
from ..core.problems import Classes
from ..errors import AtollError
from ..storage.environment_file import read_sessions
from ..storage.run_reader import FILES, Run, find, load
from . import interactive, pictures, style, table
from .chapters import make_chapter
from .figures.base import FigureSpec
from .figures.metrics import scored_round
from .groups import Group, groups, settings
from .notes import group_notes, run_notes
from .page_cells import page_cell, page_family
from .partitions import partition_sections
from .replacing import runs_as_text
from .sheets import Sheet
from .wording import count, join_numbers

MANY = 12  # directories, from which on their list is folded
MOST = 5  # methods whose gains stand at the top; those of further ones are folded


def write(run_dirs: list[Path], out: Path, figures: Sequence[FigureSpec] = ()) -> Path:
    """Write the report of the runs in ``run_dirs``, or below them.

    Args:
        run_dirs: directories of runs or of comparisons.
        out: file or directory to write to.
        figures: figures to show first, such as those that the runs were made for.

    Returns:
        The path of the file.
    """
    return write_runs([load(path) for path in find(run_dirs)], out, figures)


def write_runs(runs: Sequence[Run], out: Path, figures: Sequence[FigureSpec] = ()) -> Path:
    """Write the report of runs that have been read to ``out``, a file or a directory; return the path of the file."""
    if not runs:
        raise AtollError("There is nothing to report on. Give the directory of a run or of a comparison.")
    out = Path(out)
    if out.is_dir():
        out = out / "report.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(render(runs, out.parent, figures), encoding="utf-8")
    return out


def render(runs: Sequence[Run], base: Path, figures: Sequence[FigureSpec] = ()) -> str:
    """Return the page. Directories are shown relative to ``base``."""
    comparable, pointers = settings(runs), [_pointer(run, base) for run in runs]
    chapters = [make_chapter(members, f"c{i}") for i, members in enumerate(comparable)]
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        heading=_heading(runs),
        words=_words(runs),
        script=interactive.script(),
        script_source=interactive.script_source(),
        stylesheet=interactive.stylesheet(),
        table_rows=interactive.embed_rows([(chapter.title, chapter.rows) for chapter in chapters]),
        figures=_draw_own(figures),
        chapters=chapters,
        averaged=table.AVERAGED,
        p_value=table.P_VALUE,
        without_model=table.WITHOUT_MODEL,
        scored_round=scored_round(runs),
        count_families=lambda columns: Counter(column.family for column in columns),
        cell=page_cell,
        family_heading=page_family,
        state=_state(runs),
        holdings=partition_sections(runs),
        configs=[(_group_title(group), _settings(group.runs[0])) for part in comparable for group in groups(part)],
        notes=group_notes(run_notes(runs)),
        runs=pointers,
        folders=runs_as_text([pointer["path"] for pointer in pointers]),
        files=FILES,
        many=MANY,
        most=MOST,
        count=count,
        colours={"light": style.variables(dark=False), "dark": style.variables(dark=True)},
        swatch=_swatch,
        versions=sorted({str(run.summary["version"]) for run in runs}),
    )


def _words(runs: Sequence[Run]) -> dict[str, str]:
    """Return the words of the page for the score that ranks the runs; for runs of several problems, general ones."""
    scores = {run.criterion for run in runs}
    score = next(iter(scores)) if len(scores) == 1 else None
    groups = {run.problem.group if len(run.holdings["classes"]) > 1 or run.problem is Classes else "" for run in runs}
    group = next(iter(groups)) if len(groups) == 1 else ""
    return {
        "score": score.title if score else "score",
        "heading": score.heading if score else "Score",
        "plural": "Accuracies" if score == ACCURACY else "Scores",
        "top": "best" if score is None else "highest" if score.higher else "lowest",
        "way": "up" if score is None or score.higher else "down",
        "and_class": f" and {group}" if group else "",
        "of_a_class": f" of a {group}" if group else "",
    }


def _draw_own(figures: Sequence[FigureSpec]) -> list[tuple[str, pictures.Picture, Sheet | None]]:
    return [(f.caption, pictures.draw_spec([f], f"own{i}"), f.numbers) for i, f in enumerate(figures) if f.inline]


def _heading(runs: Sequence[Run]) -> str:
    labels = list(dict.fromkeys(run.label for run in runs))
    data = dict.fromkeys(str(run.summary["data"]) for run in runs)
    return f"{labels[0] if len(labels) == 1 else count(len(labels), 'method')} on {', '.join(data)}"


def _state(runs: Sequence[Run]) -> str:
    counts = Counter(run.status for run in runs)
    if set(counts) == {"finished"}:
        return f"{count(len(runs), 'run')}, {'all ' if len(runs) > 1 else ''}finished"
    return f"{count(len(runs), 'run')}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common())


def _settings(run: Run) -> str:
    """Return the configuration of a run and the conditions under which it was computed, as YAML."""
    sessions = read_sessions(run.path)
    shown = {"config": dict(run.config)} | ({"sessions": sessions} if sessions else {})
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def _group_title(group: Group) -> str:
    if len(group.runs) == 1:
        return f"{group.name}, seed {group.seeds[0]}"
    return f"{group.name}, seeds {join_numbers(group.seeds)}"


def _pointer(run: Run, base: Path) -> dict[str, str]:
    return {
        "path": Path(os.path.relpath(run.path.resolve(), base.resolve())).as_posix(),
        "label": run.label,
        "seed": str(run.seed),
        "status": run.status,
        "digest": str(run.summary["digest"])[:12],
    }


def _swatch(i: int) -> Markup:
    """Return the colour of the i-th method, the same as that of its lines."""
    return Markup('<i class="swatch" style="background: var(--series-{})"></i>').format(i % len(style.SERIES))
