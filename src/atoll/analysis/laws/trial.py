"""Run a method on a small federation, to check the laws that all methods obey."""

from collections.abc import Callable
from typing import Any

from ...config import Config, from_dict
from ...core.method import AnyMethod, traits_of
from ...core.traits import Need
from ...engine.build import run_experiment
from ...engine.result import Result
from ...engine.setup import Setup, build_setup
from ...methods import _registry
from ...methods._factory import split_variant

# Five clients with unequal numbers of rows, so that batches are padded under vmap. Few steps keep trials short, and
# keep differences in the last digit from growing.
SMALL: dict[str, Any] = {
    "data": "digits",
    "rows": 300,
    "clients": 5,
    "partition": "dirichlet:0.5",
    "rounds": 3,
    "eval_every": 3,
    "epochs": 1,
    "batch_size": 16,
    "backend": "loop",
}
PUBLIC = 60  # rows, for methods that need public data


class BrokenLaw(Exception):
    """A law that a method breaks. The message says what was found, and what to change."""


class NotApplicable(Exception):
    """A law that has no meaning for a method. The message says why."""


class Trial:
    """A method on a small federation.

    Args:
        build: builds a run, given the options that differ from those of the trial.
    """

    def __init__(self, build: Callable[..., Setup]):
        self._build = build
        self._setups: dict[str, Setup] = {}
        self._results: dict[str, Result] = {}

    def setup(self, **changes: Any) -> Setup:
        """Build a run with other options, once for each combination of them."""
        name = repr(sorted(changes.items()))
        if name not in self._setups:
            self._setups[name] = self._build(**changes)
        return self._setups[name]

    def run(self, **changes: Any) -> Result:
        """Run with other options, once for each combination of them."""
        name = repr(sorted(changes.items()))
        if name not in self._results:
            self._results[name] = run_experiment(self.setup(**changes))
        return self._results[name]

    @property
    def method(self) -> AnyMethod:
        """Return the method of the trial."""
        return self.setup().method


def trial_of(name: str, options: dict[str, Any]) -> Trial:
    """Return the trial of a method on five clients with a few rows of digits.

    Args:
        name: a method, a method and its variant, or a file that defines a method.
        options: options of a run that replace those of the trial, such as the model.
    """
    needs = traits_of(_registry.method(split_variant(name)[0])).needs
    public = {"public": PUBLIC} if Need.PUBLIC_DATA in needs else {}

    def build(**changes: Any) -> Setup:
        config: Config = from_dict({**SMALL, **public, **options, **changes, "method": name})
        return build_setup(config)

    return Trial(build)
