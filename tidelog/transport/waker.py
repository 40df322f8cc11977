"""``Waker``: notifies idle readers of new entries, with one thread and a few connections.

A reader is anything that reads streams and has nothing to read at present, such as a job or a source of a flow. On each
connection, the server waits (TWAIT) for the streams of some readers.

    young wait    readers that became idle recently: few keys, so that restarting the wait costs little
    old wait      readers that have been idle for OLD seconds: thousands of keys, one TWAIT every OLD_WAIT_MS

A reader that becomes idle is assigned to an unused young wait. If there is none, it joins the one with the fewest keys,
which is interrupted for that (CLIENT UNBLOCK). When the TWAIT of a young wait times out, its readers have become old
and join an old wait in the same way.

Rule 1: no entry is missed: TWAIT replies immediately if there are entries after the given ID.
Rule 2: a reader is notified once and then not watched until ``watch`` is called again. It may be notified without new
        entries.
Rule 3: while the server does not answer, readers remain unassigned, and the waits are retried with growing delays.
Rule 4: if the server refuses a wait (a key is not a stream), all its readers are notified after REFUSED seconds. Each
        reader then gets the error itself, and the others call ``watch`` again.
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

YOUNG: Final = 4  # maximum number of young waits
YOUNG_WAIT_MS: Final = 5_000
OLD_WAIT_MS: Final = 15_000
OLD: Final = 4.0  # seconds; less than YOUNG_WAIT_MS, so that readers are old after one young wait
MOST: Final = 4_000  # keys of a wait; the server accepts 10,000
GRACE: Final = 5.0  # seconds in which a reply must arrive after the timeout of its TWAIT
BACKOFF: Final = Backoff(first=0.1, most=5.0)  # while the server does not answer
REFUSED: Final = 1.0  # seconds, see Rule 4
SOON: Final = 0.005  # seconds until an interruption is retried

Position = tuple[int, int]  # the parts of an entry's ID, such as a StreamId

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Reader:
    name: str
    streams: Mapping[bytes, Position]
    since: float  # monotonic: idle since then


class _Wait:
    """A connection on which the server waits for the streams of some readers."""

    def __init__(self, access: Access, name: str, old: bool) -> None:
        self.old = old
        self.servers = LeaderConnection(access, name)
        self.connection: BlockingConnection | None = None
        self.id = 0  # of the connection, on the server
        self.readers: set[_Reader] = set()  # of the current TWAIT
        self.joining: set[_Reader] = set()  # of the next one
        self.waiting = False
        self.interrupted = False
        self.until = 0.0  # monotonic: the deadline of the reply

    @property
    def keys(self) -> int:
        return sum(len(reader.streams) for readers in (self.readers, self.joining) for reader in readers)

    def connect(self) -> BlockingConnection:
        if self.connection is None:
            connection = self.servers.leader()
            self.id = connection.ask("CLIENT", "ID")
            self.connection = connection
        return self.connection

    def begin(self) -> None:
        """Send TWAIT for all readers. Raises OSError or ReplyError."""
        self.readers |= self.joining
        self.joining = set()
        self.interrupted = False
        wanted: dict[bytes, Position] = {}
        for reader in self.readers:
            for stream, after in reader.streams.items():
                wanted[stream] = min(after, wanted.get(stream, after))
        block = OLD_WAIT_MS if self.old else YOUNG_WAIT_MS
        self.connect().send(_twait(wanted, block))
        self.waiting = True
        self.until = time.monotonic() + block / 1000 + GRACE

    def close(self) -> None:
        self.servers.close()
        self.connection = None
        self.waiting = self.interrupted = False


def _twait(wanted: Mapping[bytes, Position], block: int) -> tuple[Value, ...]:
    """Return the TWAIT command. A key named GROUP is sent last: as the first one, it would be the option."""
    keys = sorted(wanted, key=lambda key: key.upper() == b"GROUP")
    return ("TWAIT", block, *(word for key in keys for word in (key, f"{wanted[key][0]}.{wanted[key][1]}")))


class Waker:
    """Calls ``notify`` with the name of a reader that may have new entries.

    ``notify`` runs in the waker's thread and must not block. The waker is a context manager: the thread runs between
    entry and exit. ``name`` is the name of the connections in CLIENT LIST.
    """

    def __init__(self, access: Access, notify: Callable[[str], None], name: str = "tidelog-waker") -> None:
        self._access = access
        self._notify_reader = notify
        self._name = name
        self._requests: deque[tuple[str, Mapping[bytes, Position] | None]] = deque()  # None: forget the reader
        self._readers: dict[str, _Reader] = {}
        self._unassigned: dict[_Reader, None] = {}  # not part of a wait, oldest first
        self._later: list[tuple[float, _Reader]] = []  # refused: when to notify them
        self._waits: list[_Wait] = []
        self._control = LeaderConnection(access, name)
        self._not_before = 0.0  # monotonic: end of the delay after the server did not answer
        self._delays = Delays(BACKOFF)
        self._selector = selectors.DefaultSelector()
        self._wakeup_send, self._wakeup_receive = socket.socketpair()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._wakeup_receive.setblocking(False)
        self._wakeup_send.setblocking(False)
        self._selector.register(self._wakeup_receive, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ending = True
        self._wake()
        self._thread.join()

    # -- for callers, in any thread -------------------------------------------------------------------------------
    def watch(self, reader: str, streams: Mapping[str, Position]) -> None:
        """Notify this reader once when a stream has entries after its ID. Replaces the reader's earlier streams."""
        self._requests.append((reader, {stream.encode(): after for stream, after in streams.items()}))
        self._wake()

    def forget(self, reader: str) -> None:
        """Stop watching for this reader. A notification that is in progress may still arrive."""
        self._requests.append((reader, None))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full, so the thread will wake up; or the waker has ended
            self._wakeup_send.send(b"!")

    # -- the thread -----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._ending:
                self._take_requests()
                if time.monotonic() >= self._not_before:
                    self._assign()
                self._listen(self._timeout())
                self._notify_later()
        except Exception:
            log.exception("the waker ends: readers are no longer notified")
            raise
        finally:
            for wait in list(self._waits):
                self._drop(wait)
            self._control.close()
            self._selector.close()
            self._wakeup_send.close()
            self._wakeup_receive.close()

    def _take_requests(self) -> None:
        while self._requests:
            name, streams = self._requests.popleft()
            self._forget(name)
            if streams:
                reader = self._readers[name] = _Reader(name, streams, time.monotonic())
                self._unassigned[reader] = None

    def _forget(self, name: str) -> None:
        reader = self._readers.pop(name, None)
        if reader is None:
            return
        self._unassigned.pop(reader, None)
        for wait in self._waits:  # the server may still wait for its streams: nobody is notified then
            wait.readers.discard(reader)
            wait.joining.discard(reader)

    def _timeout(self) -> float | None:
        """Return the seconds until there is work even if no reply arrives; None: no limit."""
        now = time.monotonic()
        times = [wait.until for wait in self._waits if wait.waiting] + [at for at, _ in self._later]
        if self._unassigned or any(not wait.waiting and wait.keys for wait in self._waits):
            times.append(self._not_before)
        if any(wait.joining and not wait.interrupted for wait in self._waits):
            times.append(max(self._not_before, now + SOON))
        return max(0.0, min(times) - now) if times else None

    # -- waits ----------------------------------------------------------------------------------------------------
    def _assign(self) -> None:
        """Assign the unassigned readers to waits, and begin the waits that are due."""
        now = time.monotonic()
        while self._unassigned:
            reader = next(iter(self._unassigned))
            del self._unassigned[reader]
            self._wait_for(reader, now - reader.since >= OLD).joining.add(reader)
        for wait in list(self._waits):
            if wait.waiting:
                if wait.joining and not wait.interrupted:
                    self._interrupt(wait)
            elif wait.joining or wait.readers:
                self._attempt(wait, wait.begin)
            elif wait.old or sum(not each.old for each in self._waits) > YOUNG:
                self._drop(wait)

    def _wait_for(self, reader: _Reader, old: bool) -> _Wait:
        size = len(reader.streams)
        waits = [wait for wait in self._waits if wait.old == old and wait.keys + size <= MOST]
        idle = [wait for wait in waits if not wait.waiting and not wait.joining]
        if idle and not old:
            return idle[0]
        if waits and (old or len(waits) >= YOUNG):
            return min(waits, key=lambda wait: wait.keys) if not old else max(waits, key=lambda wait: wait.keys)
        wait = _Wait(self._access, self._name, old)
        self._waits.append(wait)
        return wait

    def _interrupt(self, wait: _Wait) -> None:
        """End the current TWAIT, so that the next one includes the readers that join.

        The server returns 0 if the reply was already sent or the TWAIT has not arrived yet; the command is then
        repeated after SOON seconds.
        """

        def unblock() -> None:
            wait.interrupted = bool(self._control.leader().ask("CLIENT", "UNBLOCK", wait.id))

        self._attempt(wait, unblock)

    def _attempt(self, wait: _Wait, do: Callable[[], None]) -> None:
        """Call ``do`` and handle errors of the connection and of the server."""
        try:
            before = wait.connection
            do()
            if wait.connection is not None and wait.connection is not before:
                self._selector.register(wait.connection, selectors.EVENT_READ, wait)
        except OSError as error:
            self._lost(wait, error)
        except ReplyError as error:
            self._refused(wait, error)

    def _lost(self, wait: _Wait, error: Exception) -> None:
        """Handle a server that does not answer (Rule 3)."""
        now = time.monotonic()
        if now >= self._not_before:  # otherwise this is another wait on the same server
            delay = self._delays.next()
            self._not_before = now + delay
            log.log(logging.INFO if delay < BACKOFF.most else logging.WARNING, "can't wait for entries: %s", error)
        self._unassigned |= dict.fromkeys(sorted(wait.readers | wait.joining, key=lambda reader: reader.since))
        self._drop(wait)
        self._control.close()

    def _refused(self, wait: _Wait, error: ReplyError) -> None:
        """Handle a refused command (Rule 4)."""
        if is_temporary(error):
            self._lost(wait, error)
            return
        log.warning("the server refuses to wait for %d readers: %s", len(wait.readers), error)
        at = time.monotonic() + REFUSED
        self._later += [(at, reader) for reader in wait.readers | wait.joining]
        self._drop(wait)

    def _drop(self, wait: _Wait) -> None:
        if wait.connection is not None:
            with contextlib.suppress(KeyError):  # it failed before it was registered
                self._selector.unregister(wait.connection)
        wait.close()
        self._waits.remove(wait)

    # -- replies --------------------------------------------------------------------------------------------------
    def _listen(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                self._wakeup_receive.recv(4096)
            elif key.data in self._waits:
                self._attempt(key.data, lambda wait=key.data: self._received(wait))  # type: ignore[misc]
        now = time.monotonic()
        for wait in [wait for wait in self._waits if wait.waiting and now > wait.until]:
            self._lost(wait, TimeoutError("the server did not end its wait in time"))

    def _received(self, wait: _Wait) -> None:
        if wait.connection is None:
            return
        reply: Any = wait.connection.poll()
        if reply is False:
            return
        if isinstance(reply, hiredis.ReplyError):
            raise ReplyError(str(reply))
        if not wait.waiting:
            raise ConnectionError("a reply without a request")
        wait.waiting = False
        self._delays.reset()
        keys = set(reply or ())
        self._notify([reader for reader in wait.readers if not keys.isdisjoint(reader.streams)])
        if not wait.old and not keys and not wait.interrupted:  # it has timed out
            now = time.monotonic()
            aged = {reader for reader in wait.readers if now - reader.since >= OLD}
            wait.readers -= aged
            self._unassigned |= dict.fromkeys(aged)

    def _notify_later(self) -> None:
        now = time.monotonic()
        due = [reader for at, reader in self._later if at <= now]
        self._later = [(at, reader) for at, reader in self._later if at > now]
        self._notify([reader for reader in due if self._readers.get(reader.name) is reader])

    def _notify(self, readers: Iterable[_Reader]) -> None:
        for reader in readers:
            self._forget(reader.name)
            try:
                self._notify_reader(reader.name)
            except Exception:
                log.exception("the notification of %s failed", reader.name)
