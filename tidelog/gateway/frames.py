"""Entries as server-sent events.

    id: 1700000000000.0
    data: {"id":"1700000000000.0","fields":{"city":"Oslo"}}

Rule 1: an event with an entry has the ID of the entry, so that ``Last-Event-ID`` of a client is its position.
Rule 2: an event without ``data`` sets the position of a client and is not dispatched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

import msgspec

from tidelog.client.entries import Batch, Entry, StreamId
from tidelog.gateway.entryjson import entry_json
from tidelog.gateway.errors import ProblemError

KEEPALIVE: Final = b":\n\n"  # a comment
PART: Final = 64 << 10  # bytes that are written at once, about


@dataclass
class FrameBatch:
    """Entries as events, in order."""

    ids: Sequence[StreamId]  # of the entries
    frames: Sequence[bytes]  # one for each ID
    data: bytes  # all of them
    read_at: float = field(default_factory=monotonic)

    @property
    def last(self) -> StreamId:
        return self.ids[-1]

    def parts(self) -> list[FrameBatch]:
        """Return the entries as batches of about PART bytes, or of one entry that is larger."""
        if len(self.data) <= PART:
            return [self]
        found, begin, size = [], 0, 0
        for at, each in enumerate(self.frames):
            if size and size + len(each) > PART:
                found.append(self._part(begin, at))
                begin, size = at, 0
            size += len(each)
        return [*found, self._part(begin, len(self.frames))]

    def _part(self, begin: int, end: int) -> FrameBatch:
        frames = self.frames[begin:end]
        return FrameBatch(self.ids[begin:end], frames, b"".join(frames), self.read_at)


def frames_of(batch: Batch, after: StreamId) -> FrameBatch | None:
    """Return the events of a batch with info that was read after an ID; None if there are none."""
    ids: list[StreamId] = []
    frames: list[bytes] = []
    missing = b""
    for item in batch:
        if isinstance(item, Entry):
            ids.append(item.id)
            frames.append(missing + frame(item))
            missing = b""
        else:
            missing = event("missing", {"after": str(after)})
    if missing and batch.info is not None:  # all entries were evicted
        ids.append(batch.info.last)
        frames.append(missing + position(batch.info.last))
    return FrameBatch(ids, frames, b"".join(frames)) if ids else None


def frame(entry: Entry) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (str(entry.id).encode(), entry_json(entry))


def position(at: StreamId) -> bytes:
    """Return an event that only sets the position of a client (Rule 2)."""
    return b"id: %b\n\n" % str(at).encode()


def event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))


def problem_event(problem: ProblemError) -> bytes:
    return b"event: problem\ndata: %b\n\n" % problem.body


def retry(ms: int) -> bytes:
    """Return the delay after which a client reconnects."""
    return b"retry: %d\n\n" % ms
