"""What SCAFFOLD and FedDC share: control variates, which are mean gradients told from the way that training went."""

from collections.abc import Iterable, Iterator

import torch

from ..aggregation import mean
from ..aggregation.policy import sum_for
from ..core.batch import Batch
from ..core.client import Client
from ..core.hyperparams import within
from ..core.losses import Loss
from ..core.optim.base import Optimiser
from ..core.optim.sgd import SGD
from ..core.params import add, sub, weights
from ..core.payloads import Params, Role, about, payload
from ..core.prng import Key
from ..core.replies import with_policy_of
from ..core.task import Reply, Task
from ..errors import AtollError


@payload
class Global:
    params: Params = about("the global model")
    variate: Params = about("the server's control variate, the mean of those of all clients")


@payload
class Update:
    params: Params = about("the model after local training", role=Role.MODEL)
    change: Params = about("the change of the client's control variate", role=Role.CHANGE, of="variate")


def check_plain(method: object, optim: Optimiser) -> None:
    """Only plain steps add up to their gradients."""
    if not isinstance(optim, SGD) or optim.momentum:
        found = f"SGD with momentum {optim.momentum:g}" if isinstance(optim, SGD) else type(optim).__name__
        raise AtollError(
            f"{type(method).__name__} tells mean gradients from the way that training went, which takes plain steps, "
            f"but optim is {found}. Leave out --optimiser, or use SGD with momentum=0."
        )
    within(optim, 1e-9, "lr")
    within(optim, 1, "epochs")


def walk(optim: Optimiser, loss: Loss, down: Global, own: Params, client: Client, k: Key) -> tuple[Params, Params]:
    """y <- y - eta (grad f(y) - c_k + c), K times from x; then c_k - c + (x - y) / (K eta). Gives y and that.

    K counts the steps that this client takes: with padding there may be more batches than those.
    """
    steps = torch.zeros(())

    def counted() -> Iterator[Batch]:
        nonlocal steps
        for batch in client.batches(k, optim.epochs, optim.batch_size):
            steps = steps + (batch.w.sum() > 0)
            yield batch

    shift = sub(down.variate, own)
    params = optim.run(loss, down.params, counted(), correct=lambda grads: add(grads, shift))
    way = sub(weights(down.params), params)
    return params, {name: v / (steps * optim.lr) - shift[name] for name, v in way.items()}


def merged(variate: Params, replies: Iterable[Reply[Update]], task: Task) -> tuple[Params, Params, float]:
    """The plain mean of the models, the variate plus 1/N of all changes, and the share of clients that took part."""
    present, clients, changes = 0, len(task.clients), {name: sum_for(replies) for name in variate}

    def uploads() -> Iterator[Update]:
        nonlocal present
        for reply in replies:
            present += 1
            for name, total in changes.items():
                total.add(reply.upload.change[name])
            yield reply.upload

    params = mean(with_policy_of(replies, uploads()), "params")
    moved = {name: (v + changes[name].value() / clients).to(v.dtype) for name, v in variate.items()}
    return params, moved, present / clients
