"""The processes: members of groups, and the coordinator with the links of each member to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from persistence.directory import MARKER, sync
from tests.coordinator.etcds import Etcds
from tests.replication.cluster import new_port
from tests.storm.lossy import LossyDirectory
from tests.storm.network import Network
from tests.storm.preloaded import Preloaded

SETTINGS: dict[str, str | int] = {
    "bind": "127.0.0.1", "replica-announce-ip": "127.0.0.1", "enable-debug-command": "yes", "wal-size": "1mb",
    "checkpoint-size": "1mb", "stream-node-max-entries": 50, "repl-ping-replica-period": 1, "repl-timeout": 5,
    "in-sync-timeout": 1000, "scrub-rate": "32mb", "save": "", "shutdown-timeout": 2,
}  # fmt: skip
STOPPED = 20.0  # seconds that a stop may take
SKIPPED = 8192  # bytes of LMDB's meta pages


class Member:
    """A server process with a data directory that outlasts it."""

    def __init__(
        self, name: str, top: Path, disk: LossyDirectory | None, preloaded: Preloaded, trouble: Callable[[str], None],
        group: str = "tide",
    ) -> None:  # fmt: skip
        self.name = name
        self.group = group
        self.port = new_port()
        self.log = top / f"{name}.log"
        self.settings: dict[str, str | int] = {
            **SETTINGS, "group": group, "group-member": name, "port": self.port,
        }  # fmt: skip
        self.disk = disk
        self.directory = top / name / "data"
        self.directory.mkdir(parents=True)
        self.status: dict[str, Any] = {}  # the last TMEMBER STATUS; empty while it does not answer
        self._trouble = trouble
        self.pid: int | None = None  # None while it does not run
        self._preloaded = preloaded
        self._watch: asyncio.Task[None] | None = None
        self.damaged = False  # bits of its store were flipped, and not everything is repaired yet
        self._boot: Path | None = None  # the boot ID of its machine; None: that of this machine
        self.replaced = 0  # how often its data was replaced
        self.losses = 0  # how often it may have lost data: power losses, and replacements
        self._again: asyncio.Task[None] | None = None
        self._ending = 0  # the process that is to end
        self._lock = asyncio.Lock()

    @property
    def leads(self) -> bool:
        return self.status.get("phase") == "leading"

    async def start(self) -> None:
        """Start the process unless it runs. It is ready some time later."""
        async with self._lock:
            if self.pid is not None:
                return
            argv = ["--dir", str(self.directory)]
            for name, value in self.settings.items():
                argv += [f"--{name}", str(value)]
            self.pid, ended = await self._preloaded.start(argv, self.log, self._boot)
            self._watch = asyncio.create_task(self._watched(self.pid, ended))

    async def _watched(self, pid: int, ended: asyncio.Future[int]) -> None:
        status = await ended
        self.pid, self.status = None, {}
        if pid == self._ending:
            return
        if status == 1 and b" # coordinator: " in self._last_line():
            self._again = asyncio.create_task(self._started_again())
        elif status == 1 and self.damaged and b"restore the directory" in self._last_line():
            self._again = asyncio.create_task(self.replace_data())
        else:
            self._trouble(f"{self.name} has ended with status {status}; see {self.log}")

    async def _started_again(self) -> None:
        """Start again, as a supervisor does, since the directory of the coordinator was away."""
        await asyncio.sleep(0.3)
        await self.start()

    async def damage(
        self, chance: random.Random, seconds: float, spared: Callable[[], Coroutine[None, None, bool]]
    ) -> None:
        """Kill the process, flip bits of its store unless it is to be ``spared``, and start it some seconds later.

        The scrub begins at once.
        """
        async with self._lock:
            await self._killed()
            store = self.directory / "store" / "data.mdb"
            if store.exists() and not await spared():
                self.damaged = True
                await asyncio.to_thread(_flip, store, chance.choice((1, 10, 100)), chance)
                os.utime(self.directory / MARKER, (1, 1))  # when the directory was created
                (self.directory / "scrub").unlink(missing_ok=True)
        await asyncio.sleep(seconds)
        await self.start()

    async def replace_data(self) -> None:
        """What an operator does if damage can't be repaired: start with an empty directory, and so copy all data."""
        async with self._lock:
            await self._machine_killed()
            self.damaged = False
            self.replaced += 1
            self.losses += 1
            await asyncio.to_thread(shutil.rmtree, self.directory)
            self.directory.mkdir()
            sync(self.directory.parent)  # the damaged data must not be back after a power failure
        await self.start()

    def _last_line(self) -> bytes:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 1000))
            return (log.read().splitlines() or [b""])[-1]

    async def kill(self) -> None:
        async with self._lock:
            await self._killed()

    def helpers(self) -> list[int]:
        """Return the processes that the server has started."""
        found: list[int] = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has ended
                found += map(int, path.read_text().split())
        return found

    async def _machine_killed(self) -> None:
        """Kill the server with its helpers, which otherwise outlast it until their current step ends."""
        helpers = self.helpers()
        await self._killed()
        for pid in helpers:
            send(pid, signal.SIGKILL)

    async def _killed(self) -> None:
        if self.pid is not None and self._watch is not None:
            self._ending = self.pid
            self.signal(signal.SIGKILL)
            await self._watch

    async def lose_power(self, seed: int) -> None:
        """Kill the process, and lose what it has not synced."""
        async with self._lock:
            self.losses += 1
            await self._machine_killed()
            if self.disk is not None:
                await asyncio.to_thread(self.disk.lose_power, seed)
                self._boot = self.log.with_suffix(".boot")
                self._boot.write_text(f"{seed:08x}-0000-0000-0000-000000000000\n")

    async def stop(self) -> bool:
        """SIGTERM. Return whether it ended in time."""
        if self.pid is None or self._watch is None:
            return True
        self._ending = self.pid
        self.signal(signal.SIGTERM)
        done, _ = await asyncio.wait([self._watch], timeout=STOPPED)
        if not done:
            await self.kill()
        return bool(done)

    def signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            send(self.pid, number)

    def keep(self) -> None:
        """Copy the data to where it outlasts the file system."""
        if self.disk is not None:
            shutil.copytree(self.directory, self.log.with_suffix(".data"))

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _flip(file: Path, count: int, chance: random.Random) -> None:
    """Flip bits after the two pages that say where everything else is."""
    with file.open("r+b") as opened:
        size = file.stat().st_size
        for _ in range(count if size > SKIPPED else 0):
            at = chance.randrange(SKIPPED, size)
            opened.seek(at)
            (byte,) = opened.read(1)
            opened.seek(at)
            opened.write(bytes([byte ^ 1 << chance.randrange(8)]))
        opened.flush()
        os.fsync(opened.fileno())


