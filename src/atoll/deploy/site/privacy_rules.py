"""Apply a site's own privacy rules, whatever the server asks for: the entry `privacy` in site.yaml.

The gate is on unless site.yaml says `privacy: off`. The stricter of the rules of site and server applies.
"""

from dataclasses import replace
from typing import NamedTuple

from ...config import Config
from ...core.method import AnyMethod
from ...data.tables.statistics import TableOptions
from ...errors import AtollError, unknown
from ...privacy.setup import build_gate, sends_covariances
from ...privacy.site_budget import BudgetRule, read_budget_rule
from ..transport.protocol import Refusal

FLOOR = 10  # default of the rows that a class needs before its statistics leave a site
STRICTNESS = ("client", "diag", "none", "means")  # values of cov_source; with the last, no covariance leaves a site


class SitePrivacyRules(NamedTuple):
    """The disclosure rules of a site."""

    min_class_count: int = FLOOR
    cov_source: str | None = None  # default: as strict as the method can be
    dp: BudgetRule | None = None  # limit of all runs together

    def combined(self, config: Config, method: AnyMethod) -> Config:
        """Return the run's options with the stricter of the server's and the site's rules."""
        asked = build_gate(config, method)
        own = build_gate(replace(config, min_class_count=self.min_class_count, cov_source=self.cov_source), method)
        strict = max(asked.cov_source, own.cov_source, key=STRICTNESS.index)
        return replace(config, min_class_count=max(asked.least, own.least), cov_source=strict)

    def table_options(self, config: Config) -> TableOptions:
        """Return the rules for tables, with the stricter of the server's and the site's numbers of rows."""
        asked = config.table_options
        return asked._replace(least=max(asked.least, self.min_class_count))

    def sentences(self) -> list[str]:
        """Return the rules in plain words."""
        if self == OFF:
            return ["Privacy rules are off: whatever a method declares to send leaves the site."]
        return [
            f"Statistics of a class leave the site only if it has at least {self.min_class_count} samples there; sums "
            f"of columns and targets and names of categories and classes only if {self.min_class_count} samples have "
            "them.",
            f"In place of covariances of features: {self.cov_source or 'as strict as the method can be'}.",
            "What a method does not declare does not leave the site.",
        ]

    def check(self, config: Config, method: AnyMethod) -> None:
        """Raise Refusal for a run whose server needs what the site's rules withhold."""
        if self.dp is not None and config.dp is None:
            raise Refusal(
                "rules", "The server asks for a run without --dp, and site.yaml limits epsilon under 'privacy: dp'."
            )
        wanted, asked = self.combined(config, method).cov_source, build_gate(config, method).cov_source
        if wanted == "means" != asked and sends_covariances(method):
            raise Refusal(
                "covariances", "The server asks for covariances of features, which site.yaml keeps at the site."
            )


OFF = SitePrivacyRules(0, "client")


def read_rules(value: object, where: str) -> SitePrivacyRules:
    """Read the rules from an entry; YAML reads `off` and `on` as false and true."""
    if value is None or value is True:
        return SitePrivacyRules()
    if value is False or value == "off":
        return OFF
    if not isinstance(value, dict):
        raise AtollError(f"{where}: 'privacy' is off, or entries such as min_class_count: 10; not {value!r}.")
    for name in value:
        if name not in SitePrivacyRules._fields:
            raise unknown("entry under 'privacy'", str(name), SitePrivacyRules._fields, f"in {where}")
    limit = read_budget_rule(value["dp"], where) if value.get("dp") is not None else None
    rules = SitePrivacyRules(**value | {"dp": limit})
    if type(rules.min_class_count) is not int or rules.min_class_count < 0:
        raise AtollError(f"{where}: min_class_count is a number of samples, 0 or more, not {rules.min_class_count!r}.")
    if rules.cov_source is not None and rules.cov_source not in STRICTNESS:
        raise unknown("cov_source", str(rules.cov_source), STRICTNESS, f"in {where}")
    return rules
