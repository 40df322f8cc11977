"""Copies the entries of a stream with their IDs, and the deletions at the source.

A batch of entries is one transaction. Otherwise a server that refuses one command for a temporary reason (memory, a
full disk, a failover) and accepts the next would leave a gap before the last ID, which no later step would fill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import hiredis

from tidelog.client.entries import StreamId
from tidelog.moving import pages
from tidelog.moving.descriptions import ZERO, StreamDescription, dashed, text
from tidelog.moving.endpoints import Command, Endpoint
from tidelog.moving.merged import merged

BATCH: Final = 1000  # entries per round trip
BATCH_BYTES: Final = 1 << 18  # maximum size of a round trip in bytes

#: Called with the number of entries that were copied since the last call.
Progress = Callable[[int], None]

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


class Appender:
    """Appends entries in batches. While the target executes one batch, the next one is read from the source."""

    #: The buffer of a batch.
    BEGIN: Final = b"*1\r\n$5\r\nMULTI\r\n"
    END: Final = b"*1\r\n$4\r\nEXEC\r\n"

    def __init__(self, target: Endpoint, key: bytes, progress: Progress) -> None:
        self._target = target
        self._key = key
        self._progress = progress
        self._batch: list[bytes] = []
        self._bytes = 0
        self._sent = 0  # entries whose replies were not read

    def add(self, at: bytes, flat: list[bytes]) -> None:
        packed = _pack((b"XADD", self._key, at.replace(b".", b"-"), *flat))
        self._batch.append(packed)
        self._bytes += len(packed)
        if self._bytes >= BATCH_BYTES or len(self._batch) >= BATCH:
            self._send()

    def end(self) -> None:
        """Send the rest, and read all replies. Raises CommandRefusedError if one is an error."""
        self._send()
        self._settle()

    def _send(self) -> None:
        self._settle()
        if self._batch:
            self._target.send_raw(b"".join([self.BEGIN, *self._batch, self.END]))
            self._sent = len(self._batch)
            self._batch.clear()
            self._bytes = 0

    def _settle(self) -> None:
        """Read the replies to MULTI, to each entry, and to EXEC."""
        sent, self._sent = self._sent, 0
        if not sent:
            return
        replies = [self._target.take() for _ in range(sent + 2)]
        done = replies.pop()
        if isinstance(done, list):
            replies += done
        for reply in replies:  # the first error has the reason; the error of EXEC does not
            if isinstance(reply, hiredis.ReplyError):
                raise self._target.refused(("XADD",), f"{reply} (stream {text(self._key)})")
        if not isinstance(done, list):
            raise self._target.refused(("EXEC",), f"{done} (stream {text(self._key)})")
        self._progress(sent)


def trim(target: Endpoint, key: bytes, here: StreamDescription, there: StreamDescription) -> bool:
    """Remove entries older than the oldest entry of the source, and return whether there were any."""
    if not there.length or (here.first is not None and (there.first is None or there.first >= here.first)):
        return False
    _trim(target, key, here.first)
    return True


def _trim(target: Endpoint, key: bytes, oldest: StreamId | None) -> None:
    """Remove entries older than ``oldest``; None: all entries."""
    limit: Command = ("MAXLEN", 0) if oldest is None else ("MINID", dashed(oldest))
    target.ask("XTRIM", key, *limit)


def prune(source: Endpoint, target: Endpoint, key: bytes, here: StreamDescription, page: int) -> int:
    """Delete entries that were deleted at the source after the copy, and return how many entries are missing at the
    target.

    Both streams are read to ``here.last``, and only if their lengths differ.
    """
    missing = 0
    doomed: list[str] = []
    oldest: StreamId | None = None  # of the source
    whole = (ZERO, here.last, page, here.largest)
    ours, theirs = pages.entries(source, key, *whole), pages.entries(target, key, *whole)
    for mine, its in merged(ours, theirs, pages.id_of):
        if mine is not None and oldest is None:
            oldest = StreamId.parse(mine[0])
        if its is None:
            missing += 1
        elif mine is None and oldest is not None:  # older ones were trimmed, not deleted
            doomed.append(dashed(StreamId.parse(its[0])))
    for begin in range(0, len(doomed), BATCH):
        target.ask("XDEL", key, *doomed[begin : begin + BATCH])
    _trim(target, key, oldest)
    return missing
