"""``StateStore``: the state of one partition of a job, in one LMDB environment, at one version.

    data   stored key -> record                       the state (``keys``, ``records``)
    due    deadline u64 | stored key -> ""            an index of the records that expire
    undo   stored key -> record before, or ""         the pre-images of the last epoch
    meta   "store" -> MessagePack {format, boot, generation, current, previous, torn}
           current, previous: {epoch, run, position, now}; previous may be nil

State is written without fsync, because it can be recovered. A process that dies must lose nothing, which LMDB in the
page cache guarantees; a machine may. The store therefore records the machine's boot ID, and nothing that was written
before the last boot is trusted. A sync would cost each epoch one or more waits for the disk, in every partition.

Rule 1: An epoch is committed completely or not at all: a process that dies in a commit leaves the previous version. A
        commit is one LMDB transaction, or several (``transactions``): the first one writes all pre-images and marks the
        store as torn, and the last one removes the mark. A torn store is rolled back when it is opened.
Rule 2: The last epoch can be undone once, until the next one is committed.
Rule 3: Files are not synced. Data from before the last boot of the machine is not trusted (``boot``).
Rule 4: Commits remove expired records, some of them in each commit. Only records that had expired before the previous
        version are removed, so that undoing the epoch misses nothing. This affects no digest and no visible value.
Rule 5: Each stored record with a deadline has an entry in ``due`` at its deadline or earlier. An entry may be outdated:
        the record's deadline counts. Postponing a deadline therefore costs nothing until the old one is reached.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import lmdb
import msgspec

from tidelog.jobs.store.changes import StateChanges, ended
from tidelog.jobs.store.environments import StoreEnvironment, acquire, boot_id, file_size, forget, release
from tidelog.jobs.store.errors import StoreError, StoreFullError, StoreUnusableError, reported
from tidelog.jobs.store.locks import StoreLock
from tidelog.jobs.store.records import digest, stamp, unless_expired
from tidelog.jobs.store.transactions import (
    Record,
    Txn,
    apply,
    index,
    parts,
    pre_images,
    remove_expired,
    store_pre_images,
)

FORMAT: Final = 1
SWEEP: Final = 1000  # entries of ``due`` that a commit checks, plus two for each mutation
CACHE: Final = 64 << 20
_META: Final = b"store"


class StateVersion(NamedTuple):
    """An epoch, and the run of an engine that produced it. (0, "") is the state before the first epoch."""

    epoch: int
    run: str


class VersionInfo(msgspec.Struct, frozen=True):
    """A version, and the data that its caller stored with it."""

    epoch: int = 0
    run: str = ""
    position: bytes = b""
    now: int = 0  # the latest time of any epoch, ms

    @property
    def version(self) -> StateVersion:
        return StateVersion(self.epoch, self.run)


class StoreMeta(msgspec.Struct, frozen=True):
    """The store's metadata."""

    boot: str
    generation: int
    current: VersionInfo = VersionInfo()
    previous: VersionInfo | None = None
    format: int = FORMAT
    torn: bool = False  # a commit was interrupted: ``undo`` restores ``current``


