"""Digests of short runs of every method: ``record`` them before a change of structure, ``compare`` them after it.

    python -m benchmarks.digests record before.json
    python -m benchmarks.digests compare before.json

A digest covers the state of the server and of every client after the last round, bit for bit. Digests of two machines
may differ in their last bits, so a file is compared on the machine that recorded it.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atoll
from atoll.core.method import traits_of
from atoll.core.traits import Need
from atoll.methods import _registry

COMMON: dict[str, Any] = {
    "data": "digits", "clients": 5, "partition": "dirichlet:0.5", "rounds": 2, "eval_every": 2, "epochs": 1,
    "batch_size": 16,
}  # fmt: skip
BACKENDS: dict[str, dict[str, Any]] = {
    "loop": {"backend": "loop"},
    "processes": {"backend": "processes", "workers": 2},
    "vmap": {"backend": "vmap"},
}
PUBLIC = 60  # Rows, for methods that need some.
SHORT: dict[str, dict[str, Any]] = {  # Settings that keep a method's trial short; tests use them too.
    "ditto": {"settings": {"personal_optim.epochs": 1}},
    "fedala": {"settings": {"most_passes": 2}},
    "fedavg_ft": {"settings": {"finetune.epochs": 2}},
    "fedbabu": {"settings": {"finetune.epochs": 1}},
    "fedbn": {"models": ["mlp:norm=true"]},
    "fedfed": {"settings": {"distil_rounds": 1}},
    "fedgen": {"settings": {"teach.epochs": 3}},
    "feddf": {"settings": {"steps": 3}},
    "fedmd": {"settings": {"first_epochs": 1}},
    "fedpd": {"server_model": "mlp_a", "settings": {"server.epochs": 1}},
    "fedrep": {"settings": {"head_optim.epochs": 1}},
    "fedtgp": {"settings": {"server.epochs": 2}},
    "pfedes": {"settings": {"proxy_optim.epochs": 1}},
    "pfedme": {"settings": {"steps": 2}},
    "scd": {"settings": {"personal_optim.epochs": 1}},
}
OPTIONS: dict[str, dict[str, Any]] = {  # one run for each part of the engine that can change a number
    "robust": {"method": "fedavg", "robust": "median", "rounds": 3},
    "robust-table": {"method": "fedproto", "robust": "trimmed:0.2"},
    "fixed-sums": {"method": "fedavg", "sums": "fixed"},
    "poison": {"method": "fedavg", "poison": "0.4:alie", "rounds": 3},
    "faults": {"method": "scd", "drop": "0.3", "stragglers": "0.5:10", "deadline": 50.0, "rounds": 4},
    "gate": {"method": "dcpfl", "min_class_count": 5},
    "dp-updates": {"method": "fedavg", "dp": "8", "dp_seed": 1},
    "dp-statistics": {"method": "dcpfl", "dp": "50", "dp_seed": 1},
    "dp-training": {"method": "fedavg", "dp": "8", "dp_seed": 1, "optimiser": "dpsgd"},
    "adam": {"method": "fedavg", "optimiser": "adam"},
    "regularisers": {"method": "fedavg", "terms": ["dw:mu=0.5", "proximal:mu=0.1"]},
    "partial": {"method": "ditto", "rate": 0.5, "rounds": 4},
    "cnn": {"method": "fedavg", "models": ["cnn_a"], "rows": 600, "batch_size": 32},
    "heterogeneous": {"method": "fedproto", "models": ["mlp_a", "cnn_a"], "width": 32, "rows": 600},
    "augmented": {"method": "local", "models": ["cnn_a"], "rows": 400, "transform": "liping_aug"},
    "wait-free": {"method": "scd", "wait_free": True},
    "new_clients": {"method": "fedavg", "new_clients": 1},
}


def short_options(name: str) -> dict[str, Any]:
    """Return the options that keep a trial of a method short, with public rows if the method needs them."""
    public = {"public": PUBLIC} if Need.PUBLIC_DATA in traits_of(_registry.method(name)).needs else {}
    return public | SHORT.get(name, {})


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the options of every run."""
    for name, cls in sorted(_registry.methods().items()):
        for spec in (name, *(f"{name}:{variant}" for variant in traits_of(cls).variants)):
            for backend, where in BACKENDS.items():
                if backend != "vmap" or traits_of(cls).vmap is not False:
                    yield f"{spec} {backend}", COMMON | short_options(name) | where | {"method": spec}
    for name, changes in OPTIONS.items():
        yield f"option {name}", COMMON | {"backend": "loop"} | changes


def digests() -> Iterator[tuple[str, str]]:
    """Run every case; a run that is refused has its message in place of a digest."""
    for name, options in cases():
        try:
            yield name, str(atoll.run(**options).summary["digest"])
        except atoll.AtollError as reason:
            yield name, f"refused: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    before = json.loads(options.file.read_text()) if options.action == "compare" else {}
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATOLL_DATA"] = folder
        for name, digest in digests():
            found[name] = digest
            print(name, digest[:16] if before.get(name, digest) == digest else f"{digest}, before {before[name]}")
    if options.action == "record":
        options.file.write_text(json.dumps(found, indent=1) + "\n")
        return
    differing = [name for name, digest in before.items() if found.get(name) != digest]
    same, new = len(before) - len(differing), len(found.keys() - before)
    print(f"{same} of {len(before)} digests are the same; {new} are new.")
    if differing:
        raise SystemExit(f"Different: {', '.join(differing)}")


if __name__ == "__main__":
    main()
