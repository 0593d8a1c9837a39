"""What SCD's spectral term costs beside the training step it joins: a ResNet-18, batches of 64, one thread.

Both are measured in turn, so that whatever else the machine does falls on both; the ratio of the medians is the result.
Exit status 1 says that a term costs half of a step or more.
"""

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from atoll import models
from atoll.core import Batch, Model
from atoll.key import key, normal, randint
from atoll.spectrum import distance
from atoll.train import gradient, objective, trainable

REPEATS = 5
LIMIT = 0.5


def seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model(models.build("resnet18", (3, 32, 32), 10), "resnet18")
    student = model.init()
    names = [name for name, _ in model.net.named_parameters()]
    teacher = {name: student[name] + 0.01 * normal(key(name), *student[name].shape) for name in names}
    batch = Batch(normal(key("x"), 64, 3, 32, 32), randint(key("y"), 10, 64), torch.ones(64), key("noise"), {})
    terms = {f"tau {tau:g}, {scope}": distance(teacher, names, tau=tau, scope=scope)
             for tau, scope in ((0.4, "vector"), (1.0, "vector"), (1.0, "layer"))}  # fmt: skip

    work: dict[str, Callable[[], object]] = {"step": lambda: gradient(objective(model), student, batch)}
    for name, apart in terms.items():
        work[name] = lambda apart=apart: gradient(lambda p, b: apart(p), student, batch)  # type: ignore[misc]
    times: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(REPEATS + 1):
        for name, do in work.items():
            took = seconds(do)
            if turn:  # the first warms up
                times[name].append(took)

    step = median(times["step"])
    print(f"training step, {trainable(student):,} weights: {step:.3f} s")
    ratios = {name: median(times[name]) / step for name in terms}
    for name, ratio in ratios.items():
        print(f"spectral term, {name}: {median(times[name]):.3f} s, ratio {ratio:.3f}")
    return int(max(ratios.values()) >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
