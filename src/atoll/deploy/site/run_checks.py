"""Check that a site can take part in a run: versions, configuration, method and privacy rules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from ..._version import __version__
from ...config import Config, from_dict
from ...core.method import AnyMethod
from ...engine.setup import build_method
from ...errors import AtollError
from ...utils.parsing import Json
from ..transport.protocol import VERSION, Refusal
from .config import SiteConfig


def config_of(document: Mapping[str, object]) -> Config:
    """Return the configuration in a request; raise Refusal if it is missing or wrong."""
    try:
        return from_dict(cast(Json, document["config"]))
    except (AtollError, KeyError, TypeError) as reason:
        raise Refusal("request", str(reason)) from reason


def check_version(document: Mapping[str, object]) -> None:
    """Raise Refusal unless server and site have the same version of Atoll and of the protocol."""
    if (document.get("version"), document.get("protocol")) != (__version__, VERSION):
        raise Refusal("version", f"The server has atoll {document.get('version')}, this site {__version__}.")


def check_rules(site: SiteConfig, config: Config) -> None:
    """Raise Refusal if the site's own privacy rules forbid the run."""
    site.privacy.check(config, load_method(config, site))


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
