"""Copies the delayed entries of streams (TDELAY) from one tidelog-server to another.

A server delivers a delayed entry on its own. An entry that both servers deliver would be at the target twice if the
stream was copied after that. Delayed entries are therefore copied last, and the streams are not copied after them:

MULTI XINFO, TDELAY LIST  at the source: only if the last ID is that of the copy. The entry is then either in the
                          stream of the target, or in the list
TDELAY LIST               the other pages, into a temporary file
MULTI XINFO, TDELAY COUNT at the source: entries that joined the stream in the meantime must have been in the list
TDELAY AT ID              at the target, with the times and the tokens of the list

Rule 1: nothing is sent before the lists of all streams are complete. Until then, the copy can start again.
Rule 2: the target has no delayed entries while its stream is copied (``cancel``), because it would deliver them.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import hiredis
import xxhash

from tidelog.client.entries import StreamId
from tidelog.moving import descriptions
from tidelog.moving.descriptions import text
from tidelog.moving.endpoints import Command, Endpoint
from tidelog.moving.errors import MovingError

PAGE: Final = 1000  # delayed entries per command: the maximum of TDELAY LIST
BATCH: Final = 1000  # entries per round trip
BATCH_BYTES: Final = 1 << 18  # maximum size of a round trip in bytes
MEMORY: Final = 8 << 20  # bytes of the lists that are kept in memory; more are in a temporary file
HORIZON: Final = 10_000  # ms: entries that are due within this time are compared by their number only

_HEAD: Final = struct.Struct(">QI")  # due time in ms since 1970, size of the packed command
_MASK: Final = (1 << 128) - 1

_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream and the number of its delayed entries at one point in time."""

    last: StreamId  # last-generated-id
    added: int  # entries-added
    delayed: int


@dataclass(frozen=True, slots=True)
class DelayedList:
    """The delayed entries of one stream at one point in time. The entries are in the temporary file."""

    key: bytes
    number: int
    added: int  # entries-added of the stream at that time
    begin: int  # offsets in the file
    end: int


def state(end: Endpoint, key: bytes) -> StreamState | None:
    """Return the state of a stream; None if it does not exist. Raises CommandRefusedError."""
    return _state(end, key)[0]


def _state(end: Endpoint, key: bytes, *commands: Command) -> tuple[StreamState | None, list[Any]]:
    """Return the state of a stream, and the replies to more commands in the same step."""
    unit: list[Command] = [("XINFO", "STREAM", key), ("TDELAY", key, "COUNT"), *commands]
    ((info, number, *more),) = end.at_once([unit])
    end.checked(unit[1:], [number, *more])
    if isinstance(info, hiredis.ReplyError):
        if str(info).startswith("NOPERM"):
            raise end.refused(("XINFO", "STREAM"), str(info))
        return None, more
    fields = descriptions.pairs(info)
    return StreamState(StreamId.parse(fields["last-generated-id"]), fields["entries-added"], number), more


def unchanged(source: Endpoint, each: DelayedList) -> bool:
    """Return whether the stream and its delayed entries have changed since only by deliveries."""
    now = state(source, each.key)
    return now is not None and now.delayed + now.added - each.added == each.number


def cancel(target: Endpoint, key: bytes) -> None:
    """Cancel all delayed entries of a stream, page by page."""
    while True:
        _, rows = target.ask("TDELAY", key, "LIST", "0", "COUNT", PAGE)
        if not rows:
            return
        target.all([("TDELAY", key, "CANCEL", row[0]) for row in rows])


