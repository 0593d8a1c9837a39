"""Write and verify the audit log of a run: one line for each upload, chained by hashes.

Every line holds the hash of the line before it and its own, so that a line that was changed, removed, added or moved
does not fit any more. The hash of the last line, the head, stands for the whole log: it is kept in checkpoints and, at
the end, in the summary of the run. An attacker who can rewrite both the log and the files that hold its head is not
detected; against such an attacker, keep a copy of the head elsewhere.
"""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple
from weakref import finalize

from ..errors import AtollError
from ..typing import ClientId

NAME = "audit.jsonl"
START = sha256(b"atoll audit log 1").hexdigest()  # the hash before the first line
LONGEST = 2**16  # bytes of a line, far more than any valid line has
_MOST_WORDS = 1000  # characters kept of a reason or a field, which may contain text of a hostile client


class AuditError(AtollError):
    """Raised for an audit log that differs from what its run wrote."""


class Record(NamedTuple):
    """One upload in the log."""

    seq: int  # from 1, without gaps
    round: int  # from 1; 0 for statistics of columns, which are sent before the first round
    exchange: int  # from 0, for methods with several exchanges in a round
    staleness: int  # aggregations since the download that the upload answers; 0 in synchronous rounds
    client: ClientId
    bytes: int  # size of the message, headers included
    sha256: str  # of these bytes; empty if the contribution was never written as bytes
    verdict: str  # "accepted" or "rejected"
    field: str | None  # the field with the error, if it was rejected
    reason: str | None
    previous: str  # hash of the line before


class Mark(NamedTuple):
    """A position in a log, as a checkpoint stores it."""

    records: int = 0
    size: int = 0  # bytes
    head: str = START  # hash of the line that ends here


class AuditLog:
    """The log of one run. Opening it at a mark drops the lines after the mark."""

    def __init__(self, path: Path, mark: Mark = Mark()):
        self.path = path
        self._mark = mark
        self._file = path.open("a+b", buffering=0)  # stays open: opening it takes longer than writing a record
        finalize(self, self._file.close)
        if not _leads_to(self._file, mark):
            raise AuditError(
                f"Cannot continue {str(path)!r}: it does not hold the {mark.records} records that the checkpoint "
                "contains. Restore the file from a copy, or start again with --force, which replaces the run."
            )
        self._file.truncate(mark.size)

    def add(
        self,
        round: int,
        exchange: int,
        client: ClientId,
        nbytes: int,
        digest: str,
        flaw: tuple[str, str] | None = None,
        staleness: int = 0,
    ) -> Record:
        """Append one upload: accepted, or rejected for an error (field, reason)."""
        field, reason = (words[:_MOST_WORDS] for words in flaw) if flaw else (None, None)
        at, verdict = self._mark, "rejected" if flaw else "accepted"
        record = Record(
            at.records + 1, round, exchange, staleness, client, nbytes, digest, verdict, field, reason, at.head
        )
        body = _body(record)
        head = sha256(body).hexdigest()
        line = _line(body, head)
        rest = memoryview(line)
        while rest:  # A full disk takes a part of it before it raises.
            rest = rest[self._file.write(rest) :]
        self._mark = Mark(record.seq, at.size + len(line), head)
        return record

    def mark(self) -> Mark:
        """Return the current end of the log."""
        return self._mark

    def sync(self) -> None:
        """Flush the log to disk."""
        os.fsync(self._file.fileno())


def hash_of(record: Record) -> str:
    """Return the hash of a record."""
    return sha256(_body(record)).hexdigest()


def line_of(record: Record) -> bytes:
    """Return the canonical line of a record."""
    return _line(_body(record), hash_of(record))


def _line(body: bytes, head: str) -> bytes:
    return body[:-1] + b',"hash":"%s"}\n' % head.encode()


def _body(record: Record) -> bytes:
    return json.dumps(record._asdict(), separators=(",", ":")).encode()


def _leads_to(file: IO[bytes], mark: Mark) -> bool:
    """Return True if the line at the mark is the one that the mark names; :func:`verify` checks the others."""
    if mark.records == 0:
        return mark == Mark()
    start = max(0, mark.size - LONGEST)
    file.seek(start)
    tail = file.read(mark.size - start)
    try:
        last = _parsed(tail[tail.rfind(b"\n", 0, -1) + 1 :])
    except AuditError:
        return False
    return start + len(tail) == mark.size and (last.seq, hash_of(last)) == (mark.records, mark.head)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a log, each checked against the chain; stop with AuditError at the first break."""
    before, count = START, 0
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST):
                count += 1
                record = _at_line(path, count, line)
                if (record.seq, record.previous) != (count, before):
                    raise AuditError(
                        f"{str(path)!r}, line {count} does not follow the line before it: "
                        "a line was removed, added or moved here."
                    )
                yield record
                before = hash_of(record)
    except OSError as reason:
        raise AuditError(f"There is no audit log {str(path)!r} that could be read: {reason.strerror}.") from reason


def verify(path: Path, records: int | None = None, head: str | None = None) -> Mark:
    """Check the whole chain and, if known, its length and its last hash; return the mark of its end."""
    count, last, size = 0, START, 0
    for record in read(path):
        count, last, size = record.seq, hash_of(record), size + len(line_of(record))
    if (records, head) != (None, None) and (records, head) != (count, last):
        raise AuditError(
            f"{str(path)!r} ends after {count} records, and not where the run ended, which was after {records}: "
            "lines were removed or added at the end, or this is the log of another run."
        )
    return Mark(count, size, last)


def _at_line(path: Path, number: int, line: bytes) -> Record:
    try:
        return _parsed(line)
    except AuditError as reason:
        raise AuditError(f"{str(path)!r}, line {number} {reason}") from reason


def _parsed(line: bytes) -> Record:
    """Parse a line; refuse any that is not in canonical form."""
    try:
        values = json.loads(line)
        values.pop("hash")
        record = Record(**values)
        same = _well_typed(record) and line_of(record) == line
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        same = False
    if not same:
        raise AuditError("was changed, or is no line of an audit log.")
    return record


def _well_typed(record: Record) -> bool:
    numbers = (record.seq, record.round, record.exchange, record.staleness, record.bytes)
    words = (record.client, record.sha256, record.verdict, record.previous)
    flaws = (record.field, record.reason)
    return (
        all(type(v) is int for v in numbers)
        and all(type(v) is str for v in words)
        and all(v is None or type(v) is str for v in flaws)
    )
