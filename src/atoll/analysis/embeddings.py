"""Compute features of test rows by the models of a run, and embed them in the plane."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import AtollError, unknown
from ..inference.models import TrainedModels
from ..typing import ClientId

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

EMBEDDINGS = ("tsne", "umap")
ROWS = 100  # of each client; more points would cover one another


class Features(NamedTuple):
    """Features and labels of rows, and the weight vectors of the head."""

    x: Array  # [rows, width]
    labels: Labels  # [rows]
    heads: Array | None  # [classes, width]: the weight vectors of the head, if all rows went through one model


class Separation(NamedTuple):
    """Measures of how well features separate classes, in all dimensions."""

    near: float  # share of rows that are nearest to the centre of their own class
    silhouette: float  # from -1 to 1
    heads: float  # share of weight vectors that point to the centre of their own class rather than another; or NaN


def features(models: TrainedModels, clients: Sequence[ClientId] = (), rows: int = ROWS, unit: bool = False) -> Features:
    """Compute the features of clients' test rows by their personal models.

    Args:
        models: the trained models.
        clients: names of clients; all by default.
        rows: largest number of rows of each client.
        unit: whether to scale features and weight vectors to norm 1.

    Raises:
        AtollError: the models have different feature widths.
    """
    chosen = [models.client(i) for i in clients] or list(models.clients)
    found = [_of_client(models, i, rows) for i in chosen]
    widths = sorted({x.shape[1] for x, _, _ in found})
    if len(widths) > 1:
        raise AtollError(
            f"The clients' features have different widths ({', '.join(map(str, widths))}), so one map cannot show them "
            "all. Name one client, or run with --width."
        )
    x, y = (torch.cat([f[at] for f in found]) for at in (0, 1))
    head = found[0][2] if all(torch.equal(found[0][2], other) for _, _, other in found) else None
    parts = [x.double().numpy(), None if head is None else head.double().numpy()]
    plain, weights = (_unit(p) if unit and p is not None else p for p in parts)
    assert plain is not None
    return Features(plain, y.numpy(), weights)


def _of_client(models: TrainedModels, i: ClientId, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = models.pool.test[models.pool.position(i)]
    params = models.params(i)
    with torch.no_grad():
        return models.pool.models[i].features(params, x[:rows]).cpu(), y[:rows].cpu(), params["head.weight"].cpu()


def _unit(x: Array) -> Array:
    scaled: Array = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return scaled


def separation(found: Features) -> Separation:
    """Measure how well features separate classes."""
    from sklearn.metrics import silhouette_score

    held = np.unique(found.labels)
    centres = np.stack([found.x[found.labels == c].mean(0) for c in held])
    gaps = ((found.x[:, None] - centres[None]) ** 2).sum(2)
    near = float((held[gaps.argmin(1)] == found.labels).mean())
    able = 1 < len(held) < len(found.labels)
    silhouette = float(silhouette_score(found.x, found.labels)) if able else float("nan")
    if found.heads is None:
        return Separation(near, silhouette, float("nan"))
    nearest = (_unit(found.heads[held]) @ _unit(centres).T).argmax(1)
    return Separation(near, silhouette, float((nearest == np.arange(len(held))).mean()))


def embed(found: Features, way: str = "tsne", perplexity: float = 30.0, seed: int = 0) -> tuple[Array, Array | None]:
    """Embed rows and weight vectors together in the plane. The arguments determine the result.

    Args:
        found: the features.
        way: ``tsne`` or ``umap``.
        perplexity: effective number of neighbours, lowered for few rows.
        seed: seed of the embedding.

    Returns:
        Positions of rows [rows, 2], and of weight vectors [classes, 2] if there are any.
    """
    together = found.x if found.heads is None else np.concatenate([found.x, found.heads])
    if len(together) < 5:
        raise AtollError(f"{len(together)} samples are too few for a map. Use more samples, or more clients.")
    flat = _make_embedding(way, min(perplexity, (len(together) - 1) / 3), seed).fit_transform(
        together.astype(np.float32)
    )
    plane: Array = np.asarray(flat, dtype=float)
    return plane[: len(found.x)], None if found.heads is None else plane[len(found.x) :]


def _make_embedding(way: str, perplexity: float, seed: int) -> Any:
    if way == "tsne":
        from sklearn.manifold import TSNE

        return TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed)
    if way != "umap":
        raise unknown("map", way, EMBEDDINGS)
    try:
        from umap import UMAP
    except ImportError:
        raise AtollError("Maps by umap need the package umap-learn: pip install umap-learn") from None
    return UMAP(n_neighbors=max(2, int(perplexity)), random_state=seed, n_jobs=1)
