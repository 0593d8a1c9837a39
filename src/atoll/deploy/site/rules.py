"""Apply a site's own rules on what a server may ask for: the entry `allow` in site.yaml.

    allow:
      methods: [fedavg, dcpfl]     # default: every registered method
      terms: [proximal]            # regularisers; default: every registered one
      code: ["timm:resnet18"]      # files and packages, word for word; default: none
      rounds: 200                  # of one run
      epochs: 20                   # of each training in a round
      hours: 2                     # for the answer to one request
      runs_per_day: 5
      weights: 50000000            # of one model
      disk_gb: 20                  # of everything that runs have stored here
      scores: rounded              # or exact, or off
      statistics: 10               # of columns of tables: for how many different splits of the samples; off: never

What a server asks for beyond this gets the code `rules`, and the reason stays in the site's own log.
"""

from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ...config import Config
from ...core.method import AnyMethod
from ...core.optim.base import Optimiser
from ...errors import AtollError, unknown
from ..received_names import ForeignName, read_config
from ..transport.protocol import Refusal

SCORES = ("rounded", "exact", "off")
LISTS = ("methods", "terms", "code")


@dataclass(frozen=True)
class SiteRules:
    """What a server may ask a site for.

    Args:
        methods: names of methods; None for every registered one.
        terms: names of regularisers; None for every registered one.
        code: texts of files and packages that may be used as models, methods or regularisers, word for word.
        rounds: most rounds of a run.
        epochs: most passes over the site's training rows in each training of a round, however they are asked for.
        hours: most hours that the answer to one request takes, with the training that follows it.
        runs_per_day: most runs that begin on one day.
        weights: most weights of a model.
        disk_gb: most gigabytes in the site's folder of states.
        scores: form of the scores that leave: ``rounded``, ``exact`` or ``off``.
        statistics: most different splits of the site's rows of which statistics of columns leave. The differences
            between two splits tell about the few rows in which they differ.
    """

    methods: tuple[str, ...] | None = None
    terms: tuple[str, ...] | None = None
    code: tuple[str, ...] = ()
    rounds: int = 1000
    epochs: int = 200
    hours: int = 24
    runs_per_day: int = 50
    weights: int = 50_000_000
    disk_gb: int = 20
    scores: str = "rounded"
    statistics: int = 10

    def read_config(self, document: object, method_files: Collection[str] = ()) -> Config:
        """Return the configuration of a request, with registered names alone.

        Args:
            document: the entries as they arrived.
            method_files: names of the site's own method files.

        Raises:
            Refusal: if the configuration is malformed, or asks for more than the rules admit.
        """
        try:
            config = read_config(document, self.code, method_files)
        except ForeignName as reason:
            raise Refusal("method" if reason.kind == "method" else "rules", str(reason)) from reason
        except AtollError as reason:
            raise Refusal("rules", str(reason)) from reason
        self._check(config, method_files)
        return config

    def _check(self, config: Config, method_files: Collection[str]) -> None:
        name = config.method.partition(":")[0]
        own = Path(name).name in method_files
        if self.methods is not None and not own and name not in (*self.methods, *self.code):
            raise Refusal("rules", f"The server asks for {name}, which 'allow: methods' in site.yaml does not list.")
        for text in config.terms:
            if self.terms is not None and text.partition(":")[0] not in (*self.terms, *self.code):
                raise Refusal("rules", f"The server asks for {text}, which 'allow: terms' in site.yaml does not list.")
        if config.rounds > self.rounds:
            raise Refusal("rules", f"The server asks for {config.rounds} rounds, and site.yaml admits {self.rounds}.")

    def check_training(self, method: AnyMethod, rows: int) -> None:
        """Raise Refusal if a method trains for more epochs than the rules admit.

        Steps count as the epochs that they make of the site's rows.

        Args:
            method: the method with the settings of the run.
            rows: number of the site's training rows.
        """
        for name, optim in vars(method).items():
            if not isinstance(optim, Optimiser):
                continue
            per_epoch = -(-max(rows, 1) // optim.batch_size)
            passes = optim.epochs if optim.steps is None else optim.steps / per_epoch
            if passes > self.epochs:
                raise Refusal(
                    "rules", f"The server asks for {passes:g} epochs ({name}), and site.yaml admits {self.epochs}."
                )

    def sentences(self) -> list[str]:
        """Return the rules in plain words."""
        methods = "every method of the installed package" if self.methods is None else ", ".join(self.methods)
        terms = "every regulariser of the installed package" if self.terms is None else ", ".join(self.terms) or "none"
        shown = {
            "rounded": "rounded to 1 % or to one test sample, and none from fewer than 20 test samples",
            "exact": "as exact numbers, from which a server can infer test samples",
            "off": "not at all",
        }
        return [
            f"Methods: {methods}.",
            f"Regularisers: {terms}.",
            f"Code outside of the package: {', '.join(self.code) or 'none'}.",
            f"A run has at most {self.rounds} rounds, and at most {self.runs_per_day} runs begin on one day.",
            f"In a round, each training has at most {self.epochs} epochs. A request that takes more than {self.hours} "
            "hours is given up.",
            f"A model has at most {self.weights:,} weights.",
            f"All runs together store at most {self.disk_gb} GB here.",
            f"Scores leave the site {shown[self.scores]}.",
            "Sums and categories of columns, sums of targets, and names of classes that not all sites have leave the "
            f"site for at most {self.statistics} splits of its samples."
            if self.statistics
            else "Sums and categories of columns, sums of targets and names of classes do not leave the site.",
        ]


def read_site_rules(value: object, where: str) -> SiteRules:
    """Read the rules from the entry ``allow`` of a file; ``where`` names the file in messages."""
    if value is None:
        return SiteRules()
    known = [f.name for f in fields(SiteRules)]
    if not isinstance(value, dict):
        raise AtollError(f"{where}: 'allow' has entries such as rounds: 200; not {value!r}.")
    for name in value:
        if name not in known:
            raise unknown("entry under 'allow'", str(name), known, f"in {where}")
    return SiteRules(**{name: _entry(name, entry, where) for name, entry in value.items()})


def _entry(name: str, entry: Any, where: str) -> Any:
    if name in LISTS:
        if not isinstance(entry, list) or not all(isinstance(text, str) for text in entry):
            raise AtollError(f"{where}: {name!r} under 'allow' is a list of names, not {entry!r}.")
        return tuple(entry)
    if name == "scores":
        text = "off" if entry is False else entry  # YAML reads `off` as false.
        if text not in SCORES:
            raise unknown("value of 'scores' under 'allow'", str(text), SCORES, f"in {where}")
        return text
    if name == "statistics" and entry in (False, 0):  # YAML reads `off` as false.
        return 0
    if type(entry) is not int or entry < 1:
        raise AtollError(f"{where}: {name!r} under 'allow' is a whole number of at least 1, not {entry!r}.")
    return entry
