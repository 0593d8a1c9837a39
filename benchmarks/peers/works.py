"""The works that contenders share, as Atoll builds them, and the file that carries their tensors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.clients.pool import ClientPool
from atoll.config import Config
from atoll.core.model import Model
from atoll.engine.setup import Setup, build_setup

from .. import rounds
from ..many_clients import disturbed_digits

RATE = 0.05
PLAIN = {"optim.momentum": 0.0, "optim.weight_decay": 0.0, "optim.clip": 0.0}
W2 = rounds.Work("W2", (1, 28, 28), (16, 32), (128,), batch=32, epochs=1)
WORKS: dict[str, dict[str, Any]] = {
    "W1": {"clients": 20, "sampled": 20, "rounds": 20, "batch": 10},
    "W2": {"clients": 10, "sampled": 10, "rounds": 5, "batch": 32},
    "W3": {"clients": 1_000, "sampled": 10, "rounds": 100, "batch": 10},
    "N10000": {"clients": 10_000, "sampled": 10, "rounds": 100, "batch": 10},
}


def build(name: str, data_dir: str | None = None, backend: str | None = None) -> Setup:
    """Build a work as a user of Atoll would.

    Args:
        name: one of ``WORKS``.
        data_dir: folder with Fashion-MNIST, for W2.
        backend: where clients run; by default vmap, and the loop for W2.
    """
    work = WORKS[name]
    common: dict[str, Any] = {
        "clients": work["clients"], "rate": work["sampled"] / work["clients"], "partition": "iid", "epochs": 1,
        "batch_size": work["batch"], "lr": RATE, "rounds": work["rounds"], "eval_every": work["rounds"],
        "backend": backend or ("loop" if name == "W2" else "vmap"), "settings": PLAIN,
    }  # fmt: skip
    if name == "W2":
        return build_setup(
            Config(data="fashion_mnist", data_dir=data_dir, rows=6_000, **common), None, [rounds.build(W2)]
        )
    small = {**common, "models": ("mlp:hidden=32",)}
    if name == "W1":
        return build_setup(Config(data="digits", **small))
    return build_setup(Config(**small), disturbed_digits(work["clients"]))


def write(name: str, setup: Setup, folder: Path) -> Path:
    """Write tensors, sizes and first weights of a work, and return the file."""
    pool = setup.pool
    weights = {f"weight_{at}": v.numpy() for at, v in enumerate(_model(pool).init().values())}
    facts = WORKS[name] | {"lr": RATE, "kind": "cnn" if name == "W2" else "mlp"}
    path = folder / f"{name}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        x=pool.train.all.x.numpy(),
        y=pool.train.all.y.numpy(),
        sizes=[pool.train.size(at) for at in range(len(pool.ids))],
        facts=json.dumps(facts),
        **weights,
    )
    return path


def accuracy(setup: Setup, weights: list[Tensor]) -> float:
    """Return the accuracy of a global model, given its tensors in the order of the layers, on all test rows."""
    model, test = _model(setup.pool), setup.pool.test.all
    params = dict(zip(model.init(), weights, strict=True))
    with torch.no_grad():
        return float((model(params, test.x).argmax(1) == test.y).double().mean())


def _model(pool: ClientPool) -> Model:
    return pool.models[pool.ids[0]]
