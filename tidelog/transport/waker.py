"""``Waker``: which jobs have news. One thread, and a few connections on which the server waits (TWAIT).

A job is whoever reads streams and has nothing to read now: a job of ``tidelog.jobs``, a source of a flow.

    young line    jobs that became idle lately: few keys, so that waiting anew costs little
    old line      jobs that have been idle for OLD seconds: thousands of keys, asked once every OLD_WAIT_MS

A job that becomes idle gets a young line that is free, or joins the one with the fewest keys, whose wait is ended for
that (CLIENT UNBLOCK). When a young line's wait is over, its jobs are old, and join an old line in the same way.

Rule 1: nothing is missed: TWAIT answers at once where there are entries after the given ID, however late it comes.
Rule 2: a job is told once, and is watched no more until ``watch`` is called again. It may be told without news.
Rule 3: where the server does not answer, jobs wait in line, and are asked for again, later each time.
Rule 4: where the server refuses (a key is no stream), all jobs of that line are told, after REFUSED seconds: each finds
        out by itself, and the others come back.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import hiredis

from tidelog.transport.access import Access
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Value
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_temporary
from tidelog.transport.leader import LeaderConnection

YOUNG: Final = 4  # young lines
YOUNG_WAIT_MS: Final = 5_000
OLD_WAIT_MS: Final = 15_000
OLD: Final = 4.0  # seconds; less than a young line's wait, so that after one its jobs are old
MOST: Final = 4_000  # keys of a line; the server takes 10,000
GRACE: Final = 5.0  # seconds for a reply that is due to arrive
BACKOFF: Final = Backoff(first=0.1, most=5.0)  # while the server does not answer
REFUSED: Final = 1.0
SOON: Final = 0.005

Position = tuple[int, int]  # the parts of an entry's ID, such as a StreamId

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    name: str
    streams: Mapping[bytes, Position]
    since: float  # monotonic: idle since then


class _Line:
    """A connection on which the server waits for some jobs."""

    def __init__(self, access: Access, name: str, old: bool) -> None:
        self.old = old
        self.servers = LeaderConnection(access, name)
        self.wire: BlockingConnection | None = None
        self.id = 0  # of the connection, on the server
        self.jobs: set[_Job] = set()  # of the wait that is under way
        self.joining: set[_Job] = set()  # of the next one
        self.waiting = False
        self.recalled = False
        self.until = 0.0  # monotonic: when the reply must have come

    @property
    def keys(self) -> int:
        return sum(len(job.streams) for jobs in (self.jobs, self.joining) for job in jobs)

    def connect(self) -> BlockingConnection:
        if self.wire is None:
            wire = self.servers.leader()
            self.id = wire.ask("CLIENT", "ID")
            self.wire = wire
        return self.wire

    def wait(self) -> None:
        """Let the server wait for all jobs of the line. OSError, ReplyError."""
        self.jobs |= self.joining
        self.joining = set()
        self.recalled = False
        wanted: dict[bytes, Position] = {}
        for job in self.jobs:
            for stream, after in job.streams.items():
                wanted[stream] = min(after, wanted.get(stream, after))
        block = OLD_WAIT_MS if self.old else YOUNG_WAIT_MS
        self.connect().send(_twait(wanted, block))
        self.waiting = True
        self.until = time.monotonic() + block / 1000 + GRACE

    def close(self) -> None:
        self.servers.close()
        self.wire = None
        self.waiting = self.recalled = False


def _twait(wanted: Mapping[bytes, Position], block: int) -> tuple[Value, ...]:
    """Return the TWAIT command. A key named GROUP is sent last: as the first one, it would be the option."""
    keys = sorted(wanted, key=lambda key: key.upper() == b"GROUP")
    return ("TWAIT", block, *(word for key in keys for word in (key, f"{wanted[key][0]}.{wanted[key][1]}")))


class Waker:
    """Tells which jobs have news, by calling ``told`` with a job's name in the waker's own thread; it must not block.

    A context manager: the thread runs between entry and exit. ``name`` is that of the connections in CLIENT LIST.
    """

    def __init__(self, access: Access, told: Callable[[str], None], name: str = "tidelog-waker") -> None:
        self._access = access
        self._told = told
        self._name = name
        self._asked: deque[tuple[str, Mapping[bytes, Position] | None]] = deque()  # None: forget it
        self._jobs: dict[str, _Job] = {}
        self._free: dict[_Job, None] = {}  # in no line, oldest first
        self._later: list[tuple[float, _Job]] = []  # refused: when to tell it
        self._lines: list[_Line] = []
        self._control = LeaderConnection(access, name)
        self._not_before = 0.0  # monotonic: the server did not answer
        self._delays = Delays(BACKOFF)
        self._selector = selectors.DefaultSelector()
        self._bell, self._rung = socket.socketpair()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._rung.setblocking(False)
        self._bell.setblocking(False)
        self._selector.register(self._rung, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending = True
        self._ring()
        self._thread.join()

    # -- for callers, in any thread -------------------------------------------------------------------------------
    def watch(self, job: str, streams: Mapping[str, Position]) -> None:
        """Tell this job when a stream has entries after the ID given for it. Replaces what was told before."""
        self._asked.append((job, {stream.encode(): after for stream, after in streams.items()}))
        self._ring()

    def forget(self, job: str) -> None:
        """Tell this job nothing any more. It may be told once more, just now."""
        self._asked.append((job, None))
        self._ring()

    def _ring(self) -> None:
        with contextlib.suppress(OSError):  # it is full, so it has rung; or the waker has ended
            self._bell.send(b"!")

    # -- the thread -----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._ending:
                self._take_in()
                if time.monotonic() >= self._not_before:
                    self._place()
                self._listen(self._patience())
                self._tell_later()
        except Exception:
            log.exception("the waker ends: jobs are told nothing any more")
            raise
        finally:
            for line in list(self._lines):
                self._drop(line)
            self._control.close()
            self._selector.close()
            self._bell.close()
            self._rung.close()

    def _take_in(self) -> None:
        while self._asked:
            name, streams = self._asked.popleft()
            self._forget(name)
            if streams:
                job = self._jobs[name] = _Job(name, streams, time.monotonic())
                self._free[job] = None

    def _forget(self, name: str) -> None:
        job = self._jobs.pop(name, None)
        if job is None:
            return
        self._free.pop(job, None)
        for line in self._lines:  # the server may still wait for it: nobody is told then
            line.jobs.discard(job)
            line.joining.discard(job)

    def _patience(self) -> float | None:
        """Seconds until there is something to do besides what the server says."""
        now = time.monotonic()
        times = [line.until for line in self._lines if line.waiting] + [at for at, _ in self._later]
        if self._free or any(not line.waiting and line.keys for line in self._lines):
            times.append(self._not_before)
        if any(line.joining and not line.recalled for line in self._lines):
            times.append(max(self._not_before, now + SOON))
        return max(0.0, min(times) - now) if times else None

    # -- lines ----------------------------------------------------------------------------------------------------
    def _place(self) -> None:
        """Give each job that has no line one, and let the server wait."""
        now = time.monotonic()
        while self._free:
            job = next(iter(self._free))
            del self._free[job]
            self._line_for(job, now - job.since >= OLD).joining.add(job)
        for line in list(self._lines):
            if line.waiting:
                if line.joining and not line.recalled:
                    self._recall(line)
            elif line.joining or line.jobs:
                self._attempt(line, line.wait)
            elif line.old or sum(not each.old for each in self._lines) > YOUNG:
                self._drop(line)

    def _line_for(self, job: _Job, old: bool) -> _Line:
        size = len(job.streams)
        lines = [line for line in self._lines if line.old == old and line.keys + size <= MOST]
        idle = [line for line in lines if not line.waiting and not line.joining]
        if idle and not old:
            return idle[0]
        if lines and (old or len(lines) >= YOUNG):
            return min(lines, key=lambda line: line.keys) if not old else max(lines, key=lambda line: line.keys)
        line = _Line(self._access, self._name, old)
        self._lines.append(line)
        return line

    def _recall(self, line: _Line) -> None:
        """End the line's wait, so that it begins anew with those who join.

        The server says no where the reply is on its way, or the command did not reach it yet: it is told again soon.
        """

        def unblock() -> None:
            line.recalled = bool(self._control.leader().ask("CLIENT", "UNBLOCK", line.id))

        self._attempt(line, unblock)

    def _attempt(self, line: _Line, do: Callable[[], None]) -> None:
        """Call what may fail by the connection."""
        try:
            before = line.wire
            do()
            if line.wire is not None and line.wire is not before:
                self._selector.register(line.wire, selectors.EVENT_READ, line)
        except OSError as error:
            self._lost(line, error)
        except ReplyError as error:
            self._refused(line, error)

    def _lost(self, line: _Line, error: Exception) -> None:
        """The server does not answer (Rule 3)."""
        now = time.monotonic()
        if now >= self._not_before:  # else this is another line of the same server
            delay = self._delays.next()
            self._not_before = now + delay
            log.log(logging.INFO if delay < BACKOFF.most else logging.WARNING, "can't wait for entries: %s", error)
        self._free |= dict.fromkeys(sorted(line.jobs | line.joining, key=lambda job: job.since))
        self._drop(line)
        self._control.close()

    def _refused(self, line: _Line, error: ReplyError) -> None:
        """The server does not take the command (Rule 4)."""
        if is_temporary(error):
            self._lost(line, error)
            return
        log.warning("the server refuses to wait for %d jobs: %s", len(line.jobs), error)
        at = time.monotonic() + REFUSED
        self._later += [(at, job) for job in line.jobs | line.joining]
        self._drop(line)

    def _drop(self, line: _Line) -> None:
        if line.wire is not None:
            with contextlib.suppress(KeyError):  # it failed before it was registered
                self._selector.unregister(line.wire)
        line.close()
        self._lines.remove(line)

    # -- news -----------------------------------------------------------------------------------------------------
    def _listen(self, patience: float | None) -> None:
        for key, _ in self._selector.select(patience):
            if key.data is None:
                self._rung.recv(4096)
            elif key.data in self._lines:
                self._attempt(key.data, lambda line=key.data: self._heard(line))  # type: ignore[misc]
        now = time.monotonic()
        for line in [line for line in self._lines if line.waiting and now > line.until]:
            self._lost(line, TimeoutError("the server did not end its wait in time"))

    def _heard(self, line: _Line) -> None:
        if line.wire is None:
            return
        reply: Any = line.wire.poll()
        if reply is False:
            return
        if isinstance(reply, hiredis.ReplyError):
            raise ReplyError(str(reply))
        if not line.waiting:
            raise ConnectionError("a reply to nothing")
        line.waiting = False
        self._delays.reset()
        keys = set(reply or ())
        self._tell([job for job in line.jobs if not keys.isdisjoint(job.streams)])
        if not line.old and not keys and not line.recalled:  # its time is over
            now = time.monotonic()
            aged = {job for job in line.jobs if now - job.since >= OLD}
            line.jobs -= aged
            self._free |= dict.fromkeys(aged)

    def _tell_later(self) -> None:
        now = time.monotonic()
        due = [job for at, job in self._later if at <= now]
        self._later = [(at, job) for at, job in self._later if at > now]
        self._tell([job for job in due if self._jobs.get(job.name) is job])

    def _tell(self, jobs: Iterable[_Job]) -> None:
        for job in jobs:
            self._forget(job.name)
            try:
                self._told(job.name)
            except Exception:
                log.exception("job %s could not be told that it has news", job.name)
