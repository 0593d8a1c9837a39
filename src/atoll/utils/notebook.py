"""Tables for notebooks: pandas data frames and HTML."""

from collections.abc import Sequence
from html import escape
from typing import Any

import pyarrow as pa

from ..errors import AtollError


def dataframe(table: pa.Table) -> Any:
    """Convert a table to a ``pandas.DataFrame``; raise AtollError if pandas is not installed."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        raise AtollError("Data frames need pandas: pip install pandas. to_table() works without it.") from None
    return table.to_pandas()


def html(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a small HTML table under a line of text, as notebooks show it."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
