"""One member on this machine.

Its process is started, or adopted if it runs already. After its end, it is started again.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from typing import Final

from tidelog.cluster import asking, memberprogram, ports, processes
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.folder import ClusterFolder
from tidelog.cluster.plan import ClusterPlan, PlannedMember
from tidelog.cluster.processes import RunningProcess
from tidelog.cluster.settings import config_lines
from tidelog.serverprogram import server_command, server_environment
from tidelog.transport.access import Access
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.cancellation import cancel_and_wait

BACKOFF: Final = Backoff(first=0.2, most=30.0)  # between the end of a process and the next start
STABLE: Final = 60.0  # s; a process that has run for longer is started again after the first delay
PROBE: Final = 0.1  # s between two requests to a member that starts
PROBE_MS: Final = 1000  # timeout of such a request
LINES: Final = 5  # the last lines of the log of a process that has failed are printed
QUOTED: Final = 2000  # bytes of them, at most


def server_words(folder: ClusterFolder, plan: ClusterPlan, member: PlannedMember) -> list[str]:
    """Return the command line of a member, after the program. It reads the other settings from standard input, so
    passwords are not in the list of processes."""
    own = {
        "port": str(member.port), "dir": str(folder.data(member.name)), "group": member.group,
        "group-member": member.name, "coordinator": folder.coordinator, "cluster-enabled": "yes",
    }  # fmt: skip
    chosen = [word for name, value in own.items() for word in (f"--{name}", value)]
    return [*chosen, "--bind", *plan.bind.split(), "-"]


def member_access(plan: ClusterPlan, member: PlannedMember) -> Access:
    """Return the address and the password of a member."""
    return Access((ports.url(plan.bind, member.port),), password=plan.password)


class SupervisedMember:
    """A member and its process. ``say`` prints a line."""

    def __init__(
        self, folder: ClusterFolder, plan: ClusterPlan, member: PlannedMember, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        self.name: Final = member.name
        self.group: Final = member.group
        self.access: Final = member_access(plan, member)
        self.process: RunningProcess | None = None
        self.ready = False  # the process replies
        self._words = server_words(folder, plan, member)
        self._settings = config_lines(plan.flags)
        self._folder = folder
        self._say = say
        self._ended_before = False

    async def keep_running(self) -> None:
        """Run the process until this coroutine is cancelled, which does not end the process."""
        delays = Delays(BACKOFF)
        while True:
            began = time.monotonic()
            try:
                self.process = self._folder.member(self.name) or self._start()
            except (ClusterError, OSError) as error:
                self._say(f"member {self.name} can't be started: {error}")
            except Exception as error:  # noqa: BLE001 - even after a bug, the member must be started again
                self._say(f"member {self.name} can't be started, which is a bug: {error!r}")
            else:
                await self._until_it_ends(self.process)
                if time.monotonic() - began > STABLE:
                    delays.reset()
                self._report(self.process, time.monotonic() - began, delays.failures)
                self.process.close()
                self.process = None
                self._ended_before = True
            await asyncio.sleep(delays.next())

    async def _until_it_ends(self, process: RunningProcess) -> None:
        watching = asyncio.create_task(self._until_ready())
        try:
            await process.ended()
        finally:
            await cancel_and_wait(watching)
            self.ready = False

    async def _until_ready(self) -> None:
        while True:
            if await self.phase() is not None:
                break
            await asyncio.sleep(PROBE)
        self.ready = True
        if self._ended_before:
            self._say(f"member {self.name} runs again")

    async def phase(self) -> str | None:
        """Return what the member does, such as ``leading``; None if it does not reply."""
        return await asking.phase(self.access, self.access.urls[0], PROBE_MS)

    def _start(self) -> RunningProcess:
        self._folder.create(self.name)
        words = [*server_command()[-1:], *self._words]
        log = self._folder.log(self.name)
        return processes.start(words, self._folder.process(self.name), log, server_environment(), self._settings)

    def _report(self, process: RunningProcess, seconds: float, failures: int) -> None:
        status = process.status
        if status == memberprogram.TAKEN:  # another supervisor, which was killed, started it at the same moment
            return
        how = "has ended"
        if status is not None:
            how = f"was ended by {_signal(-status)}" if status < 0 else f"has ended with status {status}"
        delay = BACKOFF.delay(failures + 1)
        how += f" after {seconds:.1f} s" if process.is_child else ""
        text = f"member {self.name} {how}; it is started again in {delay:.1f} s"
        if status and status != -signal.SIGKILL and not failures:  # the lines of later failures are mostly the same
            text += f". {self._folder.log(self.name)} ends with\n{self._last_lines()}"
        self._say(text)

    def _last_lines(self) -> str:
        try:
            with self._folder.log(self.name).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - QUOTED))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return str(error)
        return "\n".join(f"    {line}" for line in lines[-LINES:])


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
