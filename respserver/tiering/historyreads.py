"""Reads from the object store: fetches nodes that a command needs into the disk cache, and limits the cache's size.

A read of a node that is only in the object store raises AbsentNodeError. The command, or its long reply, then waits
here, and is repeated when the node is in the cache. Other clients are served meanwhile.

Rule 1: one request reads one section, with all of its nodes. Sections behind it are fetched, too, in parallel: those of
a few nodes, and of more nodes if a read continues where the last request ended (AHEAD). The process reads them after
those that commands wait for.
Rule 2: a section that is missing or damaged is noted for FAILED_MS. After other errors, the whole object is. Commands
that need it in this time get the error.
Rule 3: the process that reads (``persistence.tiering.reader``) runs while the store has references. If it ends, or
leaves a request unanswered for ``tier-timeout`` and GRACE seconds, a new one gets the requests, once.
Rule 4: if an object is missing or damaged, its section is noted until it was read again, or left the store. One such
section is read every AGAIN_MS, and the next one at once after a success. So INFO shows the state of the objects also if
no command needs them.
Rule 5: a turn of the event loop begins at most AT_ONCE requests. Each one takes about 0.15 ms, and 100 clients may send
their reads at the same time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from persistence.layout import NODE_KEY
from resp.errors import AbsentNodeError, CorruptError
from respserver.observe.stats import HistoryReadStats
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.runtime.threads import in_thread
from respserver.tiering.helperprocess import ENDED, GRACE, LONGEST_LINE, ROOT
from storage.nodes import reference
from storage.nodes.reference import Reference

#: Nodes that are read ahead: at the first request, at one that continues there, and from then on. With 64 each time,
#: 100 single reads at random positions wait for 900 sections instead of 200.
AHEAD: Final = (4, 16, 64)
BUSY: Final = 64  # requests in progress, at which nothing is read ahead
AT_ONCE: Final = 8  # Rule 5
PLACES: Final = 1000  # positions at which a read can continue
REMOVED: Final = 200  # files of the cache that are removed at a time, in some milliseconds
FAILED_MS: Final = 1000
RESTART_MS: Final = 30_000  # after which a process that has ended is replaced, unless a command needs it
ATTEMPTS: Final = 2
AGAIN_MS: Final = 60_000
LONGEST_ERROR: Final = 300  # characters
#: At the ends of errors
LATER: Final = "Repeat the command later"
LOST: Final = "Restore the object, such as from a version of the bucket, or run tidelog history repair --read"

Section = tuple[int, bytes, int]


class _Request:
    """A section that is being read."""

    __slots__ = ("attempts", "deadline", "key", "line", "object", "waiters")

    def __init__(self, of: str, line: dict[str, Any]) -> None:
        """``line``: for the process. It has "urgent" if a command waits for it."""
        self.object = of
        self.key = b""  # of one of its nodes in the store
        self.line = line
        self.waiters: list[tuple[Callable[[], None], bool]] = []  # called at its end; False: or earlier
        self.attempts = 0
        self.deadline = 0  # ms (monotonic)


class _LostSection(NamedTuple):
    """A section of an object that is missing or damaged."""

    object: str
    key: bytes  # of one of its nodes in the store
    error: str


class HistoryReads(ServerPart):
    """Fetches nodes, and keeps the disk cache below ``tier-cache``."""

    def __init__(self, parts: RuntimeParts) -> None:
        super().__init__(parts)
        self._waits: deque[tuple[AbsentNodeError, Callable[[], None], bool]] = deque()  # that have not begun (Rule 5)
        self._begins = False  # whether the next turn begins some
        self._requests: dict[Section, _Request] = {}
        self._ids: dict[int, Section] = {}
        self._last = 0  # the last ID of a request
        self._ends: dict[tuple[int, int], int] = {}  # sid, ordinal after the last node of a request -> its AHEAD
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._hangs = False  # the process was killed because it left a request unanswered
        self._not_before = 0  # ms (monotonic) before which no process is started in advance
        self._cached: dict[bytes, int] | None = None  # digest -> bytes of the file, oldest first; None: not read yet
        self._bytes = 0
        self._scan: asyncio.Task[None] | None = None
        self._failed: dict[str | Section, int] = {}  # object or section -> ms (monotonic) at which this is forgotten
        self._fetched = self._errors = self._hits = self._misses = 0
        self._warned = ""
        self._lost: dict[Section, _LostSection] = {}
        self._again_at = 0  # ms (monotonic) at which the first of them is read again
        self._data.on_absent = self.fetch

    # -- requests --------------------------------------------------------------------------------------------
    def fetch(self, error: AbsentNodeError) -> None:
        """Fetch a node, for whoever reads it next."""
        self.wait(error, _nothing)

    async def node(self, key: bytes, raw: bytes) -> bytes:
        """Return the node with a key, whose reference is ``raw``. Raises CorruptError."""
        sid, first_ord, first_id = NODE_KEY.unpack(key)
        while True:
            try:
                return self._data.disk.store.tiered.load(raw, sid, first_ord, int.from_bytes(first_id, "big"))
            except AbsentNodeError as error:
                if error.failed:
                    raise
                ended = self._loop.create_future()
                self.wait(error, lambda its=ended: its.done() or its.set_result(None))  # type: ignore[misc]
                await ended

    def wait(self, error: AbsentNodeError, resume: Callable[[], None], whole: bool = True) -> None:
        """Fetch a node. ``resume``: called later, also if this fails; a read of the node then raises the error with
        the reason. ``whole``: call it when all nodes of the section are there, not already when this one is."""
        self._waits.append((error, resume, whole))
        if not self._begins:
            self._begin_waits(1)

    def _begin_waits(self, most: int = AT_ONCE) -> None:
        """Begin requests for the oldest waits, the others in the next turns."""
        self._begins = bool(self._waits)
        if self._begins:
            self._loop.call_soon(self._begin_waits)
        for _ in range(min(most, len(self._waits))):
            self._begin_wait(*self._waits.popleft())

    def _begin_wait(self, error: AbsentNodeError, resume: Callable[[], None], whole: bool) -> None:
        key = NODE_KEY.pack(error.sid, error.first_ord, error.first_id.to_bytes(16, "big"))
        store = self._data.disk.store
        try:
            step = min(self._ends.pop((error.sid, error.first_ord), -1) + 1, len(AHEAD) - 1)
            nodes = store.near(key, AHEAD[step] if len(self._requests) < BUSY else 0, self._cached or ())
        except (OSError, CorruptError):  # the retry reports it
            self._loop.call_soon(resume)
            return
        if not nodes:  # the node was evicted since; a long reply still reads it
            nodes = [(error.first_ord, reference.unpack(error.raw))]
        if not self._config.tier_url:
            self._fail(nodes[0][1].object, "tier-url is not set: set it to the prefix that has the object")
            self._loop.call_soon(resume)
            return
        self._ends[error.sid, max(first + its.entries for first, its in nodes)] = step
        if len(self._ends) > PLACES:
            del self._ends[next(iter(self._ends))]
        sections: dict[Section, list[tuple[int, Reference]]] = {}
        for node in nodes:
            sections.setdefault(node[1].section, []).append(node)
        wanted = nodes[0][1].section
        for section, its in sections.items():
            if section not in self._requests and (section == wanted or not self._has_failed(section, its[0][1])):
                self._begin(section, its, section == wanted)
                first, one = its[0]
                self._requests[section].key = NODE_KEY.pack(error.sid, first, one.first_id.to_bytes(16, "big"))
        request = self._requests[wanted]
        request.waiters.append((resume, whole))
        if not request.line["urgent"]:
            digest = nodes[0][1].digest.hex()
            request.line["urgent"] = True
            request.line["nodes"].sort(key=lambda node: node[0] != digest)  # if it must be sent again
            self._write({"id": request.line["id"], "urgent": True, "first": digest})

    def _has_failed(self, section: Section, one: Reference) -> bool:
        return section in self._failed or one.object in self._failed

    def _begin(self, section: Section, nodes: list[tuple[int, Reference]], urgent: bool) -> None:
        one = nodes[0][1]
        self._last += 1
        request = _Request(one.object, {
            "id": self._last, "object": one.object, "offset": one.offset, "size": one.size, "checksum": one.checksum,
            "nodes": [[its.digest.hex(), first, its.entries] for first, its in nodes], "urgent": urgent,
        })  # fmt: skip
        self._requests[section] = request
        self._ids[self._last] = section
        self._send(request)
        if self._task is None:
            self._task = self._loop.create_task(self._serve())

    def _send(self, request: _Request) -> None:
        request.deadline = self._clock.mono() + int((self._config.tier_timeout + GRACE) * 1000)
        if self._write(request.line):
            request.attempts += 1

    def _write(self, line: dict[str, Any]) -> bool:
        """Write a line to the process. Return False if there is none: it is being started, and gets all requests."""
        process = self._process
        if process is None or process.stdin is None:
            return False
        with suppress(OSError, RuntimeError):  # it has ended; _serve() notices this
            process.stdin.write(json.dumps(line).encode() + b"\n")
        return True

    def _end(self, section: Section, error: str, lost: bool = False) -> None:
        """Note that a request has ended, with an error if there is a text. ``lost``: see Rule 4."""
        request = self._requests.pop(section)
        del self._ids[request.line["id"]]
        before = self._lost.get(section)
        if error:
            error = f"{' '.join(error.split())[:LONGEST_ERROR]}. {LOST if lost else LATER}"
            self._fail(section if lost else request.object, error, before is not None and before.error == error)
        if lost:
            self._lost[section] = _LostSection(request.object, request.key, error)
        elif not error and before is not None:
            del self._lost[section]
            self._again_at = 0
        for resume, _ in request.waiters:
            resume()

    def _fail(self, of: str | Section, error: str, known: bool = False) -> None:
        """Note that reads of an object, or of one section, fail. ``known``: the log has this error."""
        self._errors += 1
        self._failed[of] = self._clock.mono() + FAILED_MS
        self._data.disk.store.tiered.failures[of] = error
        if error != self._warned and not known:
            self._logger.warning(f"History can't be read: {error}. Commands that need it get an error")
        self._warned = error

    def _read_again(self) -> None:
        """Read the section again that has been lost for the longest time (Rule 4)."""
        section, lost = next(iter(self._lost.items()))
        del self._lost[section]
        self._again_at = self._clock.mono() + AGAIN_MS
        try:
            nodes = self._data.disk.store.near(lost.key, 0, ())
        except (OSError, CorruptError):  # a damaged reference, or a node that was copied back into the store
            return
        its = [node for node in nodes if node[1].section == section]
        if its and section not in self._requests:
            self._lost[section] = lost
            self._begin(section, its, urgent=False)
            self._requests[section].key = lost.key

    # -- the process -----------------------------------------------------------------------------------------
    async def _serve(self) -> None:
        """Run processes until one has ended with no requests left."""
        try:
            more = True
            while more:
                why = await self._serve_one()
                for section, request in list(self._requests.items()):
                    if request.attempts >= ATTEMPTS:
                        self._end(section, why)
                more = bool(self._requests)
        except Exception as error:  # noqa: BLE001 - a bug must not leave clients without a reply
            self._logger.trace("Bug in reads of history", error)
            for section in list(self._requests):
                self._end(section, f"bug: {error!r}")
        finally:
            self._task = None
            self._not_before = self._clock.mono() + RESTART_MS

    async def _serve_one(self) -> str:
        """Start a process, send it all requests, and note its answers. Return why it has ended."""
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from persistence.tiering.reader import main; main()"
        config, directory = self._config, self._data.disk.store.tiered.path
        first = {"url": config.tier_url, "seconds": config.tier_timeout, "directory": str(directory)}
        why = "the process that reads from it has ended"
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-c", code, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True, limit=LONGEST_LINE,
            )  # fmt: skip
        except OSError as error:
            for request in self._requests.values():
                request.attempts = ATTEMPTS
            return f"the process that reads from it can't be started: {error}"
        self._process = process
        assert process.stdin is not None  # noqa: S101 - a pipe, like the next one
        assert process.stdout is not None  # noqa: S101
        try:
            with suppress(OSError, RuntimeError):
                process.stdin.write(json.dumps(first).encode() + b"\n")
            for request in self._requests.values():
                self._send(request)
            while raw := await process.stdout.readline():
                line = json.loads(raw)
                if "failed" in line:
                    why = line["failed"]
                    for request in self._requests.values():
                        request.attempts = ATTEMPTS
                else:
                    self._answered(line)
                    await asyncio.sleep(0)  # readline() does not wait while it has lines: 100 would take one turn
        except (OSError, ValueError) as error:
            why = f"the process that reads from it sends invalid lines: {error}"
        finally:
            self._process = None
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDED):
                    await process.wait()
            process.stdin.close()
        if self._hangs:
            why, self._hangs = "the process that reads from it hangs", False
        return why

    def _answered(self, line: dict[str, Any]) -> None:
        section = self._ids.get(line["id"])
        if section is None:  # a former request with the same process
            return
        for digest, size in line.get("files", ()):
            self._fetched += 1
            self._add(bytes.fromhex(digest), size)
        self._trim()
        if "error" not in line:
            self._warned = ""
        if line.get("more"):  # who waits for another node of the section waits again
            request = self._requests[section]
            waiters, request.waiters = request.waiters, [each for each in request.waiters if each[1]]
            for resume in [each for each, whole in waiters if not whole]:
                resume()
            return
        self._end(section, line.get("error", ""), line.get("lost", False))

    # -- the cache -------------------------------------------------------------------------------------------
    def _add(self, digest: bytes, size: int) -> None:
        if self._cached is not None:
            self._bytes += size - self._cached.pop(digest, 0)
            self._cached[digest] = size

    def _trim(self) -> None:
        """Remove the files that were not used for the longest time, at most REMOVED."""
        cached, most = self._cached, self._config.tier_cache
        if cached is None or self._bytes <= most:
            return
        self._note_used()
        path = self._data.disk.store.tiered.path
        left = REMOVED
        while self._bytes > most and cached and left:
            left -= 1
            digest = next(iter(cached))
            self._bytes -= cached.pop(digest)
            with suppress(OSError):
                (path / digest.hex()).unlink()

    def _note_used(self) -> None:
        tiered, cached = self._data.disk.store.tiered, self._cached
        for digest in tiered.used:
            if cached is not None and digest in cached:
                cached[digest] = cached.pop(digest)
        tiered.used.clear()
        self._hits, tiered.hits = self._hits + tiered.hits, 0
        self._misses, tiered.misses = self._misses + tiered.misses, 0

    async def _find(self) -> None:
        """Read the names of the files that an earlier process of the server has left."""
        try:
            self._cached, self._bytes = await in_thread(lambda: _files(self._data.disk.store.tiered.path))
        except OSError as error:
            self._logger.warning(f"The disk cache of history can't be read: {error}")
            self._cached = {}

    def on_time(self) -> None:
        """Forget failures, and end a process that hangs. Called ``hz`` times a second."""
        if self._scan is None and self._config.tier_url:
            self._scan = self._loop.create_task(self._find())
        mono = self._clock.mono()
        for of, until in list(self._failed.items()):
            if until <= mono:
                del self._failed[of]
                self._data.disk.store.tiered.failures.pop(of, None)
        self._note_used()
        self._trim()
        if self._lost and self._config.tier_url and mono >= self._again_at:
            self._read_again()
        idle = self._task is None and mono >= self._not_before
        if idle and self._config.tier_url and self._data.disk.store.has_references:
            self._task = self._loop.create_task(self._serve())
        if self._process is not None and any(request.deadline <= mono for request in self._requests.values()):
            self._hangs = True
            with suppress(ProcessLookupError):
                self._process.kill()

    async def finish(self) -> None:
        """End the process. Called at shutdown."""
        for task in (self._task, self._scan):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._requests.clear()
        self._waits.clear()

    def stats(self) -> HistoryReadStats:
        self._note_used()
        error = next(reversed(self._lost.values())).error if self._lost else self._warned
        return HistoryReadStats(
            self._hits, self._misses, self._fetched, self._errors, self._bytes,
            len({lost.object for lost in self._lost.values()}), error,
            sum(waiter is not _nothing for request in self._requests.values() for waiter, _ in request.waiters)
            + sum(waiter is not _nothing for _, waiter, _ in self._waits),
        )  # fmt: skip


def _files(path: Path) -> tuple[dict[bytes, int], int]:
    """Return the files of a cache, oldest first: their digests and sizes. Also return the sum of their sizes.

    Removes those that were not completed.
    """
    found: list[tuple[float, bytes, int]] = []
    try:
        entries = list(os.scandir(path))
    except FileNotFoundError:
        return {}, 0
    for entry in entries:
        try:
            digest = bytes.fromhex(entry.name)
        except ValueError:
            with suppress(OSError):
                os.unlink(entry.path)
            continue
        with suppress(OSError):
            stat = entry.stat()
            found.append((stat.st_mtime, digest, stat.st_size))
    sizes = {digest: size for _, digest, size in sorted(found)}
    return sizes, sum(sizes.values())


def _nothing() -> None:
    pass
