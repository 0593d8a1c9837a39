"""Train with control variates, as SCAFFOLD and FedDC do.

A control variate is a mean gradient, computed from the distance that plain gradient steps covered.
"""

from collections.abc import Iterable, Iterator

from ..aggregation import mean
from ..aggregation.policy import sum_for
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


def check_plain_sgd(method: object, optim: Optimiser) -> None:
    """Raise an AtollError unless ``optim`` is SGD without momentum: only plain steps add up to their gradients."""
    if not isinstance(optim, SGD) or optim.momentum:
        found = f"SGD with momentum {optim.momentum:g}" if isinstance(optim, SGD) else type(optim).__name__
        raise AtollError(
            f"{type(method).__name__} computes mean gradients from the steps of local training, which must be plain "
            f"SGD, but optim is {found}. Leave out --optimiser, or use SGD with momentum=0."
        )
    within(optim, 1e-9, "lr")
    within(optim, 1e-9, "epochs")


def train_corrected(
    optim: Optimiser, loss: Loss, down: Global, own: Params, client: Client, k: Key
) -> tuple[Params, Params]:
    """Train with corrected gradients; return the model and the client's new control variate.

    The model takes K steps y <- y - eta (grad f(y) - c_k + c) from x; the variate is c_k - c + (x - y) / (K eta).
    K counts the steps of this client.
    """
    shift = sub(down.variate, own)
    trained = optim.train(loss, down.params, client, k, correct=lambda grads: add(grads, shift))
    covered = sub(weights(down.params), trained.params)
    return trained.params, {name: v / (trained.steps * optim.lr) - shift[name] for name, v in covered.items()}


def merge_updates(variate: Params, replies: Iterable[Reply[Update]], task: Task) -> tuple[Params, Params, float]:
    """Merge the uploads of a round.

    Returns:
        The unweighted mean of the models, the variate plus 1/N of all changes, and the share of clients that took part.
    """
    present = 0
    clients = len(task.clients)
    changes = {name: sum_for(replies) for name in variate}

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
