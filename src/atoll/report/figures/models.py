"""Make figures from the models or devices of runs: features, soft labels, weight vectors, images, timelines."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from ...analysis import class_relations
from ...analysis.embeddings import ROWS, embed, features, separation
from ...analysis.proxy_images import proxy_images
from ...analysis.timeline import Schedule, simulate_run
from ...core.problems import Classes
from ...errors import AtollError
from ...inference.adaptation import adapt
from ...inference.models import open_run
from ...inference.scoring import score_clients
from .. import plots
from ..plots.lines import Axis, Line, LineChart, Panel
from ..sheets import Sheet
from ..table import NONE
from .base import FigureSpec, RunsByCase, line_figure, pair, panel
from .metrics import criterion, plain, up_axis


def _check_classes(shown: RunsByCase, figure: str) -> None:
    """Raise an AtollError for a figure of classes of runs whose labels are no classes."""
    for run in (run for runs in shown.values() for run in runs):
        if run.problem is not Classes:
            raise AtollError(f"Figure {figure!r} shows classes, but the labels of {run.path} are {run.problem.labels}.")


def tsne(
    shown: RunsByCase,
    client: str | None = None,
    rows: int = ROWS,
    heads: bool = False,
    unit: bool = False,
    way: str = "tsne",
    perplexity: float = 30.0,
) -> list[FigureSpec]:
    """Make a map of the features of test rows, computed by the models of the first seed.

    Args:
        shown: the runs.
        client: the client whose rows are shown; all clients by default.
        rows: largest number of rows of each client.
        heads: whether to show the weight vectors of classes.
        unit: whether to scale features to norm 1.
        way: ``tsne`` or ``umap``.
        perplexity: effective number of neighbours.
    """
    _check_classes(shown, way)
    clouds, sheet_rows, names = [], [], list[str]()
    for (case, method), runs in shown.items():
        models = open_run(runs[0].path).received()
        chosen = () if client is None else (str(client),)
        found = features(models, chosen, rows, unit)
        found = found if heads else found._replace(heads=None)
        apart, (xy, at) = separation(found), embed(found, way, perplexity)
        note = f"nearest centre is its own: {apart.near:.0%}; silhouette {apart.silhouette:.2f}"
        clouds.append(plots.Cloud(pair(shown, case, method), note, xy, found.labels, at))
        sheet_rows.append([case, method, *(_number(n) for n in apart)])
        names = list(models.data.classes)
    nearest = "nearest to their class"
    columns = ["case", "method", f"samples {nearest}", "silhouette", f"weight vectors {nearest}"]
    maker = {"tsne": "t-SNE", "umap": "UMAP"}[way]
    caption = f"Features of test samples by {maker}" + (", with the weight vectors of classes." if heads else ".")
    return [
        FigureSpec(
            way, caption, partial(plots.points, clouds, names), Sheet("Separation of classes", columns, sheet_rows)
        )
    ]


def _number(n: float) -> str:
    return NONE if math.isnan(n) else f"{n:.3f}"


def relations(shown: RunsByCase) -> list[FigureSpec]:
    """Make a figure of soft labels (SL) above class relations of the last layer (CR), of the first seed."""
    _check_classes(shown, "relations")
    groups, sheet_rows, names = [], [], list[str]()
    for (case, method), runs in shown.items():
        run = open_run(runs[0].path)
        found = class_relations.relations(run)
        title = pair(shown, case, method)
        groups.append(
            [
                plots.Matrix(f"soft labels, {title}", found.soft),
                plots.Matrix(f"last layer, {title}", found.weights, "class"),
            ]
        )
        sheet_rows.append([case, method, _number(found.distance), _number(found.correlation)])
        names = list(run.data.classes)
    numbers = Sheet("SL against CR", ["case", "method", "distance", "correlation off the diagonal"], sheet_rows)
    caption = (
        "Mean soft labels of each class (SL), above the relations between classes that the weights of the last layer "
        "have (CR)."
    )
    return [FigureSpec("relations", caption, partial(plots.matrices, groups, names), numbers)]


def moduli(shown: RunsByCase) -> list[FigureSpec]:
    """Make a figure of norms of weight vectors against class shares; every client of every seed has a model."""
    _check_classes(shown, "moduli")
    draws, sheet_rows, names = [], [], list[str]()
    for (case, method), runs in shown.items():
        opened = [open_run(run.path).received() for run in runs]
        found = [draw for models in opened for draw in class_relations.weight_norms(models)]
        draws += [plots.Draw(pair(shown, case, method), *draw) for draw in found]
        trend = class_relations.correlate_norms(found)
        sheet_rows.append([case, method, str(trend.draws), _number(trend.rho), str(trend.contrary)])
        names = list(opened[0].data.classes)
    columns = ["case", "method", "models", "mean Spearman correlation", "models with a positive one"]
    caption = "Shares of classes in the samples, and of the norms of their weight vectors in the sum of all norms."
    return [
        FigureSpec(
            "moduli", caption, partial(plots.moduli, draws, names), Sheet("Shares and norms", columns, sheet_rows)
        )
    ]


def new_clients(
    shown: RunsByCase, shots: str = "1,5,all", repeats: int = 1, epochs: int | None = None
) -> list[FigureSpec]:
    """Make a figure of the score of clients held out of the runs after adaptation, by rows of each class."""
    score = criterion(shown)
    panels, sheet_rows, names = dict[str, list[Line]](), [], list[str]()
    for (case, method), runs in shown.items():
        curves = [adapt(run.path, shots=shots, repeats=repeats, epochs=epochs).curve() for run in runs]
        names = [point.name for point in curves[0]]
        found = np.array([[point.personal.mean for point in curve] for curve in curves])
        panels.setdefault(panel(shown, case), []).append(Line(method, list(range(len(names))), found))
        sheet_rows.append([case, method, *(score.digits(score.scale * mean) for mean in found.mean(0))])
    by_class = all(run.problem is Classes for runs in shown.values() for run in runs)
    counted = "samples of each class" if by_class else "samples"
    heads = ["case", "method", *(f"{name} {'of each class' if by_class else 'samples'}" for name in names)]
    numbers = Sheet(f"{score.heading} of new clients{score.unit}", heads, sheet_rows)
    across = Axis(f"training {counted}", names=names)
    kept = [Panel(title, lines) for title, lines in panels.items()]
    chart = LineChart(kept, across, up_axis("test {} of new clients", score))
    return [line_figure("new-clients", "New clients, by how many samples they have.", chart, numbers)]


def images(shown: RunsByCase, clients: int = 2, rows: int = 8) -> list[FigureSpec]:
    """Make a figure of test images before and after the proxy extractor, of the first seed."""
    pairs = []
    for (case, method), runs in shown.items():
        run = open_run(runs[0].path)
        for i in run.clients[:clients]:
            title = ", ".join(filter(None, [pair(shown, case, method), f"client {i}"]))
            pairs.append(plots.Pair(title, *proxy_images(run, i, rows)))
    draw = partial(plots.pixels, pairs, "image", "enhanced")
    return [FigureSpec("images", "Test images, and the output of the proxy extractor for them.", draw, inline=False)]


def timeline(shown: RunsByCase, clients: int = 4, rounds: int = 3) -> list[FigureSpec]:
    """Make a timeline of some clients for each case and method, compute-and-wait above wait-free."""
    made = []
    for (case, method), runs in shown.items():
        found = simulate_run(runs[0].path, clients, rounds)
        words = ", ".join(filter(None, [method, panel(shown, case)]))
        titled = {f"{words}: {way}": schedule for way, schedule in found.items()}
        bars = [
            plots.Bar(way, f"client {p.client}", *p[1:])
            for way, schedule in titled.items()
            for p in schedule.activities
        ]
        ends = {way: schedule.ends for way, schedule in titled.items()}
        name = f"timeline-{plain(words)}" if len(shown) > 1 else "timeline"
        draw = partial(plots.timeline, bars, ends)
        made.append(FigureSpec(name, f"Rounds in simulated time: {words}.", draw, _ends_of_rounds(words, found)))
    return made


def _ends_of_rounds(words: str, found: Mapping[str, Schedule]) -> Sheet:
    """Return when each round ends, and the length of the last one, whose ratio is the speed-up of tables."""
    rounds = len(next(iter(found.values())).ends)
    columns = [words, *(f"round {n + 1}" for n in range(rounds)), "length of the last round"]
    rows = []
    for way, schedule in found.items():
        length = schedule.ends[-1] - ([0.0, *schedule.ends][-2])
        rows.append([way, *(f"{end:.4g}" for end in schedule.ends), f"{length:.4g}"])
    return Sheet("Simulated seconds until the end of a round", columns, rows)


def reliability(shown: RunsByCase) -> list[FigureSpec]:
    """Make reliability diagrams of the clients' models on their test rows, of the first seed.

    Args:
        shown: the runs.
    """
    _check_classes(shown, "reliability")
    made = []
    for at, ((case, method), runs) in enumerate(shown.items()):
        found = score_clients(open_run(runs[0].path), draws=1)
        bins = {each.client: each.bins for each in found}
        rows = [[each.client, *(f"{v:.4g}" for v in bin)] for each in found for bin in each.bins]
        made.append(
            FigureSpec(
                f"reliability-{at}" if len(shown) > 1 else "reliability",
                f"Accuracy against confidence of {pair(shown, case, method)}: on the line, confidence is what it says.",
                partial(plots.reliability, bins),
                Sheet("Bins of confidence", ("client", "samples", "confidence", "accuracy"), rows),
            )
        )
    return made
