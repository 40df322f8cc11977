"""The files of a member, and what survives of them.

Rule 1: The files are real, in memory (/dev/shm). A killed process leaves them as they are.
Rule 2: After a power failure, each block of the WAL that was written since the last sync has its new or its old
        content. Everything else is synced by the step that writes it: LMDB syncs each transaction, and other files are
        replaced by a synced rename.
Rule 3: A kill between two callbacks is not enough: work in a thread is one callback here. So a kill can also happen at
        a step of the files, a write or a sync or a rename. The files are then copied at that step, and whatever the
        process does until the end of its callback has no effect.
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import persistence.directory
import persistence.history
import persistence.log
import persistence.wal
import replication.follower
import respserver.execution.blocking
import respserver.execution.dispatch
import respserver.execution.slices
import respserver.execution.transactions
import respserver.maintenance.checkpoints
import respserver.observe.streamtotals
import respserver.runtime.deliveries
import respserver.runtime.ticks
import respserver.server
from persistence.wal import BLOCK, FRAME_SIZE, NOTES, Wal
from tests.simulation.simloop import CURRENT, Process, SimLoop

ROUNDS: Final = (0.05, 0.15, 2.0)  # longest seconds between two rounds of a journal; the last on a slow disk

Dirty = tuple[int, int]  # position and bytes


class Disk:
    """The directory of one member, over all its processes."""

    def __init__(self, top: Path, name: str, chance: random.Random) -> None:
        self._top = top
        self._name = name
        self._random = chance
        self._number = 0
        self.path = top / f"{name}.0"
        self.boots = 1  # starts of the machine
        self.countdown = 0  # steps of the files until the kill of Rule 3; 0: none
        self.power = False  # that kill is a power failure
        self.copying = False  # only steps while there is a part of a full copy count
        self.left: Path | None = None  # the copy made at that step
        self._synced: dict[int, bytearray] = {}  # synced content of a WAL, by inode
        self._dirty: dict[int, list[Dirty]] = {}

    def opened(self, wal: Wal) -> None:
        inode = os.fstat(wal.fd).st_ino
        if inode not in self._synced:
            self._synced[inode] = bytearray(os.pread(wal.fd, BLOCK + wal.size, 0))
            self._dirty[inode] = []

    def wrote(self, fd: int, at: int, size: int) -> None:
        self._dirty[os.fstat(fd).st_ino].append((at, size))

    def synced(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        content = self._synced[inode]
        for at, size in self._dirty[inode]:
            content[at : at + size] = os.pread(fd, size, at)
        self._dirty[inode] = []

    def step(self, process: Process) -> None:
        """A write, sync or rename begins."""
        if self.countdown and not process.muted and (not self.copying or any(self.path.glob("incoming*"))):
            self.countdown -= 1
            if not self.countdown:
                self.left = self._copy(self.power)
                process.muted = True
                process.loop.note(f"{process.name} stops at a step of its files")

    def after_kill(self, power: bool) -> None:
        """Continue with what a killed process has left."""
        left = self.left if self.left is not None else self._copy(power)
        self.left, self.countdown = None, 0
        self.path = left
        if power:
            self.boots += 1

    def _copy(self, power: bool) -> Path:
        self._number += 1
        copy = self._top / f"{self._name}.{self._number}"
        if not self.path.exists():
            return self.path
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("lock", "lock.mdb"))
        for path in (copy / "tail", copy / "incoming.ready" / "tail"):
            old = self.path / path.relative_to(copy)
            if path.exists():
                self._copy_wal(os.stat(old).st_ino, path, power)
        return copy

    def _copy_wal(self, inode: int, path: Path, power: bool) -> None:
        synced = self._synced.get(inode)
        if synced is None:
            return
        dirty = self._dirty[inode]
        new = os.stat(path).st_ino
        self._synced[new], self._dirty[new] = bytearray(synced), list(dirty)
        if not power:
            return
        with open(path, "r+b") as file:
            blocks = {at // BLOCK for start, size in dirty for at in range(start, start + size + BLOCK, BLOCK)}
            for block in sorted(blocks):
                if self._random.random() < 0.5:
                    file.seek(block * BLOCK)
                    file.write(synced[block * BLOCK : (block + 1) * BLOCK])
            file.flush()
            file.seek(0)
            self._synced[new], self._dirty[new] = bytearray(file.read()), []


class SimJournal:
    """Takes the place of the journal's thread: its rounds run at random times."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._process = CURRENT.get()
        self._alive = True
        self._longest = self._process.loop.random.choice(ROUNDS)

    def start(self) -> None:
        self._process.call(self._round, after=self._process.loop.random.uniform(0.001, self._longest))

    def _round(self) -> None:
        if self._alive:
            self._run()
            self.start()

    def _run(self) -> None:
        if self._log.flush_round() is None:
            self._alive = False

    def is_alive(self) -> bool:
        return self._alive

    def await_round(self, changed: object) -> None:
        self._run()

    def join(self) -> None:
        while self._alive:
            self._run()


