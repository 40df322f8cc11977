"""The log: batches in, durable; checkpoints; and everything back at the start.

    append() -> tail (one write, one sync)  -> journal (a thread, every few MB or 100 ms) -> store (checkpoint)

Rule 1: a batch that append() returned for survives a SIGKILL, and under ``always`` a power cut.
Rule 2: a frame leaves the ring only when the journal has its batch; a batch leaves the journal only when the store has its effects.
So store offset <= journal end <= log offset, always.
Rule 3: a ring that is full makes append() wait for the journal; a batch that no ring could hold goes to the journal directly.
Rule 4: three threads: the event loop (append, reads), the journal's own, and whoever runs a checkpoint. ``_lock`` guards the
ring and the list of what the journal lacks; ``_writing`` makes the journal's writers take turns. Nothing waits for the loop.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from persistence import directory as datadir
from persistence.journal import Batch, Journal
from persistence.store import Store
from persistence.tail import Tail, create
from resp.errors import CorruptError

if TYPE_CHECKING:
    from storage.capture import Capture
    from storage.keyspace import Keyspace

RETRY_SECONDS = 0.25  # between attempts of the journal to write


@dataclass(slots=True)
class LogOptions:
    """How a log behaves; sizes in bytes."""

    appendfsync: str = "always"  # or everysec, no
    ring_bytes: int = 16 << 20  # of a new directory's tail
    journal_flush_bytes: int = 4 << 20
    journal_flush_ms: int = 100
    checkpoint_bytes: int = 256 << 20  # of journal since the last checkpoint


@dataclass(slots=True)
class Recovered:
    """What a start found."""

    streams: int = 0
    nodes: int = 0
    strings: int = 0
    store_seconds: float = 0.0
    journal_batches: int = 0
    tail_batches: int = 0
    replayed_bytes: int = 0
    torn_bytes: int = 0  # of a last frame that was never acknowledged
    replay_seconds: float = 0.0

    def lines(self) -> list[str]:
        """For the server's log."""
        said = [
            f"Recovered from the store: streams={self.streams} nodes={self.nodes} strings={self.strings}"
            f" seconds={self.store_seconds:.3f}"
        ]
        if self.journal_batches or self.tail_batches:
            said.append(
                f"Replayed from the journal: batches={self.journal_batches} and from the tail: batches={self.tail_batches},"
                f" bytes={self.replayed_bytes} seconds={self.replay_seconds:.3f}"
            )
        if self.torn_bytes:
            said.append(f"The tail's last frame was torn and has been dropped ({self.torn_bytes} bytes, never acknowledged)")
        return said


