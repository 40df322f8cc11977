"""The log: makes batches durable, takes checkpoints, and reads everything back at the start.

    append() -> WAL (one write, one sync) -> journal (a thread, every few MB or 100 ms) -> store (checkpoint)

Rule 1: once append() has returned, its batch survives a SIGKILL, and under ``always`` also a power cut.
Rule 2: a frame leaves the ring only when the journal has its batch; a batch leaves the journal only when the store
has its effects. So store offset <= journal end <= log offset at any time. The WAL notes the first two after they have
been reached (``wal``); a start refuses data that does not reach as far.
Rule 3: while the ring is full, append() waits for the journal; a batch that is too large for the ring goes to the
journal directly.
Rule 4: after a sync has failed, a later one that succeeds proves nothing. What the failed one should have covered
counts as synced once the journal has it.
Rule 5: three threads write: the event loop (append), the journal's thread, and the one that runs a checkpoint or a cut.
``_lock`` guards the ring and the lists of what the journal lacks. ``_writing`` makes the journal's writers take turns;
it is taken before ``_lock``, never while holding it. No thread waits for the event loop. Threads that read: see
``backlog``.
Rule 6: once files are found to be missing from their paths (``in_place``), nothing is written, created or removed until
they are back: the next start would not find it, and files at these paths may belong to another server."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from persistence import directory as datadir
from persistence.backlog import Backlog, GoneError
from persistence.fileidentity import Held, absent
from persistence.fullcopy import install
from persistence.history import NAME as HISTORY
from persistence.history import History, boot_id
from persistence.journal import Journal
from persistence.lmdbfile import is_exhausted
from persistence.permissions import FILE, FOLDER, tighten
from persistence.recovery import Recovered, behind
from persistence.store import Store
from persistence.wal import Frame, Wal, blocks, create
from resp.errors import REMEDY, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.streams.capture import Capture

__all__ = ["GoneError", "Log", "LogOptions", "Recovered"]

RETRY_SECONDS: Final = 0.25  # between attempts to write the journal
MUCH: Final = 256 << 10  # bytes for the journal at once
REST_SECONDS: Final = 2  # without as much: then the journal gives back what it keeps to be written again
CUT_PAUSE_SECONDS: Final = 0.001  # between two cuts: locks are not fair, and the journal's thread must get its turn
STREAM_WEIGHT: Final = 2048  # bytes of journal that a changed stream is worth, see wants_checkpoint()
LONGEST: Final = 4  # times checkpoint_bytes that the journal grows at most
FULL: Final = "the journal is full until a checkpoint is done (a higher 'ulimit -v' gives it room)"
LOOK_SECONDS: Final = 1.0  # between two looks at the files
FRESH_SECONDS: Final = 0.001  # for which a look is believed: many clients may wait for the disk
LARGEST_BATCH: Final = (1 << 32) - 64  # bytes: what LMDB takes as one value


@dataclass(slots=True)
class LogOptions:
    """Settings of a log; sizes are in bytes."""

    appendfsync: str = "always"  # or everysec, no
    ring_bytes: int = 64 << 20  # of the WAL; a change takes effect at the next start
    journal_flush_bytes: int = 4 << 20
    journal_flush_ms: int = 100
    checkpoint_bytes: int = 256 << 20  # of journal since the last checkpoint


class Log(Backlog):
    """A data directory in use: open(), recover(), then append() on the event loop; other threads as in Rule 5."""

    def __init__(self, path: Path, options: LogOptions, lock: int, history: History, rebooted: bool) -> None:
        self.path = path
        self.options = options
        self.history = history  # call save_history() after a change
        self.rebooted = rebooted  # the machine may have restarted since a leader saved it: unsynced bytes may be lost
        self._lock_fd = lock
        self._held = Held(path)
        self._held_lock = Held(path / datadir.LOCK)  # without it, another server can use the directory, too
        self.store = Store(path / "store")
        try:
            self.wal = Wal(path / "tail")  # first: it changes nothing where it is refused, while the journal tidies up
            try:
                journal = Journal(path / "journal")
            except BaseException:
                self.wal.close()
                raise
        except BaseException:
            self.store.close()
            raise
        super().__init__(journal)
        self.pending_sync = False  # something was written since the last sync, under everysec
        self._always = options.appendfsync == "always"
        self._everysec = options.appendfsync == "everysec"
        self._flush_bytes = options.journal_flush_bytes
        self._writing = threading.Lock()
        self._waiting_bytes = 0
        self._much = time.monotonic()  # when the journal was last given MUCH at once
        self._hurry = False  # the ring is full: the journal's thread must not wait for its interval
        self._suspect = 0  # log offset up to which a failed sync may have lost frames; 0: none
        self._problem: str | None = None  # why the journal can't be written
        self._sync_problem: str | None = None
        self._checkpoint_problem: str | None = None
        self._displaced: str | None = None  # files are not at their paths any more
        self._refused = False  # see refuse()
        self._looked = 0.0  # when that was looked at, in monotonic seconds
        self._full: str | None = None  # the journal's map has no more room than a checkpoint needs
        self._closing = False
        self._closed = False
        self._flusher: threading.Thread | None = None
        self.syncs = 0
        self.last_sync_us = 0  # of the last sync of everysec

    @classmethod
    def open(cls, directory: Path, options: LogOptions) -> Log:
        """Lock and open a data directory; create it if it is new. Raises CorruptError, OSError.

        A complete full copy that has arrived there replaces the old data first.
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
                if log.wal.noted is not None:  # as in every directory whose history was saved
                    raise CorruptError(f"{directory}: replication missing: {REMEDY}")
                log.save_history(leads=False)
        except BaseException:
            log.close()
            raise
        return log

    def save_history(self, leads: bool = True) -> None:
        """Save ``history``, synced when this returns. ``leads``: see History.save(). Raises OSError."""
        self._check_place()
        self.history.save(self.path, leads)

    @property
    def had_replicas(self) -> bool:
        """Whether replicas were noted, by this run or an earlier one; see note_replicas()."""
        return (self.path / datadir.REPLICAS).exists()

    def note_replicas(self, there_are: bool) -> None:
        """Record for the next start whether to keep what replicas may lack. Raises OSError."""
        self._check_place()
        marker = self.path / datadir.REPLICAS
        if marker.exists() != there_are:
            if there_are:
                marker.touch(FILE)
            else:
                marker.unlink()
            datadir.sync(self.path)

    def _check_place(self) -> None:
        """Raises OSError if the files are seen not to be at their paths (Rule 6)."""
        problem = self.look() if self._flusher is not None else None  # at the start, some are still to be made
        if problem is not None:
            raise OSError(errno.ENOENT, problem)

    def configure(self, appendfsync: str, checkpoint_bytes: int) -> None:
        """Change the settings that may change at run time."""
        self.options.appendfsync = appendfsync
        self.options.checkpoint_bytes = checkpoint_bytes
        self._always = appendfsync == "always"
        self._everysec = appendfsync == "everysec"
        if self._synced < self.offset and appendfsync != "no":
            self.pending_sync = True

    # -- start -----------------------------------------------------------------------------------------------
    def recover(self, ks: Keyspace) -> Recovered:
        """Fill an empty keyspace from store, journal and WAL, then start the journal's thread.

        Raises CorruptError, OSError.
        """
        found = Recovered()
        began = time.perf_counter()
        found.streams, found.nodes, found.strings = self.store.restore(ks)
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
        self._flusher = threading.Thread(target=self._keep_flushing, name="tidelog-journal", daemon=True)
        self._flusher.start()
        return found

    def _note(self) -> None:
        """Note in the WAL how far journal and store have got. Any thread."""
        with self._lock:
            try:
                self.wal.note(self.journal.end, self.store.offset)
            except OSError:
                pass  # the note of before is still true

    def _resize_wal(self) -> None:
        """Move what the WAL holds into the journal and put a new WAL in its place.

        Raises OSError; then the old one stays.
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
    def append(self, batch: bytes) -> None:
        """Make a batch durable as appendfsync says; an empty one does nothing.

        Raises OSError; then nothing has changed, and the caller must retry the same batch before any other.
        """
        size = len(batch)
        if not size:
            return
        self._enter()  # what "with" does takes three times as long
        try:
            self._append(batch, size)
        finally:
            self._leave()

    def _append(self, batch: bytes, size: int) -> None:
        """See append(). Call with ``_lock`` held."""
        if self._refused and self._displaced is not None:
            raise OSError(errno.ENOENT, self._displaced)
        wal = self.wal
        at = wal.find_room(size)
        if at is None:
            if size > wal.size // 2:
                self._append_large(batch)
                return
            at = self._wait_for_room(size)
        offset = self.offset
        crc = wal.write(at, offset, self._synced, batch)
        if self._always:
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
            self._keep_half_free()

    def _sync_now(self) -> None:
        """The sync of ``always``. Call with ``_lock`` held. Raises OSError."""
        if self._sync_problem is not None:
            raise OSError(errno.EIO, self._sync_problem)
        try:
            self.wal.sync()
        except OSError as error:
            self._sync_failed(error)
            raise
        self.syncs += 1

    def _keep_half_free(self) -> None:
        """Wait for the journal until the ring could take a batch of half its size. Call with ``_lock`` held.

        So a full disk is noticed, and writes are refused, before a batch is made that fits nowhere.
        """
        half = self.wal.size // 2
        while (self._displaced or self._problem) is None and self._flusher is not None and self._flusher.is_alive():
            if self.wal.find_room(half) is not None:
                return
            self._hurry = True
            self._lock.notify_all()
            self._lock.wait(1.0)

    def _wait_for_room(self, size: int) -> int:
        """Have the journal make room in the ring; returns the position. Call with ``_lock`` held. Raises OSError."""
        while True:
            at = self.wal.find_room(size)
            if at is not None:
                return at
            problem = self._displaced or self._problem
            if problem is not None:
                raise OSError(errno.EIO, problem)
            if self._flusher is None or not self._flusher.is_alive():
                raise OSError(errno.EIO, "the log is closed")
            self._hurry = True
            self._lock.notify_all()
            self._lock.wait(1.0)

    def _append_large(self, batch: bytes) -> None:
        """Write a batch to the journal, after all that waits for it. Call with ``_lock`` held.

        Raises OSError; MemoryError if this process has no room for it, and won't have any.
        """
        size = len(batch)
        if size > LARGEST_BATCH:
            raise OSError(errno.EFBIG, f"a batch of {size} bytes is more than can be stored at once")
        crc = crc32(batch)
        self._lock.release()  # only the event loop appends: no other batch can come between
        try:
            self._flush_large((self.offset, batch, 0, crc))
        except CorruptError as error:
            raise OSError(errno.EIO, str(error)) from error
        finally:
            self._lock.acquire()
        self._last = self.offset, crc
        self.offset += size
        self._note()  # no frame says that the journal has it
        try:
            self.wal.sync()
        except OSError:
            pass  # the journal has all that the ring has

    def _flush_large(self, frame: Frame) -> None:
        """See _append_large(). While this batch waits there can be no checkpoint, which would make room."""
        try:
            with self._writing:
                self._flush([frame])
            return
        except OSError as error:
            if not is_exhausted(error):
                raise
        with self._lock:
            self._full = FULL
        self.cut()
        try:
            with self._writing:
                self._flush([frame])
        except OSError as error:
            if is_exhausted(error):
                raise MemoryError(str(error)) from error
            raise

    def _flush(self, more: list[Frame]) -> None:
        """Write what waits, then ``more``, to the journal. Call with ``_writing`` held.

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
                self._flushing = []
                self.wal.free(len(taken), taken[-1][2])
            self._synced = max(self._synced, self.journal.end)
            if self.journal.end >= self._suspect:
                self._suspect, self._sync_problem = 0, None
            self._problem = None
            self._measure()
            self._lock.notify_all()
        if size >= MUCH:
            self._much = time.monotonic()

    def _rest(self) -> None:
        """Give back what is only kept to be written again, if nothing large has come for a while."""
        if time.monotonic() - self._much <= REST_SECONDS:
            return
        with self._writing:
            if self.journal.spare:
                self.journal.let_go()

    def _measure(self) -> None:
        """Set ``_full``: a checkpoint must find room for all that the ring can hold. Call with ``_lock`` held.

        The map is full only under a limit of address space (``lmdbfile``).
        """
        journal = self.journal
        spare = min(journal.room // 2, journal.room // 8 + self.wal.size)
        self._full = None
        if journal.used > journal.room - spare:
            self._full = FULL

    def _keep_flushing(self) -> None:
        """What the journal's thread runs: flush every few MB or 100 ms, until close()."""
        options = self.options

        def urgent() -> bool:
            return self._closing or self._hurry or self._waiting_bytes >= options.journal_flush_bytes

        while True:
            with self._lock:
                self._lock.wait_for(urgent, options.journal_flush_ms / 1000)
                idle, ending = not self._waiting, self._closing
                if idle:
                    self._hurry = False  # asked while the last batches were being written: else this would not wait
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self.look()
            if self._displaced is not None:
                if ending:
                    return  # the WAL still has it all, wherever it is
                if not idle:
                    time.sleep(RETRY_SECONDS)
                continue
            if idle:
                if ending:
                    return
                self._rest()
                continue
            try:
                with self._writing:
                    self._flush([])
                self._rest()
            except Exception as error:  # noqa: BLE001 - if the thread died, writers would wait for ever
                with self._lock:
                    self._problem = f"the journal can't be written ({error})"
                    self._lock.notify_all()
                    if self._closing:
                        return  # the WAL still has it all
                with self._writing:
                    self.journal.let_go()  # the disk may be full
                time.sleep(RETRY_SECONDS)

    def look(self) -> str | None:
        """Look whether the files are still at their paths (Rule 6); returns what is wrong. Any thread, some
        microseconds."""
        found = (
            self._held.displaced() or self.wal.displaced() or self.journal.displaced() or self.store.displaced()
            or self._held_lock.displaced() or absent(self.path / datadir.MARKER) or absent(self.path / HISTORY)
        )  # fmt: skip
        self._looked = time.monotonic()
        if found != self._displaced:
            with self._lock:
                self._displaced = found
                self._lock.notify_all()
        return found

    def refuse(self, refused: bool) -> None:
        """``refused``: clients are refused writes, because of what writable() says. Only then does append() raise an
        error because of Rule 6: the client of a write that came just before would wait until the files are back."""
        self._refused = refused

    def in_place(self) -> bool:
        """Whether a next start would find what was written: look(), unless somebody just did."""
        if time.monotonic() - self._looked >= FRESH_SECONDS:
            self.look()
        return self._displaced is None

    def writable(self) -> str | None:
        """Why writes must be refused now; None if they need not be. Cheap."""
        return self._displaced or self._problem or self._sync_problem or self._checkpoint_problem or self._full

    def sync(self) -> None:
        """Sync what was written under everysec. Any thread. Raises OSError."""
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
        self.syncs += 1
        self.last_sync_us = (time.perf_counter_ns() - began) // 1000

    def _sync_failed(self, error: OSError) -> None:
        """See Rule 4. Call with ``_lock`` held."""
        if self.journal.end < self.offset and self._synced < self.offset:
            self._suspect = self.offset
            self._sync_problem = f"the file 'tail' can't be synced ({error})"

    # -- checkpoints -----------------------------------------------------------------------------------------
    def wants_checkpoint(self, streams: int = 0) -> bool:
        """Whether the journal has grown enough or is full, or the last checkpoint failed.

        A full one may hold nothing but what the store has, if it could not be cut: no write would ever change that.
        ``streams`` have changed. Each has its tail written anew, so where they are many, the journal may grow longer:
        else a checkpoint of 100,000 would cost more than all that was done since the one before.
        """
        size = self.options.checkpoint_bytes
        most = min(size + min(streams * STREAM_WEIGHT, size * (LONGEST - 1)), self.journal.room // 4)
        since = self.offset - self.store.offset
        return since > most or self._checkpoint_problem is not None or self._full is not None

    def checkpoint(self, capture: Capture, offset: int) -> None:
        """Store a capture that was taken at log offset ``offset``, then cut() the journal. Any thread.

        Raises OSError, CorruptError.
        """
        self._check_place()
        try:
            if not capture.empty or offset != self.store.offset:
                if self.journal.end < offset:
                    with self._writing:
                        self._flush([])
                self.store.write(capture, offset)
        except (OSError, CorruptError) as error:
            with self._writing:
                self.journal.let_go()  # the disk may be full
            self._checkpoint_problem = f"the last checkpoint failed ({error})"
            raise
        self._checkpoint_problem = None
        self._note()
        self.cut()

    def cut(self) -> None:
        """Delete what neither a restart nor ``retain`` needs from the journal, and give its room back. Any thread.

        What only ``retain`` needs goes as well if the journal is full: a replica then takes a copy. If the disk
        refuses, the next call does what is left.
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
                        self._cutting = self.store.offset if full else min(self.store.offset, self.retain)
                    try:
                        self.remember_last(self._cutting)
                        keep = time.monotonic() - self._much <= REST_SECONDS and not full
                        more = self.journal.cut(self._cutting, keep)
                    finally:
                        self._cutting = 0
                    with self._lock:
                        self._measure()
                    if not more:
                        self.journal.shrink(full)  # free pages of a full one lie apart
                if more:
                    time.sleep(CUT_PAUSE_SECONDS)
        except (OSError, CorruptError):
            pass

    def renew_view(self) -> None:
        """Let reads see the last checkpoint. On the event loop only. Raises OSError."""
        self.store.renew_view()

    # -- stats and end -----------------------------------------------------------------------------------------
    def stats(self) -> dict[str, int | float | str]:
        """The fields of INFO persistence, by name."""
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
        """Write everything that waits to the journal, if it can be written, then close the files."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            self._closing = True
            self._lock.notify_all()
        if self._flusher is not None:
            self._flusher.join()
            self._note()  # not if nothing was recovered: then the note of before must stay
        in_place = self.look() is None
        try:
            self.wal.sync()
        except OSError:
            pass  # the journal has it all, or ``_problem`` says why not
        self.wal.close()
        with self._writing:  # a cut may be under way
            self.journal.close(tidy=in_place)
        self.store.close()
        self._held.close()
        self._held_lock.close()
        os.close(self._lock_fd)
