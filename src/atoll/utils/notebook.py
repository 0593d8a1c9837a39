"""Tables for notebooks: pandas data frames and HTML."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

import pyarrow as pa
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import AtollError
from .progress import silent


def dataframe(table: pa.Table) -> Any:
    """Convert a table to a ``pandas.DataFrame``; raise AtollError if pandas is not installed."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        raise AtollError("Data frames need pandas: pip install pandas. to_table() works without it.") from None
    return table.to_pandas()


def is_notebook() -> bool:
    """Return True inside a Jupyter notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def notebook_bars(labels: Mapping[str, int]) -> Iterator[Sequence[Callable[[int, object], None]]]:
    """Show a progress bar for each of several runs; outside of notebooks, show nothing.

    Args:
        labels: the rounds of each run by its name.

    Yields:
        A watch for each run.
    """
    if not is_notebook():
        yield [silent] * len(labels)
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bars:
        yield [_watch(bars, label, rounds) for label, rounds in labels.items()]


def _watch(bars: Progress, label: str, rounds: int) -> Callable[[int, object], None]:
    task = bars.add_task(label, total=rounds)

    def watch(done: int, line: object) -> None:
        bars.update(task, completed=done)

    return watch


def html(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a small HTML table under a line of text, as notebooks show it."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
