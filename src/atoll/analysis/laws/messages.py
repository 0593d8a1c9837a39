"""Check what a method sends: payload classes, bytes, roles, and the harm that a broken upload does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...backends.loop import LoopBackend
from ...clients import method_calls
from ...clients.server_side import ServerSideStates
from ...clients.state_store import MemoryStore
from ...clients.tasks import ClientTask, ClientUpload
from ...clients.validation.validator import Validator
from ...core.contract import contract, exchanges_of
from ...core.hooks import TakesRegularisers
from ...core.method import AnyMethod
from ...core.payloads import Nothing, Payload, equal, pack, unpack
from ...core.prng import key
from ...core.replies import Replies
from ...core.serialization import decode, encode
from ...core.task import Reply, Round
from ...engine.round import RoundPolicy, run_round
from ...engine.setup import Setup
from .execution import all_states
from .trial import BrokenLaw, NotApplicable, Trial


class Exchanged(NamedTuple):
    """What one client and the server exchange in a round, and keep after it."""

    messages: list[tuple[Payload, Payload]]  # download and upload of each exchange
    state: Payload
    server: Payload
    per_client: Payload | None  # None for methods whose server keeps no state for each client


def second_round(setup: Setup) -> Exchanged:
    """Run a round of all clients and a second one of the first client, when everything that may be sent is sent."""
    method, task = setup.method, setup.pool.task()
    backend, per_client_states = LoopBackend(setup.pool, MemoryStore()), MemoryStore()
    server: Any = method_calls.init_server(method, task, key(0))
    server, _ = run_round(
        method, task, backend, server, t=0, seed=0, cohort=task.clients, per_client_states=per_client_states
    )
    i, messages, server_side = setup.pool.ids[0], [], ServerSideStates(method, task, 0, per_client_states)
    for r in (Round(1, at) for at in range(len(exchanges_of(method)))):
        down = server_side.download(server, i, r)
        (done,) = backend.train(method, 0, [ClientTask(i, r, down)])
        (result,) = backend.results()
        backend.commit(result)
        messages.append((down, done.upload))
        with torch.no_grad():
            replies = server_side.serve_replies(server, iter([Reply(i, done.upload)]), r)
            server = method_calls.aggregate(method, server, Replies(replies), task, r, key(0))
    return Exchanged(messages, result.state, server, server_side.get(i))


def payloads_survive_the_wire(trial: Trial) -> str:
    """Check that packed and encoded payloads are restored bit for bit, and have the declared classes."""
    found, types = second_round(trial.setup()), contract(trial.method)
    sent = [(type(down), type(up)) for down, up in found.messages]
    if sent != list(types.exchanges):
        raise BrokenLaw(f"Messages have the classes {sent}, not those of the annotations, {list(types.exchanges)}.")
    kept = (found.state, found.server, found.per_client)
    for p in [message for pair in found.messages for message in pair] + [p for p in kept if p is not None]:
        encoded = encode(p)
        again = decode(type(p), encoded)
        if not (equal(unpack(type(p), *pack(p)), p) and equal(again, p) and encode(again) == encoded):
            raise BrokenLaw(f"{type(p).__name__} is not the same after sending. Give its fields their declared types.")
    sizes = sum(len(encode(up)) for _, up in found.messages)
    return f"{sizes:,} bytes up in a round"


def uploads_declare_roles(trial: Trial) -> str:
    """Check that every field of an upload has a role, which --dp and the disclosure gate need."""
    kinds = list(dict.fromkeys(messages.upload for messages in contract(trial.method).exchanges))
    if kinds == [Nothing]:
        raise NotApplicable("Nothing is uploaded.")
    missing = [f"{kind.__name__}.{f.name}" for kind in kinds for f in fields(kind) if not _has_role(trial.method, f)]
    if missing:
        raise BrokenLaw(
            f"{', '.join(missing)}: no role. Write about(..., role=Role.MODEL) or another one; without it --dp and "
            "the disclosure gate refuse the method."
        )
    return ", ".join(f"{f.name}: {f.metadata['role'].value}" for kind in kinds for f in fields(kind) if _role(f))


def _role(f: Any) -> Any:
    return f.metadata.get("role")


def _has_role(method: AnyMethod, f: Any) -> bool:
    """Return True if a field has a role, or holds the reports of regularisers, which declare roles of their own."""
    return _role(f) is not None or (isinstance(method, TakesRegularisers) and f.name == "extra")


def broken_uploads_leave_no_trace(trial: Trial) -> str:
    """Check that a client whose uploads are hostile counts as an absent client."""
    setup = trial.setup()
    bad = setup.pool.ids[2]
    if _is_empty(second_round(setup).messages[0][1]):
        raise NotApplicable("Nothing is uploaded.")
    absent = _states_after(setup, bad, None)
    for name, corrupt in CORRUPTIONS.items():
        if not all(equal(a, b) for a, b in zip(_states_after(setup, bad, corrupt), absent, strict=True)):
            raise BrokenLaw(f"An upload with {name} of one client changes what others get. Report this as a bug.")
    return f"uploads with {', '.join(CORRUPTIONS)} count as absence"


def _is_empty(upload: Payload) -> bool:
    return not any(t.is_floating_point() and t.numel() for t in pack(upload).tensors.values())


def _last_tensor(change: Callable[[Tensor], Tensor]) -> Callable[[Payload], Payload]:
    """Return a function that changes the last floating-point tensor of an upload."""

    def corrupt(upload: Payload) -> Payload:
        packed = pack(upload)
        name = [n for n, t in packed.tensors.items() if t.is_floating_point() and t.numel()][-1]
        packed.tensors[name] = change(packed.tensors[name])
        made: Payload = unpack(type(upload), *packed)
        return made

    return corrupt


CORRUPTIONS: dict[str, Callable[[Payload], Any]] = {
    "NaN": _last_tensor(lambda v: torch.full_like(v, float("nan"))),
    "infinity": _last_tensor(lambda v: torch.full_like(v, float("inf"))),
    "values of 1e30": _last_tensor(lambda v: torch.full_like(v, 1e30)),
    "another class": lambda upload: Nothing(),
}


def _states_after(setup: Setup, bad: str, corrupt: Callable[[Payload], Any] | None) -> list[Payload]:
    """Return all states after two rounds in which the uploads of a client are corrupt, or (with None) missing."""

    class Backend(LoopBackend):
        def train(self, method: AnyMethod, seed: int, jobs: Sequence[ClientTask]) -> Iterator[ClientUpload]:
            present = [job for job in jobs if corrupt is not None or job.client != bad]
            for done in super().train(method, seed, present):
                if corrupt is not None and done.sender == bad:
                    yield done._replace(upload=corrupt(done.upload))
                else:
                    yield done

    method, task, backend = setup.method, setup.pool.task(), Backend(setup.pool, MemoryStore())
    policy, per_client_states = RoundPolicy(checks=Validator(method, setup.pool, 0)), MemoryStore()
    server: Any = method_calls.init_server(method, task, key(0))
    for t in range(2):
        server, _ = run_round(
            method,
            task,
            backend,
            server,
            t=t,
            seed=0,
            cohort=task.clients,
            per_client_states=per_client_states,
            policy=policy,
        )
    return [server, *all_states(setup, backend, per_client_states)]
