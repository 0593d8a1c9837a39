"""Send the statistics of a site's columns and labels, as far as the site's rules admit."""

import json
from hashlib import sha256

from ...config import Config
from ...core.serialization import encode
from ...data.tables.federated import count_targets, measure_client
from ...data.tables.statistics import StatisticsRequest
from ...errors import AtollError
from ...utils.files import to_json, write_whole
from ...utils.parsing import Json
from ..table_agreement import columns_from_json, columns_to_json, with_agreed_columns
from ..transport.protocol import Frame, Refusal
from .config import SiteConfig

NAME = "statistics.json"  # in the state of a site: digests of what was asked for


def release_statistics(site: SiteConfig, config: Config, head: Json) -> Frame:
    """Return the statistics of the site's training rows.

    Args:
        site: the site.
        config: the configuration of the run.
        head: the request, which names the columns of all sites, and says whether names of classes are needed.

    Raises:
        Refusal: the site's rules keep statistics at the site, or the columns are others.
    """
    if config.dp is not None or site.privacy.dp is not None:
        raise Refusal("statistics", "Statistics of columns are not covered by differential privacy.")
    options = site.privacy.table_options(config)
    try:
        wanted = columns_from_json(head.get("columns"))
        federation = with_agreed_columns(site.federation(config), wanted, options)
    except ValueError as reason:
        raise Refusal("request", str(reason)) from reason
    except AtollError as reason:
        raise Refusal("data", str(reason)) from reason
    data = federation.dataset
    names = bool(head.get("class_names")) and data.open_classes
    request = StatisticsRequest(data.columns, options, names, count_targets(data, options))
    _count(site, [config.seed, config.split, *options, columns_to_json(data.columns), names])
    return Frame("statistics", {}, encode(measure_client(federation, 0, request)))


def _count(site: SiteConfig, request: list[object]) -> None:
    """Raise Refusal if statistics of too many different divisions were asked for; the same ones may be sent again."""
    path, most = site.state / NAME, site.allow.statistics
    try:
        known = list(json.loads(path.read_bytes()))
    except FileNotFoundError:
        known = []
    key = sha256(to_json(request).encode()).hexdigest()
    if key in known and most:
        return
    if len(known) >= most:
        raise Refusal("statistics", f"Statistics of {len(known)} divisions have left, and site.yaml admits {most}.")
    write_whole(path, to_json([*known, key]).encode())
