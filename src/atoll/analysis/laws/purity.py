"""Check that the functions of a method change nothing that they are given, and use no hidden random numbers."""

import torch
from torch import Tensor

from ...clients import method_calls
from ...clients.participation import take_part
from ...clients.server_side import ServerSideStates
from ...clients.state_store import MemoryStore
from ...core.client import Client
from ...core.contract import exchanges_of
from ...core.payloads import Payload
from ...core.prng import key
from ...core.replies import Replies
from ...core.serialization import encode
from ...core.task import Reply, Round
from ...engine.build import run_experiment
from .trial import BrokenLaw, Trial


def inputs_stay_unchanged(trial: Trial) -> str:
    """Check that no function of a round modifies its arguments or the client's rows."""
    setup = trial.setup()
    method, task, i = setup.method, setup.pool.task(), setup.pool.ids[0]
    client, k, rows = setup.pool.client(i), key(1), _rows(setup.pool.client(i))
    server_side = ServerSideStates(method, task, 0, MemoryStore())
    server: Payload = method_calls.init_server(method, task, k)
    state = method_calls.init_client(method, client, k)
    for r in (Round(0, at) for at in range(len(exchanges_of(method)))):
        down = server_side.download(server, i, r)
        inputs = _Inputs(server=server, download=down, state=state, per_client=server_side.get(i))
        with torch.no_grad():
            part = take_part(method, r, down, state, client, k)
            inputs.compare("client_update()")
            upload = _Inputs(upload=part.upload)
            after = part.finish()
            inputs.compare("after_upload()")
            upload.compare("after_upload()")
            replies = Replies(server_side.serve_replies(server, iter([Reply(i, part.upload)]), r))
            server = method_calls.aggregate(method, server, replies, task, r, k)
        inputs.compare("aggregate()")
        upload.compare("aggregate()")
        state = after
    if _rows(client) != rows:
        raise BrokenLaw(
            "The client's samples are changed in place. Make a new tensor, as x = x + 1 in place of x += 1."
        )
    return "checked to the bit"


class _Inputs:
    """Remember the bytes of payloads, to find the one that a function changes."""

    def __init__(self, **payloads: Payload | None):
        self._payloads = {name: p for name, p in payloads.items() if p is not None}
        self._before = {name: encode(p) for name, p in self._payloads.items()}

    def compare(self, function: str) -> None:
        """Raise BrokenLaw if a payload has other bytes than before."""
        for name, value in self._payloads.items():
            if encode(value) != self._before[name]:
                raise BrokenLaw(
                    f"{function} changes its {name} in place. Make new tensors, as x = x + 1 in place of x += 1."
                )


def _rows(client: Client) -> list[bytes]:
    tensors: list[Tensor | None] = [client.x, client.y, client.public]
    return [v.numpy().tobytes() for v in tensors if v is not None]


def randomness_comes_from_keys(trial: Trial) -> str:
    """Check that a run neither reads nor advances torch's global generator."""
    state = torch.get_rng_state()
    try:
        torch.manual_seed(1)
        first = trial.run().summary["digest"]
        torch.manual_seed(2)
        before = torch.get_rng_state()
        again = run_experiment(trial.setup()).summary["digest"]
        advanced = not torch.equal(torch.get_rng_state(), before)
    finally:
        torch.set_rng_state(state)
    if advanced or again != first:
        raise BrokenLaw(
            "The method uses torch's global generator, so that a run cannot be repeated. Draw by keys: "
            "atoll.core.normal(k, shape), uniform(k, shape), permutation(k, n)."
        )
    return "torch's global generator is not used"
