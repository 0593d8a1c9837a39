"""Name the rounds whose personal models a run keeps."""

from typing import NamedTuple

from ..errors import AtollError


class KeptRounds(NamedTuple):
    """The rounds, counted from 1, whose models are kept.

    Args:
        last: the latest evaluation.
        kept: the evaluation that has a copy of its own.
        best: the evaluation that validation chose, one of the two; None without validation rows.
    """

    last: int = 0
    kept: int | None = None
    best: int | None = None

    def number(self, which: str | int) -> int:
        """Return the round that ``best``, ``last`` or a number stands for.

        Raises:
            AtollError: the models of that round are not kept.
        """
        named = {"last": self.last, "best": self.last if self.best is None else self.best}
        found = named[which] if isinstance(which, str) and which in named else _whole_number(which)
        if found not in (self.last, self.kept):
            also = "" if self.kept in (None, self.last) else f" and {self.kept} (best by validation)"
            raise AtollError(
                f"The models of round {found} are not kept. The run has those of round {self.last} (last){also}."
            )
        return found


def _whole_number(which: str | int) -> int:
    try:
        return int(which)
    except ValueError:
        raise AtollError(f"--round must be best, last or the number of a round, not {which!r}.") from None