class DelayedLists:
    """The delayed entries of the streams of a source, in a temporary file. A context manager."""

    def __init__(self) -> None:
        self.lists: list[DelayedList] = []
        self._file = tempfile.SpooledTemporaryFile(MEMORY)  # noqa: SIM115 - closed by close()

    def __enter__(self) -> DelayedLists:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def clear(self) -> None:
        """Forget the lists that were read."""
        self.lists.clear()
        self._file.seek(0)
        self._file.truncate()

    def take(self, source: Endpoint, key: bytes, last: StreamId) -> bool:
        """Read the delayed entries of a stream. ``last``: the last ID that was copied.

        Returns False if the stream has other entries than the copy, or if it or its delayed entries changed while they
        were read. Raises MovingError if the temporary file cannot be written.
        """
        before = state(source, key)
        if before is None or before.last != last:
            return False
        if not before.delayed:
            return True
        before, ((cursor, rows),) = _state(source, key, ("TDELAY", key, "LIST", "0", "COUNT", PAGE))
        if before is None or before.last != last:
            return False
        begin = self._file.seek(0, 2)
        number = self._write(key, rows)
        while cursor != b"0":
            cursor, rows = source.ask("TDELAY", key, "LIST", cursor, "COUNT", PAGE)
            number += self._write(key, rows)
        now = state(source, key)
        if now is None or not number == before.delayed == now.delayed + now.added - before.added:
            return False
        if number:
            self.lists.append(DelayedList(key, number, before.added, begin, self._file.tell()))
        return True

    def send(self, target: Endpoint, each: DelayedList) -> None:
        """Add the delayed entries of one stream at the target. Raises CommandRefusedError."""
        batch: list[bytes] = []
        size = 0
        for _, packed in self._read(each):
            batch.append(packed)
            size += len(packed)
            if size >= BATCH_BYTES or len(batch) >= BATCH:
                _send(target, each.key, batch)
                batch, size = [], 0
        _send(target, each.key, batch)

    def differences(self, target: Endpoint, each: DelayedList, content: bool) -> Iterator[str]:
        """Yield a line for each difference. ``content``: also compare due times, tokens, fields, and values."""
        there = state(target, each.key)
        number = 0 if there is None else there.delayed + there.added - each.added
        if number != each.number:
            yield f"delayed entries are {each.number:,}, at the target {number:,}"
        elif content and not self._same(target, each):
            yield "the delayed entries have other tokens, times, fields, or values"

    def _same(self, target: Endpoint, each: DelayedList) -> bool:
        """Compare the entries that stay delayed during the comparison, by the sums of their hashes."""
        margin = HORIZON
        while True:
            horizon = descriptions.clock(target.ask("TIME")) + margin
            mine = _sum(self._read(each), horizon)
            its = _sum(_listed(target, each.key), horizon)
            if descriptions.clock(target.ask("TIME")) < horizon:
                return mine == its
            margin *= 10

    def _write(self, key: bytes, rows: list[list[Any]]) -> int:
        try:
            for due, packed in _packed(key, rows):
                self._file.write(_HEAD.pack(due, len(packed)))
                self._file.write(packed)
        except OSError as error:
            raise MovingError(
                f"a temporary file for the delayed entries of {text(key)} can't be written in {tempfile.gettempdir()}: "
                f"{error}. Set TMPDIR to a directory with free space, and go on with --resume"
            ) from None
        return len(rows)

    def _read(self, each: DelayedList) -> Iterator[tuple[int, bytes]]:
        """Yield the due time of each entry, and the command that adds it."""
        self._file.seek(each.begin)
        at = each.begin
        while at < each.end:
            due, size = _HEAD.unpack(self._file.read(_HEAD.size))
            yield due, self._file.read(size)
            at += _HEAD.size + size


def _packed(key: bytes, rows: list[list[Any]]) -> Iterator[tuple[int, bytes]]:
    for token, due, *fields in rows:
        yield due, _pack((b"TDELAY", key, b"AT", due, b"ID", token, *fields))


def _send(target: Endpoint, key: bytes, batch: list[bytes]) -> None:
    if not batch:
        return
    target.send_raw(b"".join(batch))
    replies = [target.take() for _ in batch]
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise target.refused(("TDELAY",), f"{reply} (stream {text(key)})")


def _listed(end: Endpoint, key: bytes) -> Iterator[tuple[int, bytes]]:
    cursor = b"0"
    while True:
        cursor, rows = end.ask("TDELAY", key, "LIST", cursor, "COUNT", PAGE)
        yield from _packed(key, rows)
        if cursor == b"0":
            return


def _sum(entries: Iterator[tuple[int, bytes]], horizon: int) -> tuple[int, int]:
    """Return the number of entries that are due after the horizon, and the sum of their hashes, in any order."""
    number = total = 0
    for due, packed in entries:
        if due > horizon:
            number += 1
            total += xxhash.xxh3_128_intdigest(packed)
    return number, total & _MASK