class StateStore:
    """Created by ``open`` and ``create``, locked until ``close``. One thread at a time."""

    def __init__(
        self, path: Path, lock: StoreLock, env: StoreEnvironment, generation: int, memory: int, adopt: bool
    ) -> None:
        """Used by ``open`` and ``create``. adopt: the files are a copy from elsewhere, perhaps of another boot."""
        self.path = path
        self._lock: StoreLock | None = lock
        self.environment = env
        self.memory = memory
        self._reading: lmdb.Transaction[bytes] | None = None
        self._changes: StateChanges | None = None
        env.env.reader_check()  # so that killed readers do not retain pages
        self._meta = self._found(generation, adopt)
        self._repair()

    @classmethod
    def open(cls, path: Path, *, generation: int = 1, cache: int = CACHE) -> StateStore:
        """Open the store in a directory; an empty one if the directory doesn't exist.

        generation: that of the job. cache: bytes of memory for writing; what an epoch reads and writes is also held in
        memory, and what is read often is in the system's page cache. Raises StoreLockedError if the store is in use,
        and StoreUnusableError if it can't be trusted: damaged, truncated, of another format or generation, or from
        before the last boot of the machine. ``create`` then replaces it.
        """
        path = Path(path).absolute()
        return cls._opened(path, StoreLock(path), generation, cache, False)

    @classmethod
    def create(
        cls, path: Path, *, generation: int = 1, cache: int = CACHE, fill: Callable[[Path], None] | None = None
    ) -> StateStore:
        """Replace what is in the directory by a new store.

        fill: gets an empty directory and writes a copy into it (``data.mdb``); None: the store
        is empty. Raises StoreLockedError if the store is in use, and StoreUnusableError if the copy is invalid. The
        former store is lost in this case.
        """
        path = Path(path).absolute()
        lock = StoreLock(path)
        try:
            forget(path)
            fresh = path.with_name(path.name + ".new")
            for old in (fresh, path):
                shutil.rmtree(old, ignore_errors=True)
            lock.record_size(0)
            if fill is not None:
                fresh.mkdir()
                fill(fresh)
                fresh.rename(path)
        except BaseException:
            lock.release()
            raise
        return cls._opened(path, lock, generation, cache, fill is not None)

    @classmethod
    def _opened(cls, path: Path, lock: StoreLock, generation: int, cache: int, adopt: bool) -> StateStore:
        try:
            env = acquire(path, lock.recorded_size())
            try:
                with reported(path):
                    made = cls(path, lock, env, generation, cache, adopt)
                lock.record_size(file_size(path))
                return made
            except BaseException:
                env.env.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Release the store. Uncommitted changes are lost."""
        if self._lock is None:
            return
        self._end()
        lock, self._lock = self._lock, None
        release(self.path, self.environment)
        lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def version(self) -> StateVersion:
        return self._meta.current.version

    @property
    def current(self) -> VersionInfo:
        """The version, with its position and time."""
        return self._meta.current

    @property
    def previous(self) -> VersionInfo | None:
        """The version that ``undo`` restores; None: there is nothing to undo."""
        return self._meta.previous

    @property
    def keys(self) -> int:
        """The number of stored keys, including expired ones that are not removed yet."""
        return self._size()[0]

    @property
    def disk_bytes(self) -> int:
        """The size of the pages in use, including those for ``undo``, without free pages of the file."""
        return self._size()[1]

    def begin(self, now_ms: int) -> StateChanges:
        """Return changes on top of this version, at a time; at that of an earlier epoch if it is later.

        Earlier uncommitted changes are dropped.
        """
        self._end()
        self._repair()  # a rollback that failed when the disk was full
        with reported(self.path):
            self._reading = self._open_env().env.begin(buffers=False)
            timed = self._reading.stat(self.environment.due)["entries"] > 0
        self._changes = StateChanges(self, max(now_ms, self._meta.current.now), timed)
        return self._changes

    def commit(self, changes: StateChanges, epoch: int, run: str, position: bytes = b"") -> str:
        """Make the changes version ``epoch``. Returns their digest (``records``).

        StoreFullError and StoreUnusableError leave the previous version.
        """
        if changes is not self._changes or changes.parent is not None:
            raise StoreError(f"{self.path}: only changes of the last begin() can be committed, with children merged")
        meta = self._meta
        keys = changes.ordered()
        records = list(map(changes.writes.__getitem__, keys))
        timed = changes.epoch.timed
        horizon = stamp(meta.current.now)
        with reported(self.path):
            before = changes.before(keys)
        self._end()
        if timed:  # records that had expired before the previous version count as absent, so they may be removed
            before = unless_expired(before, horizon)

        def prepare(txn: Txn) -> None:
            if timed:
                remove_expired(txn, self.environment, horizon, SWEEP + 2 * len(keys))
                index(txn, self.environment, keys, records, before)
            store_pre_images(txn, self.environment, keys, before)

        current = VersionInfo(epoch, run, position, changes.now_ms)
        try:
            self._write(
                meta.current, StoreMeta(meta.boot, meta.generation, current, meta.current), keys, records, prepare
            )
        except StoreFullError:
            self._repair()
            raise
        return digest(keys, records)

    def undo(self) -> None:
        """Undo the last epoch. Raises StoreError if it was undone already, or there is none."""
        previous = self._meta.previous
        if previous is None:
            raise StoreError(f"{self.path}: version {self._meta.current.epoch} can't be undone")
        self._open_env()
        self._end()
        self._roll_back(previous)

    def _roll_back(self, to: VersionInfo) -> None:
        """Restore the pre-images. If this is interrupted, it is repeated when the store is opened."""
        with reported(self.path), self.environment.env.begin() as txn:
            keys, records = pre_images(txn, self.environment)
        self._write(to, StoreMeta(self._meta.boot, self._meta.generation, to), keys, records, None)

    def _repair(self) -> None:
        """Roll back an epoch whose commit was interrupted."""
        if self._meta.torn:
            self._roll_back(self._meta.current)

    def _write(
        self, back: VersionInfo, made: StoreMeta, keys: Sequence[bytes], records: Sequence[Record],
        prepare: Callable[[Txn], None] | None,
    ) -> None:  # fmt: skip
        """Write the mutations and ``made``. If this is interrupted, the metadata names ``back``, which is restored."""
        env = self.environment
        with reported(self.path):
            with env.env.begin() as txn:
                first, *others = parts(txn, env, keys, records, self.memory)
            for at, part in enumerate((first, *others)):
                step = made if at == len(others) else StoreMeta(made.boot, made.generation, back, torn=True)
                with env.env.begin(write=True) as txn:
                    if at == 0 and prepare is not None:
                        prepare(txn)
                    apply(txn, env, part)
                    if step.previous is None and not step.torn:
                        txn.drop(env.undo, delete=False)
                    txn.put(_META, msgspec.msgpack.encode(step), db=env.meta)
                self._meta = step
                if self._lock is not None:
                    self._lock.record_size(file_size(self.path))

    def fetch(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """Implement ``StateBase``."""
        with reported(self.path):
            return self._read().cursor(self.environment.data).getmulti(keys)

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Implement ``StateBase``."""
        with reported(self.path):
            reading = self._read()
            cursor = reading.cursor(self.environment.data)
            if cursor.set_range(prefix):
                for key, record in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, record
                    if self._reading is not reading:
                        raise ended()

    def _found(self, generation: int, adopt: bool) -> StoreMeta:
        """Return the store's metadata, if it can be used. Initializes a new store."""
        env, boot = self.environment, boot_id()
        with env.env.begin() as txn:
            raw = txn.get(_META, db=env.meta)
            empty = raw is None and not any(txn.stat(db)["entries"] for db in (env.data, env.due, env.undo))
        if raw is None and (adopt or not empty):
            raise StoreUnusableError(f"{self.path} is not a state store, or an unfinished one")
        try:
            meta = msgspec.msgpack.decode(raw, type=StoreMeta) if raw else StoreMeta(boot, generation)
        except msgspec.MsgspecError as error:
            raise StoreUnusableError(f"{self.path} is damaged or has a newer format: {error}") from None
        if meta.format != FORMAT:
            raise StoreUnusableError(f"{self.path} has format {meta.format}, but this program supports {FORMAT}")
        if meta.generation != generation:
            raise StoreUnusableError(f"{self.path} belongs to the job's generation {meta.generation}, not {generation}")
        if meta.boot != boot and not adopt:
            raise StoreUnusableError(f"{self.path} was written before the machine was restarted, and may be incomplete")
        if raw is None or meta.boot != boot:
            meta = msgspec.structs.replace(meta, boot=boot)
            with env.env.begin(write=True) as txn:
                txn.put(_META, msgspec.msgpack.encode(meta), db=env.meta)
        return meta

    def _size(self) -> tuple[int, int]:
        env = self._open_env()
        with reported(self.path), env.env.begin() as txn:
            stats = [txn.stat(db) for db in (env.data, env.due, env.undo)]
        pages = sum(stat[kind] for stat in stats for kind in ("branch_pages", "leaf_pages", "overflow_pages"))
        return stats[0]["entries"], pages * stats[0]["psize"]

    def _read(self) -> lmdb.Transaction[bytes]:
        if self._reading is None:
            raise StoreError(f"{self.path}: begin() was not called")
        return self._reading

    def _open_env(self) -> StoreEnvironment:
        if self._lock is None:
            raise StoreError(f"{self.path} is closed")
        return self.environment

    def _end(self) -> None:
        """End the current changes."""
        if self._changes is not None:
            self._changes.end()
            self._changes = None
        if self._reading is not None:
            self._reading.abort()
            self._reading = None