@contextmanager
def simulated(loop: SimLoop, disk_of: Callable[[Process], Disk | None]) -> Iterator[None]:
    """Replace what the servers' code takes from the machine: time, random numbers, threads, the boot ID."""

    def seconds() -> float:
        return loop.time()

    def nanoseconds() -> int:
        return round(loop.time() * 1e9)

    def here() -> Disk | None:
        process = CURRENT.get(loop.world)
        return None if process.dead else disk_of(process)

    def boot_id() -> str:
        disk = here()
        return f"{0 if disk is None else disk.boots:08x}-0000-0000-0000-000000000000"

    def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **options: Any) -> Any:
            process = CURRENT.get(loop.world)
            disk = None if process.dead else disk_of(process)
            if disk is not None:
                disk.step(process)
            return call(*args, **options)

        return stepped

    open_wal, note, sync, write = Wal.__init__, Wal.note, Wal.sync, Wal.write

    def opened(wal: Wal, path: Path) -> None:
        open_wal(wal, path)
        disk = here()
        if disk is not None:
            disk.opened(wal)

    def noted(wal: Wal, journal: int, store: int) -> None:
        note(wal, journal, store)
        disk = here()
        if disk is not None:
            disk.wrote(wal.fd, NOTES[0], BLOCK - NOTES[0])

    def synced(wal: Wal) -> None:
        sync(wal)  # a step, since it calls os.fdatasync()
        disk = here()
        if disk is not None:
            disk.synced(wal.fd)

    def wrote(wal: Wal, at: int, offset: int, on_disk: int, batch: bytes) -> int:
        process = CURRENT.get(loop.world)
        disk = here()
        if disk is not None:
            disk.step(process)
        checksum = write(wal, at, offset, on_disk, batch)
        if disk is not None:
            disk.wrote(wal.fd, BLOCK + at, FRAME_SIZE + len(batch))
        return checksum

    time = types.SimpleNamespace(
        monotonic=seconds, perf_counter=seconds, perf_counter_ns=nanoseconds, sleep=lambda seconds: None
    )
    drawn = types.SimpleNamespace(
        token_hex=lambda count: loop.random.randbytes(count).hex(), token_bytes=loop.random.randbytes
    )
    others = random.Random(loop.seed)  # for what must not differ from run to run, either
    with ExitStack() as stack:
        for module, name, value in (
            (persistence.log, "JournalThread", SimJournal),
            (persistence.log, "time", time),
            (persistence.log, "boot_id", boot_id),
            (persistence.history, "boot_id", boot_id),
            (persistence.history, "secrets", drawn),
            (persistence.directory, "secrets", drawn),
            (secrets, "token_hex", lambda count: others.randbytes(count).hex()),
            (secrets, "token_bytes", others.randbytes),
            (persistence.wal, "write_small", None),
            (replication.follower, "random", loop.random),
            (respserver.server, "AVAILABLE", False),
            (respserver.server, "random", types.SimpleNamespace(Random=lambda: others)),
            (respserver.server, "time", time),
            (respserver.observe.streamtotals, "perf_counter", seconds),
            (respserver.execution.blocking, "perf_counter_ns", nanoseconds),
            (respserver.execution.dispatch, "_perf_counter_ns", nanoseconds),
            (respserver.execution.slices, "perf_counter_ns", nanoseconds),
            (respserver.execution.transactions, "perf_counter_ns", nanoseconds),
            (respserver.runtime.deliveries, "time", time),
            (respserver.runtime.ticks, "perf_counter_ns", nanoseconds),
            (respserver.maintenance.checkpoints, "trim_memory", lambda: None),
            (os, "fsync", stepping(lambda fd: None)),
            (os, "fdatasync", stepping(lambda fd: None)),
            (os, "rename", stepping(os.rename)),
            (os, "replace", stepping(os.replace)),
            (os, "unlink", stepping(os.unlink)),
            (Wal, "__init__", opened),
            (Wal, "note", noted),
            (Wal, "sync", synced),
            (Wal, "write", wrote),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield
