"""Send the statistics of a site's columns and labels, as far as the site's rules admit."""

import json
from hashlib import sha256

from ...config import Config
from ...core.serialization import encode
from ...data.tables.client_statistics import count_targets, measure_client, measure_client_noisily
from ...data.tables.noisy_statistics import Noise, check_declared
from ...data.tables.statistics import StatisticsRequest
from ...errors import AtollError
from ...privacy.setup import table_noise
from ...privacy.site_budget import SiteBudget
from ...utils import secure_random
from ...utils.files import to_json, write_whole
from ...utils.parsing import Json
from ..table_agreement import columns_from_json, columns_to_json, with_agreed_columns
from ..transport.protocol import Frame, Refusal
from .config import SiteConfig
from .run_checks import load_method

NAME = "statistics.json"  # in the state of a site: digests of what was asked for


def release_statistics(site: SiteConfig, config: Config, head: Json) -> Frame:
    """Return the statistics of the site's training rows. Those with noise are drawn once, and sent again as they were.

    Args:
        site: the site.
        config: the configuration of the run.
        head: the request, which names the columns of all sites, and says whether names of classes are needed.

    Raises:
        Refusal: the site's rules keep statistics at the site, the columns are others, or a privacy budget is spent.
    """
    options = site.privacy.table_options(config)
    noise = None if config.dp is None else table_noise(config, load_method(config, site))
    try:
        wanted = columns_from_json(head.get("columns"))
        federation = with_agreed_columns(site.federation(config), wanted, options)
        data = federation.dataset
        names = bool(head.get("class_names")) and data.open_classes
        targets = count_targets(data, options)
        request = StatisticsRequest(data.columns, options, names, targets, data.target_bounds)
        if noise is not None:
            check_declared(request)
    except ValueError as reason:
        raise Refusal("request", str(reason)) from reason
    except AtollError as reason:
        raise Refusal("data", str(reason)) from reason
    key = _count(site, [config.seed, config.split, *options, columns_to_json(data.columns), names, noise])
    if noise is None:
        return Frame("statistics", {}, encode(measure_client(federation, 0, request)))
    path = site.state / f"statistics-{key[:32]}.safetensors"
    if not path.exists():
        _spend(site, noise)
        write_whole(path, encode(measure_client_noisily(federation, 0, request, noise, secure_random.secure)))
    return Frame("statistics", {}, path.read_bytes())


def _spend(site: SiteConfig, noise: Noise) -> None:
    """Count a release in the budget of the site for all runs, before it is drawn."""
    if site.privacy.dp is None:
        return
    budget, cost = SiteBudget(site.privacy.dp, site.state), 1 / noise.multiplier**2
    if not budget.allows(cost):
        raise Refusal("rules", budget.sentence())
    budget.write("statistics of tables", cost)


def _count(site: SiteConfig, request: list[object]) -> str:
    """Return the digest of a request.

    Raises:
        Refusal: statistics of too many different splits were asked for; the same ones may be sent again.
    """
    path, most = site.state / NAME, site.allow.statistics
    try:
        known = list(json.loads(path.read_bytes()))
    except FileNotFoundError:
        known = []
    key = sha256(to_json(request).encode()).hexdigest()
    if key in known and most:
        return key
    if len(known) >= most:
        raise Refusal("statistics", f"Statistics of {len(known)} splits have left, and site.yaml admits {most}.")
    write_whole(path, to_json([*known, key]).encode())
    return key
