"""Choose where the clients of a run are computed: the device, and the backend that ``--backend auto`` stands for."""

import os

import torch
from torch import nn

from ..clients.pool import ClientPool
from ..config import Config
from ..core.method import AnyMethod, traits_of
from ..errors import AtollError
from ..privacy.setup import needs_row_gradients
from ..utils.memory import available_memory
from .vmap_trial import find_vmap_problem, is_tried, two_clients

WORKER_BYTES = 300_000_000  # that a worker process takes beside its models: torch, its caches, messages
WORKER_COPIES = 8  # of the largest model: download, weights, gradients, momentum, result, state, and two under way
VMAP_LIMIT = 200_000  # weights up to which vmap is faster than two processes; see benchmarks/auto_rule.py


def resolve_device(config: Config) -> str:
    """Resolve ``--device``. Picks CUDA if available, except for backends with worker processes, which use the CPU."""
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise AtollError("--device cuda: torch finds no CUDA device here. Use --device cpu.")
    if config.device == "cuda" and config.backend in ("processes", "ray"):
        raise AtollError(
            f"--backend {config.backend} runs on the CPU only. Use --backend loop or vmap, or --device cpu."
        )
    if config.device != "auto":
        return config.device
    return "cuda" if has_cuda and config.backend not in ("processes", "ray") else "cpu"


def choose_backend(method: AnyMethod, pool: ClientPool, config: Config) -> tuple[str, tuple[str, ...]]:
    """Choose the backend by a fixed rule and not by measured time, and return it with notes for the user.

    Small networks without convolutions are batched by vmap. A method from outside the package that does not say
    whether it can be batched is tried on two clients.
    """
    built = {pool.models[i].name: pool.models[i] for i in pool.ids}.values()
    unbatched = "processes" if config.device == "cpu" else "loop"
    can_batch = (
        (traits_of(method).vmap is not False)
        and not config.until_download
        and not needs_row_gradients(method)
        and all(model.vectorisable and _is_overhead_bound(model.net) for model in built)
    )
    if not can_batch:
        return unbatched, ()
    if is_tried(method) and (problem := find_vmap_problem(method, two_clients(method, pool))):
        return unbatched, (f"--backend auto took {unbatched} for {type(method).__name__}: {problem}",)
    return "vmap", ()


def default_workers(pool: ClientPool) -> int:
    """Return the number of worker processes without ``--workers``: one for each core, fewer if memory is short.

    Results do not depend on the number.
    """
    cores, free = os.cpu_count() or 1, available_memory()
    if free is None:
        return cores
    models = {id(model): model for model in (*pool.models.values(), *([pool.proxy] if pool.proxy else []))}
    largest: int = max(sum(v.nbytes for v in model.net.state_dict().values()) for model in models.values())
    return max(1, min(cores, free // (WORKER_BYTES + WORKER_COPIES * largest)))


def _is_overhead_bound(net: nn.Module) -> bool:
    weights = sum(p.numel() for p in net.parameters())
    return weights <= VMAP_LIMIT and not any(isinstance(m, nn.Conv2d) for m in net.modules())
