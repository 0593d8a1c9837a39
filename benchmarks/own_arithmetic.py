"""What pFedES costs beside its own passes, written by hand.

Operations do not tell the time of pFedES: its proxy has few channels at full resolution, and such convolutions take
longer than their operations say. So ``own_arithmetic.pfedes`` is the time of a round over that of a loop in plain torch
that makes the same passes with the same batches: for each batch the proxy, the model on both images and a step of the
model; then for each batch the proxy, the model and a step of the proxy. Four clients train small_cnn on synthetic
images of 28x28 with batches of 64, one epoch of each training; one thread, no evaluation.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atoll import models
from atoll.core.optim.sgd import SGD
from atoll.core.prng import key, normal, randint

from .overhead import Trial
from .timing import interleaved
from .works import CLASSES, W1S

BATCH, MU = 64, 0.5


def figures(quick: bool) -> dict[str, float]:
    clients, rows, shape = (2, 16, (1, 16, 16)) if quick else (4, 192, W1S)
    method = Trial("pfedes", {"clients": clients, "rows": rows, "shape": shape})
    times = interleaved({"atoll": method.rounds, "hand": _by_hand(clients, rows, shape)}, 1 if quick else 9)
    return {"own_arithmetic.pfedes": times["atoll"] / times["hand"]}


def _by_hand(clients: int, rows: int, shape: tuple[int, int, int]) -> Callable[[], None]:
    """Return a round of pFedES in plain torch."""
    x, y = normal(key("x"), rows, *shape), randint(key("y"), CLASSES, rows)
    model, proxy = models.build("small_cnn", shape, CLASSES).train(), models.proxy(shape).train()

    def both(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            enhanced = proxy(x)
        return MU * cross_entropy(model(enhanced), y) + (1 - MU) * cross_entropy(model(x), y)

    def through(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(proxy(x)), y)

    def round() -> None:
        for _ in range(clients):
            _train(model, both, x, y)
            _train(proxy, through, x, y, fixed=model)

    return round


def _train(
    net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, fixed: nn.Module | None = None
) -> None:
    """Train a network for one epoch while another one is fixed."""
    settings = SGD()
    if fixed is not None:
        fixed.requires_grad_(False)
    weights = list(net.parameters())
    steps = torch.optim.SGD(weights, settings.lr, settings.momentum, weight_decay=settings.weight_decay, foreach=True)
    for rows in torch.randperm(len(y)).split(BATCH):
        steps.zero_grad()
        loss(x[rows], y[rows]).backward()
        nn.utils.clip_grad_norm_(weights, settings.clip)
        steps.step()
    if fixed is not None:
        fixed.requires_grad_(True)
