"""Reads one range of one stream in a Spark task.

Rule 1: a range is (after, end]. Reading it again returns the same entries or an error. No entry is missing, unless
        ``failOnDataLoss=false`` permits it.
Rule 2: no entry is returned twice. After a lost connection, reading continues after the last returned entry.

Rule 1 holds while others evict entries, because the task sends TCOUNT, TINFO, and TRANGE. If TINFO shows that nothing
of the range was evicted so far, the count is complete. TRANGE replies with the state at one moment. If it announces
the same number of entries, it has all of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from typing import Final

from pyspark.sql.datasource import InputPartition

from tidelog.arrow.pages import Page, PageContent, header
from tidelog.arrow.reading import LaggingError, read_pages
from tidelog.client import calls
from tidelog.client.entries import Info, StreamId
from tidelog.client.steps import existing
from tidelog.history.planning import HistoryPiece
from tidelog.spark.offsets import DataLossError, OffsetRange, RangeT, data_loss, lost
from tidelog.spark.options import ReadOptions
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.leader import LeaderConnection

CATCH_UP: Final = 2.0  # seconds that a replica has to catch up before the task reads from the leader
LOOK_AGAIN: Final = 0.02  # seconds between two checks of its position

Piece = OffsetRange | HistoryPiece  # read from the server, or from objects

log = logging.getLogger(__name__)


@dataclass
class Ranges(InputPartition):
    """The ranges of a task: one range, or several ranges in sequence."""

    ranges: tuple[Piece, ...]
    replica: str  # URL of the replica to read from; "" is the leader


def grouped(pieces: Sequence[tuple[RangeT, int]], most: int, limit: int | None) -> list[list[RangeT]]:
    """Combine pieces into ``most`` groups of similar size; each group is in the order of its keys.

    No group has more than ``limit`` entries, unless it is one piece. There can be more groups then.
    """
    groups: list[list[RangeT]] = [[] for _ in range(most)]
    lightest = [(0, at) for at in range(most)]  # a heap: entries of a group, its number
    for span, number in sorted(pieces, key=lambda piece: (-piece[1], piece[0].key, piece[0].after)):
        load, at = lightest[0]
        if load and limit is not None and load + number > limit:  # no other group has more space
            at = len(groups)
            groups.append([])
            heappush(lightest, (number, at))
        else:
            heapreplace(lightest, (load + number, at))
        groups[at].append(span)
    return [sorted(group, key=lambda span: (span.key, span.after)) for group in groups if group]


def read_range(
    source: ReadOptions, servers: LeaderConnection, piece: OffsetRange, replica: str, wanted: PageContent, size: int
) -> Iterator[Page]:
    """Yield the entries of a range in pages of at most ``size``. The connection to the leader can be reused afterwards.

    Raises DataLossError if entries were lost, with ``failOnDataLoss``, and UnreachableError if no server answers.
    """

    def ask(wire: BlockingConnection, after: StreamId) -> tuple[int, bytes]:
        return begin(wire, source, piece.key, after, piece.end, wire.url == replica)

    yield from read_pages(servers, piece.after, ask, wanted, size, replica, piece.key)


def begin(
    wire: BlockingConnection, source: ReadOptions, key: str, after: StreamId, end: StreamId, is_replica: bool
) -> tuple[int, bytes]:
    """Send TRANGE with the checks of Rule 1; return the result of ``header``. Raises LaggingError, or as read_range."""
    counted, info = _look(wire, key, after, end)
    if is_replica:
        patience = time.monotonic() + CATCH_UP
        while info is None or info.last < end:
            if time.monotonic() > patience:
                raise LaggingError(f"{end} of {key!r}")
            time.sleep(LOOK_AGAIN)
            counted, info = _look(wire, key, after, end)
    loss = lost(source, key, after, info)
    if loss is None and (info is None or info.last < end):
        loss = data_loss(source, key, after, info, f"it does not reach ID {end} any more")
    if info is not None:
        wire.send(calls.trange(key, f"({after}", end).args)
        number, first = header(wire, key)
    else:
        number, first = 0, b""
    if loss is None and number < counted:
        loss = data_loss(source, key, after, info, f"{counted - number} entries were evicted as it was read")
    if loss is not None:
        report([loss], source.fail_on_loss)
    return number, first


def _look(wire: BlockingConnection, key: str, after: StreamId, end: StreamId) -> tuple[int, Info | None]:
    counted, info = wire.run(calls.tcount(key, f"({after}", end), calls.tinfo(key))
    return existing(key, counted), existing(key, info)


def report(losses: list[DataLossError], fail: bool) -> None:
    """Raise the first loss if ``fail``, otherwise log all of them."""
    if losses and fail:
        raise losses[0]
    for loss in losses:
        log.warning("%s", loss)
