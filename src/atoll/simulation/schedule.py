"""Read a value of ``--schedule``: when the server of a simulation aggregates."""

from dataclasses import dataclass

from ..aggregation.staleness import StalenessWeight
from ..errors import unknown
from ..utils.parsing import Spec, number, refusal, whole, word

SYNCHRONOUS = "synchronous"
_WEIGHTS = (
    word("WEIGHT", ("constant", "polynomial"), optional=True),
    number("EXPONENT", least=0, optional=True),
)
SPECS = {
    SYNCHRONOUS: Spec("synchronous"),
    "buffered": Spec("buffered:K, such as buffered:4 or buffered:4:polynomial:0.5", whole("K", least=1), *_WEIGHTS),
    "asynchronous": Spec(
        "asynchronous:ALPHA, such as asynchronous:0.6 or asynchronous:0.6:polynomial:0.5",
        number("ALPHA", above=0, most=1),
        *_WEIGHTS,
    ),
}


@dataclass(frozen=True)
class Schedule:
    """The moments at which a server aggregates.

    Args:
        buffer: uploads after which the server aggregates; None waits for the whole cohort.
        weight: weight of stale uploads.
    """

    buffer: int | None = None
    weight: StalenessWeight = StalenessWeight()


def read_schedule(text: str) -> Schedule:
    """Read ``synchronous``, ``buffered:K`` or ``asynchronous:ALPHA``, the latter two with a weight of stale uploads.

    Raises:
        AtollError: if the text is no schedule.
    """
    name = text.partition(":")[0]
    if name not in SPECS:
        raise unknown("--schedule", name, SPECS)
    values = SPECS[name].parse("--schedule", text, skip=1)
    if name == SYNCHRONOUS:
        return Schedule()
    first, *weight = values
    if weight[:1] == ["constant"] and len(weight) > 1:
        raise refusal("--schedule", text, "a constant weight has no exponent", SPECS[name].form)
    exponent = 0.0 if weight == ["constant"] else weight[1] if len(weight) > 1 else 0.5
    if name == "buffered":
        return Schedule(first, StalenessWeight(exponent))
    return Schedule(1, StalenessWeight(exponent, mixing=first))
