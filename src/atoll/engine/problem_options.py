"""Load the data set of a run, and check the options that depend on its problem."""

from collections.abc import Mapping

from ..clients.evaluation import reserved_names
from ..clients.metrics import Metric, check_name, load_metrics
from ..config import Config
from ..core.problems import Problem
from ..data.dataset import Dataset
from ..data.loading import load
from ..data.tables.statistics import OWN
from ..errors import AtollError


def load_data(config: Config) -> Dataset:
    """Load the data set of a configuration.

    Raises:
        AtollError: the data set cannot be read, or all of its rows have the same class.
    """
    data = load(config.data, config.data_dir, config.task, own_columns=config.columns == OWN)
    if data.num_classes == 1 and data.open_classes:
        raise AtollError(
            f"All samples of data set {data.name!r} have the label {data.classes[0]!r}: there is nothing to tell "
            "apart. Choose another label, for a table with '?label='."
        )
    return data


def check_task(data: Dataset, config: Config) -> Dataset:
    """Return a data set that was given as an object, if ``--task`` agrees with it."""
    if config.task not in (None, data.problem.task):
        raise AtollError(
            f"task={config.task!r}, but the labels of data set {data.name!r} are {data.problem.labels}. "
            "Leave it out, or give the data set another problem."
        )
    return data


def load_user_metrics(config: Config, problem: Problem, given: Mapping[str, Metric] | None) -> Mapping[str, Metric]:
    """Return the user's metrics, given as functions or named in the configuration."""
    for name in given or ():
        check_name(name, reserved_names(problem))
    return load_metrics(config.metric, reserved_names(problem)) if given is None else given


def check_targets(config: Config, problem: Problem) -> None:
    """Raise an AtollError if a score to reach is above 1 and the criterion is a share: percent are a common mistake."""
    for flag, value in (("--target", config.target), ("--until", config.until)):
        if value is not None and value > 1 and problem.criterion.percent:
            raise AtollError(
                f"{flag} must be above 0 and at most 1, not {value}: {problem.criterion.title} is a share."
            )
