"""How much of the processor's peak local training reaches: its floating-point operations per second over those of GEMM.

The peak is that of products of two square matrices of 1,024 in single precision, one thread. Operations are those of
matrix products and convolutions, forwards and backwards; what is timed is a whole round of FedAvg in one thread, with
the backend that ``auto`` takes apart from processes: vmap for W3, the loop for the others.
"""

import torch

from atoll.backends.loop import LoopBackend
from atoll.backends.vmap import VmapBackend
from atoll.engine.setup import Setup

from .timing import interleaved
from .works import W1, W1S, W2, Rounds, federation, operations, w3

SIDE = 1024


def figures(quick: bool) -> dict[str, float]:
    side, repeats = (64, 1) if quick else (SIDE, 5)
    a, b = torch.ones(side, side), torch.ones(side, side)
    works = {
        name: Rounds(setup, VmapBackend if name == "W3" else LoopBackend) for name, setup in _setups(quick).items()
    }
    flops = {name: operations(rounds) for name, rounds in works.items()}
    times = interleaved({"gemm": lambda: a @ b, **works}, repeats)
    peak = 2 * side**3 / times["gemm"]
    shares = {f"peak_share.{name}": flops[name] / times[name] / peak for name in works}
    return {"peak.gemm_gflops_per_thread": peak / 1e9, **shares}


def _setups(quick: bool) -> dict[str, Setup]:
    clients, rows = (1, 16) if quick else (2, 320)
    return {
        "W1s_B10": federation("fedavg", clients, rows, W1S, "small_cnn", batch_size=10),
        "W1s_B64": federation("fedavg", clients, rows, W1S, "small_cnn", batch_size=64),
        "W1_B10": federation("fedavg", clients, rows, W1, "W1", batch_size=10),
        "W1_B64": federation("fedavg", clients, rows, W1, "W1", batch_size=64),
        "W2_B64": federation("fedavg", clients, rows, W2, "cnn1", batch_size=64),
        "W3": w3(),
    }
