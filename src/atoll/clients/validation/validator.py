"""Check the uploads of one run against a dry run of the method and its declared constraints."""

from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np
import torch

from ...core.client import Client
from ...core.contract import contract, exchanges_of
from ...core.hooks import KeepsStatePerClient
from ...core.method import traits_of
from ...core.optim.base import no_training
from ...core.payloads import Params, Payload, nbytes
from ...core.prng import key
from ...core.replies import Replies
from ...core.schema import _NO_CONSTRAINTS, FieldConstraints, UploadError, constraints_of, form_of, tensors_of
from ...core.serialization import FROM_OUTSIDE, Limits
from ...core.task import Reply, Round
from ...errors import AtollError
from ...typing import ClientId
from .. import method_calls
from ..dry_run import dry_run
from ..participation import take_part
from ..pool import ClientPool, replace_rows
from .checks import _all_counts, _all_plausible, _by_constraints, _by_form, _by_norm, _by_size, _by_type, _by_value
from .constraints import LARGEST, ValueLimits
from .expected import STAND_INS, Expected, _common, _switches

if TYPE_CHECKING:
    from ...core.method import AnyMethod


class Validator:
    """Validates the uploads of one run.

    Args:
        method: the method of the run.
        pool: the clients of the run.
        seed: seed of the run.
        max_norm: largest norm of an upload, or None for no limit.
        most: largest absolute value in an upload.
        spare: rows that may be counted beyond those that a client has, because noise on counts is allowed.
    """

    def __init__(
        self,
        method: "AnyMethod",
        pool: ClientPool,
        seed: int,
        max_norm: float | None = None,
        most: float = LARGEST,
        spare: int = 0,
    ):
        self._method = method
        self._pool = pool
        self._task = pool.task()
        self._seed = seed
        self._exchanges = contract(method).exchanges
        self._max_norm = max_norm
        self._spare = spare
        self._constraints = constraints_of(method)
        self._bounds = ValueLimits(classes=self._task.problem.num_classes or None, largest=most)
        self._known: dict[Any, Expected] = {}
        self._first: Any = None  # the server's first state, made when first needed

    def find_error(self, sender: ClientId, download: Payload, upload: Payload, exchange: int = 0) -> UploadError | None:
        """Return the first error of a client's upload, or None. The upload is not changed.

        Args:
            sender: the client that answered.
            download: the message that was answered.
            upload: the answer.
            exchange: the exchange of the round that both belong to.
        """
        with torch.no_grad():
            return next(self._errors(sender, download, upload, exchange), None)

    def all_valid(
        self, uploads: Mapping[ClientId, Payload], download: Payload, stack: Payload, exchange: int = 0
    ) -> bool:
        """Return True if no upload of a batch has an error. False means that each upload has to be checked alone.

        Args:
            uploads: the uploads of several clients, which are views of ``stack``.
            download: a message of the form that all of these clients answered.
            stack: all uploads in one payload, clients first.
            exchange: the exchange of the round that messages and uploads belong to.
        """
        rows = [self._pool.train.size(self._pool.position(i)) for i in uploads]
        sender, one = next(iter(uploads.items()))
        expected = self.expected(sender, download, exchange)
        if self._max_norm is not None or expected.open:
            return False
        with torch.no_grad():
            errors = chain(
                _by_type(one, self._exchanges[exchange].upload),
                _by_size(one, expected.most_bytes(min(rows))),
                _by_form(tensors_of(one), expected, min(rows)),
            )
            return next(errors, None) is None and self._plausible(uploads, rows, tensors_of(stack))

    def _plausible(self, uploads: Mapping[ClientId, Payload], rows: list[int], stack: Params) -> bool:
        """Return True if all values are plausible and keep the declared constraints."""
        constrained = {
            name: self._constraints[name]
            for name in stack
            if self._constraints.get(name, _NO_CONSTRAINTS) != _NO_CONSTRAINTS
        }
        if not _all_plausible(stack, self._bounds.largest):
            return False
        if constrained == {name: FieldConstraints(count=True) for name in constrained}:
            most = np.array(rows) + self._spare
            return all(_all_counts(stack[name], most) for name in constrained)
        bounds = [self._bounds._replace(rows=n + self._spare) for n in rows]
        return all(not any(_by_constraints(up, constrained, b)) for up, b in zip(uploads.values(), bounds, strict=True))

    def _errors(self, sender: ClientId, download: Payload, upload: Payload, exchange: int) -> Iterator[UploadError]:
        """Yield errors. The order matters: later checks rely on earlier ones."""
        yield from _by_type(upload, self._exchanges[exchange].upload)
        rows, tensors = self._pool.train.size(self._pool.position(sender)), tensors_of(upload)
        expected = self.expected(sender, download, exchange)
        yield from _by_size(upload, expected.most_bytes(rows))
        yield from _by_form(tensors, expected, rows)
        yield from _by_value(upload, self._constraints, self._bounds._replace(rows=rows + self._spare))
        if self._max_norm is not None:
            yield from _by_norm(tensors, self._max_norm)
        if expected.open:
            yield from self._by_trial(sender, upload, exchange)

    def limits(self, sender: ClientId, download: Payload, exchange: int = 0) -> Limits:
        """Return the number of bytes to accept before decoding an answer: twice the size of the largest valid one."""
        rows = self._pool.train.size(self._pool.position(sender))
        most = self.expected(sender, download, exchange).most_bytes(rows)
        return FROM_OUTSIDE._replace(size=FROM_OUTSIDE.header + 2 * most)

    # -- expected form ------------------------------------------------------------------------------------------------

    def expected(self, to: ClientId, download: Payload, exchange: int = 0) -> Expected:
        """Return the form of a client's answer to a message.

        Messages of one form and exchange to clients of one architecture have answers of one form.
        """
        name = self._pool.models[to].name, exchange, *form_of(download).items(), *_switches(download)
        if name not in self._known:
            with torch.no_grad(), no_training():
                self._known[name] = self._dry_run_form(to, download, exchange)
        return self._known[name]

    def _dry_run_form(self, to: ClientId, download: Payload, exchange: int) -> Expected:
        few, many = (form_of(self._answer(self._stand_in(to, rows), to, download, exchange)) for rows in STAND_INS)
        if [(n, leaf.dtype, len(leaf.shape)) for n, leaf in few.items()] != [
            (n, leaf.dtype, len(leaf.shape)) for n, leaf in many.items()
        ]:
            raise AtollError(
                f"{type(self._method).__name__} uploads other tensors from other numbers of samples. "
                "Give them fixed names and types: the server has to know what to expect."
            )
        form = {name: _common(leaf, many[name]) for name, leaf in few.items()}
        hints = get_type_hints(self._exchanges[exchange].upload) if traits_of(self._method).varying_bytes else {}
        free = tuple(f"{name}/" for name, kind in hints.items() if kind == Params)
        return Expected(form, free, nbytes(self._first_server()) if free else 0)

    def _stand_in(self, of: ClientId, rows: int) -> Client:
        """Return a client of the same architecture without private data: blank rows and labels."""
        client = self._pool.client(of)
        blank = client.x.new_zeros(rows, *client.x.shape[1:])
        return replace_rows(client, blank, client.problem.blank_labels(rows))

    def _answer(self, client: Client, of: ClientId, download: Payload, exchange: int) -> Any:
        """Return the upload with which a stand-in for client ``of`` answers ``download``.

        The stand-in has run a whole round and the earlier exchanges of the next one before, because a message may rely
        on the state from those exchanges.
        """
        method, seed = self._method, self._seed
        try:
            exchanges = dry_run(method, self._pool, seed, rounds=2, clients={of: client})
            state = list(islice(exchanges, len(exchanges_of(method)) + exchange))[-1].state
            r = Round(1, exchange)
            return take_part(method, r, download, state, client, key(seed, "stand-in")).upload
        except Exception as reason:
            raise AtollError(
                f"While working out what {type(method).__name__} uploads from a dry run on {len(client.y)} blank "
                f"samples: {type(reason).__name__}: {reason}"
            ) from reason

    def _first_server(self) -> Any:
        if self._first is None:
            self._first = method_calls.init_server(self._method, self._task, key(self._seed, "init", "server"))
        return self._first

    # -- forms that depend on what was learnt -------------------------------------------------------------------------

    def _by_trial(self, sender: ClientId, upload: Payload, exchange: int) -> Iterator[UploadError]:
        """Require that the server's first state can aggregate the upload, and has the same form afterwards."""
        before = form_of(self._first_server())
        try:
            after = form_of(self._aggregate_alone(sender, upload, exchange))
        except Exception as reason:  # Any exception here would have ended the run.
            yield UploadError("payload", f"cannot be aggregated: {type(reason).__name__}: {reason}")
            return
        # Fields that are empty at first may get any form.
        fixed = {name.partition("/")[0] for name in before}
        for name in before.keys() | {name for name in after if name.partition("/")[0] in fixed}:
            if after.get(name) != before.get(name):
                yield UploadError(
                    "payload", f"would turn the server's {name} from {before.get(name)} into {after.get(name)}"
                )

    def _aggregate_alone(self, sender: ClientId, upload: Payload, exchange: int) -> Any:
        method, k, r = self._method, key(self._seed, "stand-in"), Round(0, exchange)
        server = self._first_server()
        if isinstance(method, KeepsStatePerClient):
            per_client = method.init_per_client(self._task, sender, k)
            upload, _ = method_calls.serve_client(method, server, per_client, Reply(sender, upload), self._task, r, k)
        return method_calls.aggregate(method, server, Replies([Reply(sender, upload)]), self._task, r, k)
