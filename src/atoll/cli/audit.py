"""``atoll audit``: show what a method sends in a round, or what the clients of a run sent."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from ..analysis.audit import BEFORE, Item, audit_statistics
from ..analysis.audit import audit as audit_method
from ..config import from_dict
from ..engine.setup import build_setup
from ..errors import AtollError
from ..methods import _registry
from ..storage import audit_log
from ..storage.audit_log import Record
from ..utils.files import to_json
from .console import console
from .options import ConfigCommand, config_options, given


@click.command(cls=ConfigCommand)
@click.argument("what", metavar="METHOD|RUN_DIR")
@click.option("--verify", is_flag=True, help="With RUN_DIR: only check that the audit log was not changed.")
@config_options("method", "rounds", "rate", "eval_every", "checkpoint_every", "store", "cache", "out")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(what: str, verify: bool, config_file: Path | None, as_json: bool, **options: object) -> None:
    """Show what leaves a client and what reaches it in one round of METHOD: shape, bytes, role, meaning.

    With RUN_DIR, list what the clients of a run sent: round, client, bytes, SHA-256 and whether it was accepted. The
    name of a method always means the method: write ./NAME for a folder of that name.
    """
    values = given(options, config_file)
    if not (verify or is_run(what)):
        setup = build_setup(from_dict({**values, "method": what}))
        items = audit_statistics(setup.preparations) + audit_method(setup.method, setup.pool, setup.config.seed)
        return _show_items(items, setup.federation.notes, as_json)
    if values:
        raise AtollError(
            f"{what!r} is a run directory, whose options are fixed. Leave out all options but --verify and --json."
        )
    return _check(Path(what), as_json) if verify else _list(Path(what), as_json)


def is_run(what: str) -> bool:
    """Return True if ``what`` is a folder, and not a method or a file that defines one."""
    return what.partition(":")[0] not in _registry.methods() and Path(what).is_dir()


# ---------------------------------------------------------------------------------------------------------------------
# A run


def _check(folder: Path, as_json: bool) -> None:
    """Verify the log of a run and print its length and head; raise an AtollError if it was changed."""
    end = _end(folder)
    found = audit_log.verify(folder / audit_log.NAME, *(end or (None, None)))
    if as_json:
        click.echo(to_json({"records": found.records, "head": found.head, "finished": end is not None}, indent=1))
        return
    click.echo(f"{found.records} records, each follows the one before it. Head: {found.head}")
    click.echo("The chain covers what clients sent. It does not cover results: metrics, tables and models.")
    if end is None:
        click.echo(
            "The run has not ended, so the length of its log is not known yet: a truncated log would not be detected."
        )


def _end(folder: Path) -> tuple[int, str] | None:
    """Return the number of records and the head of the log of a finished run; None if the run has not ended."""
    path = folder / "summary.json"
    try:
        stored = json.loads(path.read_bytes())["audit"]
        return int(stored["records"]), str(stored["head"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as reason:
        raise AtollError(
            f"{str(path)!r} does not say where the audit log ends ({reason}). It was "
            "changed, or written by a version without an audit log."
        ) from reason


def _list(folder: Path, as_json: bool) -> None:
    """Print every record, up to the first one that was changed."""
    records: list[Record] = []
    try:
        for record in audit_log.read(folder / audit_log.NAME):
            records.append(record)
    finally:
        _show_records(records, as_json, _payload_bytes(folder))
    if not as_json:
        _show_notes(_data_notes(folder))


def _show_notes(notes: Iterable[str]) -> None:
    """Print what was inferred, left out and filled when the data were read."""
    for note in notes:
        click.echo(f"Data: {note}")


def _data_notes(folder: Path) -> list[str]:
    """Return the notes on the data of a run; empty if the run does not say."""
    try:
        return [str(note) for note in json.loads((folder / "holdings.json").read_bytes())["notes"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _payload_bytes(folder: Path) -> int | None:
    """Return the bytes of accepted uploads as tables count them, without headers; None if the run has not ended."""
    try:
        return int(json.loads((folder / "summary.json").read_bytes())["bytes"]["up"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _show_records(records: Sequence[Record], as_json: bool, payload_bytes: int | None) -> None:
    if as_json:
        click.echo(to_json([record._asdict() for record in records], indent=1))
    elif records:
        _print_table(records)
        refused = sum(record.verdict != "accepted" for record in records)
        clients, size = len({record.client for record in records}), sum(record.bytes for record in records)
        bare = "" if payload_bytes is None else f" ({payload_bytes:,} accepted bytes without headers, as in tables)"
        click.echo(
            f"{len(records)} contributions of {clients} clients, {size:,} bytes with headers{bare}, {refused} rejected."
        )


def _print_table(records: Sequence[Record]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("round", "exchange", "stale", "client", "bytes", "sha256", "verdict"):
        table.add_column(head, justify="right" if head in ("round", "exchange", "stale", "bytes") else "left")
    for r in records:
        verdict = r.verdict if r.field is None else f"{r.verdict}: {r.field} {r.reason}"
        words = (str(r.round), str(r.exchange), str(r.staleness), r.client, f"{r.bytes:,}", r.sha256[:16], verdict)
        table.add_row(*(Text(word) for word in words))  # Text, because brackets in what clients sent are no markup.
    console().print(table)


# ---------------------------------------------------------------------------------------------------------------------
# A method


def _show_items(items: Sequence[Item], notes: Iterable[str], as_json: bool) -> None:
    if as_json:
        click.echo(to_json([item._asdict() for item in items], indent=1))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("direction", "field", "shape", "bytes", "role", "meaning"):
        table.add_column(head, justify="right" if head == "bytes" else "left")
    several = len({item.model for item in items} - {BEFORE}) > 1 or len({item.exchange for item in items}) > 1
    for item in items:
        way = f"{item.direction} (exchange {item.exchange}, {item.model})" if several else item.direction
        way = f"{item.direction} {BEFORE}" if item.model == BEFORE else way
        table.add_row(way, item.field, item.shape, f"{item.bytes:,}", item.role, item.meaning)
    console().print(table)
    for model in dict.fromkeys(item.model for item in items):
        down, up = (sum(i.bytes for i in items if (i.model, i.direction) == (model, way)) for way in ("down", "up"))
        when = BEFORE if model == BEFORE else f"with {model} in this round"
        click.echo(f"{down:,} bytes reach a client {when}, {up:,} leave it.")
    click.echo(
        "Measured in the second round of a dry run with one batch of samples; a client with more classes sends more."
    )
    _show_notes(notes)
