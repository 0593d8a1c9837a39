"""Install the peers, run all contenders in turns, print the table, write build/peers.json."""

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from . import __doc__ as ABOUT
from . import works

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build"
TORCH = ("torch==2.13.0", "numpy")
PEERS: dict[str, tuple[str, ...]] = {  # what pip installs, in this order
    "fedlab": (*TORCH, "fedlab", "tqdm", "pynvml", "pillow"),
    "pfl": (*TORCH, "pfl"),
    "fluke": (*TORCH, "fluke-fl"),
    "fedjax": ("fedjax",),
    "flower": (*TORCH, "flwr[simulation]"),
}
LOOPS = ("bare", "tuned", "batched")  # without any framework: plain, by hand client by client, by hand all at once
# Freed memory stays in the process, with glibc: Atoll sees to this itself, and whoever tunes a loop would too.
KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(64 * 2**20)}
OWN = ("atoll", *LOOPS)  # contenders that run in this environment
LIMIT = 1800  # seconds of a contender


def install(peer: str) -> Path | None:
    """Return the interpreter of a peer's own environment; None, with a note, if it cannot be installed."""
    folder = BUILD / "peers" / peer
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        venv.create(folder, with_pip=True)
        # Some peers bring another torch: all contenders get the same one at the end.
        for packages in (PEERS[peer][:2], PEERS[peer], ["--no-deps", *PEERS[peer][:1]]):
            done = subprocess.run(
                [python, "-m", "pip", "install", "--quiet", *packages], check=False, capture_output=True, text=True
            )
            if done.returncode:
                print(f"{peer} is left out: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                return None
        ready.touch()
    return python


def run(contender: str, python: Path, work: str, data_dir: str | None) -> dict[str, Any]:
    """Run a contender once in a new process on one core, and return what it printed, or the reason why it failed."""
    file, out = BUILD / "peers" / "works" / f"{work}.npz", BUILD / "peers" / "works" / f"{work}-{contender}.npz"
    if contender == "atoll":
        words = [sys.executable, "-m", "benchmarks.peers.atoll_run", work, str(out), *filter(None, [data_dir])]
    else:
        words = [
            str(python),
            str(HERE / (f"{contender}.py" if contender in LOOPS else f"{contender}_run.py")),
            str(file),
            str(out),
        ]
    core = {min(os.sched_getaffinity(0))}
    done = subprocess.run(
        words,
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        cwd=HERE.parents[1],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
            **(KEPT_MEMORY if contender in ("tuned", "batched") else {}),
        },
        preexec_fn=lambda: os.sched_setaffinity(0, core),
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"failed": lines[-1] if lines else f"exit code {done.returncode}"}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compare(work: str, contenders: dict[str, Path], turns: int, data_dir: str | None) -> dict[str, Any]:
    """Run all contenders in turns on one work, and return times, ratios and accuracies."""
    setup = works.build(work, data_dir)
    works.write(work, setup, BUILD / "peers" / "works")
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for turn in range(turns + 1):
        for name, python in contenders.items():
            print(f"{work}, turn {turn} of {turns}: {name}", file=sys.stderr, flush=True)
            found = run(name, python, work, data_dir)
            if turn or turns == 0:
                taken[name].append(found)
    rows: dict[str, Any] = {}
    for name, results in taken.items():
        failed = next((result["failed"] for result in results if "failed" in result), None)
        if failed is not None:
            rows[name] = {"failed": failed}
            continue
        stored = np.load(BUILD / "peers" / "works" / f"{work}-{name}.npz")
        ratios = [
            own["cpu"] / other["cpu"] for own, other in zip(results, taken["atoll"], strict=True) if "cpu" in other
        ]
        rows[name] = {
            "cpu": median(result["cpu"] for result in results),
            "wall": median(result["wall"] for result in results),
            "rss_mb": max(result["rss_mb"] for result in results),
            "version": results[0]["version"],
            "ratio": [median(ratios), min(ratios), max(ratios)] if ratios else None,
            "accuracy": works.accuracy(setup, [torch.from_numpy(stored[key]) for key in stored.files]),
            **({"later": median(r["later"] for r in results)} if "later" in results[0] else {}),
        }
    return rows


def shown(found: dict[str, dict[str, Any]]) -> Table:
    """Return the table: seconds, and ratios peer ÷ Atoll in the same turn, median [lowest..highest]."""
    table = Table("contender", "version", *(f"{work}: {what}" for work in found for what in ("CPU s", "ratio", "acc.")))
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    for name in names:
        versions = [rows[name]["version"] for rows in found.values() if "version" in rows.get(name, {})]
        cells = [cell for rows in found.values() for cell in _cells(rows.get(name))]
        table.add_row(name, versions[0] if versions else "", *cells)
    return table


def _cells(row: dict[str, Any] | None) -> tuple[str, str, str]:
    if row is None or "failed" in row:
        return ("failed" if row else "", "", "")
    middle, low, high = row["ratio"] or (float("nan"),) * 3
    return f"{row['cpu']:.3g}", f"{middle:.2f} [{low:.2f}..{high:.2f}]", f"{row['accuracy']:.3f}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "benchmarks.peers", description=ABOUT, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--works", nargs="+", choices=list(works.WORKS), default=list(works.WORKS))
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--turns", type=int, default=5, help="turns that count; 0: only the one that warms up")
    parser.add_argument("--data-dir", help="folder with fashion_mnist, for W2")
    options = parser.parse_args(words)
    installed = {peer: python for peer in options.peers if (python := install(peer))}
    everybody = {**dict.fromkeys(OWN, Path(sys.executable)), **installed}
    out = BUILD / "peers.json"
    found = json.loads(out.read_text()) if out.exists() else {}
    for work in options.works:
        contenders = {name: python for name, python in everybody.items() if work != "W2" or name != "batched"}
        found[work] = found.get(work, {}) | compare(work, contenders, options.turns, options.data_dir)
        out.write_text(json.dumps(found, indent=1) + "\n")
        keep_figures(work, found[work])
    Console(width=200).print(shown({work: found[work] for work in options.works}))
    for work in options.works:
        for name, row in found[work].items():
            if "failed" in row:
                print(f"{work}, {name}: {row['failed']}")


def keep_figures(work: str, rows: dict[str, Any]) -> None:
    """Put the ratios among the figures of the other benchmarks, which have targets."""
    path = BUILD / "bench.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    for name, row in rows.items():
        if name != "atoll" and row.get("ratio"):
            kind = "vs_loop" if name in LOOPS else "vs_peer"
            figures[f"{kind}.{name}.{work}"] = row["ratio"][0]
    path.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
