"""What SCD's spectral term costs, in one thread: beside its transforms, beside a training step, and with ``reg_every``.

``spectrum.over_torch_1e6`` is the time of a gradient of the term over that of ``torch.fft.rfft`` and ``irfft``, the two
transforms that it needs, for a network of linear layers with a million weights and a teacher whose spectrum is known;
``spectrum.over_transforms_1e6`` the same beside Atoll's own transforms, which take a fraction of the time of torch's.
``spectrum.low_vector`` and the like are the time of such a gradient over that of a training step of a ResNet-18 with
batches of 64: low frequencies or all of them, over the whole vector or layer by layer. ``spectrum.reg_every_R`` is the
time of training the personal model of the million weights, one epoch of 32 batches of 32, over that with the term in
every step; ``spectrum.reg_every_R_moves`` how far the weights end from those, over the way that they went.
"""

from typing import Any

import torch

from atoll import models
from atoll.core.batch import Batch
from atoll.core.client import Client
from atoll.core.losses import objective
from atoll.core.model import Model
from atoll.core.optim.base import gradient
from atoll.core.optim.sgd import SGD
from atoll.core.params import sqnorm, sub
from atoll.core.payloads import Params
from atoll.core.prng import key, normal, randint
from atoll.core.problems import Classes
from atoll.core.task import Round
from atoll.methods._fourier import make_transform, next_smooth_length
from atoll.methods._spectrum import spectral_distance
from atoll.methods.fedavg import Global, Update
from atoll.methods.local import State
from atoll.methods.scd import SCD

from .timing import Work, interleaved

TERMS = {"low_vector": (0.4, "vector"), "all_vector": (1.0, "vector"), "all_layer": (1.0, "layer")}
COLUMNS, CLASSES = 64, 10


def figures(quick: bool) -> dict[str, float]:
    return _beside_transforms(quick) | _beside_steps(quick) | _every(quick)


def _beside_transforms(quick: bool) -> dict[str, float]:
    student = _linear(quick).init()
    of = spectral_distance(_nearby(student), list(student))
    batch = _batch(1, (COLUMNS,))
    length = next_smooth_length(sum(v.numel() for v in student.values()))
    transform = make_transform(length, torch.float32, torch.device("cpu"))
    vector = normal(key("vector"), length)
    waves, bins = transform(vector), torch.fft.rfft(vector)
    works: dict[str, Work] = {
        "term": lambda: gradient(lambda p, b: of(p), student, batch),
        "there": lambda: transform(vector),
        "back": lambda: transform.back(waves),
        "torch there": lambda: torch.fft.rfft(vector),
        "torch back": lambda: torch.fft.irfft(bins, n=length),
    }
    times = interleaved(works, 1 if quick else 21)
    return {
        "spectrum.over_transforms_1e6": times["term"] / (times["there"] + times["back"]),
        "spectrum.over_torch_1e6": times["term"] / (times["torch there"] + times["torch back"]),
    }


def _beside_steps(quick: bool) -> dict[str, float]:
    name, rows, repeats = ("lenet", 4, 1) if quick else ("resnet18", 64, 5)
    model = _model(name, (3, 32, 32))
    student = model.init()
    names = model.weight_names
    teacher, batch = _nearby(student), _batch(rows, (3, 32, 32))

    def term(tau: float, scope: str) -> Work:
        apart = spectral_distance(teacher, names, tau=tau, scope=scope)
        return lambda: gradient(lambda p, b: apart(p), student, batch)

    works = {"step": lambda: gradient(objective(model), student, batch)}
    times = interleaved(works | {name: term(*how) for name, how in TERMS.items()}, repeats)
    return {f"spectrum.{name}": times[name] / times["step"] for name in TERMS}


def _every(quick: bool) -> dict[str, float]:
    model, rows = _linear(quick), 128 if quick else 1024
    batch, start = _batch(rows, (COLUMNS,)), model.init()
    client = Client(batch.x, batch.y, torch.tensor(rows), model, Classes(CLASSES))
    teacher = _nearby(start)

    def train(every: int) -> Params:
        method = SCD(personal_optim=SGD(epochs=1), reg_every=every)
        up = Update(teacher, client.n, {})
        return method.after_upload(Global(start, {}), up, State(start), client, Round(0), key(0)).params

    works: dict[str, Any] = {str(every): (lambda every=every: train(every)) for every in (1, 2, 4)}
    times, ends = interleaved(works, 1 if quick else 5), {name: work() for name, work in works.items()}
    found: dict[str, float] = {}
    for name in ("2", "4"):
        moved = sqnorm(sub(ends[name], ends["1"])) / sqnorm(sub(ends["1"], start))
        found |= {
            f"spectrum.reg_every_{name}": times[name] / times["1"],
            f"spectrum.reg_every_{name}_moves": float(moved.sqrt()),
        }
    return found


def _linear(quick: bool) -> Model:
    return _model("mlp", (COLUMNS,), hidden=(40, 18) if quick else (4000, 180))


def _model(name: str, shape: tuple[int, ...], **more: Any) -> Model:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Model(models.build(name, shape, CLASSES, **more), name)


def _nearby(params: Params) -> Params:
    return {name: v + 0.01 * normal(key(name), *v.shape) for name, v in params.items()}


def _batch(rows: int, shape: tuple[int, ...]) -> Batch:
    x, y = normal(key("x"), rows, *shape), randint(key("y"), CLASSES, rows)
    return Batch(x, y, torch.ones(rows), key("noise"), {})
