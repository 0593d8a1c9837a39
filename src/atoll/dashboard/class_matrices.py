"""Read class matrices from the server state of a checkpoint: soft labels (SL), class relations (CR) and others."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..errors import AtollError
from ..storage.run_reader import Run
from ..storage.tolerant_reader import checkpoints
from .contract import server_fields

MOST = 200  # classes or clients that a heat map can show

SL = "Soft labels (SL): row c is the mean prediction for samples of class c."
CR = "Class relations (CR): the softmax of every row of W Wᵀ, W the weights of the global head."


class Matrix(NamedTuple):
    name: str
    title: str
    labels: list[str]  # of rows and columns
    values: list[list[float]]


def matrices(run: Run) -> dict[str, object]:
    """Return the matrices of the latest checkpoint and its round."""
    kept = checkpoints(run.path)
    if not kept:
        return {"round": None, "matrices": []}
    file = kept[-1] / "server.safetensors"
    return {"round": int(kept[-1].name.partition("-")[2]), "matrices": [m._asdict() for m in _read(file, run)]}


def _read(file: Path, run: Run) -> list[Matrix]:
    if file.is_symlink() or not file.is_file():
        return []
    try:
        with safe_open(os.fspath(file), framework="numpy") as tensors:
            return list(_matrices(tensors, run))
    except (SafetensorError, OSError, ValueError, TypeError) as reason:
        raise AtollError(f"{file} is damaged: {reason}.") from None


def _matrices(tensors: Any, run: Run) -> Iterator[Matrix]:
    """Load only the tensors that will be shown."""
    classes, clients = ([str(n) for n in run.holdings[name]] for name in ("classes", "clients"))
    meanings = server_fields(run)
    for name in sorted(tensors.keys()):
        shape = tuple(tensors.get_slice(name).get_shape())
        if len(shape) == 2 and max(shape[0], 2) <= MOST:
            if name.endswith("head.weight") and shape[0] == len(classes) > 1:
                yield Matrix(name, CR, classes, relations(tensors.get_tensor(name)).tolist())
            elif (
                shape in ((len(classes),) * 2, (len(clients),) * 2) and shape[0] > 1 and not name.startswith("params/")
            ):
                labels = classes if shape[0] == len(classes) else clients
                title = SL if name.endswith(".omega") else meanings.get(name.partition("/")[0], "")
                yield Matrix(name, title, labels, tensors.get_tensor(name).tolist())


def relations(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute A(W) of FedDW's paper from the head of any method."""
    products = weights.astype(np.float64) @ weights.astype(np.float64).T
    shares = np.exp(products - products.max(1, keepdims=True))
    return np.asarray(shares / shares.sum(1, keepdims=True))
