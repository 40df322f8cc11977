"""The processes: members of a group, and the coordinator with the links of each member to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.coordinator.etcds import Etcds
from tests.replication.cluster import new_port
from tests.storm.lossy import LossyDirectory
from tests.storm.network import Network
from tidelog.serverprogram import server_environment

SETTINGS = {
    "bind": "127.0.0.1", "replica-announce-ip": "127.0.0.1", "enable-debug-command": "yes", "wal-size": "1mb",
    "checkpoint-size": "1mb", "stream-node-max-entries": 50, "repl-ping-replica-period": 1, "repl-timeout": 5,
    "group": "tide", "in-sync-timeout": 1000, "scrub-rate": "32mb", "save": "", "shutdown-timeout": 2,
}  # fmt: skip
STOPPED = 20.0  # seconds that a stop may take


class Member:
    """A server process with a data directory that outlasts it."""

    def __init__(self, name: str, top: Path, lossy: bool, trouble: Callable[[str], None]) -> None:
        self.name = name
        self.port = new_port()
        self.log = top / f"{name}.log"
        self.settings: dict[str, str | int] = {**SETTINGS, "group-member": name, "port": self.port}
        self.disk: LossyDirectory | None = None
        place = top / name
        place.mkdir()
        if lossy:
            self.disk = LossyDirectory(place)
        self.directory = place / "data"
        self.directory.mkdir()
        self.status: dict[str, Any] = {}  # the last TMEMBER STATUS; empty while it does not answer
        self._trouble = trouble
        self._process: asyncio.subprocess.Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._ending = False  # the process is to end

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def leads(self) -> bool:
        return self.status.get("phase") == "leading"

    async def start(self) -> None:
        """Start the process unless it runs. It is ready some time later."""
        if self._process is not None:
            return
        self._ending = False
        command = [sys.executable, "-m", "_tidelog_server", "--dir", str(self.directory)]
        for name, value in self.settings.items():
            command += [f"--{name}", str(value)]
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=server_environment()
            )
        self._process = process
        self._watch = asyncio.create_task(self._watched(process))

    async def _watched(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        self._process, self.status = None, {}
        if not self._ending:
            self._trouble(f"{self.name} has ended with status {status}; see {self.log}")

    async def kill(self) -> None:
        self._ending = True
        self.signal(signal.SIGKILL)
        await self._ended()

    async def stop(self) -> bool:
        """SIGTERM. Return whether it ended in time."""
        self._ending = True
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOPPED):
                await self._ended()
        except TimeoutError:
            await self.kill()
            return False
        return True

    async def _ended(self) -> None:
        if self._watch is not None:
            await asyncio.shield(self._watch)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def lose_power(self, seed: int) -> None:
        """Kill the process, and lose what it has not synced."""
        await self.kill()
        if self.disk is not None:
            await asyncio.to_thread(self.disk.lose_power, seed)

    def close(self) -> None:
        if self.disk is not None:
            self.disk.close()


class FileCoordinator:
    """A directory. Each member reaches it over a symbolic link of its own."""

    lease = 1000  # ms
    servers: Sequence[str] = ()

    def __init__(self, top: Path) -> None:
        self._top = top
        (top / "coordinator").mkdir()

    async def url(self, member: str, network: Network) -> str:
        link = self._top / f"{member}-coordinator"
        link.symlink_to(self._top / "coordinator")
        return f"file://{link}"

    def cut(self, member: str, cut: bool, network: Network) -> None:
        link = self._top / f"{member}-coordinator"
        if cut:
            link.unlink(missing_ok=True)
        elif not link.is_symlink():
            link.symlink_to(self._top / "coordinator")

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
            await network.listen(name, port, member)
            for name, port in zip(self.servers, self.etcds.ports, strict=True)
        ]
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def cut(self, member: str, cut: bool, network: Network) -> None:
        for server in self.servers:
            network.silence(member, server, cut)
            network.silence(server, member, cut)

    def signal(self, server: str, number: signal.Signals) -> None:
        os.kill(self.etcds.processes[self.servers.index(server)].pid, number)

    def kill(self, server: str) -> None:
        self.etcds.kill(self.servers.index(server))

    def start(self, server: str) -> None:
        self.etcds.start(self.servers.index(server))

    def close(self) -> None:
        self.etcds.close()


Coordinator = FileCoordinator | EtcdCoordinator
