"""``atoll scores``: score the models of a run on each client's test rows."""

import math
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from ..core.decision_scores import Interval
from ..inference.scoring import ClientScores, score_clients
from ..utils.files import to_json
from .console import console
from .predict import open_models, print_round, round_option

MOST_CLASSES = 4  # predicted classes that a row of the table by class names


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|SITE_DIR")
@round_option
@click.option(
    "--point",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="With two classes: probability of the second class from which on a sample counts as positive.",
)
@click.option(
    "--draws", type=click.IntRange(1), default=1000, show_default=True, help="Bootstrap resamples of the test samples."
)
@click.option("--out", type=click.Path(path_type=Path), help="File of the reliability diagram, .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the bins of the reliability diagram.")
def scores(run: Path, which: str, point: float, draws: int, out: Path | None, as_json: bool) -> None:
    """Score each client's personalised model on the client's test samples, with 95 % bootstrap intervals.

    Accuracy, balanced accuracy, areas under the ROC and the precision-recall curve, Brier score, expected calibration
    error and, with two classes, sensitivity and specificity at a chosen point; then recall and precision of each
    class over all test samples, with the classes that its samples were taken for.
    """
    models = open_models(run, which)
    found = score_clients(models, point, draws)
    print_round(models, which)
    if out is not None:
        from ..report.plots.reliability import reliability
        from ..report.style import save

        save(reliability({each.client: each.bins for each in found}), out)
    if as_json:
        click.echo(to_json([_plain(each) for each in found], indent=1))
        return
    console().print(_table(found))
    click.echo(
        f"95 % intervals over {draws} resamples of the test samples; a decision counts as positive from {point:g} on."
    )
    console().print(_class_table(found[-1].confusion, models.data.classes))
    if out is not None:
        click.echo(f"Reliability diagram: {out}")


def _plain(each: ClientScores) -> dict[str, object]:
    scores = {name: interval._asdict() for name, interval in each.scores.items()}
    return {
        "client": each.client,
        "rows": each.rows,
        "scores": scores,
        "bins": [bin._asdict() for bin in each.bins],
        "confusion": each.confusion,
    }


def _table(found: list[ClientScores]) -> Table:
    table = Table(box=None, pad_edge=False)
    for head in ("client", "samples", "score", "value", "95 % interval"):
        table.add_column(head, justify="left" if head in ("client", "score") else "right")
    for each in found:
        for at, (name, interval) in enumerate(each.scores.items()):
            who = (each.client, f"{each.rows:,}") if at == 0 else ("", "")
            table.add_row(*who, name, *_cells(interval))
    return table


def _class_table(confusion: list[list[int]], classes: Sequence[str]) -> Table:
    """Show recall and precision of each class over all test rows, and where its rows were predicted."""
    table = Table(title="Test samples of all clients, by class", title_justify="left", box=None, pad_edge=False)
    for head in ("class", "samples", "recall", "precision", "predicted as"):
        table.add_column(head, justify="left" if head in ("class", "predicted as") else "right")
    for at, row in enumerate(confusion):
        named = sum(other[at] for other in confusion)
        order = sorted(range(len(row)), key=lambda j: -row[j])
        places = ", ".join(f"{classes[j]}: {row[j]:,}" for j in order[:MOST_CLASSES] if row[j])
        table.add_row(classes[at], f"{sum(row):,}", _share(row[at], sum(row)), _share(row[at], named), places)
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"


def _cells(interval: Interval) -> tuple[str, str]:
    """Return a score and its interval as text; a dash where the score is undefined."""
    value = "–" if math.isnan(interval.value) else f"{interval.value:.3f}"
    return value, "–" if math.isnan(interval.low) else f"{interval.low:.3f} to {interval.high:.3f}"
