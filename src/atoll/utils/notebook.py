"""Tables for notebooks: data frames for those who have pandas, and HTML."""

from collections.abc import Sequence
from html import escape
from typing import Any

import pyarrow as pa

from ..errors import AtollError


def dataframe(table: pa.Table) -> Any:
    """The table as a pandas.DataFrame, if there is pandas."""
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]  # noqa: F401
    except ImportError:
        raise AtollError(
            "Data frames need the package pandas: pip install 'atoll[pandas]'. to_table() does without."
        ) from None
    return table.to_pandas()


def html(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A small table as notebooks show it, under a line of text."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row) + "</tr>" for row in rows)
    return f"<p>{escape(title)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
