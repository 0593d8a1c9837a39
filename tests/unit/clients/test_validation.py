"""Broken uploads: whatever is wrong with one, the run goes on as if its sender had not been there."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from support.small_runs import resumed, setup
from torch import Tensor

from atoll.backends.loop import LoopBackend
from atoll.backends.multiprocess import ProcessBackend
from atoll.backends.remote import UploadReady
from atoll.backends.vmap import VmapBackend
from atoll.clients.participation import take_part
from atoll.clients.server_side import ServerSideStates
from atoll.clients.state_store import MemoryStore
from atoll.clients.tasks import ClientTask, Rejection, UploadBatch
from atoll.clients.validation import constraints
from atoll.clients.validation.checks import find_form_error, find_type_error
from atoll.clients.validation.expected import STAND_INS
from atoll.clients.validation.validator import Validator
from atoll.core.contract import contract
from atoll.core.payloads import Nothing, Params, about, equal, nbytes, payload
from atoll.core.prng import key, normal
from atoll.core.schema import Leaf, declared_constraints, find_nonfinite, tensors_of
from atoll.core.serialization import Limits, decode_upload, encode
from atoll.core.task import Round
from atoll.engine import environment
from atoll.engine.build import run_experiment
from atoll.engine.round import RoundPolicy, run_round
from atoll.engine.run_state import RunState, from_json
from atoll.engine.setup import Setup
from atoll.errors import AtollError
from atoll.methods import _registry
from atoll.methods._factory import make
from atoll.methods.fedmd import Lesson
from benchmarks.digests import PUBLIC

Damage = Callable[[Any], Any]

# -- damage -----------------------------------------------------------------------------------------------------------


def changed(upload: Any, name: str, f: Callable[[Tensor], Any]) -> Any:
    """The upload with another tensor in place of the one of this name."""
    place, sign, inner = name.partition("/")
    old = getattr(upload, place)
    return replace(upload, **{place: {n: f(v) if n == inner else v for n, v in old.items()} if sign else f(old)})


def at(name: str, f: Callable[[Tensor], Any]) -> Damage:
    return lambda upload: changed(upload, name, f)


def filled(value: float) -> Callable[[Tensor], Tensor]:
    def fill(v: Tensor) -> Tensor:
        out = v.clone()
        out.view(-1)[-1] = value
        return out

    return fill


def without(name: str) -> Damage:
    """A tensor is missing: from its dictionary, or from its field."""
    place, sign, inner = name.partition("/")
    if not sign:
        return lambda upload: replace(upload, **{place: None})
    return lambda upload: replace(upload, **{place: {n: v for n, v in getattr(upload, place).items() if n != inner}})


def inside(place: str, f: Callable[[dict[Any, Tensor]], dict[Any, Tensor]]) -> Damage:
    return lambda upload: replace(upload, **{place: f(getattr(upload, place))})


def swapped(params: dict[Any, Tensor]) -> dict[Any, Tensor]:
    """The first two tensors under each other's names."""
    (a, x), (b, y), *others = params.items()
    return {a: y, b: x, **dict(others)}


def renamed(params: dict[Any, Tensor], name: Any) -> dict[Any, Tensor]:
    (_, x), *others = params.items()
    return {name: x, **dict(others)}


def anywhere(main: str) -> dict[str, tuple[str, Damage]]:
    """What can happen to every upload, here to its tensor ``main``: the field that is to blame, and the damage."""
    place = main.partition("/")[0]
    return {
        "another class": ("payload", lambda upload: Nothing()),
        "no payload": ("payload", lambda upload: None),
        "a dictionary": ("payload", tensors_of),
        "a list for a tensor": (place, at(main, lambda v: v.tolist())),
        "text for a tensor": (place, at(main, lambda v: "0")),
        "sparse": (place, at(main, lambda v: v.to_sparse())),
        "without storage": (place, at(main, lambda v: v.to("meta"))),
        "missing": (main, without(main)),
        "double": ("payload", at(main, lambda v: v.double())),
        "half": (main, at(main, lambda v: v.half())),
        "whole numbers": (main, at(main, lambda v: v.int())),
        "complex": ("", at(main, lambda v: v.to(torch.complex64))),
        "one more dimension": (main, at(main, lambda v: v[None])),
        "zero-dimensional": (main, at(main, lambda v: v.sum())),
        "broadcastable": (main, at(main, lambda v: v[:1])),
        "empty": (main, at(main, lambda v: v[:0])),
        "flat": (main, at(main, lambda v: v.flatten())),
        "huge": ("payload", at(main, lambda v: torch.zeros(()).expand(2**40))),
        "NaN": (main, at(main, filled(float("nan")))),
        "infinite": (main, at(main, filled(float("inf")))),
        "minus infinite": (main, at(main, filled(float("-inf")))),
        "1e30": (main, at(main, filled(1e30))),
        "out of bounds": ("payload", at(main, filled(1e8))),
        "subnormal": (main, at(main, lambda v: torch.full_like(v, 1e-40))),
        "a key too many on the wire": ("payload", on_the_wire(lambda h: h | {"more": EMPTY})),
        "a key twice on the wire": ("payload", on_the_wire(lambda h: Twice(h))),
        "text on the wire": ("payload", on_the_wire(lambda h: typed(h, dtype="STR"))),
        "sides of 2^31 on the wire": ("payload", on_the_wire(lambda h: typed(h, shape=[2**31, 2**31]))),
    }


EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}


class Twice(dict[str, Any]):
    """Written with its last entry twice."""


def on_the_wire(f: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """What the receiver makes of the upload's bytes with another header."""

    def damaged(upload: Any) -> Any:
        data = encode(upload)
        end = 8 + int.from_bytes(data[:8], "little")
        changed = f(json.loads(data[8:end]))
        text = json.dumps(changed)
        if isinstance(changed, Twice):
            last = list(changed)[-1]
            text = f"{text[:-1]}, {json.dumps(last)}: {json.dumps(changed[last])}}}"
        return decode_upload(type(upload), len(text).to_bytes(8, "little") + text.encode() + data[end:])

    return damaged


def typed(header: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The first tensor of a header as another one."""
    name = next(n for n in header if n != "__metadata__")
    return header | {name: header[name] | changes}


def in_params(first: str) -> dict[str, tuple[str, Damage]]:
    """What can happen to a model whose first tensor is ``first``."""
    other = setup("fedavg", models=("mlp:hidden=32",)).pool.task().model.init()
    return {
        "a surplus tensor": ("params/more", inside("params", lambda p: p | {"more": torch.zeros(0)})),
        "no params": (f"params/{first}", inside("params", lambda p: {})),
        "swapped names": (f"params/{first}", inside("params", swapped)),
        "another name": (f"params/{first}", inside("params", lambda p: renamed(p, "other"))),
        "no name": ("params", inside("params", lambda p: renamed(p, 7))),
        "another order": ("", inside("params", lambda p: dict(reversed(p.items())))),
        "another architecture": ("", inside("params", lambda p: other)),
    }


def in_count(name: str) -> dict[str, tuple[str, Damage]]:
    """What can happen to a number of rows."""
    return {
        "a negative count": (name, at(name, filled(-1.0))),
        "minus 89 rows": (name, at(name, filled(-89.0))),
        "1e12 rows": (name, at(name, filled(1e12))),
        "half a row": (name, at(name, lambda v: v + 0.5)),
        "more rows than there are": (name, at(name, lambda v: v + 1e6)),
        "a NaN count": (name, at(name, filled(float("nan")))),
    }


def lopsided(sigma: Tensor) -> Tensor:
    return sigma + sigma.triu(1)


def indefinite(sigma: Tensor) -> Tensor:
    """A covariance beyond what any variances allow, in every class held."""
    out, held = sigma.clone(), sigma.flatten(1).any(1)
    out[held, 0, 1] = out[held, 1, 0] = 10 * sigma.abs().max()
    return out


def of_an_absent_class(upload: Any) -> Any:
    """A mean, but no rows."""
    n = upload.n.clone()
    n[n > 0] = n[n > 0] * (torch.arange(int((n > 0).sum())) > 0)
    return replace(upload, n=n)


@cache
def systems() -> dict[str, dict[str, tuple[str, Damage]]]:
    """For each of the five systems what is done to its uploads."""
    mlp = next(iter(setup("feddw").pool.task().model.init()))
    scalar = {
        "a scalar more": ("payload", inside("extra", lambda p: p | {"x": torch.ones(())})),
        "an empty tensor more": ("extra/x", inside("extra", lambda p: p | {"x": torch.ones(0)})),
    }
    none_at_all = {"no samples at all": ("n", at("n", torch.zeros_like))}
    proxy = next(iter(setup("pfedes").pool.task().proxy.init()))  # type: ignore[union-attr]
    return {
        "dcpfl": anywhere("mu") | in_count("n") | {
            "asymmetric": ("sigma", at("sigma", lopsided)),
            "indefinite": ("sigma", at("sigma", indefinite)),
            "negative variances": ("sigma", at("sigma", torch.neg)),
            "no covariances": ("sigma", without("sigma")),
            "an absent class": ("mu", of_an_absent_class),
        },
        "feddw": anywhere(f"params/{mlp}") | in_params(mlp) | in_count("n") | none_at_all | scalar | {
            "soft labels beyond counts": ("extra/DW.sum", at("extra/DW.sum", lambda v: 1.1 * v)),
            "negative soft labels": ("extra/DW.sum", at("extra/DW.sum", lambda v: v - 2 * v * torch.eye(len(v)))),
            "half a label": ("extra/DW.count", inside("extra", lambda p: {n: v / 2.5 for n, v in p.items()})),
            "no report": ("extra/DW.sum", inside("extra", lambda p: {})),
        },
        "fedpd": anywhere("z"),
        "pfedes": anywhere(f"params/{proxy}") | in_params(proxy) | in_count("n") | none_at_all,
        "scd": anywhere(f"params/{mlp}") | in_params(mlp) | in_count("n") | none_at_all | scalar,
    }  # fmt: skip


# -- rounds with and without a client ---------------------------------------------------------------------------------

SMALL = {"clients": 3, "rows": 240}
BAD = 1  # the place of the client whose uploads break


class Saboteur(LoopBackend):
    """One client's uploads are damaged on their way."""

    bad, damage = "", staticmethod(lambda upload: upload)

    def train(self, method: Any, seed: int, jobs: Any) -> Any:
        for outcome in super().train(method, seed, jobs):
            mine = outcome.sender == self.bad
            yield outcome._replace(upload=self.damage(outcome.upload)) if mine else outcome


class Absent(LoopBackend):
    """One client does not answer."""

    bad = ""

    def train(self, method: Any, seed: int, jobs: Any) -> Any:
        return super().train(method, seed, [job for job in jobs if job.client != self.bad])


def played(made: Setup, backend: Any, rounds: int = 1, max_norm: float | None = None) -> tuple[list[Any], Any]:
    """Everything that a few rounds leave behind, and the last log."""
    task, per_client_states = made.pool.task(), MemoryStore()
    server, checks = made.method.init_server(task, key(0)), Validator(made.method, made.pool, 0, max_norm)
    for t in range(rounds):
        server, log = run_round(
            made.method,
            task,
            backend,
            server,
            t=t,
            seed=0,
            cohort=task.clients,
            per_client_states=per_client_states,
            policy=RoundPolicy(checks),
        )
    states = [backend.state(made.method, 0, i) for i in made.pool.ids]
    return [server, *states, *(per_client_states.get(i) for i in per_client_states)], log


@cache
def absent(name: str, rounds: int = 1) -> list[bytes]:
    """What is left when the client was away; nobody else's upload may be refused."""
    made = setup(name, **SMALL)
    backend = Absent(made.pool, MemoryStore())
    backend.bad = made.pool.ids[BAD]
    kept, log = played(made, backend, rounds, max_norm=1e6)
    assert not log.rejected
    return [encode(p) for p in kept]


def sabotaged(name: str, damage: Damage, rounds: int = 1) -> tuple[list[bytes], list[Rejection]]:
    made = setup(name, **SMALL)
    backend = Saboteur(made.pool, MemoryStore())
    backend.bad, backend.damage = made.pool.ids[BAD], damage  # type: ignore[assignment]
    kept, log = played(made, backend, rounds, max_norm=1e6)
    return [encode(p) for p in kept], log.rejected


KINDS = [(name, kind) for name, damages in systems().items() for kind in damages]


def test_there_are_at_least_twenty_kinds_of_damage_for_each_system() -> None:
    assert {name: len(kinds) >= 20 for name, kinds in systems().items()} == dict.fromkeys(systems(), True)


@pytest.mark.promise("Uploads", "A rejected upload counts as the absence of its client.")
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_damage_is_named_and_leaves_the_run_as_if_the_client_were_absent(name: str, kind: str) -> None:
    field, damage = systems()[name][kind]
    kept, rejected = sabotaged(name, damage)
    assert [(r.client, r.round) for r in rejected] == [(setup(name, **SMALL).pool.ids[BAD], 1)]
    assert rejected[0].field == field or not field, rejected
    assert kept == absent(name)


def test_worker_result_that_is_no_payload_is_rejected() -> None:
    """Not the end of the run: it goes on as if the client had been absent."""
    made = setup("fedavg", **SMALL)
    bad = made.pool.ids[BAD]

    class Garbled(ProcessBackend):
        def _take(self, worker: Any, answer: Any) -> None:
            if isinstance(answer, UploadReady) and self._jobs[answer.at].client == bad:
                answer = answer._replace(upload="nothing of use")
            super()._take(worker, answer)

    backend = Garbled(made.pool, MemoryStore(), workers=2)
    try:
        kept, log = played(made, backend)
    finally:
        backend.close()
    (rejected,) = log.rejected
    assert rejected[:3] == (bad, 1, "payload")
    assert [encode(p) for p in kept] == absent("fedavg")


def test_byte_limit_is_header_plus_twice_expected_size() -> None:
    """Twice those of an honest one, and room for a header: pFedES's proxy and a count."""
    checks, i, download, upload = answered("pfedes", 0)
    assert checks.limits(i, download) == Limits(2**20 + 2 * nbytes(upload))


METHODS = sorted(n for n in _registry.methods() if n != "local")  # local uploads nothing that could break


def main_of(upload: Any) -> str:
    """A tensor with as many dimensions as any."""
    return max(tensors_of(upload).items(), key=lambda item: (item[1].is_floating_point(), item[1].ndim))[0]


COMMON: dict[str, Callable[[str], Damage]] = {
    "missing": without,
    "double": lambda name: at(name, lambda v: v.double()),
    "one more dimension": lambda name: at(name, lambda v: v[None].expand(2, *v.shape)),
    "broadcastable": lambda name: at(name, lambda v: v[:1]),
    "flat": lambda name: at(name, lambda v: v.flatten()),
    "whole numbers": lambda name: at(name, lambda v: v.int()),
    "text for a tensor": lambda name: at(name, lambda v: "0"),
    "sides of 2^31": lambda name: at(name, lambda v: torch.zeros(()).expand(2**31, 2**31)),
    "NaN": lambda name: at(name, filled(float("nan"))),
    "infinite": lambda name: at(name, filled(float("inf"))),
    "minus infinite": lambda name: at(name, filled(float("-inf"))),
    "1e30": lambda name: at(name, filled(1e30)),
    "subnormal": lambda name: at(name, lambda v: torch.full_like(v, 1e-40)),
    "a key too many": lambda name: on_the_wire(lambda h: h | {"more": EMPTY}),
    "a key twice": lambda name: on_the_wire(lambda h: Twice(h)),
}


@pytest.mark.promise("Uploads", "Damaged uploads are rejected, for every method.")
@pytest.mark.parametrize("name", METHODS)
def test_damaged_uploads_are_rejected_for_every_method(name: str) -> None:
    """Each kind is noticed; one of them, another for each method, is also played."""
    checks, i, download, upload = answered(name, 0)
    for kind, damage in COMMON.items():
        assert checks.find_error(i, download, damage(main_of(upload))(upload)) is not None, kind
    damage = list(COMMON.values())[METHODS.index(name) % len(COMMON)]
    kept, rejected = sabotaged(name, lambda upload: damage(main_of(upload))(upload))
    assert len(rejected) == 1
    assert kept == absent(name)


def promises() -> list[tuple[str, str, str]]:
    """Every tensor of every method's upload that is said to hold counts or probabilities."""
    return [
        (name, field, mark)
        for name in METHODS
        for field, marks in declared_constraints(contract(make(name)).exchanges[0].upload).items()
        for mark in ("count", "probabilities")
        if getattr(marks, mark)
    ]


BROKEN_PROMISES: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "count": [filled(-89.0), filled(float("nan")), filled(1e12), lambda v: v + 0.5],
    "probabilities": [filled(0.7), torch.neg, lambda v: v * 1.1],
}


@pytest.mark.parametrize(("name", "field", "mark"), promises())
def test_every_count_and_every_probability_is_checked(name: str, field: str, mark: str) -> None:
    checks, i, download, upload = answered(name, 0)
    scalar = [torch.zeros_like] if mark == "count" and not getattr(upload, field).ndim else []
    for f in BROKEN_PROMISES[mark] + scalar:
        found = checks.find_error(i, download, changed(upload, field, f))
        assert found is not None
        assert found.field == field


def test_every_row_count_and_prediction_field_declares_constraints() -> None:
    """A weight that nobody checks would be the client's to choose; so the names of fields are held to their word."""
    named = {"n": "count", "counts": "count", "probs": "probabilities", "predictions": "probabilities"}
    found = []
    for name in METHODS:
        for field, marks in declared_constraints(contract(make(name)).exchanges[0].upload).items():
            if field in named:
                assert getattr(marks, named[field]), (name, field)
                found.append(field)
    assert set(found) == set(named)


def test_local_method_accepts_only_empty_upload() -> None:
    made = setup("local", **SMALL)
    checks, i = Validator(made.method, made.pool, 0), made.pool.ids[0]
    assert checks.find_error(i, Nothing(), Nothing()) is None
    assert checks.find_error(i, Nothing(), None) == ("payload", "is a NoneType, not a Nothing")


# -- forms that depend on data, or on what was learnt -----------------------------------------------------------------


@cache
def answered(name: str, t: int, **changes: Any) -> tuple[Validator, str, Any, Any]:
    """The checks, a client, its message of round ``t`` and its honest upload."""
    made = setup(name, **SMALL | changes)
    task, backend, per_client_states = made.pool.task(), LoopBackend(made.pool, MemoryStore()), MemoryStore()
    server, checks = made.method.init_server(task, key(0)), Validator(made.method, made.pool, 0)
    for earlier in range(t):
        server, _ = run_round(
            made.method,
            task,
            backend,
            server,
            t=earlier,
            seed=0,
            cohort=task.clients,
            per_client_states=per_client_states,
            policy=RoundPolicy(checks),
        )
    i = made.pool.ids[BAD]
    download = ServerSideStates(made.method, task, 0, per_client_states).download(server, i, Round(t))
    state = backend.state(made.method, 0, i)
    upload = take_part(made.method, Round(t), download, state, made.pool.client(i), key(1)).upload
    assert checks.find_error(i, download, upload) is None
    return checks, i, download, upload


def test_shared_features_may_have_at_most_as_many_rows_as_the_client() -> None:
    """FedFed sends them in its second round here: half of the rows are fine, twice as many or different numbers not."""
    checks, i, download, upload = answered("fedfed", 1)
    assert checks.expected(i, download).form["pool/y"] == Leaf(torch.int32, (None,))

    def judged(*f: Callable[[Tensor], Tensor]) -> Any:
        pool = {name: g(v) for (name, v), g in zip(upload.pool.items(), f, strict=True)}
        return checks.find_error(i, download, replace(upload, pool=pool))

    def half(v: Tensor) -> Tensor:
        return v[: len(v) // 2]

    def twice(v: Tensor) -> Tensor:
        return torch.cat([v, v])

    assert judged(half, half, half) is None
    for wrong in (10, -1):
        assert judged(torch.clone, torch.clone, filled(wrong)).field == "pool/y"
    assert judged(half, half, torch.clone).field == "pool/y"
    assert judged(twice, twice, twice).field == "payload"
    assert checks.find_error(i, download, replace(upload, params=download.params)).field == "payload"


@pytest.mark.parametrize("t", [0, 1])
def test_factors_of_any_rank_pass_if_server_can_aggregate_them(t: int) -> None:
    """FedKD: ranks follow from what was learnt, and so do the names of what is sent."""
    checks, i, download, upload = answered("fedkd", t)
    weight = next(name.removeprefix("left.") for name in upload.change if name.startswith("left."))
    factors = [f"{kind}.{weight}" for kind in ("left", "scale", "right")]
    cut = {
        n: v if n not in factors else v[:1] if n.startswith(("scale", "right")) else v[:, :1]
        for n, v in upload.change.items()
    }
    left, _, right = (upload.change[n] for n in factors)
    dense = {n: v for n, v in upload.change.items() if n not in factors} | {f"dense.{weight}": left @ right}

    def judged(change: Any) -> Any:
        return checks.find_error(i, download, replace(upload, change=change))

    assert judged(cut) is None
    assert judged(dense) is None
    assert judged({n: v for n, v in cut.items() if n != factors[0]}).reason.startswith("cannot be aggregated: KeyError")
    assert "server's params/" in judged(dense | {f"dense.{weight}": (left @ right)[None]}).reason
    assert "none of the types" in judged(cut | {factors[1]: cut[factors[1]].half()}).reason
    assert checks.find_error(i, download, replace(upload, n=upload.n[None])).field == "n"


def test_expected_form_depends_on_message() -> None:
    """FedMD: logits of the public rows in the first exchange, nothing in the second."""
    checks, i, download, upload = answered("fedmd", 0)
    second = Lesson(download.rows, upload.logits)
    assert checks.find_error(i, second, Nothing(), 1) is None
    assert checks.find_error(i, second, upload, 1) == ("payload", "is a Scores, not a Nothing")
    assert checks.find_error(i, download, Nothing()) == ("payload", "is a Nothing, not a Scores")


def test_expected_form_depends_on_architecture() -> None:
    """FedPD: the same message to both, and features of the public rows of unlike widths back."""
    made = setup("fedpd", models=("mlp:hidden=32", "mlp:hidden=64"), **SMALL)
    checks, download = Validator(made.method, made.pool, 0), contract(made.method).exchanges[0].download()
    forms = [checks.expected(i, download).form for i in made.pool.ids[:2]]
    assert [form["z"].shape for form in forms] == [(PUBLIC, 32), (PUBLIC, 64)]


@pytest.mark.parametrize("name", ["dcpfl", "fedhkd", "fedala"])
def test_expected_form_is_found_without_private_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the stand-ins have of a client's rows is their shape: every row they see is blank."""
    made, seen = setup(name, **SMALL), list[Any]()
    checks, i, download, _ = answered(name, 0)
    update = type(made.method).client_update

    @wraps(update)
    def spied(self: Any, down: Any, state: Any, client: Any, r: Any, k: Any) -> Any:
        seen.append((client.x, client.y))
        return update(self, down, state, client, r, k)

    monkeypatch.setattr(type(made.method), "client_update", spied)
    fresh = Validator(made.method, made.pool, 0)
    assert fresh.expected(i, download) == checks.expected(i, download)
    assert {len(x) for x, _ in seen} == set(STAND_INS)
    assert not any(x.any() for x, _ in seen)
    assert all(y.tolist() == [row % made.pool.problem.num_classes for row in range(len(y))] for _, y in seen)


@pytest.mark.parametrize("name", ["dcpfl", "feddw", "pfedes", "scd", "fedpd", "fedhkd"])
def test_honest_uploads_batched_by_vmap_pass(name: str) -> None:
    result = run_experiment(setup(name, backend="vmap", **SMALL))
    assert [line["rejected"] for line in result.history] == [[]]


# -- uploads that were made together ----------------------------------------------------------------------------------


def upload_batch(name: str) -> tuple[Validator, dict[str, Any], UploadBatch]:
    """What vmap makes of one round, with the messages that were answered."""
    made = setup(name, **SMALL)
    task = made.pool.task()
    server = made.method.init_server(task, key(0))
    jobs = [ClientTask(i, Round(0), made.method.broadcast(server, i, task, Round(0), key(0))) for i in made.pool.ids]
    outcomes = list(VmapBackend(made.pool, MemoryStore()).train(made.method, 0, jobs))
    assert outcomes[0].upload_batch is not None
    return Validator(made.method, made.pool, 0), {job.client: job.download for job in jobs}, outcomes[0].upload_batch


def sound(checks: Validator, downloads: dict[str, Any], made: UploadBatch) -> bool:
    return checks.all_valid(made.uploads, next(iter(downloads.values())), made.stack)


@pytest.mark.parametrize("name", ["fedavg", "dcpfl", "feddw", "fedproto"])
def test_batch_of_valid_uploads_is_all_valid(name: str) -> None:
    assert sound(*upload_batch(name))


HURT: list[tuple[str, str, Callable[[Tensor], Any]]] = [
    ("fedavg", "params/head.bias", lambda v: v[0].fill_(float("nan"))),
    ("fedavg", "params/head.bias", lambda v: v[0].fill_(float("-inf"))),
    ("fedavg", "params/head.weight", lambda v: v[0].fill_(-1e16)),
    ("fedavg", "params/head.bias", lambda v: v.fill_(1e-40)),
    ("fedavg", "n", lambda v: v.add_(0.5)),
    ("fedavg", "n", lambda v: v.mul_(-1)),
    ("fedavg", "n", lambda v: v.add_(1)),
    ("fedavg", "n", lambda v: v.zero_()),
    ("dcpfl", "sigma", lambda v: v.neg_()),
    ("feddw", "extra/DW.count", lambda v: v.add_(1e4)),
    ("feddw", "extra/DW.count", lambda v: v.flatten()[v.argmax()].sub_(0.5)),  # fewer rows in all, and one of them half
    ("feddw", "extra/DW.count", lambda v: v.flatten()[v.argmax()].fill_(-1)),
]


@pytest.mark.parametrize(("name", "field", "hurt"), HURT)
def test_invalid_upload_in_batch_rejects_only_its_sender(name: str, field: str, hurt: Callable[[Tensor], Any]) -> None:
    checks, downloads, made = upload_batch(name)
    bad = list(made.uploads)[BAD]
    hurt(tensors_of(made.uploads[bad])[field])
    assert not sound(checks, downloads, made)
    flaws = {i: checks.find_error(i, downloads[i], up) for i, up in made.uploads.items()}
    assert [i for i, why in flaws.items() if why is not None] == [bad]


def test_batch_of_another_form_is_not_valid() -> None:
    checks, downloads, made = upload_batch("fedavg")

    def wider(upload: Any) -> Any:
        return replace(upload, params={name: v.unsqueeze(-1) for name, v in upload.params.items()})

    batch = replace(made, uploads={i: wider(upload) for i, upload in made.uploads.items()}, stack=wider(made.stack))

    assert not sound(checks, downloads, batch)


def test_batch_is_checked_one_by_one_where_norms_are_limited() -> None:
    _, downloads, batch = upload_batch("fedavg")
    limited = setup("fedavg", **SMALL)

    assert not sound(Validator(limited.method, limited.pool, 0, max_norm=1e6), downloads, batch)


class Changed(VmapBackend):
    """One client's upload is another one when it arrives."""

    def train(self, method: Any, seed: int, jobs: Any) -> Any:
        for outcome in super().train(method, seed, jobs):
            mine = outcome.sender == self.pool.ids[BAD]
            yield outcome._replace(upload=replace(outcome.upload, n=torch.tensor(-1.0))) if mine else outcome


def test_upload_changed_after_batch_check_is_checked_again() -> None:
    made = setup("fedavg", **SMALL)
    _, log = played(made, Changed(made.pool, MemoryStore()))
    assert [r.client for r in log.rejected] == [made.pool.ids[BAD]]


def test_valid_batch_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made, looks = setup("fedavg", **SMALL), list[str]()
    for name in ("all_valid", "find_error"):
        real = getattr(Validator, name)
        monkeypatch.setattr(Validator, name, lambda *a, real=real, name=name: looks.append(name) or real(*a))
    _, log = played(made, VmapBackend(made.pool, MemoryStore()))
    assert log.accepted == list(made.pool.ids)
    assert looks == ["all_valid"]


def test_states_with_nan_or_infinity_are_found_in_a_stack() -> None:
    stacked = Marked(torch.tensor([1.0, float("nan"), 1.0]), torch.ones(3, 2), torch.ones(3, 2, 2), 0.0)
    assert find_nonfinite(stacked) == {1}
    assert find_nonfinite(Nothing()) == set()


# -- marks ------------------------------------------------------------------------------------------------------------


@payload
class Marked:
    n: Tensor = about("rows", count=True)
    p: Tensor = about("probabilities", rows="n", probabilities=True)
    s: Tensor = about("covariances", rows="n", symmetric=True, psd=True)
    x: float = about("a number")


def marked(
    n: Any = (2.0, 0.0), p: Any = ((0.25, 0.75), (0, 0)), s: Any = ((1.0, 0.5), (0.5, 1.0)), x: Any = 1.0
) -> Any:
    s = torch.tensor(s)
    return Marked(torch.tensor(n), torch.tensor(p), torch.stack([s, torch.zeros_like(s)]), x)


@pytest.mark.parametrize(
    ("upload", "field"),
    [
        (marked(), None),
        (marked(s=((1.0, 1.0), (1.0, 1.0))), None),  # of rank 1: rounding may have made its eigenvalue 0 negative
        (marked(s=((1.0, 1.00001), (1.00001, 1.0))), None),  # eigenvalue -1e-5, within the tolerance of 1e-4
        (marked(s=((1.0, 1.001), (1.001, 1.0))), "s"),  # eigenvalue -1e-3
        (marked(s=((0.0, 0.0), (0.0, 0.0))), None),  # of one row
        (marked(s=((0.0, 0.1), (0.1, 0.0))), "s"),
        (marked(s=((1.0, 0.5), (0.4, 1.0))), "s"),
        (marked(p=((0.25, 0.7509), (0, 0))), None),  # sums to 1.0009, within the tolerance of 1e-3
        (marked(p=((0.25, 0.752), (0, 0))), "p"),
        (marked(p=((-0.25, 1.25), (0, 0))), "p"),
        (marked(p=((0.25, 0.75), (0.5, 0.5))), "p"),  # of a class that is not held
        (marked(n=(2.5, 0.0)), "n"),
        (marked(n=(-2.0, 0.0)), "n"),
        (marked(n=(True, False)), "n"),
        (marked(n=(2j, 0j)), "n"),
        (marked(n=(2.0, 0.0, 0.0)), "p"),  # counts of three classes, probabilities of two
        (marked(p=((0.25, 0.75, 0.0), (0, 0, 0))), None),
        (replace(marked(), s=torch.zeros(2)), "s"),
        (replace(marked(), s=torch.zeros(2, 2, 3)), "s"),
        (marked(x=float("nan")), "x"),
        (marked(x="1"), "x"),
        (marked(x=1), None),
    ],
)
def test_upload_must_keep_declared_constraints(upload: Any, field: str | None) -> None:
    found = find_type_error(upload, Marked)
    assert (found and found.field) == field


@payload
class Labelled:
    rows: Params = about("rows and their labels", labels="y")


@pytest.mark.parametrize("y", [torch.tensor([0.0, 1.0]), torch.tensor([0j]), torch.tensor([True]), torch.tensor([-1])])
def test_labels_that_are_no_whole_numbers_are_refused(y: Tensor) -> None:
    found = find_type_error(Labelled({"y": y}), Labelled)

    assert found is not None
    assert found.field.startswith("rows")  # the field, for a type that no message has


class OfRows(Validator):
    """A method whose uploads from more rows have other tensors."""

    def _answer(self, client: Any, of: Any, download: Any, exchange: int) -> Any:
        answer = super()._answer(client, of, download, exchange)
        return replace(answer, params=answer.params | {f"of {len(client.y)} samples": torch.zeros(1)})


def test_method_whose_tensors_depend_on_the_number_of_rows_is_refused() -> None:
    made = setup("fedavg", **SMALL)
    server = made.method.init_server(made.pool.task(), key(0))
    download = made.method.broadcast(server, made.pool.ids[0], made.pool.task(), Round(0), key(0))

    with pytest.raises(AtollError, match="other tensors from other numbers of samples"):
        OfRows(made.method, made.pool, 0).expected(made.pool.ids[0], download)


class Disguised(Tensor):
    """A subclass, whose own code would run in each operation."""


# Each is refused for one reason alone: it passes all other clauses of the check.
NOT_PLAIN: dict[str, Callable[[], Any]] = {
    "subclass": lambda: torch.ones(2).as_subclass(Disguised),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "csr": lambda: torch.eye(2).to_sparse_csr(),
    "mkldnn": lambda: torch.eye(2).to_mkldnn(),
    "meta": lambda: torch.ones(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "quantised": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "complex": lambda: torch.ones(2, dtype=torch.complex64),
    "list": lambda: [1.0],
    "None": lambda: None,
}


@payload
class Both:
    x: Tensor = about("a tensor")
    named: Params = about("tensors with names")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_tensor_that_is_not_plain_is_found_by_its_form(kind: str) -> None:
    odd = NOT_PLAIN[kind]()

    found = [find_form_error(Both(x, named), Both) for x, named in ((odd, {}), (torch.ones(2), {"a": odd}))]

    assert [error and error.field for error in found] == ["x", "named"]


@pytest.mark.parametrize("named", [None, [], {3: torch.ones(1)}, torch.ones(1)])
def test_names_of_tensors_that_are_no_dictionary_are_found(named: Any) -> None:
    found = find_form_error(Both(torch.ones(2), named), Both)

    assert found is not None
    assert found.field == "named"


# -- strikes ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Clients of this set send NaN."""
    bad: set[str] = set()

    class Hostile(LoopBackend):
        def train(self, method: Any, seed: int, jobs: Any) -> Any:
            for outcome in super().train(method, seed, jobs):
                broken = outcome.sender in bad
                yield outcome._replace(upload=changed(outcome.upload, "n", filled(float("nan")))) if broken else outcome

    monkeypatch.setattr(environment, "open_backend", lambda inputs: Hostile(inputs.setup.pool, inputs.stores.clients))
    return bad


FIVE = {"rows": 300, "rounds": 5, "eval_every": 1, "rate": 0.8}


def test_client_is_excluded_after_its_strikes(hostile: set[str]) -> None:
    """Four of five clients are drawn each round: who is drawn stays the same, and the one excluded is not asked."""
    honest = run_experiment(setup("fedavg", **FIVE))
    drawn = [line["participants"] for line in honest.history]
    bad = next(i for i in drawn[0] if i in drawn[1] and any(i in later for later in drawn[2:]))
    hostile.add(bad)
    result = run_experiment(setup("fedavg", strikes=2, **FIVE))
    assert [line["participants"] for line in result.history] == [
        *drawn[:2],
        *([i for i in cohort if i != bad] for cohort in drawn[2:]),
    ]
    assert [line.get("excluded") for line in result.history] == [None, [bad], [bad], [bad], [bad]]
    assert [[r["client"] for r in line["rejected"]] for line in result.history] == [[bad], [bad], [], [], []]
    assert result.notes[1:] == [f"Client {bad!r} was excluded after 2 rejected uploads."]
    assert "excluded" not in honest.history[-1]


@pytest.mark.parametrize(("strikes", "asked"), [(1, 1), (3, 3), (0, 5)])
def test_strikes_limit_participations_of_rejected_client(hostile: set[str], strikes: int, asked: int) -> None:
    made = setup("fedavg", strikes=strikes, **FIVE | {"rate": 1.0})
    hostile.add(made.pool.ids[3])
    result = run_experiment(made)
    assert sum(made.pool.ids[3] in line["participants"] for line in result.history) == asked
    assert sum(len(line["rejected"]) for line in result.history) == asked
    assert result.summary["status"] == "finished"


def test_strikes_do_not_change_results_of_other_clients(hostile: set[str]) -> None:
    hostile.add("3")
    digests = {run_experiment(setup("feddw", strikes=k, **FIVE)).summary["digest"] for k in (0, 1, 3)}
    assert len(digests) == 1


def test_strikes_survive_a_resume(hostile: set[str], tmp_path: Path) -> None:
    made = setup("fedavg", strikes=2, **FIVE | {"rate": 1.0})
    hostile.add(made.pool.ids[0])
    whole = run_experiment(made)
    again = resumed(made, tmp_path)
    assert again.summary["digest"] == whole.summary["digest"]
    assert [line.get("excluded") for line in again.history] == [line.get("excluded") for line in whole.history]
    assert again.notes == whole.notes


def test_run_ends_when_all_clients_are_excluded(hostile: set[str]) -> None:
    made = setup("fedavg", strikes=1, **FIVE)
    hostile.update(made.pool.ids)
    assert run_experiment(made).summary["status"] == "diverged"


def test_round_of_excluded_clients_does_not_change_server() -> None:
    made = setup("fedavg", **SMALL)
    task, backend = made.pool.task(), LoopBackend(made.pool, MemoryStore())
    server = made.method.init_server(task, key(0))
    after, log = run_round(
        made.method, task, backend, server, t=0, seed=0, cohort=task.clients, policy=RoundPolicy(excluded=made.pool.ids)
    )
    assert equal(after, server)
    assert (log.cohort, log.down, log.rejected) == ([], {}, [])


def test_run_state_of_older_version_has_no_strikes() -> None:
    run_state = RunState(strikes={"a": 2})
    stored = run_state.to_json()
    assert from_json(0, stored, {}, run_state.table()).strikes == {"a": 2}
    del stored["strikes"]
    assert from_json(0, stored, {}, run_state.table()).strikes == {}


def test_upload_with_norm_above_limit_is_rejected() -> None:
    """The limit is on the whole upload: a weight of 4 and a count of 3 have norm 5 together."""
    made = setup("fedavg", **SMALL)
    i, task = made.pool.ids[0], made.pool.task()
    server = made.method.init_server(task, key(0))
    upload = answered("fedavg", 0)[3]
    blank = {n: torch.zeros_like(v) for n, v in upload.params.items()}
    first = next(iter(blank))
    blank[first].view(-1)[:1] = 4.0
    small = replace(upload, params=blank, n=torch.tensor(3.0))
    assert Validator(made.method, made.pool, 0, max_norm=5.0).find_error(i, server, small) is None
    found = Validator(made.method, made.pool, 0, max_norm=4.9).find_error(i, server, small)
    assert found == ("payload", "has norm 5, above the limit of 4.9")


@pytest.mark.parametrize("options", [{"max_norm": 0.0}, {"strikes": -1}])
def test_limits_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(AtollError, match=r"--(max-norm|strikes) must be"):
        setup("fedavg", **options)


@pytest.mark.parametrize("rank", [1, 7, 15, 40])
def test_covariance_of_any_rank_is_accepted_and_a_negative_direction_is_not(rank: int) -> None:
    """Few columns show that a matrix of low rank is semi-definite. The negative variance is ten tolerances."""
    rows = normal(key("rows", rank), rank, 100)
    sigma = rows.T @ rows / rank
    lowest = torch.linalg.eigh(sigma.double())[1][:, 0].float()
    spoilt = sigma - 10 * constraints.TOLERANCE * float(sigma.diagonal().max()) * torch.outer(lowest, lowest)

    assert list(constraints._indefinite(sigma[None], None)) == []
    assert list(constraints._indefinite(spoilt[None], None)) == ["is not positive semi-definite"]
