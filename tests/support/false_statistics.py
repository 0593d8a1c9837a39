"""A site that answers as agreed, but for the statistics of its tables."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from atoll.core.serialization import decode, encode
from atoll.data.tables.statistics import ColumnStatistics
from atoll.deploy.transport.protocol import pack, unpack


def with_false_statistics(honest: Callable[[bytes], bytes], change: dict[str, Any]) -> Callable[[bytes], bytes]:
    """Return a site like ``honest`` that sends its statistics with changed fields."""

    def answer(data: bytes) -> bytes:
        reply = unpack(honest(data))
        if reply.kind != "statistics":
            return pack(reply)
        false: ColumnStatistics = replace(decode(ColumnStatistics, reply.body), **change)
        return pack(reply._replace(body=encode(false)))

    return answer
