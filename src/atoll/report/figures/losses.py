"""Make figures of losses by round: of training, and of models on test rows."""

from collections.abc import Sequence

from ...core.problems import LOSS
from ...errors import AtollError
from ...storage.run_reader import Run
from ..plots.lines import Axis, Line, LineChart, Panel, Up
from .base import FigureSpec, RunsByCase, cases, line_figure, panel
from .metrics import trace

# Whose loss: where it stands in metrics.jsonl, and how its line is drawn.
LOSSES = {
    "training": (f"training.{LOSS}", "solid"),
    "test": (f"personal.post.{LOSS}", "dashed"),
    "generic": (f"generic.global.{LOSS}", "dotted"),
}
WORDS = {"training": "training", "test": "personal models, test samples", "generic": "generic model, test samples"}


def losses(shown: RunsByCase, of: str | Sequence[str] = ("training", "test")) -> list[FigureSpec]:
    """Make a figure of the loss by round.

    Args:
        shown: the runs.
        of: ``training`` (what clients minimise, with the method's own terms), ``test`` (the personal models' loss on
            test rows), ``generic`` (the generic model's), or several of these.

    Raises:
        AtollError: ``of`` names something else, or no run has such a loss.
    """
    wanted = (of,) if isinstance(of, str) else tuple(of)
    if unknown := [one for one in wanted if one not in LOSSES]:
        raise AtollError(f"The setting of of losses is {unknown[0]!r}. Use {', '.join(LOSSES)}.")
    panels = [
        Panel(
            panel(shown, case),
            [line for (c, name), runs in shown.items() if c == case for line in _lines(name, runs, wanted)],
        )
        for case in cases(shown)
    ]
    dashes = {line.dash for p in panels for line in p.lines}
    if not dashes:
        raise AtollError("These runs have no losses by round. Run them again with this version.")
    kinds = {LOSSES[one][1]: WORDS[one] for one in wanted if LOSSES[one][1] in dashes}
    chart = LineChart(panels, Axis("round", whole=True), Up("loss", percent=False), kinds)
    return [line_figure("losses", "Loss by round; bands reach from the lowest seed to the highest.", chart)]


def has_losses(runs: Sequence[Run]) -> bool:
    """Return True if a run has a training loss or a test loss in some round."""
    return any(len(trace([run], where).rounds) for run in runs for where, _ in LOSSES.values())


def _lines(name: str, runs: Sequence[Run], wanted: Sequence[str]) -> list[Line]:
    found = [(trace(runs, LOSSES[one][0]), LOSSES[one][1]) for one in wanted]
    return [Line(name, t.rounds.tolist(), t.values, dash) for t, dash in found if len(t.rounds)]
