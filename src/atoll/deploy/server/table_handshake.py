"""Ask sites with raw tables for the statistics of their columns, and check the answers."""

from collections.abc import Sequence

from ..._version import __version__
from ...config import Config
from ...core.serialization import WireError, decode
from ...data.tables.columns import Column, merge_columns
from ...data.tables.statistics import ColumnStatistics, TableOptions, check_statistics
from ...errors import AtollError
from ...typing import ClientId
from ..table_agreement import columns_from_json, columns_to_json
from ..transport.protocol import VERSION, Frame
from .handshake import SiteDescription


def agreed_columns(descriptions: Sequence[SiteDescription], options: TableOptions) -> tuple[Column, ...] | None:
    """Return the columns of all sites; None if rows are no raw tables.

    Args:
        descriptions: the descriptions of the sites.
        options: the rules of the run; with ``--columns own``, sites may lack columns.

    Raises:
        AtollError: sites have other columns, or columns of other kinds.
    """
    raw = [description for description in descriptions if description.columns]
    if not raw:
        return None
    if len(raw) < len(descriptions):
        other = next(description for description in descriptions if not description.columns)
        raise AtollError(
            f"Site {raw[0].site!r} has a table with named columns and site {other.site!r} has not. Give all sites "
            "tables in CSV or Parquet files, or files of arrays."
        )
    unlike = options.own_columns
    return merge_columns([(f"Site {d.site!r}", columns_from_json(d.columns)) for d in descriptions], unlike)


def ask_statistics(config: Config, columns: Sequence[Column]) -> Frame:
    """Return the request for statistics of columns."""
    head = {"version": __version__, "protocol": VERSION, "config": config.to_dict()}
    return Frame("statistics", head | {"columns": columns_to_json(columns)})


def read_statistics(
    site: ClientId, reply: Frame, columns: Sequence[Column], rows: int, options: TableOptions
) -> ColumnStatistics:
    """Return the statistics that a site sent.

    Args:
        site: the site.
        reply: its reply.
        columns: the columns of all sites.
        rows: number of training rows in the site's description.
        options: the rules of the run.

    Raises:
        AtollError: the reply is malformed, or its numbers are impossible.
    """
    try:
        found: ColumnStatistics = decode(ColumnStatistics, reply.body)
    except WireError as reason:
        raise AtollError(
            f"Site {site!r} sent no statistics of columns: {reason}. Install the same version there."
        ) from reason
    check_statistics(f"Site {site!r}", found, columns, rows, options)
    return found
