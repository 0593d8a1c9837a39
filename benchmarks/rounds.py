"""Rounds of FedAvg: Atoll's worker processes against the same work in a bare PyTorch loop, which is in this file.

``tuned``    2 processes of 1 thread, channels_last, an allocator that keeps its memory, parameters that are views of
             one vector, permuted slices, ``autograd.grad``, one call for the whole update
``plain``    the same without channels_last and with the allocator as it is
``threads``  plain, but 1 process of 2 threads

All do the same gradient steps on the same batches: 100 clients, 10 of them in a round, 600 rows each, plain SGD. After
the first round, Atoll's model and that of ``tuned`` must agree to 1e-5. Rounds are timed in turn, one of each kind
after the other, so that whatever else the machine does meets all of them; a figure is the median of the ratios of
rounds that stood side by side. ``vs_tuned.W1s_B10_E1`` is a ratio of wall time, ``cpu.vs_tuned.W1s_B10_E1`` one of the
processor time of all processes, with the server's work; below 1, Atoll is the faster one. Needs Linux, for the clocks
of processes.
"""

import argparse
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from multiprocessing import active_children, get_context
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.clients.pool import ClientPool, ClientRows
from atoll.config import Config
from atoll.core.prng import fold, key, permutation
from atoll.data.dataset import Dataset
from atoll.engine.build import run_experiment
from atoll.engine.cohort import sample_cohort
from atoll.engine.setup import Setup, build_setup

SEED, CLASSES, LR, PROCESSES = 0, 10, 0.01, 2
REPEATS = 9
AGREEMENT = 1e-5
KINDS = ("tuned", "plain", "threads")


@dataclass(frozen=True)
class Work:
    """What a round consists of."""

    name: str
    shape: tuple[int, int, int]
    filters: tuple[int, int]
    layers: tuple[int, ...]
    batch: int
    epochs: int
    clients: int = 100
    sampled: int = 10
    rows: int = 600


_W1S = ((1, 28, 28), (16, 32), (128,))
WORKS = (
    Work("W1s_B10_E1", *_W1S, batch=10, epochs=1),
    Work("W1s_B64_E5", *_W1S, batch=64, epochs=5),
    Work("W1_B10_E1", (1, 28, 28), (32, 64), (512,), batch=10, epochs=1),
    Work("W2_B64_E1", (3, 32, 32), (16, 32), (2000, 500), batch=64, epochs=1),
)


