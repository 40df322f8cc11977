"""``StateStore``: what one partition of a job remembers, in one LMDB environment, at one version.

    data   stored key -> record                       what is remembered (``keys``, ``records``)
    due    deadline u64 | stored key -> ""            where to look for what is over
    undo   stored key -> record before, or ""         what takes the last epoch back
    meta   "store" -> MessagePack {format, boot, generation, current, previous, torn}
           current, previous: {epoch, run, position, now}; previous may be nil

Rule 1: an epoch is done, or not: a process that dies in a commit leaves the version before. It is one transaction of
        LMDB; or several (``writing``), of which the first writes all pre-images and marks the store as torn, and the
        last one takes the mark away. A store that is torn is taken back to the version before when it is opened.
Rule 2: the last epoch can be taken back, once, until the next one is committed.
Rule 3: files are not synced. What was written before another start of the machine is not trusted (``boot``).
Rule 4: what is over is removed by commits, some of it by each. Only what was over for the version before is removed, so
        that nothing is missing when the epoch is taken back. No digest knows of it, and nobody sees it.
Rule 5: each stored record with a deadline has an entry in ``due`` at its deadline or earlier. An entry may be wrong:
        the record says what counts. So a deadline that is moved back costs nothing before the old one is reached.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

import lmdb
import msgspec

from tidelog.jobs.store.changes import StateChanges, ended
from tidelog.jobs.store.environments import StoreEnvironment, boot_id, file_size, forget, give_back, take
from tidelog.jobs.store.errors import StoreError, StoreFullError, StoreUnusableError, reported
from tidelog.jobs.store.locks import StoreLock
from tidelog.jobs.store.records import digest, stamp, unless_over
from tidelog.jobs.store.transactions import Record, Txn, apply, index, parts, remember, remembered, sweep

FORMAT: Final = 1
SWEEP: Final = 1000  # so many entries of ``due`` a commit looks at, and two for each mutation
CACHE: Final = 64 << 20
_META: Final = b"store"


class StateVersion(NamedTuple):
    """Which epoch, and by which run of an engine. (0, "") is the state before the first one."""

    epoch: int
    run: str


class VersionInfo(msgspec.Struct, frozen=True):
    """A version and what its caller put down with it."""

    epoch: int = 0
    run: str = ""
    position: bytes = b""
    now: int = 0  # the latest time that any epoch had, ms

    @property
    def version(self) -> StateVersion:
        return StateVersion(self.epoch, self.run)


class StoreMeta(msgspec.Struct, frozen=True):
    """What the store says of itself."""

    boot: str
    generation: int
    current: VersionInfo = VersionInfo()
    previous: VersionInfo | None = None
    format: int = FORMAT
    torn: bool = False  # an epoch was begun and not ended: ``undo`` leads to ``current``


class StateStore:
    """Made by ``open`` and ``create``, held until ``close``. For one thread at a time."""

    def __init__(
        self, path: Path, lock: StoreLock, env: StoreEnvironment, generation: int, memory: int, adopt: bool
    ) -> None:
        """For ``open`` and ``create``. adopt: the files are a copy from elsewhere, perhaps of another boot."""
        self.path = path
        self._lock: StoreLock | None = lock
        self._env = env
        self._memory = memory
        self._reading: lmdb.Transaction[bytes] | None = None
        self._changes: StateChanges | None = None
        env.env.reader_check()  # those who were killed hold no pages back
        self._meta = self._found(generation, adopt)
        self._mend()

    @classmethod
    def open(cls, path: Path, *, generation: int = 1, cache: int = CACHE) -> StateStore:
        """The store in a directory; an empty one if the directory isn't there.

        generation: of the job. cache: bytes of memory that writing may take; what an epoch reads and writes is kept in
        memory besides, and what is read lies in the system's page cache.
        StoreLockedError if it is in use; StoreUnusableError if it can't be trusted: damaged, cut short, of another
        format or generation, from before another start of the machine. Then ``create`` makes a new one.
        """
        path = Path(path).absolute()
        return cls._held(path, StoreLock(path), generation, cache, False)

    @classmethod
    def create(
        cls, path: Path, *, generation: int = 1, cache: int = CACHE, fill: Callable[[Path], None] | None = None
    ) -> StateStore:
        """A store in place of what is there. ``fill`` gets an empty directory and puts a copy into it (``data.mdb``, as
        ``copy_store`` makes it); without, the store is empty.

        StoreLockedError if it is in use, StoreUnusableError if the copy is none. What was there is gone then.
        """
        path = Path(path).absolute()
        lock = StoreLock(path)
        try:
            forget(path)
            fresh = path.with_name(path.name + ".new")
            for old in (fresh, path):
                shutil.rmtree(old, ignore_errors=True)
            lock.see(0)
            if fill is not None:
                fresh.mkdir()
                fill(fresh)
                fresh.rename(path)
        except BaseException:
            lock.release()
            raise
        return cls._held(path, lock, generation, cache, fill is not None)

    @classmethod
    def _held(cls, path: Path, lock: StoreLock, generation: int, cache: int, adopt: bool) -> StateStore:
        try:
            env = take(path, lock.seen())
            try:
                with reported(path):
                    made = cls(path, lock, env, generation, cache, adopt)
                lock.see(file_size(path))
                return made
            except BaseException:
                env.env.close()
                raise
        except BaseException:
            lock.release()
            raise

    def close(self) -> None:
        """Let it go. What was not committed is gone."""
        if self._lock is None:
            return
        self._end()
        lock, self._lock = self._lock, None
        give_back(self.path, self._env)
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
        """The version to which ``undo`` leads; None: it can't be taken back."""
        return self._meta.previous

    @property
    def keys(self) -> int:
        """How many are stored. Those that are over but not yet removed count."""
        return self._size()[0]

    @property
    def disk_bytes(self) -> int:
        """On disk: pages in use, those for ``undo`` too; free ones in the file are not counted."""
        return self._size()[1]

    def begin(self, now_ms: int) -> StateChanges:
        """Changes over this version, at a time; if an earlier epoch had a later one, at that. Others are dropped."""
        self._end()
        self._mend()  # what could not be taken back when the disk was full
        with reported(self.path):
            self._reading = self._held_env().env.begin(buffers=False)
            timed = self._reading.stat(self._env.due)["entries"] > 0
        self._changes = StateChanges(self, max(now_ms, self._meta.current.now), timed)
        return self._changes

    def commit(self, changes: StateChanges, epoch: int, run: str, position: bytes = b"") -> str:
        """Make the changes version ``epoch``. Returns their digest (``records``).

        All are done, or none: StoreFullError and StoreUnusableError leave the version before.
        """
        if changes is not self._changes or changes.parent is not None:
            raise StoreError(f"{self.path}: only the changes that were begun last are committed, with children merged")
        meta = self._meta
        keys = changes.ordered()
        records = list(map(changes.writes.__getitem__, keys))
        timed = changes.epoch.timed
        horizon = stamp(meta.current.now)
        with reported(self.path):
            before = changes.before(keys)
        self._end()
        if timed:  # what was over for the version before counts as absent, so that it may be removed
            before = unless_over(before, horizon)

        def prepare(txn: Txn) -> None:
            if timed:
                sweep(txn, self._env, horizon, SWEEP + 2 * len(keys))
                index(txn, self._env, keys, records, before)
            remember(txn, self._env, keys, before)

        current = VersionInfo(epoch, run, position, changes.now_ms)
        try:
            self._write(
                meta.current, StoreMeta(meta.boot, meta.generation, current, meta.current), keys, records, prepare
            )
        except StoreFullError:
            self._mend()
            raise
        return digest(keys, records)

    def undo(self) -> None:
        """Take the last epoch back. StoreError if it was taken back already, or there is none."""
        previous = self._meta.previous
        if previous is None:
            raise StoreError(f"{self.path}: version {self._meta.current.epoch} can't be taken back")
        self._held_env()
        self._end()
        self._take_back(previous)

    def _take_back(self, to: VersionInfo) -> None:
        """Put the pre-images where they were. Cut off, it is done again when the store is opened."""
        with reported(self.path), self._env.env.begin() as txn:
            keys, records = remembered(txn, self._env)
        self._write(to, StoreMeta(self._meta.boot, self._meta.generation, to), keys, records, None)

    def _mend(self) -> None:
        """Take back what an epoch had done that was cut off between its parts."""
        if self._meta.torn:
            self._take_back(self._meta.current)

    def _write(
        self, back: VersionInfo, made: StoreMeta, keys: Sequence[bytes], records: Sequence[Record],
        prepare: Callable[[Txn], None] | None,
    ) -> None:  # fmt: skip
        """Write the mutations, and ``made``. Cut off between its parts, the store says that it goes ``back``."""
        env = self._env
        with reported(self.path):
            with env.env.begin() as txn:
                first, *others = parts(txn, env, keys, records, self._memory)
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
                    self._lock.see(file_size(self.path))

    def fetch(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """For ``StateChanges``."""
        with reported(self.path):
            return self._read().cursor(self._env.data).getmulti(keys)

    def walk(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """For ``StateChanges``."""
        with reported(self.path):
            reading = self._read()
            cursor = reading.cursor(self._env.data)
            if cursor.set_range(prefix):
                for key, record in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, record
                    if self._reading is not reading:
                        raise ended()

    def _found(self, generation: int, adopt: bool) -> StoreMeta:
        """What the store says of itself, if it can be used. A new one is given its first words."""
        env, boot = self._env, boot_id()
        with env.env.begin() as txn:
            raw = txn.get(_META, db=env.meta)
            empty = raw is None and not any(txn.stat(db)["entries"] for db in (env.data, env.due, env.undo))
        if raw is None and (adopt or not empty):
            raise StoreUnusableError(f"{self.path} is no state store, or an unfinished one")
        try:
            meta = msgspec.msgpack.decode(raw, type=StoreMeta) if raw else StoreMeta(boot, generation)
        except msgspec.MsgspecError as error:
            raise StoreUnusableError(f"{self.path} is damaged, or of a newer format: {error}") from None
        if meta.format != FORMAT:
            raise StoreUnusableError(f"{self.path} has format {meta.format}, and this program knows {FORMAT}")
        if meta.generation != generation:
            raise StoreUnusableError(f"{self.path} is of the job's generation {meta.generation}, not {generation}")
        if meta.boot != boot and not adopt:
            raise StoreUnusableError(f"{self.path} was written before the machine was started, and may lack something")
        if raw is None or meta.boot != boot:
            meta = msgspec.structs.replace(meta, boot=boot)
            with env.env.begin(write=True) as txn:
                txn.put(_META, msgspec.msgpack.encode(meta), db=env.meta)
        return meta

    def _size(self) -> tuple[int, int]:
        env = self._held_env()
        with reported(self.path), env.env.begin() as txn:
            stats = [txn.stat(db) for db in (env.data, env.due, env.undo)]
        pages = sum(stat[kind] for stat in stats for kind in ("branch_pages", "leaf_pages", "overflow_pages"))
        return stats[0]["entries"], pages * stats[0]["psize"]

    def _read(self) -> lmdb.Transaction[bytes]:
        if self._reading is None:
            raise StoreError(f"{self.path}: nothing was begun")
        return self._reading

    def _held_env(self) -> StoreEnvironment:
        if self._lock is None:
            raise StoreError(f"{self.path} is closed")
        return self._env

    def _end(self) -> None:
        """No changes from now on."""
        if self._changes is not None:
            self._changes.end()
            self._changes = None
        if self._reading is not None:
            self._reading.abort()
            self._reading = None
