"""Which entries of a stream are read from objects, and which from the server.

Rule 1: a manifest is used only if it belongs to the stream as it is now: to the same owner and the same sid. If the
        stream was deleted and created again, or another stream was renamed to its name, the entries come from the
        server until they are copied.
Rule 2: before the first use, the last entry in the objects is compared with the server. This detects a data directory
        that was replaced by an older copy of itself.
Rule 3: entries that were evicted or deleted when the plan was made are not returned.
Rule 4: a piece contains every other entry of its range.
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import hiredis
import zstandard

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import existing
from tidelog.history import index, manifest
from tidelog.history.errors import HistoryError, NoHistoryError
from tidelog.history.files import OBJECTS, HistoryFiles
from tidelog.history.location import HistoryLocation, ManyDeletedError, deleted_ranges, tmanifest
from tidelog.history.manifest import HistoryManifest, HistoryPart
from tidelog.history.sections import ALL, wire_of
from tidelog.transport.errors import ReplyError

THREADS: Final = 16  # manifests that are read at the same time
NOTHING: Final = StreamId(0, 0)
VALID: Final = 600.0  # seconds after which a manifest is read again: its objects may be deleted after tier-grace
LAST_SECTIONS: Final = 4  # of the history, among which one with an entry that still exists is expected

log = logging.getLogger(__name__)

Ask = Callable[..., list[Any]]  # ``LeaderConnection.ask``


@dataclass(frozen=True)
class HistoryPiece:
    """A part of a stream that is read from objects: the entries after one ID, up to another one."""

    key: str
    after: StreamId  # exclusive
    end: StreamId  # inclusive
    url: str
    seconds: float  # the time limit of each call to the object store
    parts: tuple[HistoryPart, ...]  # the objects, in order
    first_ord: int  # entries with lower ordinals were evicted
    deleted: bytes  # start and end of each range of deleted ordinals, uint64 each

    @property
    def entries(self) -> int:
        """The number of entries, at most."""
        return sum(part.entries for part in self.parts)


@dataclass(frozen=True)
class StreamHistory:
    """The history of one stream, as it was when a plan was made."""

    key: str
    files: HistoryFiles
    location: HistoryLocation
    manifest: HistoryManifest
    deleted: array[int]  # ordinals: start and end of each range of deleted entries, ascending

    @property
    def end(self) -> StreamId:
        """The last ID in the objects."""
        return self.manifest.parts[-1].last_id

    def piece(self, after: StreamId, end: StreamId) -> HistoryPiece | None:
        """Return the part of (after, end] that is in objects: from its beginning on. None if there is none.

        Raises HistoryError.
        """
        stop = min(end, self.end)
        if stop <= after:
            return None
        parts = tuple(
            part
            for part in manifest.objects(self.files, self.manifest.folder, self.manifest.parts, after, stop)
            if part.end_ord > self.location.first_ord  # an object of evicted entries may be deleted
        )
        return self._made(after, stop, parts)

    def _made(self, after: StreamId, end: StreamId, parts: tuple[HistoryPart, ...]) -> HistoryPiece:
        deleted = b""
        if parts and self.deleted:
            low = bisect_right(self.deleted, parts[0].first_ord) & ~1  # from the start of a range
            high = bisect_left(self.deleted, parts[-1].end_ord) + 1 & ~1  # to the end of a range
            deleted = self.deleted[low:high].tobytes()
        files, first_ord = self.files, self.location.first_ord
        return HistoryPiece(self.key, after, end, files.url, files.seconds, parts, first_ord, deleted)

    def divided(self, piece: HistoryPiece, most: int) -> Iterator[HistoryPiece]:
        """Divide a piece into pieces of about ``most`` bytes in objects. Raises HistoryError."""
        after = before = piece.after
        taken: list[HistoryPart] = []
        size = 0
        for part in piece.parts:
            if size and size + part.stored > most:
                yield self._made(after, taken[-1].last_id, tuple(taken))
                after, taken, size = taken[-1].last_id, [], 0
            taken.append(part)
            size += part.stored
            if size > most:
                own = 0
                for record in index.sections(self.files, part, self.key.encode(), piece.first_ord):
                    if record.last_id <= after or record.first_id > piece.end:
                        continue
                    if own and own + record.size > most:
                        yield self._made(after, before, (part,))
                        after, own = before, 0
                    own, before = own + record.size, record.last_id
                size = own
        yield self._made(after, piece.end, tuple(taken))


class HistoryPlanner:
    """Finds the histories of streams. It caches manifests, and verifies each history once."""

    def __init__(self, ask: Ask, seconds: float = 0) -> None:
        """``ask``: sends calls to the leaders of their keys. ``seconds``: see ``HistoryFiles``."""
        self._ask = ask
        self._seconds = seconds
        self._files: dict[str, HistoryFiles] = {}
        #: The last one that was read of each stream, and when (monotonic).
        self._versions: dict[str, tuple[HistoryManifest, float]] = {}
        self._agreed: set[tuple[str, int]] = set()  # streams (Rule 2), with their sids
        self.problems: dict[str, Exception] = {}  # by stream: why its history is not used

    def histories(self, ends: Mapping[str, StreamId]) -> dict[str, StreamHistory]:
        """Return the histories of those streams that have one. ``problems`` has the streams with errors.

        ``ends``: the streams, and the last ID that the caller needs of each. Raises the errors of ``ask``.
        """
        names = list(ends)
        self.problems = {}
        located: dict[str, HistoryLocation] = {}
        for key, reply in zip(names, self._ask(*map(tmanifest, names)), strict=True):
            if isinstance(reply, ReplyError) and "no such key" not in str(reply):
                self.problems[key] = NoHistoryError(f"{reply} (stream {key!r})")
            elif isinstance(reply, HistoryLocation):
                if not reply.url:
                    self.problems[key] = NoHistoryError("the server copies no history: its tier-url is empty")
                elif not reply.server:
                    self.problems[key] = NoHistoryError("the server does not know the owner of its history yet")
                else:
                    located[key] = reply
        if not located:
            return {}
        with ThreadPoolExecutor(min(THREADS, len(located))) as pool:
            versions = pool.map(lambda key: self._latest(key, located[key], ends[key]), located)
            found = dict(zip(located, versions, strict=True))
            histories = {}
            for key, version in found.items():
                history = None if version is None else self._with_deleted(key, located[key], version)
                if history is not None:
                    histories[key] = history
            new = [each for key, each in histories.items() if (key, located[key].sid) not in self._agreed]
            lasts = dict(zip([each.key for each in new], pool.map(self._last_entry, new), strict=True))
        for key in self._differing(histories, lasts):
            del histories[key]
        self._agreed.update((key, located[key].sid) for key in histories)
        return histories

    def _latest(self, key: str, located: HistoryLocation, end: StreamId) -> HistoryManifest | None:
        """Return the manifest of a stream if it belongs to it (Rule 1). Errors are noted."""
        owner = located.server, located.sid
        version, since = self._versions.get(key, (None, 0.0))
        if (
            version is None or (version.server, version.sid) != owner or version.parts[-1].last_id < end
            or since + VALID < time.monotonic()
        ):  # fmt: skip
            try:
                version = manifest.latest(self._opened(located.url), located.folder)
            except HistoryError as error:
                self.problems[key] = error
                return None
            if version is None or not version.parts or (version.server, version.sid) != owner:
                return None
            self._versions[key] = version, time.monotonic()
        parts = version.parts
        if parts[0].first_ord > located.first_ord or parts[-1].end_ord > located.end_ord:
            return None  # at present
        return version

    def _opened(self, url: str) -> HistoryFiles:
        files = self._files.get(url)
        if files is None:
            files = self._files[url] = HistoryFiles(url, self._seconds)
        return files

    def _with_deleted(self, key: str, located: HistoryLocation, version: HistoryManifest) -> StreamHistory | None:
        """Return a history with its deleted entries; None if the stream is another one by now. Errors are noted."""
        try:
            deleted = deleted_ranges(self._ask, key, located, version.first_ord, version.parts[-1].end_ord)
        except ManyDeletedError as error:
            self.problems[key] = error
            return None
        return None if deleted is None else StreamHistory(key, self._opened(located.url), located, version, deleted)

    def _last_entry(self, history: StreamHistory) -> list[bytes] | None:
        """Return the last entry in the objects that still exists; None if there is none near the end. Errors are
        noted."""
        part, name = history.manifest.parts[-1], history.key.encode()
        first_ord = history.location.first_ord
        try:
            for record in reversed(index.sections(history.files, part, name, first_ord)[-LAST_SECTIONS:]):
                section = history.files.read(f"{OBJECTS}/{part.name}", record.offset, record.offset + record.size)
                frame = index.frame_of(history.files, part, name, record, section, zstandard.ZstdDecompressor())
                reader = hiredis.Reader()
                reader.feed(bytes(wire_of(frame, NOTHING, ALL, first_ord, history.deleted.tobytes())))
                last: list[bytes] | None = None
                while (entry := reader.gets()) is not False:
                    last = entry
                if last is not None:
                    return last
        except HistoryError as error:
            self.problems[history.key] = error
        except ValueError as error:
            first, end = part.first_id, part.last_id
            self.problems[history.key] = index.damaged(history.files, part, name, first, end, str(error))
        return None

    def _differing(self, histories: Mapping[str, StreamHistory], lasts: Mapping[str, list[bytes] | None]) -> list[str]:
        """Return the streams whose last entries in objects are not those on the server (Rule 2)."""
        there = {key: (StreamId.parse(last[0]), last) for key, last in lasts.items() if last is not None}
        replies = self._ask(*[calls.trange(key, last_id, last_id) for key, (last_id, _) in there.items()])
        differing = [key for key, last in lasts.items() if last is None]
        for (key, (last_id, last)), reply in zip(there.items(), replies, strict=True):
            found: list[Entry] = existing(key, reply) or []
            if [[str(each.id).encode(), *each.flat] for each in found] != [last]:
                differing.append(key)
                log.warning(
                    "the history of stream %r in %s differs from the server at entry %s: the stream is read from the"
                    " server", key, histories[key].files.url, last_id,
                )  # fmt: skip
        return differing
