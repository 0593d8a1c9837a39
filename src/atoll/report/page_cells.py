"""Write cells and headings of the comparison table for pages, where each number of bytes has its own unit."""

from .table import MB, Column, Row, cell
from .wording import size

BYTES = "Bytes per client and round"


def page_cell(row: Row, column: Column) -> str:
    """Return the text of a cell on a page; bytes have their own unit, because methods differ by orders of magnitude."""
    megabytes = getattr(row, column.field) if column.family == MB else None
    return cell(row, column) if megabytes is None else size(1e6 * megabytes).replace(" ", "\N{NO-BREAK SPACE}")


def page_family(family: str) -> str:
    """Return the heading of a family of columns on a page, where bytes have their units in the cells."""
    return BYTES if family == MB else family
