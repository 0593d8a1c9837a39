"""Check that a site can take part in a run: versions, configuration, method and privacy rules."""

from collections.abc import Mapping
from dataclasses import replace

from ..._version import __version__
from ...config import Config
from ...core.method import AnyMethod
from ...engine.setup import build_method
from ...errors import AtollError
from ...utils.parsing import Json
from ..received_names import SENT_ENTRIES
from ..transport.protocol import VERSION, Refusal
from .config import SiteConfig


def config_of(document: Mapping[str, object], site: SiteConfig) -> Config:
    """Return the configuration in a request, with registered names alone; raise Refusal if the rules forbid it."""
    return site.allow.read_config(document.get("config"), site.method_names)


def check_version(document: Mapping[str, object]) -> None:
    """Raise Refusal unless server and site have the same version of Atoll and of the protocol."""
    if (document.get("version"), document.get("protocol")) != (__version__, VERSION):
        raise Refusal("version", f"The server has atoll {document.get('version')}, this site {__version__}.")


def check_rules(site: SiteConfig, config: Config, method: AnyMethod | None = None) -> None:
    """Raise Refusal if the site's own rules forbid the run; ``method`` is that of the run if it is built already."""
    method = method or load_method(config, site)
    site.allow.check_training(method, len(site.federation(config).part("train")[0]))
    site.privacy.check(config, method)


def check_unchanged(begun: Json, again: Json) -> None:
    """Raise Refusal unless a second announcement of a run equals the first one; only rounds may be added.

    Otherwise a server could weaken the noise of a run, or reopen a budget that is spent. The rounds that a budget is
    planned for are not added to.
    """
    if _lasting(begun) != _lasting(again):
        raise Refusal("rules", "The server announces a run again with other options than at its begin.")


def _lasting(document: Json) -> Json:
    """Return the entries of an announcement that stay the same through a run."""
    given = dict(document["config"])
    if given.get("dp") is not None:
        given["dp_rounds"] = given.get("dp_rounds") or given.get("rounds")
    config = {name: v for name, v in given.items() if name in SENT_ENTRIES and name != "rounds"}
    return {"config": config} | {name: document.get(name) for name in ("models", "expect", "tables")}


def load_method(config: Config, site: SiteConfig) -> AnyMethod:
    """Build the method by its name, or from the site's own copy of a file. Code never comes from the server."""
    name, _, variant = config.method.partition(":")
    if name.endswith(".py"):
        own = site.method_file(name)
        if own is None:
            raise Refusal("method", f"The server asks for {name}, which site.yaml does not list under 'methods'.")
        config = replace(config, method=f"{own}:{variant}" if variant else str(own))
    try:
        return build_method(config)
    except AtollError as reason:
        raise Refusal("method", str(reason)) from reason
