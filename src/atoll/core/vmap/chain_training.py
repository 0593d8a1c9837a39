"""Train many clients' networks of linear layers on their stacked tensors, without a vmap around each step.

A step of a small network takes a few short operations. Selecting rows, masks and losses of all steps of an epoch are
computed at once, so that little more than the products is left. Results are those of the training loop in
:mod:`~atoll.core.vmap.training`, to the bit.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ...utils.signals import stop_if_requested
from ..batch_order import draw_order
from ..optim.sgd_step import Rates
from ..optim.training_loss import record_sums
from ..payloads import Params
from ..torch_private import log_softmax_slopes
from .functorch import current_clients, outside, unwrap, wrap
from .linear_chain import ChainLayer, backward, forward
from .stacked_steps import clip_stacked, step_stacked

if TYPE_CHECKING:
    from ..losses import Loss
    from ..optim.base import Memory, Optimiser
    from .batches import ClientBatches


MOST_OUTPUTS = 2**23  # outputs of all rows of an epoch, which are kept until its end


class _Epoch(NamedTuple):
    """The batches of an epoch, one after the other; a batch holds the rows of one client after those of another.

    Args:
        rows: numbers of the rows of each batch, counted through the rows of all clients.
        slopes: slopes of each batch's mean losses in the log-probabilities, classes first.
        labels: labels of all rows.
        is_real: False for padding.
        clients: position of the client of each row.
        absent: positions of the clients without a real row in each batch.
    """

    rows: Sequence[Tensor]
    slopes: Sequence[Tensor]
    labels: Tensor
    is_real: NDArray[np.bool_]
    clients: NDArray[np.int64]
    absent: Sequence[NDArray[np.int64]]


def train(
    optimiser: "Optimiser", loss: "Loss", params: Params, batches: "ClientBatches", memory: "Memory"
) -> tuple[Params, "Memory", Tensor] | None:
    """Train each client on its batches; see :func:`~atoll.core.vmap.training.run`.

    Returns:
        Params, memory and steps of each client. None where training has to go through vmap: for other losses, networks
        and optimisers, for other batches than those of whole epochs without augmentation, for very many outputs, and
        out of reach of stacks.
    """
    clients, chain, client = current_clients(), getattr(loss, "linear_chain", None), batches.client
    rates = optimiser.plain_rates
    if clients is None or chain is None or rates is None or not batches.are_whole_epochs:
        return None
    names = [name for layer in chain for name in (layer.weight, layer.bias) if name is not None]
    y, width = client.y, params[chain[0].weight].shape[-1] if chain[0].weight in params else None
    if set(names) != params.keys() or client.x.shape[1:].numel() != width or y.ndim != 1 or y.is_floating_point():
        return None
    classes = params[chain[-1].weight].shape[0]
    if clients * sum(batches.sizes) * classes > MOST_OUTPUTS:
        return None
    with outside(), torch.no_grad():
        stacks = {name: unwrap(v, clients).clone(memory_format=torch.contiguous_format) for name, v in params.items()}
        velocity = {name: unwrap(v, clients).clone() for name, v in memory.get("velocity", {}).items()}
        training = _Training(chain, stacks, velocity, rates, optimiser.clip)
        x, y, keys, n = (unwrap(v, clients) for v in (client.x, y, batches.key, client.n))
        for epoch in range(int(batches.epochs)):
            training.run_epoch(x, _draw(keys, n, y, epoch, batches.sizes, classes))
        steps, losses = (torch.from_numpy(v).to(x.device) for v in (training.steps, training.losses.T.copy()))
    record_sums(wrap(losses))
    slot = {name: wrap(v) for name, v in training.velocity.items()}
    return {name: wrap(v) for name, v in stacks.items()}, {**memory, "velocity": slot}, wrap(steps)


class _Training:
    """The weights of all clients in training, and what was counted.

    Args:
        chain: layers of the network.
        stacks: weights, clients first. Written in place.
        velocity: velocity of each weight; empty before the first step, and without momentum.
        rates: learning rate, momentum and weight decay.
        clip: largest norm of a client's gradient; 0 for none.
    """

    def __init__(self, chain: Sequence[ChainLayer], stacks: Params, velocity: Params, rates: Rates, clip: float):
        self._rates = rates
        self._clip = clip
        self._chain = chain
        self._stacks = stacks
        self.velocity = velocity
        clients = len(next(iter(stacks.values())))
        self.steps = np.zeros(clients, dtype=np.float32)
        self.losses = np.zeros((2, clients))  # sums of losses over rows, and numbers of rows

    def run_epoch(self, x: Tensor, epoch: _Epoch) -> None:
        """Take a step for each batch of an epoch of the rows ``x``, of shape [clients, rows, ...]."""
        rows_of_all, outputs = x.flatten(0, 1).flatten(1), list[Tensor]()
        for rows, wanted, absent in zip(epoch.rows, epoch.slopes, epoch.absent, strict=True):
            stop_if_requested()
            batch = rows_of_all.index_select(0, rows).view(len(x), -1, rows_of_all.shape[1])
            inputs, logits = forward(self._chain, self._stacks, batch)
            outputs.append(F.log_softmax(logits.flatten(0, 1).T[None], 1))
            slopes = log_softmax_slopes(wanted[None], outputs[-1])[0].T.view(logits.shape)
            grads = backward(self._chain, self._stacks, inputs, slopes)
            self._step([grads[name] for name in self._stacks], absent)
        picked = torch.cat(outputs, 2)[0].gather(0, epoch.labels[None])[0].cpu().numpy()
        for sums, each in zip(self.losses, (np.where(epoch.is_real, -picked, 0.0), epoch.is_real), strict=True):
            sums += np.bincount(epoch.clients, each, len(x))

    def _step(self, grads: list[Tensor], absent: NDArray[np.int64]) -> None:
        """Take a step that leaves absent clients as they were, momentum included."""
        self.steps += 1
        if not len(absent):
            self._move(grads)
            return
        self.steps[absent] -= 1
        places = torch.from_numpy(absent).to(grads[0].device)
        before = {name: v.index_select(0, places) for name, v in self._stacks.items()}
        slower = {name: v.index_select(0, places) for name, v in self.velocity.items()}
        self._move(grads)
        for name, v in before.items():
            self._stacks[name].index_copy_(0, places, v)
        for name, v in self.velocity.items():
            v.index_copy_(0, places, slower[name] if name in slower else torch.zeros_like(v[: len(places)]))

    def _move(self, grads: list[Tensor]) -> None:
        clipped = clip_stacked(grads, self._clip) if self._clip > 0 else grads
        moved = step_stacked(list(self._stacks.values()), clipped, list(self.velocity.values()), self._rates)
        if self._rates.momentum:
            self.velocity = dict(zip(self._stacks, moved, strict=True))


def _draw(k: Tensor, n: Tensor, y: Tensor, epoch: int, sizes: list[int], classes: int) -> _Epoch:
    """Draw an epoch of the clients with keys ``k``, ``n`` real rows and labels ``y``, and prepare its losses."""
    order, is_real = draw_order(k, n, epoch, sum(sizes))
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - np.array(sizes)
    counts = np.add.reduceat(is_real, starts, axis=1, dtype=np.float32)
    shares = is_real / counts.clip(min=1).repeat(sizes, axis=1)
    first = np.arange(len(order))[:, None] * order.shape[1]

    def by_batches(each: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([each[:, a:b].ravel() for a, b in zip(starts, ends, strict=True)])

    rows = torch.from_numpy(by_batches(first + order)).to(y.device)
    labels = y.flatten().index_select(0, rows)
    weights = torch.from_numpy(by_batches(shares)).to(y.device).neg_()
    slopes = weights.new_zeros(classes, len(rows)).scatter_(0, labels[None], weights[None])
    lengths = [len(order) * size for size in sizes]
    return _Epoch(
        rows=rows.split(lengths),
        slopes=slopes.split(lengths, 1),
        labels=labels,
        is_real=by_batches(is_real),
        clients=by_batches(np.broadcast_to(np.arange(len(order))[:, None], order.shape)),
        absent=[np.flatnonzero(count == 0) for count in counts.T],
    )
