"""``atoll predict``: predict with the models of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from rich.table import Table
from torch import Tensor

from ..core.problems import Labels, NextToken, Numbers, Problem
from ..errors import AtollError
from ..inference.models import TrainedModels, open_run
from ..inference.raw_rows import describe_conversion, read_raw_rows
from ..utils.files import to_json
from .console import console


def print_round(models: TrainedModels, which: str) -> None:
    """Print to standard error which models are used."""
    chosen = {"best": ", the best by validation", "last": ", the last one"}.get(which, "")
    if models.is_measured:
        click.echo(f"Model of round {models.model_round}{chosen}.", err=True)
    else:
        click.echo(
            "Model after the last download, before local training. The tables show the scores of other models, which "
            "this run did not keep (--keep-models no).",
            err=True,
        )


def open_models(folder: Path, which: str) -> TrainedModels:
    """Open the models of a run, of the new clients of a run, or of a site."""
    if (folder / "site.yaml").exists():
        from ..deploy.site.models import open_site  # Slow to import, and only sites need it.

        return open_site(folder, which=which)
    if (folder / "adapt.json").exists():
        from ..inference.adaptation_files import open_adapted

        return open_adapted(folder)
    return open_run(folder, which)


round_option = click.option(
    "--round",
    "which",
    default="best",
    show_default=True,
    metavar="best|last|N",
    help="Round of the model: the one that validation chose, the last one, or the number of one of these.",
)


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|SITE_DIR")
@click.argument("inputs", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--client", help="Client whose model to use; a site has only its own.")
@round_option
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Number of classes or tokens to show for each sample.",
)
@click.option("--json", "as_json", is_flag=True, help="Print all probabilities, or numbers, as JSON.")
def predict(run: Path, inputs: tuple[Path, ...], client: str | None, which: str, top: int, as_json: bool) -> None:
    """Predict with a client's personalised model.

    FILE is a table (.csv or .parquet) with the columns of the run's data set, an image, or a NumPy file (.npy) with raw
    samples as the data set of the run has them. Samples of another type or scale are refused. Without a file, the test
    samples of the client are predicted, and the truth is shown beside. With SITE_DIR, the folder of a site, the model
    is that of the site's latest run.
    """
    models = open_models(run, which)
    whose = models.client(client)
    rows = _rows(models, whose, inputs)
    with torch.no_grad():
        values = _values(models.pool.problem, models.personal(whose)(rows.x))
    named = [dict(zip(models.data.classes, v, strict=True)) for v in values.tolist()]
    numbers = isinstance(models.pool.problem, Numbers)
    print_round(models, which)
    if as_json:
        entry = "prediction" if numbers else "probabilities"
        truths = [{}] * len(named) if rows.truth is None else [{"true": t} for t in rows.truth]
        listed = zip(rows.names, truths, named, strict=True)
        click.echo(to_json([{"row": name, **truth, entry: v} for name, truth, v in listed], indent=1))
    else:
        console().print(_number_table(rows, named) if numbers else _table(rows, named, top, models.pool.problem))


def _values(problem: Problem, outputs: Tensor) -> Tensor:
    """Return numbers, or the probability of each class, of each label, or of each token after the last position."""
    if isinstance(problem, Numbers):
        return outputs
    if isinstance(problem, Labels):
        return outputs.sigmoid()
    return (outputs[:, -1] if isinstance(problem, NextToken) else outputs).softmax(1)


class Rows(NamedTuple):
    """Rows to predict: names, prepared inputs, and of test rows the truth."""

    names: list[str]
    x: Tensor
    truth: Sequence[object] | None = None


def _rows(models: TrainedModels, client: str, inputs: tuple[Path, ...]) -> Rows:
    if not inputs:
        test = models.pool.test[models.pool.position(client)]
        if not len(test.x):
            raise AtollError(f"Client {client!r} has no test samples. Give a file to predict.")
        numbered = [f"test row {i}" for i in range(len(test.x))]
        return Rows(numbered, test.x, truth_of(models.pool.problem, test.y, models.data.classes))
    names: list[str] = []
    parts = []
    for path in inputs:
        rows = read_raw_rows(path, models.data, models.preparation(client))
        names += [f"{path}[{i}]" if len(rows) > 1 else str(path) for i in range(len(rows))]
        parts.append(models.prepared(rows, client))
        if note := describe_conversion(path, models.data):
            click.echo(f"Note: {note}", err=True)
    return Rows(names, torch.cat(parts))


def truth_of(problem: Problem, y: Tensor, classes: Sequence[str]) -> list[object]:
    """Return the true class, labels, numbers or next token of each row."""
    if isinstance(problem, Numbers):
        return [dict(zip(classes, row, strict=True)) for row in y.reshape(len(y), -1).tolist()]
    if isinstance(problem, Labels):
        return [[name for name, has in zip(classes, row, strict=True) if has] for row in y.tolist()]
    return [classes[int(label)] for label in (y[:, -1] if isinstance(problem, NextToken) else y)]


def _number_table(rows: Rows, numbers: list[dict[str, float]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("row")
    for target in numbers[0]:
        for title in (target, *([f"true {target}"] if rows.truth else [])):
            table.add_column(title, justify="right")
    for at, (name, each) in enumerate(zip(rows.names, numbers, strict=True)):
        truth: Any = rows.truth[at] if rows.truth else {}
        pairs = ((value, *([truth[target]] if truth else [])) for target, value in each.items())
        table.add_row(name, *(f"{value:.6g}" for pair in pairs for value in pair))
    return table


def _table(rows: Rows, chances: list[dict[str, float]], top: int, problem: Problem) -> Table:
    table = Table(box=None, pad_edge=False)
    noun = {Labels.task: "label", NextToken.task: "next token"}.get(problem.task, "class")
    ranks = [f"{i}{({2: 'nd', 3: 'rd'}).get(i, 'th')}" for i in range(2, min(top, len(chances[0])) + 1)]
    for title in ("row", *([f"true {noun}"] if rows.truth else []), noun, *ranks):
        table.add_column(title)
    for at, (name, p) in enumerate(zip(rows.names, chances, strict=True)):
        ranked = sorted(p, key=lambda c: -p[c])[:top]
        truth = [_in_words(rows.truth[at], noun)] if rows.truth else []
        table.add_row(name, *truth, *(f"{_in_words(c, noun)} {p[c]:.1%}" for c in ranked))
    return table


def _in_words(label: object, noun: str) -> str:
    if isinstance(label, list):
        return ", ".join(label) or "none"
    return repr(label) if noun == "next token" else str(label)