class Log:
    """Use: open(), recover(), then append() on one thread; checkpoint() on any one other."""

    def __init__(self, path: Path, options: LogOptions, lock: int, identity: str) -> None:
        self.path = path
        self.options = options
        self.replication_id = identity
        self._lock_fd = lock
        self.store = Store(path / "store")
        self.journal = Journal(path / "journal")
        self.tail = Tail(path / "tail")
        self.offset = self.journal.end
        self.pending_sync = False  # written since the last sync, under everysec
        self._always = options.appendfsync == "always"
        self._lock = threading.Condition()
        self._writing = threading.Lock()
        self._waiting: deque[Batch] = deque()  # in the ring, not yet in the journal
        self._waiting_bytes = 0
        self._problem: str | None = None  # why the journal can't be written
        self._checkpoint_problem: str | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self.syncs = 0
        self.last_sync_us = 0

    @classmethod
    def open(cls, directory: Path, options: LogOptions) -> Log:
        """Lock and open a data directory, making it if it is new. Raises CorruptError, OSError."""
        directory.mkdir(parents=True, exist_ok=True)
        lock = datadir.lock(directory)
        try:
            identity = datadir.prepare(directory, options.ring_bytes)
            log = cls(directory, options, lock, identity)
            if not (directory / "tidelog.format").exists():
                datadir.complete(directory, identity)
        except BaseException:
            os.close(lock)
            raise
        return log

    def configure(self, appendfsync: str, checkpoint_bytes: int) -> None:
        """Change what may change at run time."""
        self._always = appendfsync == "always"
        self.options.appendfsync = appendfsync
        self.options.checkpoint_bytes = checkpoint_bytes

    # -- start -----------------------------------------------------------------------------------------------
    def recover(self, ks: Keyspace) -> Recovered:
        """Fill an empty keyspace from store, journal and tail; then the journal's thread starts. Raises CorruptError."""
        found = Recovered()
        began = time.perf_counter()
        found.streams, found.nodes, found.strings = self.store.restore(ks)
        store_offset = self.store.offset
        found.store_seconds = time.perf_counter() - began
        began = time.perf_counter()
        if store_offset > self.journal.end:
            raise CorruptError(
                f"{self.journal.path}: ends at log offset {self.journal.end}, before the store's {store_offset}: the journal is an"
                " older copy; restore the whole directory from a backup, or from a replica"
            )
        for _, batch in self.journal.read(store_offset):
            self._replay(ks, batch, found, self.journal.path)
            found.journal_batches += 1
        frames, found.torn_bytes = self.tail.read(self.journal.tail_place, self.journal.end)
        for offset, batch, behind in frames:
            self._replay(ks, batch, found, self.tail.path)
            found.tail_batches += 1
            self._waiting.append((offset, batch, behind))
            self._waiting_bytes += len(batch)
            self.offset = offset + len(batch)
        found.replay_seconds = time.perf_counter() - began
        if self.tail.size != self.options.ring_bytes:
            self._resize_tail()
        self._thread = threading.Thread(target=self._run, name="tidelog-journal", daemon=True)
        self._thread.start()
        return found

    def _resize_tail(self) -> None:
        """Another size was asked for: everything into the journal, then a new ring. Raises OSError."""
        self.journal.write(list(self._waiting), 0)
        self._waiting.clear()
        self._waiting_bytes = 0
        path = self.tail.path
        new = path.with_name("tail.new")
        create(new, self.options.ring_bytes)
        self.tail.close()
        new.rename(path)
        datadir.sync(self.path)
        self.tail = Tail(path)

    @staticmethod
    def _replay(ks: Keyspace, batch: bytes, found: Recovered, path: Path) -> None:
        try:
            ks.apply(batch)
        except CorruptError as error:
            raise CorruptError(f"{path}: {error}; restore the directory from a backup, or from a replica") from error
        ks.log.clear()
        found.replayed_bytes += len(batch)

    # -- writing ---------------------------------------------------------------------------------------------
    def append(self, batch: bytes) -> None:
        """Make a batch durable as appendfsync says; empty ones are nothing. Raises OSError, and then nothing has changed."""
        size = len(batch)
        if not size:
            return
        tail = self.tail
        with self._lock:
            place = tail.place_for(size)
            if place is None:
                if size > tail.size // 2:
                    self._append_large(batch)
                    return
                place = self._wait_for_room(size)
            tail.write(place, self.offset, batch)
            if self._always:
                tail.sync()
                self.syncs += 1
            else:
                self.pending_sync = True
            tail.took(place, size)
            self._waiting.append((self.offset, batch, tail.end))
            self._waiting_bytes += size
            self.offset += size
            if self._waiting_bytes >= self.options.journal_flush_bytes:
                self._lock.notify_all()

    def _wait_for_room(self, size: int) -> int:
        """Called with the lock: the journal is asked to make room in the ring."""
        while True:
            place = self.tail.place_for(size)
            if place is not None:
                return place
            if self._problem is not None:
                raise OSError(self._problem)
            self._waiting_bytes += self.options.journal_flush_bytes  # hurry
            self._lock.notify_all()
            self._lock.wait(1.0)
            self._waiting_bytes = sum(len(batch) for _, batch, _ in self._waiting)

    def _append_large(self, batch: bytes) -> None:
        """Called with the lock: past the ring, into the journal, behind all that waits for it."""
        self._lock.release()
        try:
            with self._writing:
                self._flush_locked([(self.offset, batch, -1)])
        finally:
            self._lock.acquire()
        self.offset += len(batch)

    def _flush_locked(self, more: list[Batch]) -> None:
        """Called with ``_writing``: what waits, and ``more``, go into the journal. Raises OSError."""
        with self._lock:
            batches = list(self._waiting)
            place = batches[-1][2] if batches else (self.tail.end if not self.tail.used else self.tail.head)
        if not batches and not more:
            return
        self.journal.write([*batches, *more], place)
        with self._lock:
            for _ in batches:
                self._waiting.popleft()
            self._waiting_bytes -= sum(len(batch) for _, batch, _ in batches)
            self.tail.freed(len(batches), place)
            self._problem = None
            self._lock.notify_all()

    def _run(self) -> None:
        """The journal's thread."""
        options = self.options
        while True:
            with self._lock:
                if not self._closing and self._waiting_bytes < options.journal_flush_bytes:
                    self._lock.wait(options.journal_flush_ms / 1000)
                if self._closing and not self._waiting:
                    return
                if not self._waiting:
                    continue
            try:
                with self._writing:
                    self._flush_locked([])
            except (OSError, CorruptError) as error:
                with self._lock:
                    self._problem = f"the journal can't be written ({error})"
                    self._lock.notify_all()
                    if self._closing:
                        return  # the tail still has it all
                time.sleep(RETRY_SECONDS)

    def writable(self) -> str | None:
        """Why writes must be refused now; None if they are welcome. Cheap."""
        return self._problem or self._checkpoint_problem

    def sync(self) -> None:
        """Sync what everysec left. Raises OSError."""
        self.pending_sync = False
        began = time.perf_counter_ns()
        self.tail.sync()
        self.syncs += 1
        self.last_sync_us = (time.perf_counter_ns() - began) // 1000

    # -- checkpoints -----------------------------------------------------------------------------------------
    def wants_checkpoint(self) -> bool:
        """The journal has grown enough, or the last checkpoint failed."""
        return self.offset - self.store.offset > self.options.checkpoint_bytes or self._checkpoint_problem is not None

    def checkpoint(self, capture: Capture, offset: int) -> None:
        """Store a capture that was taken at ``offset``, then cut the journal behind it. Any thread. Raises OSError, CorruptError."""
        try:
            with self._writing:
                self._flush_locked([])
            self.store.write(capture, offset)
        except (OSError, CorruptError) as error:
            self._checkpoint_problem = f"the last checkpoint failed ({error})"
            raise
        self._checkpoint_problem = None
        more = True
        while more:
            with self._writing:
                try:
                    more = self.journal.cut(offset)
                except OSError:
                    return  # a later checkpoint cuts it

    def renew_view(self) -> None:
        """On the event loop, after a checkpoint: reads see the new store."""
        self.store.renew_view()

    # -- figures and end ---------------------------------------------------------------------------------------
    def stats(self) -> dict[str, int | float | str]:
        """For INFO persistence."""
        return {
            "log_offset": self.offset,
            "journal_offset": self.journal.end,
            "store_offset": self.store.offset,
            "appendfsync": self.options.appendfsync,
            "tail_bytes": self.tail.size,
            "tail_waiting_bytes": self._waiting_bytes,
            "journal_bytes": self.journal.bytes_used(),
            "store_bytes": self.store.bytes_used(),
            "syncs": self.syncs,
        }

    def close(self) -> None:
        """Everything that waits goes into the journal, if it can be written; then the files are closed."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join()
        try:
            self.tail.sync()
        except OSError:
            pass  # the journal has it, or said why not
        self.tail.close()
        self.journal.close()
        self.store.close()
        os.close(self._lock_fd)
