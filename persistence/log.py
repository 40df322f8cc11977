"""The log: makes batches durable, takes checkpoints, and recovers everything at the start.

    append() -> WAL (one write, one sync) -> journal (a thread, every few MB or 100 ms) -> store (checkpoint)

Rule 1: after append() has returned, its batch survives a SIGKILL, and with ``always`` also a power failure.
Rule 2: a frame leaves the ring only after the journal has its batch. A batch leaves the journal only after the store
has its effects. Therefore, store offset <= journal end <= log offset at any time. The WAL records the first two
afterwards (``wal``), and a start refuses data that ends before these positions.
Rule 3: while the ring is full, append() waits for the journal. A batch that is too large for the ring is written to the
journal directly.
Rule 4: after a failed sync, a later successful one proves nothing. The data of the failed sync counts as synced once
the journal has it.
Rule 5: three threads write: the event loop (append), the journal's thread, and the thread of a checkpoint or
truncation. ``_lock`` guards the ring and the lists of batches that the journal lacks. ``_writing`` serializes the
writers of the journal. It is acquired before ``_lock``, never while holding it. No thread waits for the event loop. For
threads that read, see ``backlog``.
Rule 6: when files are missing from their paths (``in_place``), nothing is written, created, or removed until they are
back. The next start would not find the changes, and files at these paths may belong to another server.

Decision: the WAL keeps half of its ring free. Writers wait for the journal before the ring is full, so that a full disk
is detected while writes can still be refused. If a batch finds no room nevertheless, it is retained in memory with the
replies of its tick.
Decision: large batches go through the ring, too. Writing them directly to the journal's files, which then only had to
refer to them, avoided a second write but took as much CPU (10 KB: 43.0 us instead of 41.8 us, and 29.5 us instead of
29.6 us at a pipeline of 16). It also required a second location of frames, which a start had to search, and a new
version of the WAL.
Decision: the cost of a checkpoint is weighed against the growth of the journal. A checkpoint rewrites the active node
of each changed stream. With 100,000 streams that grew in random order, this took more CPU, once per 64 MB of journal,
than all appends in between. Each changed stream therefore lets the journal grow by 2 KB more, up to four times
``checkpoint-size``.
Decision: changed data formats are used only when they are needed. Metadata, pending lists, and databases are written in
their old form as long as it suffices, so that a server of the previous version can open the directory.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from persistence import directory as datadir
from persistence.backlog import Backlog, GoneError
from persistence.fileidentity import OpenFile, absent
from persistence.fullcopy import install
from persistence.history import NAME as HISTORY
from persistence.history import History, boot_id
from persistence.journal import Journal
from persistence.journalthread import JournalThread
from persistence.lmdbfile import is_exhausted
from persistence.permissions import FILE, FOLDER, tighten
from persistence.recovery import Recovered, behind
from persistence.scrub import Scrub
from persistence.store import Store
from persistence.wal import Frame, Wal, blocks, create
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.streams.capture import Capture

__all__ = ["GoneError", "Log", "LogOptions", "Recovered"]

RETRY_SECONDS: Final = 0.25  # between attempts to write the journal
MUCH: Final = 256 << 10  # bytes of one write to the journal
REST_SECONDS: Final = 2  # seconds without such a write, after which the journal removes its spare files
TRUNCATE_PAUSE_SECONDS: Final = 0.001  # between truncations, to let the journal's thread run
STREAM_WEIGHT: Final = 2048  # bytes by which each changed stream lets the journal grow; see wants_checkpoint()
LONGEST: Final = 4  # multiple of checkpoint_bytes to which the journal can grow
FULL: Final = "the journal is full until a checkpoint is done (a higher 'ulimit -v' gives it room)"
CHECK_SECONDS: Final = 1.0  # between checks of the files
FRESH_SECONDS: Final = 0.001  # validity of a check, since many clients may wait for the disk
LARGEST_BATCH: Final = (1 << 32) - 64  # bytes; the limit of an LMDB value


@dataclass(slots=True)
class LogOptions:
    """Settings of a log; sizes are in bytes."""

    appendfsync: str = "always"  # or everysec, no
    ring_bytes: int = 64 << 20  # size of the WAL's ring; a change takes effect at the next start
    journal_flush_bytes: int = 4 << 20
    journal_flush_ms: int = 100
    checkpoint_bytes: int = 256 << 20  # growth of the journal since the last checkpoint that starts another one


class Log(Backlog):
    """A data directory in use: open(), recover(), then append() on the event loop; other threads as in Rule 5."""

    scrub: Scrub  # from recover() on

    def __init__(self, path: Path, options: LogOptions, lock: int, history: History, rebooted: bool) -> None:
        self.path = path
        self.options = options
        self.history = history  # call save_history() after a change
        # the machine may have restarted since a leader saved the history, so that unsynced bytes may be lost
        self.rebooted = rebooted
        self._lock_fd = lock
        self._held = OpenFile(path)
        self._held_lock = OpenFile(path / datadir.LOCK)  # without it, another server could use the directory
        self.store = Store(path / "store")
        try:
            self.wal = Wal(path / "tail")  # opened first: if it is refused, nothing has changed
            try:
                journal = Journal(path / "journal")
            except BaseException:
                self.wal.close()
                raise
        except BaseException:
            self.store.close()
            raise
        super().__init__(journal)
        self.pending_sync = False  # there are unsynced writes under everysec
        self._always = options.appendfsync == "always"
        self._everysec = options.appendfsync == "everysec"
        self._flush_bytes = options.journal_flush_bytes
        self._writing = threading.Lock()
        self._waiting_bytes = 0
        self._much = time.monotonic()  # time of the last write of MUCH to the journal
        self._hurry = False  # the ring is full; the journal's thread must not wait for its interval
        self._suspect = 0  # log offset up to which a failed sync may have lost frames; 0: none
        self._problem: str | None = None  # reason why the journal cannot be written
        self._sync_problem: str | None = None
        self._checkpoint_problem: str | None = None
        self._displaced: str | None = None  # files that are no longer at their paths
        self._refused = False  # see refuse()
        self._checked_at = 0.0  # time of the last check, in monotonic seconds
        self._full: str | None = None  # the journal's map has room only for a checkpoint
        self._closing = False
        self._closed = False
        self._flusher: JournalThread | None = None
        self.syncs = 0
        self.last_sync_us = 0  # microseconds of the last sync of writes

    @classmethod
    def open(cls, directory: Path, options: LogOptions) -> Log:
        """Lock and open a data directory, or create it. Raises CorruptError, OSError.

        First, a complete full copy in the directory replaces the old data.
        """
        directory.mkdir(FOLDER, parents=True, exist_ok=True)
        lock = datadir.lock(directory)
        try:
            if datadir.marked(directory):
                install(directory)
                tighten(directory)
            identity, new = datadir.prepare(directory, options.ring_bytes)
            history = History(identity) if new else History.load(directory, identity)
            log = cls(directory, options, lock, history, not new and history.boot != (boot_id() or None))
        except BaseException:
            os.close(lock)
            raise
        try:
            if new:
                log.save_history()
                datadir.complete(directory, identity)
            elif not history.saved:
                if log.wal.noted is not None:  # true for every directory whose history was ever saved
                    raise CorruptError(f"{directory}: replication missing: {REMEDY}")
                log.save_history(leads=False)
        except BaseException:
            log.close()
            raise
        return log

    def save_history(self, leads: bool = True) -> None:
        """Save and sync ``history``. ``leads``: see History.save(). Raises OSError."""
        self._require_files()
        self.history.save(self.path, leads)

    @property
    def had_replicas(self) -> bool:
        """Whether there were replicas, in this process or an earlier one; see note_replicas()."""
        return (self.path / datadir.REPLICAS).exists()

    def note_replicas(self, there_are: bool) -> None:
        """Record for the next start whether to retain batches that replicas may lack. Raises OSError."""
        self._require_files()
        marker = self.path / datadir.REPLICAS
        if marker.exists() != there_are:
            if there_are:
                marker.touch(FILE)
            else:
                marker.unlink()
            datadir.sync(self.path)

    def _require_files(self) -> None:
        """Check the files (Rule 6). Raises OSError if some are missing from their paths."""
        # during the start, some files do not exist yet
        problem = self.check_files() if self._flusher is not None else None
        if problem is not None:
            raise OSError(errno.ENOENT, problem)

    def configure(self, appendfsync: str, checkpoint_bytes: int) -> None:
        """Change the settings that can change at run time."""
        self.options.appendfsync = appendfsync
        self.options.checkpoint_bytes = checkpoint_bytes
        self._always = appendfsync == "always"
        self._everysec = appendfsync == "everysec"
        if self._synced < self.offset and appendfsync != "no":
            self.pending_sync = True

    # -- start -----------------------------------------------------------------------------------------------
    def recover(self, ks: Keyspace) -> Recovered:
        """Restore an empty keyspace from store, journal, and WAL, then start the journal's thread.

        Raises CorruptError, OSError.
        """
        found = Recovered()
        began = time.perf_counter()
        found.streams, found.nodes, found.strings = self.store.restore(ks)
        self.scrub = Scrub(self.store, self.path)
        store_offset = self.store.offset
        found.store_seconds = time.perf_counter() - began
        began = time.perf_counter()
        if store_offset > self.journal.end:
            raise CorruptError(
                f"{self.journal.path}: ends at log offset {self.journal.end}, before the store's {store_offset}: the"
                " journal is an older copy; restore the whole directory from a backup, or from a replica"
            )
        noted = self.wal.noted
        if noted is not None and store_offset < noted[1]:
            raise behind(self.store.path, store_offset, noted[1], self.wal.path)
        for _, batch in self.journal.read(store_offset):
            found.replay(ks, batch, self.journal.path)
            found.journal_batches += 1
        self._waiting, found.torn_bytes = self.wal.read(self.journal.end)
        for offset, batch, _, _ in self._waiting:
            found.replay(ks, batch, self.wal.path)
            found.wal_batches += 1
            self._waiting_bytes += len(batch)
            self.offset = offset + len(batch)
        if noted is not None and self.offset < noted[0]:
            raise behind(self.journal.path, self.offset, noted[0], self.wal.path)
        self._last = (self._waiting[-1][0], self._waiting[-1][3]) if self._waiting else self.journal.last()
        found.replay_seconds = time.perf_counter() - began
        if blocks(self.options.ring_bytes) != self.wal.size:
            try:
                self._resize_wal()
            except OSError as error:
                found.resize_problem = str(error)
        self._note()
        with self._lock:
            self._measure()
        self._flusher = JournalThread(self)
        self._flusher.start()
        return found

    def _note(self) -> None:
        """Record the positions of journal and store in the WAL. Any thread."""
        with self._lock:
            try:
                self.wal.note(self.journal.end, self.store.offset)
            except OSError:
                pass  # the previous note is still valid

    def _resize_wal(self) -> None:
        """Move the contents of the WAL to the journal and replace the WAL with a new one.

        Raises OSError; the old WAL then stays.
        """
        with self._writing:
            self._flush([])
        path = self.wal.path
        temporary = path.with_name("tail.new")
        try:
            create(temporary, self.options.ring_bytes, (self.journal.end, self.store.offset))
            new = Wal(temporary)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.rename(path)
        datadir.sync(self.path)
        self.wal.close()
        new.renamed(path)
        self.wal = new

    # -- writing ---------------------------------------------------------------------------------------------
    def append(self, batch: bytes, written: Callable[[int, bytes], None] | None = None) -> None:
        """Make a batch durable according to appendfsync. An empty batch has no effect.

        ``written``: called with the log offset and the batch before it is synced, unless the batch is large.

        Raises OSError; nothing has changed then, and the caller must retry the same batch before any other.
        """
        size = len(batch)
        if not size:
            return
        self._enter()  # "with" takes three times as long
        try:
            self._append(batch, size, written)
        finally:
            self._leave()

    def _append(self, batch: bytes, size: int, written: Callable[[int, bytes], None] | None) -> None:
        """Append a batch with ``_lock`` held. See append()."""
        if self._refused and self._displaced is not None:
            raise OSError(errno.ENOENT, self._displaced)
        wal = self.wal
        at = wal.find_room(size)
        if at is None:
            if size > wal.size // 2:
                self._append_large(batch)
                return
            at = self._make_room(size)
            if at is None:
                raise OSError(errno.EIO, self._displaced or self._problem or "the log is closed")
        offset = self.offset
        crc = wal.write(at, offset, self._synced, batch)
        if self._always:
            if written is not None:
                written(offset, batch)
            self._sync_now()
            self._synced = offset + size
        elif self._everysec:
            self.pending_sync = True
        wal.add(at, size)
        self._waiting.append((offset, batch, wal.end, crc))
        self._waiting_bytes += size
        self.offset = offset + size
        self._last = offset, crc
        if self._waiting_bytes >= self._flush_bytes:
            self._lock.notify_all()
        if self._waiting_bytes > wal.size // 4:
            # a full disk is thus detected, and writes are refused, before a batch arrives for which there is no room
            self._make_room(wal.size // 2)

    def _sync_now(self) -> None:
        """Sync for ``always``, with ``_lock`` held. Raises OSError."""
        if self._sync_problem is not None:
            raise OSError(errno.EIO, self._sync_problem)
        began = time.perf_counter_ns()
        try:
            self.wal.sync()
        except OSError as error:
            self._sync_failed(error)
            raise
        self._synced_in(began)

    def _make_room(self, size: int) -> int | None:
        """Return the position for a batch, once the journal has made room in the ring; None if it cannot.

        Call with ``_lock`` held.
        """
        at = self.wal.find_room(size)
        flusher = self._flusher
        while at is None and (self._displaced or self._problem) is None and flusher is not None and flusher.is_alive():
            self._hurry = True
            flusher.await_round(self._lock)
            at = self.wal.find_room(size)
        return at

    def _append_large(self, batch: bytes) -> None:
        """Write a batch to the journal, after all waiting batches. Call with ``_lock`` held.

        Raises OSError, or MemoryError if this process will never have room for it.
        """
        size = len(batch)
        if size > LARGEST_BATCH:
            raise OSError(errno.EFBIG, f"a batch of {size} bytes is more than can be stored at once")
        crc = crc32(batch)
        self._lock.release()  # only the event loop appends, so no other batch can intervene
        try:
            self._flush_large((self.offset, batch, 0, crc))
        except CorruptError as error:
            raise OSError(errno.EIO, str(error)) from error
        finally:
            self._lock.acquire()
        self._last = self.offset, crc
        self.offset += size
        self._note()  # since no frame records that the journal has the batch
        try:
            self.wal.sync()
        except OSError:
            pass  # the journal has all batches of the ring

    def _flush_large(self, frame: Frame) -> None:
        """Flush a large batch. While it waits, no checkpoint can run, although one would make room."""
        try:
            with self._writing:
                self._flush([frame])
            return
        except OSError as error:
            if not is_exhausted(error):
                raise
        with self._lock:
            self._full = FULL
        self.truncate()
        try:
            with self._writing:
                self._flush([frame])
        except OSError as error:
            if is_exhausted(error):
                raise MemoryError(str(error)) from error
            raise

    def _flush(self, more: list[Frame]) -> None:
        """Write the waiting batches, then ``more``, to the journal. Call with ``_writing`` held.

        Raises OSError, CorruptError.
        """
        if self._displaced is not None:
            raise OSError(errno.ENOENT, self._displaced)
        with self._lock:
            taken, size = self._waiting, self._waiting_bytes
            self._flushing = taken
            self._waiting, self._waiting_bytes, self._hurry = [], 0, False
        if not taken and not more:
            return
        try:
            self.journal.write([*taken, *more] if more else taken)
        except BaseException:
            with self._lock:
                self._waiting, self._flushing = taken + self._waiting, []
                self._waiting_bytes += size
            raise
        with self._lock:
            if taken:
                assert self.journal.end >= taken[-1][0] + len(taken[-1][1])  # noqa: S101 - Rule 2
                self._flushing = []
                self.wal.free(len(taken), taken[-1][2])
            self._keep(taken, gap=bool(more))
            self._synced = max(self._synced, self.journal.end)
            if self.journal.end >= self._suspect:
                self._suspect, self._sync_problem = 0, None
            self._problem = None
            self._measure()
            self._lock.notify_all()
        if size >= MUCH:
            self._much = time.monotonic()

    def _rest(self) -> None:
        """Remove the journal's spare files if there has been no large write for a while."""
        if time.monotonic() - self._much <= REST_SECONDS:
            return
        with self._writing:
            if self.journal.spare:
                self.journal.remove_spare()

    def _measure(self) -> None:
        """Set ``_full``: a checkpoint must find room for the whole ring. Call with ``_lock`` held.

        The map can become full only if the address space is limited (``lmdbfile``).
        """
        journal = self.journal
        spare = min(journal.room // 2, journal.room // 8 + self.wal.size)
        self._full = None
        if journal.used > journal.room - spare:
            self._full = FULL

    def wait_for_batches(self) -> None:
        """Wait until the journal should be written: every few MB or 100 ms. In the journal's thread."""
        options = self.options

        def urgent() -> bool:
            return self._closing or self._hurry or self._waiting_bytes >= options.journal_flush_bytes

        with self._lock:
            self._lock.wait_for(urgent, options.journal_flush_ms / 1000)

    def flush_round(self) -> float | None:
        """Write the waiting batches to the journal, in the journal's thread.

        Returns the seconds to pause before the next round; None if there is none, because close() was called.
        """
        with self._lock:
            idle, ending = not self._waiting, self._closing
            if idle:
                # set while the last batches were being written; otherwise the thread would not wait
                self._hurry = False
        if time.monotonic() - self._checked_at >= CHECK_SECONDS:
            self.check_files()
        if self._displaced is not None:
            if ending:
                return None  # the WAL still has everything, wherever its file is now
            return 0.0 if idle else RETRY_SECONDS
        if idle:
            if ending:
                return None
            self._rest()
            return 0.0
        try:
            with self._writing:
                self._flush([])
            self._rest()
        except Exception as error:  # noqa: BLE001 - if the thread died, writers would wait forever
            with self._lock:
                self._problem = f"the journal can't be written ({error})"
                self._lock.notify_all()
                if self._closing:
                    return None  # the WAL still has everything
            with self._writing:
                self.journal.remove_spare()  # the disk may be full
            return RETRY_SECONDS
        return 0.0

    def check_files(self) -> str | None:
        """Check whether the files are still at their paths (Rule 6). Return the problem, or None.

        Any thread; takes some microseconds.
        """
        found = (
            self._held.displaced() or self.wal.displaced() or self.journal.displaced() or self.store.displaced()
            or self._held_lock.displaced() or absent(self.path / datadir.MARKER) or absent(self.path / HISTORY)
        )  # fmt: skip
        self._checked_at = time.monotonic()
        if found != self._displaced:
            with self._lock:
                self._displaced = found
                self._lock.notify_all()
        return found

    def refuse(self, refused: bool) -> None:
        """Record whether the writes of clients are refused because of writable().

        Only then does append() raise an error because of Rule 6. Otherwise, the client of an earlier write would have
        to wait until the files are back.
        """
        self._refused = refused

    def in_place(self, fresh: float = FRESH_SECONDS) -> bool:
        """Return whether the next start would find the written data.

        Uses the result of a check that is less than ``fresh`` seconds old, if there is one.
        """
        if time.monotonic() - self._checked_at >= fresh:
            self.check_files()
        return self._displaced is None

    def writable(self) -> str | None:
        """Return why writes must be refused now, or None. Cheap."""
        return self._displaced or self._problem or self._sync_problem or self._checkpoint_problem or self._full

    def sync(self) -> None:
        """Sync the writes of everysec. Any thread. Raises OSError."""
        with self._lock:
            target = self.offset
            self.pending_sync = False
        began = time.perf_counter_ns()
        try:
            self.wal.sync()
        except OSError as error:
            with self._lock:
                self._sync_failed(error)
            raise
        with self._lock:
            if not self._suspect:
                self._synced = max(self._synced, target)
        self._synced_in(began)

    def _synced_in(self, began: int) -> None:
        """Count a sync of writes, and record its duration. began: of time.perf_counter_ns()."""
        self.syncs += 1
        self.last_sync_us = (time.perf_counter_ns() - began) // 1000

    def _sync_failed(self, error: OSError) -> None:
        """Record that a sync failed (Rule 4). Call with ``_lock`` held."""
        if self.journal.end < self.offset and self._synced < self.offset:
            self._suspect = self.offset
            self._sync_problem = f"the file 'tail' can't be synced ({error})"

    # -- checkpoints -----------------------------------------------------------------------------------------
    def wants_checkpoint(self, streams: int = 0) -> bool:
        """Return whether the journal has grown enough or is full, or the last checkpoint failed.

        If a full journal could not be truncated, it may contain only batches that the store has. No write would change
        that. ``streams``: the number of changed streams, see the decision above.
        """
        size = self.options.checkpoint_bytes
        most = min(size + min(streams * STREAM_WEIGHT, size * (LONGEST - 1)), self.journal.room // 4)
        since = self.offset - self.store.offset
        return since > most or self._checkpoint_problem is not None or self._full is not None

    def checkpoint(self, capture: Capture, offset: int) -> None:
        """Store a capture of log offset ``offset``, then truncate the journal. Any thread.

        Raises OSError, CorruptError.
        """
        self._require_files()
        try:
            if not capture.empty or offset != self.store.offset:
                if self.journal.end < offset:
                    with self._writing:
                        self._flush([])
                assert offset >= self.store.offset  # noqa: S101 - the store has the effects of a prefix that only grows
                self.store.write(capture, offset)
                assert self.store.offset <= self.journal.end  # noqa: S101 - Rule 2
        except (OSError, CorruptError) as error:
            with self._writing:
                self.journal.remove_spare()  # the disk may be full
            self._checkpoint_problem = f"the last checkpoint failed ({error})"
            raise
        self._checkpoint_problem = None
        self._note()
        self.truncate()

    def truncate(self) -> None:
        """Delete batches that neither a restart nor ``retain`` needs from the journal, and release its space. Any
        thread.

        If the journal is full, batches that only ``retain`` needs are deleted, too; a replica then needs a full
        copy. If the disk fails, the next call continues.
        """
        if self._displaced is not None:
            return
        more, full = True, self._full is not None
        try:
            while more:
                with self._writing:
                    if self._closed:
                        return
                    with self._lock:
                        self._truncating = self.store.offset if full else min(self.store.offset, self.retain)
                    try:
                        self.remember_last(self._truncating)
                        keep = time.monotonic() - self._much <= REST_SECONDS and not full
                        more = self.journal.truncate(self._truncating, keep)
                    finally:
                        self._truncating = 0
                    with self._lock:
                        self._measure()
                    if not more:
                        self.journal.shrink(full)  # the free pages of a full journal are scattered
                if more:
                    time.sleep(TRUNCATE_PAUSE_SECONDS)
        except (OSError, CorruptError):
            pass

    def renew_view(self) -> None:
        """Make the last checkpoint visible to reads. On the event loop only. Raises OSError."""
        self.store.renew_view()

    # -- stats and end -----------------------------------------------------------------------------------------
    def stats(self) -> dict[str, int | float | str]:
        """Return the fields of INFO persistence, by name."""
        return {
            "log_offset": self.offset,
            "journal_first_offset": self.oldest(),
            "journal_offset": self.journal.end,
            "store_offset": self.store.offset,
            "appendfsync": self.options.appendfsync,
            "tail_bytes": self.wal.size,
            "tail_waiting_bytes": self._waiting_bytes,
            "journal_bytes": self.journal.bytes_used(),
            "store_bytes": self.store.bytes_used(),
            "syncs": self.syncs,
            "last_sync_us": self.last_sync_us,
        }

    def close(self) -> None:
        """Write all waiting batches to the journal, if possible, then close the files."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._flusher is not None:
            self._flusher.join()
            self._note()  # not if nothing was recovered, since the previous note must stay
        in_place = self.check_files() is None
        try:
            self.wal.sync()
        except OSError:
            pass  # the journal has everything, or ``_problem`` is the reason why not
        self.wal.close()
        with self._writing:  # a truncation may be in progress
            self.journal.close(tidy=in_place)
        self.store.close()
        self._held.close()
        self._held_lock.close()
        os.close(self._lock_fd)
