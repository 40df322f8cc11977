"""The members: servers of the product, each in a process of its own on the simulated loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock
from respserver.server import RespServer
from tests.simulation.disk import Disk
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process
from tidelog.flows.testing.virtualloop import BEGIN_NS

PORT = 6379
OFFSET = 3000  # seconds by which a clock is wrong, by its drift


class SimClock(Clock):
    """The clocks of one process. ``offset``: returns the seconds by which the wall clock is wrong."""

    def __init__(self, process: Process, offset: Callable[[], float]) -> None:
        self._process = process
        self._offset = offset

    def now(self) -> int:
        return self.micros() // 1000

    def micros(self) -> int:
        process = self._process
        return BEGIN_NS // 1000 + round((process.loop.virtual * process.rate + self._offset()) * 1e6)

    def mono(self) -> int:
        return 1_000_000 + round(self._process.loop.virtual * self._process.rate * 1000)

    def sleep(self, seconds: float) -> None:
        """Do nothing: time passes only between callbacks."""


class SimLogger(Logger):
    """Writes into the trace."""

    def __init__(self, process: Process) -> None:
        super().__init__(level="verbose")
        self._process = process

    def _write(self, level: int, text: str) -> None:
        process = self._process
        process.loop.note(f"{process.name}:{self.role} {'.-*#'[level]} {text}")
        if text.startswith(("Traceback", "Bug ")):
            process.loop.trouble.append(f"{process.name}: {text}")


class Member:
    """One member: its directory and settings, and its current process."""

    def __init__(self, loop: NetworkLoop, top: Path, number: int, settings: dict[str, str], drift: float) -> None:
        self.loop = loop
        self.name = f"m{number}"
        self.host = f"10.0.0.{number}"
        self.settings = settings
        self.disk = Disk(top, self.name, random.Random(loop.random.random()))
        self.rate = 1.0 + drift
        self.offset = OFFSET * drift  # seconds by which its wall clock is wrong; a fault changes it
        self.process: Process | None = None
        self.server: RespServer | None = None
        self.ended = False  # the server has stopped in order

    @property
    def address(self) -> tuple[str, int]:
        return self.host, PORT

    @property
    def running(self) -> bool:
        return self.process is not None and not self.process.dead

    def follow(self, leader: Member | None) -> None:
        """Let a later start follow this member, or lead."""
        self.settings.pop("replicaof", None)
        if leader is not None:
            self.settings["replicaof"] = f"{leader.host} {PORT}"

    def start(self) -> None:
        assert not self.running
        self.loop.network.down.discard(self.host)
        self.loop.note(f"{self.name} starts")
        self.ended = False
        self.process = self.loop.process(self.name, self.host, self.rate)
        self.process.start(self._main(self.process))

    async def _main(self, process: Process) -> None:
        argv = ["--port", str(PORT), "--bind", self.host, "--dir", str(self.disk.path)]
        for name, value in self.settings.items():
            argv += [f"--{name}", *value.split(" ")]
        try:
            server = RespServer(Config.load(argv), SimLogger(process), SimClock(process, lambda: self.offset))
            self.server = server
            await server.start()
            await server.run_until_stopped()
        except Exception as error:  # noqa: BLE001 - it is reported
            self.loop.trouble.append(f"{self.name} does not run: {error!r}")
        self.ended = True

    def stop(self) -> None:
        """SIGTERM."""
        if self.server is not None and self.running and not self.ended:
            server = self.server
            assert self.process is not None
            self.process.call(server.stop)

    def kill(self, power: bool = False) -> None:
        """SIGKILL, or a power failure of the machine."""
        if self.process is None or self.process.dead:
            return
        self.loop.note(f"{self.name} {'loses power' if power else 'is killed'}")
        if power:
            self.loop.network.down.add(self.host)
        self.disk.after_kill(power)
        self.end(power)

    def end(self, power: bool = False) -> None:
        """End the process. Its files are not used any more."""
        process, server = self.process, self.server
        if process is None or process.dead:
            return
        process.paused = process.muted = False
        process.die()
        self.loop.network.process_killed(process, power)
        self.server = None
        if server is not None:
            process.context.run(_free, server)

    def pause(self, paused: bool) -> None:
        """SIGSTOP, SIGCONT."""
        if self.process is not None and not self.process.dead:
            self.process.paused = paused
            self.loop.note(f"{self.name} {'is paused' if paused else 'goes on'}")

    def kill_at_step(self, steps: int, power: bool, copying: bool = False) -> None:
        """Kill it at a later step of its files. ``copying``: count only steps while it has a part of a full copy."""
        self.disk.countdown, self.disk.power, self.disk.copying = steps, power, copying


def _free(server: RespServer) -> None:
    """Close the files of a dead server; its directory is not used any more."""
    data: Any = getattr(server, "data", None)
    if data is not None and hasattr(data, "disk"):
        server._unrename()
        data.close()