class FileCoordinator:
    """A directory. Each member reaches it over a symbolic link of its own."""

    lease = 2000  # ms; with 1000, a busy machine often has no leader
    servers: Sequence[str] = ()

    def __init__(self, top: Path) -> None:
        self._top = top
        (top / "coordinator").mkdir()

    async def url(self, member: str, network: Network) -> str:
        self.cut(member, False, network)
        return f"file://{self._top}/{member}-coordinator"

    def cut(self, member: str, cut: bool, network: Network) -> None:
        new = self._top / "new"
        new.symlink_to("/dev/null/away" if cut else self._top / "coordinator")  # no directory can be made there
        new.rename(self._top / f"{member}-coordinator")

    def close(self) -> None:
        pass


class EtcdCoordinator:
    """A cluster of three etcd processes. Each member reaches each of them through a proxy of its own."""

    lease = 2000  # ms; etcd grants no shorter one
    servers = ("e0", "e1", "e2")

    def __init__(self, top: Path) -> None:
        self.etcds = Etcds(top, 3)

    async def url(self, member: str, network: Network) -> str:
        ports = [
            await network.listen(name, port, member) for name, port in zip(self.servers, self.etcds.ports, strict=True)
        ]
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def cut(self, member: str, cut: bool, network: Network) -> None:
        for server in self.servers:
            network.silence(member, server, cut)
            network.silence(server, member, cut)

    def signal(self, server: str, number: signal.Signals) -> None:
        self.etcds.processes[self.servers.index(server)].send_signal(number)  # not after it was killed

    def kill(self, server: str) -> None:
        self.etcds.kill(self.servers.index(server))

    def start(self, server: str) -> None:
        self.etcds.start(self.servers.index(server))

    def close(self) -> None:
        self.etcds.close()


Coordinator = FileCoordinator | EtcdCoordinator
