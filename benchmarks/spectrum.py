"""What SCD's spectral term costs beside the training step it joins: a ResNet-18, batches of 64, one thread.

``spectrum.*`` is the time of a gradient of the term over that of a training step, for a teacher whose spectrum is
known: low frequencies or all of them, over the whole vector or layer by layer.
"""

import torch

from atoll import models
from atoll.core.batch import Batch
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.prng import key, normal, randint
from atoll.methods._spectrum import spectral_distance

from .timing import Work, interleaved

TERMS = {"low_vector": (0.4, "vector"), "all_vector": (1.0, "vector"), "all_layer": (1.0, "layer")}


def figures(quick: bool) -> dict[str, float]:
    name, rows, repeats = ("lenet", 4, 1) if quick else ("resnet18", 64, 5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Model(models.build(name, (3, 32, 32), 10), name)
    student = model.init()
    names = [name for name, _ in model.net.named_parameters()]
    teacher = {name: student[name] + 0.01 * normal(key(name), *student[name].shape) for name in names}
    batch = Batch(normal(key("x"), rows, 3, 32, 32), randint(key("y"), 10, rows), torch.ones(rows), key("noise"), {})

    def term(tau: float, scope: str) -> Work:
        apart = spectral_distance(teacher, names, tau=tau, scope=scope)
        return lambda: gradient(lambda p, b: apart(p), student, batch)

    works = {"step": lambda: gradient(objective(model), student, batch)}
    times = interleaved(works | {name: term(*how) for name, how in TERMS.items()}, repeats)
    return {f"spectrum.{name}": times[name] / times["step"] for name in TERMS}
