"""How the time of a round grows with the clients sampled, with the size of the model, and with the number of classes.

All are ratios of a large round to a small one, divided by how much more there is of what grows: 1 is linear growth, and
above 1 is worse. Clients: 40 sampled against 10 (W1s, batches of 64). Model size: an MLP with wider layers, divided by
the ratio of operations. Classes: the server's part of DC-PFL, features of 128, for 100 classes against 10 and as many
virtual features of each class; every client holds a fifth of the classes.
"""

from collections.abc import Callable

import torch

from atoll import models
from atoll.core.class_statistics import class_means, covariances
from atoll.core.model import Model
from atoll.core.prng import key, normal
from atoll.core.problems import Classes
from atoll.core.replies import Replies
from atoll.core.task import Reply, Round, Task
from atoll.methods.dcpfl import DCPFL, Gaussians

from .timing import interleaved
from .works import W1S, Rounds, federation, operations

SHAPE = (1, 16, 16)


def figures(quick: bool) -> dict[str, float]:
    return {
        "growth.sampled_clients": _clients(quick),
        "growth.model_size": _model_size(quick),
        "growth.dcpfl_server_classes": _classes(quick),
    }


def _clients(quick: bool) -> float:
    few, many, rows, repeats = (1, 4, 8, 1) if quick else (10, 40, 64, 5)
    setup = federation("fedavg", many, rows, W1S, "small_cnn", batch_size=64)
    times = interleaved({"few": Rounds(setup, rate=few / many), "many": Rounds(setup)}, repeats)
    return times["many"] / times["few"] / (many / few)


def _model_size(quick: bool) -> float:
    hidden, rows, repeats = ((16, 64), 16, 1) if quick else ((256, 1024), 320, 5)
    works = [
        Rounds(federation("fedavg", 2, rows, SHAPE, f"mlp:hidden={width}-{width}", batch_size=64)) for width in hidden
    ]
    flops = [operations(work) for work in works]
    times = interleaved({"small": works[0], "large": works[1]}, repeats)
    return times["large"] / times["small"] / (flops[1] / flops[0])


def _classes(quick: bool) -> float:
    few, many, repeats = (5, 10, 1) if quick else (10, 100, 5)
    times = interleaved({"few": _dcpfl_server(few), "many": _dcpfl_server(many)}, repeats)
    return times["many"] / times["few"] / (many / few)


def _dcpfl_server(classes: int) -> Callable[[], object]:
    model = Model(models.build("small_cnn", SHAPE, classes), "small_cnn")
    task, method = Task(model, Classes(classes)), DCPFL(virtual=100 * classes)
    replies = [Reply(str(i), _upload(i, classes, model.feature_dim)) for i in range(5)]
    server = method.init_server(task, key("server"))
    return lambda: method.aggregate(server, Replies(replies), task, Round(0), key("draw"))


def _upload(i: int, classes: int, width: int, rows: int = 20) -> Gaussians:
    """Of a client with ``rows`` rows of each of its classes."""
    held = torch.arange(i, classes, 5).repeat(rows)
    member = torch.nn.functional.one_hot(held, classes).float()
    z = normal(key("features", i), len(held), width)
    n, mu = class_means(z, member)
    return Gaussians(n, mu, covariances(z, member, n, mu), None)
