"""``atoll check``: check that a method obeys the laws of methods."""

import sys
import time
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from ..analysis.laws.check import BROKEN, HOLDS, LAWS, Finding, check_method
from ..analysis.laws.trial import trial_of
from ..utils.files import to_json
from .console import console, progress
from .options import ConfigCommand, config_options, given

COLOURS = {HOLDS: "green", BROKEN: "bold red"}
FIXED = (
    "method", "rounds", "rate", "eval_every", "checkpoint_every", "store", "cache", "out", "backend", "workers", "dp",
    "dp_rounds", "dp_seed", "robust", "sums", "min_class_count", "track", "target", "target_of",
)  # fmt: skip


@click.command(cls=ConfigCommand)
@click.argument("method", metavar="METHOD|FILE")
@config_options(*FIXED)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(method: str, config_file: Path | None, as_json: bool, **options: object) -> None:
    """Check that METHOD, or the method that FILE defines, obeys the laws of methods.

    Runs the method on five clients with a few samples of digits: by the loop, in processes, batched by vmap, resumed,
    with hostile uploads and with privacy options. Prints what holds. The exit code is 1 if a law is broken.
    """
    started = time.perf_counter()
    trial = trial_of(method, given(options, config_file))
    trial.setup()  # A mistake in the file or in an option is no broken law.
    findings: list[Finding] = []
    with progress(quiet=as_json) as bars:
        bar = bars.add_task("laws", total=len(LAWS), score="")
        for finding in check_method(trial):
            findings.append(finding)
            bars.advance(bar)
    if as_json:
        click.echo(to_json([finding._asdict() for finding in findings], indent=1))
    else:
        _show(findings, method, time.perf_counter() - started)
    sys.exit(any(finding.verdict == BROKEN for finding in findings))


def _show(findings: list[Finding], method: str, seconds: float) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("law", "verdict", "detail"):
        table.add_column(head)
    for finding in findings:
        verdict = Text(finding.verdict, style=COLOURS.get(finding.verdict, "dim"))
        table.add_row(Text(finding.law), verdict, Text(finding.detail))
    console().print(table)
    broken = sum(finding.verdict == BROKEN for finding in findings)
    held = sum(finding.verdict == HOLDS for finding in findings)
    words = f"{broken} broken" if broken else "none is broken"
    click.echo(f"\n{method}: {held} laws hold, {words} ({seconds:.0f} s).")
