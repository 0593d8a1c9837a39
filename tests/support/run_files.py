"""Run directories as runs leave them, made by hand."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from safetensors.numpy import save_file

from atoll.storage.run_reader import find, load

ACCURACIES = (0.5, 0.7, 0.6)  # personal, by round


VALIDATION = (0.4, 0.6, 0.5)


def selected(final: float, best: float, by_val: float | None, worst: float | None = None) -> dict[str, Any]:
    kept = {"accuracy": by_val, "f1": 0.25, "auc": None}
    return {
        "final": final,
        "best": best,
        "best_by_val": by_val,
        "best_round": 2,
        "best_by_val_round": 2,
        "worst_decile": worst,
        "metrics": {"final": kept, "best": kept, "best_by_val": kept},
    }


def make_run(
    path: Path,
    label: str = "dcpfl",
    seed: int = 0,
    by_val: float | None = 0.7,
    generic: float | None = None,
    source: str = "server",  # of the generic model
    accuracies: tuple[float, ...] = ACCURACIES,
    validation: tuple[float | None, ...] = VALIDATION,
    sent: tuple[int, int] = (1000, 500),  # up and down, all clients, one round
    clients: tuple[str, ...] = ("a", "b", "c", "d"),
    classes: tuple[str, ...] = ("cat", "dog"),
    rejected: dict[int, list[Any]] | None = None,
    config: dict[str, Any] | None = None,
    holdings: dict[str, Any] | None = None,
    **summary: Any,
) -> Path:
    """A run directory as a run leaves it; client i is i percent better than the first one."""
    path.mkdir(parents=True)
    rounds = range(1, len(accuracies) + 1)
    said = {
        "method": label.split(":")[0],
        "variant": None,
        "label": label,
        "data": "digits",
        "partition": "dirichlet:0.1",
        "split": "client_811",
        "models": ["cnn1", "cnn2"],
        "clients": len(clients),
        "rounds": len(accuracies),
        "seed": seed,
        "status": "finished",
        "personal": selected(accuracies[-1], max(accuracies), by_val, 0.25),
        "personal_pre": selected(0.1, 0.1, 0.1),
        "generic": None if generic is None else {"source": source, **selected(generic, generic, generic)},
        "bytes": {"up": 3000, "down": 1500, "per_client_round": {"up": 1_500_000, "down": 20_400}},
        "flops": {"clients": 12.34e12, "server": 1e9},
        "seconds": 75.24,
        "digest": f"{seed:064x}",
        "version": "0.1.0",
    }
    (path / "summary.json").write_text(json.dumps(said | summary))
    scores = {"global": {"accuracy": generic, "val": generic}, "local": {"accuracy": 0.1}}
    server = None if generic is None else {"source": source, **scores}
    lines = [
        {
            "round": t,
            "personal": {"post": {"accuracy": accuracies[t - 1], "val": validation[t - 1]}, "pre": None},
            "generic": server,
            "bytes": {"up": sent[0] * t, "down": sent[1] * t},
            "flops": {"clients": 1.0, "server": 1.0},
            "seconds": float(t),
            "participants": list(clients),
            "rejected": (rejected or {}).get(t, []),
        }
        for t in rounds
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [(t, c, accuracies[t - 1] + i / 100) for t in rounds for i, c in enumerate(clients)]
    columns = {"round": [r[0] for r in rows], "client": [r[1] for r in rows], "accuracy": [r[2] for r in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path / "clients.parquet")
    counts = [[3 * i + j + 1 for j in range(len(classes))] for i in range(len(clients))]
    held = {"name": f"split-{seed}", "clients": list(clients), "classes": list(classes), "notes": []}
    held |= dict.fromkeys(("train", "val", "test"), counts)
    (path / "holdings.json").write_text(json.dumps(held | (holdings or {})))
    settled = {"method": {"name": label, "lam": 1.0}, "seed": seed, "rounds": len(accuracies), "out": str(path)}
    settled |= config or {}
    (path / "config.yaml").write_text(yaml.safe_dump(settled, sort_keys=False))
    return path


def make_comparison(root: Path, seeds: int = 3) -> list[Any]:
    """Three methods; one has a server model, one sends nothing."""
    for seed in range(seeds):
        make_run(root / f"dcpfl-seed{seed}", seed=seed, by_val=(0.90, 0.92, 0.97)[seed])
        make_run(root / f"fedavg-seed{seed}", "fedavg", seed, by_val=0.6, generic=0.55, sent=(40_000, 40_000))
        make_run(root / f"local-seed{seed}", "local", seed, by_val=0.65, sent=(0, 0))
    return [load(path) for path in find([root])]


def draw_no_report(patch: pytest.MonkeyPatch) -> None:
    """Let runs and comparisons write neither report nor figures: drawing takes longer than a small run."""
    from atoll.report import figures, html  # Imported here: every process of every test run reads this module.

    def write(runs: Any, path: Path, own: Any = ()) -> Path:
        return path

    patch.setattr(html, "write_runs", write)
    patch.setattr(figures, "write", lambda drawn, folder: [])


def checkpoint(path: Path, tensors: dict[str, Any], round: int = 3) -> Path:
    folder = path / "checkpoints" / f"round-{round:06d}"
    folder.mkdir(parents=True)
    save_file(tensors, folder / "server.safetensors")
    (folder / "manifest.json").write_text(json.dumps({"round": round, "files": {"server.safetensors": "ab" * 32}}))
    return folder