class Net(nn.Module):
    """Two stages of 5x5 convolution, ReLU and 2x2 max-pool, then linear layers."""

    def __init__(self, work: Work):
        super().__init__()
        channels, height, width = work.shape
        first, second = work.filters
        stages = [nn.Conv2d(channels, first, 5), nn.ReLU(), nn.MaxPool2d(2)]
        stages += [nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        sizes = (second * left[0] * left[1], *work.layers)
        linear = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        self.body, self.head = nn.Sequential(*stages, *linear), nn.Linear(sizes[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def build(work: Work) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return Net(work)


def prepared(work: Work) -> Setup:
    """Atoll's side, as a user would set it up; of ten rows of a client, eight are for training."""
    rng, total = np.random.default_rng(SEED), work.clients * work.rows * 10 // 8
    x = rng.integers(256, size=(total, *work.shape), dtype=np.uint8)
    y = rng.permutation(np.arange(total) % CLASSES)
    data = Dataset("synthetic", "image", x, y, x[:0], y[:0], tuple("abcdefghij"))
    rounds = 1_000_000  # evaluation comes at the end, which is never reached
    config = Config(
        clients=work.clients, rate=work.sampled / work.clients, partition="iid", seed=SEED, backend="processes",
        workers=PROCESSES, rounds=rounds, eval_every=rounds, lr=LR, epochs=work.epochs, batch_size=work.batch,
        settings={"optim.momentum": 0.0, "optim.weight_decay": 0.0, "optim.clip": 0.0},
    )  # fmt: skip
    return build_setup(config, data, [build(work)])


# ---------------------------------------------------------------------------------------------------------------------
# The bare loop


class Bare:
    """Forked processes that share the parameters: each takes the next client, trains it and adds up what comes out."""

    def __init__(self, work: Work, pool: ClientPool, kind: str):
        tuned, workers = kind == "tuned", 1 if kind == "threads" else PROCESSES
        threads = PROCESSES // workers
        context = get_context("fork")
        self.net, self.work, self.ids = build(work), work, pool.ids
        self.rows = pool.train if tuned else _lying_plainly(pool)
        self.weights = _vector(self.net, channels_last=tuned).share_memory_()
        self.sums = torch.zeros(workers, len(self.weights)).share_memory_()
        taken = context.Value("i", 0)
        self._taken, self._pipes, self.processes = taken, list[Connection](), []
        for own in self.sums:
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(pool, tuned, own, theirs, threads), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def round(self, t: int) -> None:
        cohort = sample_cohort(self.ids, self.work.sampled / self.work.clients, SEED, t)
        self._taken.value = 0
        for pipe in self._pipes:
            pipe.send((t, cohort))
        for pipe in self._pipes:
            pipe.recv()
        torch.mul(self.sums.sum(0), 1 / len(cohort), out=self.weights)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid]

    def params(self) -> dict[str, Tensor]:
        _lay(self.net, self.weights)
        return {name: p.detach().contiguous() for name, p in self.net.named_parameters()}

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()
            pipe.close()

    def _serve(self, pool: ClientPool, tuned: bool, own: Tensor, pipe: Connection, threads: int) -> None:
        torch.set_num_threads(threads)
        if tuned:
            _keep_memory()
        flat = self.weights.clone()
        params = _lay(self.net, flat)
        while (order := _received(pipe)) is not None:
            t, cohort = order
            own.zero_()
            while (at := self._next()) < len(cohort):
                flat.copy_(self.weights)
                self._train(pool, params, cohort[at], t)
                own += flat
            pipe.send(None)

    def _next(self) -> int:
        with self._taken.get_lock():
            self._taken.value += 1
            return int(self._taken.value - 1)

    def _train(self, pool: ClientPool, params: list[Tensor], client: str, t: int) -> None:
        x, y = self.rows[pool.position(client)]
        k = key(SEED, "local", t, client)
        for epoch in range(self.work.epochs):
            for rows in permutation(fold(fold(k, epoch), 0), len(x)).split(self.work.batch):
                loss = F.cross_entropy(self.net(x[rows]), y[rows])
                grads = torch.autograd.grad(loss, params)
                with torch.no_grad():
                    torch._foreach_add_(params, grads, alpha=-LR)


def _lying_plainly(pool: ClientPool) -> ClientRows:
    """The rows of all clients without channels last, in which Atoll keeps them.

    Copied in any case: with one channel both layouts are the same memory, but torch goes by the strides.
    """
    x, y = pool.train.all
    plainly = x.clone(memory_format=torch.contiguous_format)
    return ClientRows(plainly, y, [pool.train.size(at) for at in range(len(pool.ids))])


def _received(pipe: Connection) -> Any:
    """The next order; None as well when the parent is gone, which the end of the pipe would not tell."""
    parent = os.getppid()
    while not pipe.poll(1):
        if os.getppid() != parent:
            return None
    return pipe.recv()


def _vector(net: nn.Module, channels_last: bool) -> Tensor:
    """All parameters in one vector, kernels in the order in which they are to lie in memory."""
    for p in net.parameters():
        if channels_last and p.ndim == 4:
            p.data = p.data.to(memory_format=torch.channels_last)
    return torch.cat([_in_memory(p.detach()).flatten() for p in net.parameters()])


def _in_memory(p: Tensor) -> Tensor:
    """A view whose dimensions come in the order of memory."""
    return p.permute(0, 2, 3, 1) if p.ndim == 4 and p.stride(1) == 1 else p


def _lay(net: nn.Module, flat: Tensor) -> list[Tensor]:
    """Make the parameters views of the vector."""
    start = 0
    for p in net.parameters():
        form = _in_memory(p.detach())
        view = flat[start : start + p.numel()].view(form.shape)
        p.data = view if form.shape == p.shape and form.stride() == p.stride() else view.permute(0, 3, 1, 2)
        start += p.numel()
    return list(net.parameters())


def _keep_memory() -> None:
    """Tell glibc's allocator to give nothing back: no mappings of their own for large blocks, no trimming."""
    libc = ctypes.CDLL(None)
    for parameter, value in ((-4, 0), (-1, 2**31 - 1), (-2, 128 * 2**20)):  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD
        libc.mallopt(parameter, value)


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


class Time(NamedTuple):
    wall: float
    cpu: float


class Enough(Exception):
    """All rounds have been timed."""


def _now(pids: Sequence[int]) -> Time:
    """Wall clock, and processor time of this process and of others."""
    others = sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # how Linux numbers the clocks of processes
    return Time(time.perf_counter(), time.process_time() + others)


def _since(before: Time, after: Time) -> Time:
    return Time(after.wall - before.wall, after.cpu - before.cpu)


def _timed(f: Callable[[], None], pids: Sequence[int]) -> Time:
    before = _now(pids)
    f()
    return _since(before, _now(pids))


@contextmanager
def _opened(work: Work, pool: ClientPool, kinds: Sequence[str]) -> Iterator[dict[str, Bare]]:
    bare = {kind: Bare(work, pool, kind) for kind in kinds}
    try:
        yield bare
    finally:
        for loop in bare.values():
            loop.close()


def measure(work: Work, setup: Setup, repeats: int, kinds: Sequence[str]) -> dict[str, list[Time]]:
    """The times of rounds that stood side by side, by kind; the first round of each is not counted."""
    times: dict[str, list[Time]] = {kind: [] for kind in ("atoll", *kinds)}
    with _opened(work, setup.pool, kinds) as bare:
        strangers = set(active_children())
        mark: Time | None = None

        def now() -> Time:
            return _now([p.pid for p in active_children() if p not in strangers and p.pid])

        def watch(t: int, line: Any) -> None:
            nonlocal mark
            if mark is not None:
                times["atoll"].append(_since(mark, now()))
            for kind, loop in bare.items():
                took = _timed(partial(loop.round, t - 1), loop.pids)
                times[kind] += [took] if mark is not None else []
            if t > repeats:
                raise Enough
            mark = now()

        with suppress(Enough):
            run_experiment(setup, watch=watch)
    return times


def gap(work: Work, setup: Setup) -> float:
    """The largest difference between the parameters of Atoll and of the tuned loop after one round."""
    ours = run_experiment(replace(setup, config=replace(setup.config, rounds=1))).server.params
    with _opened(work, setup.pool, ["tuned"]) as bare:
        bare["tuned"].round(0)
        theirs = bare["tuned"].params()
    return max(float((ours[name] - v).abs().max()) for name, v in theirs.items())


def compared(work: Work, repeats: int, kinds: Sequence[str] = KINDS) -> dict[str, list[Time]]:
    """The times of one work, once it is certain that it is the same work."""
    torch.set_num_threads(1)
    setup = prepared(work)
    if (found := gap(work, setup)) > AGREEMENT:
        raise AssertionError(f"{work.name}: after one round, parameters differ by {found:.1e}")
    return measure(work, setup, repeats, kinds)


def ratios(times: Mapping[str, Sequence[Time]], kind: str, clock: str) -> list[float]:
    """Atoll's time over that of another kind, for each pair of rounds that stood side by side."""
    pairs = zip(times["atoll"], times[kind], strict=True)
    return [getattr(ours, clock) / getattr(theirs, clock) for ours, theirs in pairs]


def figures(quick: bool = False) -> dict[str, float]:
    """``quick``: a few steps of one work, to see that everything runs."""
    found: dict[str, float] = {}
    for work in WORKS[:1] if quick else WORKS:
        times = compared(replace(work, clients=4, sampled=2, rows=20), 1) if quick else compared(work, REPEATS)
        for kind in KINDS:
            found[f"vs_{kind}.{work.name}"] = median(ratios(times, kind, "wall"))
            found[f"cpu.vs_{kind}.{work.name}"] = median(ratios(times, kind, "cpu"))
    return found


def table(work: Work, times: Mapping[str, Sequence[Time]]) -> str:
    """Seconds of a round, and Atoll's over them: the median, the least and the most."""
    lines = []
    for kind in times:
        cells = [f"{work.name:12} {kind:8}"]
        for clock in Time._fields:
            each = ratios(times, kind, clock)
            seconds = median(getattr(time, clock) for time in times[kind])
            cells.append(f"{clock} {seconds:7.2f} s  {median(each):5.2f} ({min(each):.2f}-{max(each):.2f})")
        lines.append("   ".join(cells))
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", nargs="+", choices=[w.name for w in WORKS], default=[w.name for w in WORKS])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument(
        "--clients", type=int, default=100, help="fewer take less memory; those not sampled cost nothing"
    )
    options = parser.parse_args(words)
    for work in (replace(w, clients=options.clients) for w in WORKS if w.name in options.works):
        print(table(work, compared(work, options.repeats, options.kinds)), flush=True)


if __name__ == "__main__":
    main()
