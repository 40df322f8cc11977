"""The files of a continuous backup's log. Names and bytes only, no I/O.

    logs/<log>/<begin>-<end>-<first ms>-<last ms>-<replication ID>-<SHA-256 of the content>

    {"format": "tidelog log, format 1", "previous": "<name of the previous file, or empty>",
     "times": [[<ms>, <log offset>], ...]}
    BATCH frames, one per commit group (see ``frames``)

A *log* is a directory of chunks without gaps. While chunks are merged (``logmerge``), a record can be in two of them.
The name of a log is that of the base backup with which it began. ``begin`` and ``end`` are log offsets. A pair in
``times`` says that the log ended at that offset at that time (ms since the epoch, by the clock of the server).
``first ms`` and ``last ms`` are the times of the first and the last pair. The listing of a target is thus its index: no
file has to be read to find a log offset or a time.

Rule 1: a chunk is written once and never changed, and all its records have one replication ID.
Rule 2: the times of a chunk increase. If the clock was set back by more than CLOCK_STEP, another chunk begins. Smaller
        steps, such as those between the clocks of two servers, are smoothed out.
Rule 3: ``previous`` names a missing file. Its records may have been in a merged chunk since (``logmerge``).
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from tidelog.backup.frames import BATCH, BackupFrame, BackupFrameDecoder
from tidelog.backup.manifest import Number
from tidelog.backup.targets import BackupError

FORMAT: Final = "tidelog log, format 1"
FOLDER: Final = "logs"
CLOCK_STEP: Final = 1000  # ms
LONGEST_CHUNK: Final = 1 << 33  # bytes; a single commit group can have 2 GiB
NAME: Final = re.compile(r"(\d{1,19})-(\d{1,19})-(\d{1,15})-(\d{1,15})-([0-9a-f]{40})-([0-9a-f]{64})", re.ASCII)


class _Header(msgspec.Struct):
    format: str
    previous: str
    times: list[tuple[Number, Number]]


@dataclass(frozen=True, slots=True)
class LogChunk:
    """One file, as described by its name."""

    log: str  # name of the directory
    begin: int  # log offset of the first record
    end: int  # log offset after the last record
    first_ms: int
    last_ms: int
    replid: str
    digest: str
    size: int  # of the file in bytes

    @property
    def name(self) -> str:
        return f"{self.begin}-{self.end}-{self.first_ms}-{self.last_ms}-{self.replid}-{self.digest}"

    @property
    def file(self) -> str:
        return f"{FOLDER}/{self.log}/{self.name}"

    @classmethod
    def named(cls, log: str, name: str, size: int) -> LogChunk | None:
        """Return the chunk with this file name; None if it is not the name of a chunk."""
        found = NAME.fullmatch(name)
        if found is None or int(found[1]) >= int(found[2]):
            return None
        begin, end, first_ms, last_ms = map(int, found.groups()[:4])
        return cls(log, begin, end, first_ms, last_ms, found[5], found[6], size)


@dataclass(frozen=True, slots=True)
class LogContent:
    """The content of a chunk."""

    previous: str  # name of the previous chunk; "": it is the first one
    times: list[tuple[int, int]]  # (ms, log offset), increasing
    groups: list[BackupFrame]

    def boundary(self, offset: int) -> int:
        """Return the end of the last commit group that ends at or before this offset, or the start of the chunk."""
        starts = [group.offset for group in self.groups]
        at = bisect_right(starts, offset) - 1
        last = self.groups[at]
        return offset if offset >= last.offset + len(last.payload) else last.offset

    def within(self, begin: int, end: int) -> LogContent:
        """Return the part between two log offsets at which commit groups begin or end."""
        groups = [group for group in self.groups if begin <= group.offset < end]
        return LogContent(self.previous, [pair for pair in self.times if begin <= pair[1] <= end], groups)


def encode(
    log: str, replid: str, previous: str, groups: list[BackupFrame], times: list[tuple[int, int]]
) -> tuple[LogChunk, bytes]:
    """Return a chunk and its content. ``groups`` and ``times`` are not empty."""
    header = msgspec.json.encode(_Header(FORMAT, previous, times))
    raw = b"".join([header, b"\n", *[group.encoded() for group in groups]])
    end = groups[-1].offset + len(groups[-1].payload)
    digest = sha256(raw).hexdigest()
    return LogChunk(log, groups[0].offset, end, times[0][0], times[-1][0], replid, digest, len(raw)), raw


def decode(chunk: LogChunk, raw: bytes, shown: str) -> LogContent:
    """Return the content of a chunk. ``shown``: the name of the file. Raises BackupError if it is damaged."""
    if sha256(raw).hexdigest() != chunk.digest:
        raise BackupError(f"{shown} is damaged: its SHA-256 is not that in its name")
    first, _, rest = raw.partition(b"\n")
    try:
        header = msgspec.json.decode(first, type=_Header)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BackupError(f"{shown} is not a part of a log") from None
    if header.format != FORMAT:
        form = json.dumps(header.format)[:60]
        raise BackupError(f"{shown} says {form}, which this tidelog does not know: use the newer one")
    groups = BackupFrameDecoder().feed(rest)
    at = chunk.begin
    for group in groups:
        if group.kind != BATCH or group.offset != at or not group.payload:
            break
        at += len(group.payload)
    if at != chunk.end or at == chunk.begin or not header.times:
        raise BackupError(f"{shown} does not contain the part of the log that its name says")
    return LogContent(header.previous, header.times, groups)
