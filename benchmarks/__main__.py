"""Run benchmarks, print one table, write build/bench.json: a flat object from name to number."""

import argparse
import importlib
import json
import os
import pkgutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from rich.console import Console
from rich.table import Table

from atoll.utils.runtime import kept_memory

from . import __doc__ as ABOUT
from . import __path__ as FOLDERS
from . import page, peers_page
from .targets import target

BUILD = Path(__file__).parents[1] / "build" / "bench.json"
PEERS = BUILD.with_name("peers.json")


def benchmarks() -> dict[str, ModuleType]:
    """Modules that can be measured, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(FOLDERS) if found.name != "__main__")
    modules = {name: importlib.import_module(f"{__package__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "figures")}


def measured(name: str, quick: bool) -> dict[str, float]:
    """The figures of a benchmark, with threads and memory as in a run, and away from the user's own data."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, _environment(ATOLL_DATA=folder), kept_memory():
        figures: dict[str, float] = benchmarks()[name].figures(quick)
        return figures


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def shown(figures: Mapping[str, float]) -> Table:
    table = Table("figure", "value", "target", "")
    for name, value in figures.items():
        wanted = target(name)
        mark = "" if wanted is None else "met" if wanted.met(value) else "[bold]missed[/bold]"
        table.add_row(name, page.number(value), str(wanted or ""), mark)
    return table


def main(words: Sequence[str] | None = None) -> None:
    options = _options(words)
    if options.page:
        if PEERS.exists():
            peers_page.keep(json.loads(PEERS.read_text()))
        page.write(json.loads(options.out.read_text()))
        return
    figures = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.only or benchmarks():
        print(f"{name} ...", file=sys.stderr, flush=True)
        figures |= measured(name, options.quick)
        options.out.write_text(
            json.dumps(figures, indent=1) + "\n"
        )  # now: what was measured stays if the next one fails
    Console().print(shown(figures))


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks", description=ABOUT, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a few steps each, to see that they run: no figures to keep"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(benchmarks()), help="some benchmarks alone")
    parser.add_argument("--page", action="store_true", help="measure nothing: put what was measured into the docs")
    parser.add_argument("--out", type=Path, help=f"where figures are written; default: {BUILD.name} in build")
    options = parser.parse_args(words)
    options.out = options.out or (BUILD.with_name("bench-quick.json") if options.quick else BUILD)
    return options


if __name__ == "__main__":
    main()
