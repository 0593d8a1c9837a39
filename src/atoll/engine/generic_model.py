"""Find the server's state whose model was measured in a round: in the last one, or in the one that validation chose."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..clients.evaluation import choose_round
from ..clients.kept_rounds import KeptRounds
from ..core.criterion import Criterion
from ..core.payloads import Payload
from ..storage.metrics import RoundMetrics

_PREFIX = "generic-"  # of the name of the kept state in a checkpoint


class KeptServer(NamedTuple):
    """The server's state after the round in which validation found the generic model best.

    Args:
        round: the round, counted from 1.
        state: the server's state.
    """

    round: int
    state: Payload

    @property
    def name(self) -> str:
        """Return the name of the state in a checkpoint."""
        return f"{_PREFIX}{self.round}"


def kept_round(name: str) -> int | None:
    """Return the round of a state of the server with this name in a checkpoint; None if the state is another one."""
    return int(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None


def choose_generic_round(lines: Sequence[RoundMetrics], criterion: Criterion) -> int | None:
    """Return the round in which the generic model had the best validation score; None without such scores."""
    scores = [(line["round"], line["generic"]["global"].get("val")) for line in lines if line["generic"]]
    # Undefined numbers are null in stored lines.
    return choose_round([(t, {"val": math.nan if val is None else val}) for t, val in scores], criterion)


def server_of_round(
    which: str | int,
    last: int,
    server: Any,
    kept: KeptServer | None,
    lines: Sequence[RoundMetrics],
    criterion: Criterion,
) -> Any:
    """Return the server's state after a round.

    Args:
        which: ``best`` for the round in which the generic model had the best validation score, ``last``, or a number.
        last: the last round.
        server: the server's state after it.
        kept: the state that was kept, if any.
        lines: the metrics of all evaluated rounds.
        criterion: the score that selects.

    Raises:
        AtollError: the state of that round is not kept.
    """
    chosen = choose_generic_round(lines, criterion)
    best = chosen if kept is not None and chosen == kept.round else None
    found = KeptRounds(last, best, best).number(which)
    return server if found == last or kept is None else kept.state
