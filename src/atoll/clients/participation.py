"""Run a client's work in an exchange: the one place that calls the training functions of a method."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..core.client import Client
from ..core.hooks import TrainsAfterUpload
from ..core.method import AnyMethod
from ..core.optim.training_loss import LossMeter, measured_by
from ..core.payloads import Payload
from ..core.prng import Key
from ..core.task import Round
from ..core.tree import to_contiguous
from . import method_calls


class ClientPart(NamedTuple):
    """A client's upload, and the work that remains after the upload.

    Args:
        upload: message to the server, as the method made it. Its class is checked by the server's validation.
        finish: runs the training that the method does after the upload, and returns the client's next state.
        losses: collects the losses of the client's training, before the upload and after it.
    """

    upload: Payload
    finish: Callable[[], Payload]
    losses: LossMeter


def take_part(
    method: AnyMethod,
    r: Round,
    download: Payload,
    state: Payload,
    client: Client,
    k: Key,
    budget: int | None = None,
) -> ClientPart:
    """Run a client's work in an exchange up to its upload.

    Tensors of the upload and of the state get the memory layout that they have after serialisation, because the layout
    determines how sums round.

    Args:
        method: the method that is run.
        r: the exchange.
        download: message of the server to the client.
        state: the client's state after its last exchange.
        client: rows and models of the client.
        k: randomness of the client in this round.
        budget: number of batches of the training after the upload; None for the method's own number.

    Returns:
        The upload, and a function that gives the client's next state. Methods without ``after_upload`` have that
        state already.

    Raises:
        AtollError: the method returns a state of another class than its annotations declare.
    """
    losses = LossMeter()
    with torch.no_grad(), measured_by(losses):
        upload, trained = to_contiguous(method_calls.client_update(method, r, download, state, client, k))
    if not isinstance(method, TrainsAfterUpload):
        return ClientPart(upload, lambda: trained, losses)

    def finish() -> Payload:
        with torch.no_grad(), measured_by(losses):
            return to_contiguous(method_calls.after_upload(method, r, download, upload, trained, client, k, budget))

    return ClientPart(upload, finish, losses)
