"""Ask sites for the statistics of their columns and labels that they must agree on, and check the answers."""

from collections.abc import Mapping, Sequence

from ..._version import __version__
from ...config import Config
from ...core.problems import Numbers
from ...core.serialization import WireError, decode
from ...data.tables.agreed_labels import class_names
from ...data.tables.columns import Column, merge_columns, read_bounds
from ...data.tables.labels import find_respelled
from ...data.tables.noisy_statistics import check_declared
from ...data.tables.statistics import NO, ColumnStatistics, StatisticsRequest, TableOptions, is_agreement_needed
from ...data.tables.statistics_checks import check_statistics
from ...errors import AtollError
from ...typing import ClientId
from ..table_agreement import columns_from_json, columns_to_json
from ..transport.protocol import VERSION, Frame
from .handshake import SiteDescription


def agreed_columns(descriptions: Sequence[SiteDescription], options: TableOptions) -> tuple[Column, ...]:
    """Return the columns of all sites; none if rows are no raw tables.

    Args:
        descriptions: the descriptions of the sites.
        options: the rules of the run; with ``--columns own``, sites may lack columns.

    Raises:
        AtollError: sites have other columns, or columns of other kinds.
    """
    raw = [description for description in descriptions if description.columns]
    if not raw:
        return ()
    if len(raw) < len(descriptions):
        other = next(description for description in descriptions if not description.columns)
        raise AtollError(
            f"Site {raw[0].site!r} has a table with named columns and site {other.site!r} has not. Give all sites "
            "tables in CSV or Parquet files, or files of arrays."
        )
    own_columns = options.own_columns
    return merge_columns([(f"Site {d.site!r}", columns_from_json(d.columns)) for d in descriptions], own_columns)


def statistics_request(
    descriptions: Sequence[SiteDescription], columns: Sequence[Column], options: TableOptions
) -> StatisticsRequest | None:
    """Return what the sites must be asked for; None if they have nothing to agree on.

    Args:
        descriptions: the descriptions of the sites, which were compared.
        columns: the columns of all sites; none if rows are no raw tables.
        options: the rules of the run.

    Raises:
        AtollError: under differential privacy, sites do not declare what noise depends on.
    """
    first = descriptions[0]
    names = first.open_classes and len({description.labels for description in descriptions}) > 1
    targets = first.classes if first.task == Numbers.task and options.standardise != NO else 0
    gaps = any(description.gaps for description in descriptions)
    if not (names or targets or is_agreement_needed(columns, gaps, options)):
        return None
    bounds = tuple(read_bounds(each) for each in first.target_bounds)
    request = StatisticsRequest(tuple(columns), options, names, targets, bounds)
    if options.private:
        check_declared(request)
    return request


def describe_classes(sent: Mapping[ClientId, ColumnStatistics], agreed: ColumnStatistics) -> str:
    """Return a sentence on the classes that sites agreed on, and which of them each site named.

    Raises:
        AtollError: two names differ in their spelling alone.
    """
    if pair := find_respelled(class_names(agreed)):
        who = [next(site for site, own in sent.items() if name in class_names(own)) for name in pair]
        raise AtollError(
            f"Site {who[0]!r} has the class {pair[0]!r} and site {who[1]!r} {pair[1]!r}, which differ in capitals or "
            "spaces alone. Write both alike."
        )
    own = "; ".join(f"{site}: {', '.join(class_names(each)) or 'none'}" for site, each in sent.items())
    return f"Classes of all sites: {', '.join(class_names(agreed))}. Named by {own}."


def ask_statistics(config: Config, request: StatisticsRequest) -> Frame:
    """Return the request for statistics of columns and labels."""
    head = {"version": __version__, "protocol": VERSION, "config": config.to_dict()}
    return Frame("statistics", head | {"columns": columns_to_json(request.columns), "class_names": request.class_names})


def read_statistics(site: ClientId, reply: Frame, request: StatisticsRequest, rows: int) -> ColumnStatistics:
    """Return the statistics that a site sent.

    Args:
        site: the site.
        reply: its reply.
        request: what it was asked for.
        rows: number of training rows in the site's description.

    Raises:
        AtollError: the reply is malformed, or its numbers are impossible.
    """
    try:
        found: ColumnStatistics = decode(ColumnStatistics, reply.body)
    except WireError as reason:
        raise AtollError(
            f"Site {site!r} sent no statistics of columns: {reason}. Install the same version there."
        ) from reason
    check_statistics(f"Site {site!r}", found, request, rows)
    return found
