"""``FlowProcess``: runs flows and the HTTP API until all flows have ended, or until a signal.

The first SIGTERM or SIGINT drains all flows and reports the settled and abandoned events. A second signal stops
immediately. With ``stay``, the process continues when all flows have ended.

SIGHUP reloads the flow files. If the process has none, or if its terminal was closed, SIGHUP drains like SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from tidelog.flows.api.errors import FlowError, FlowFileError
from tidelog.flows.service import api
from tidelog.flows.service.history import FlowHistory
from tidelog.flows.service.host import DeployedFlow, FlowHost
from tidelog.flows.service.publisher import FlowPublisher
from tidelog.flows.service.reloading import ReloadReport, reload
from tidelog.operating.errortexts import summary_of
from tidelog.operating.signals import ENDING, handling, release
from tidelog.operating.tables import counted
from tidelog.transport.cancellation import cancel_and_wait

log = logging.getLogger("tidelog.flows")


@dataclass
class ProcessOptions:
    """The options of a process."""

    server: str | None = None  # URL of the tidelog server
    name: str = "default"  # name of the desired state on the server
    listen: str | None = api.DEFAULT  # None: no HTTP API
    token: str | None = None
    local: bool = False  # flows deployed over HTTP can use Python functions and local files
    stay: bool = False  # also when all flows have ended
    read_files: Callable[[], Sequence[DeployedFlow]] | None = None  # see FlowHost


def token_in(path: str) -> str:
    """Read a token from a file. Raises FlowError."""
    try:
        found = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FlowError(f"the token can't be read from {path}: {error}") from None
    if not found:
        raise FlowError(f"{path} is empty: it must contain a token")
    return found


def run(flows: Sequence[DeployedFlow], options: ProcessOptions, say: Callable[[str], None]) -> int:
    """Run the flows. Return the exit status: 0, or 1 if a flow failed or events were abandoned.

    ``say`` prints messages for the user. Raises FlowError if the process can't start.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(FlowProcess(flows, options, say).main())


class FlowProcess:
    """Runs flows in this process: ``await FlowProcess(flows, ProcessOptions(), print).main()``."""

    def __init__(self, flows: Sequence[DeployedFlow], options: ProcessOptions, say: Callable[[str], None]) -> None:
        self._flows = flows
        self._options = options
        self._say = say
        self._told = 0  # number of signals
        self._signal = asyncio.Event()
        self._begun = asyncio.Event()  # the flows were started
        self._reload_wanted = asyncio.Event()
        self._terminal = has_terminal()
        self.host = FlowHost(options.server, options.name, local=options.local)
        self.host.read_files = options.read_files

    async def main(self) -> int:
        options = self._options
        publisher = FlowPublisher(self.host)
        history = FlowHistory(self.host, publisher.process)
        server = None
        if options.listen is not None:
            server = api.FlowApiServer(self.host, options.listen, options.token, history)
        with handling(ENDING, self._signalled), self.host.watchdog, self.host.warnings:
            release(signal.SIGHUP)
            reloads = asyncio.create_task(self._reloads(), name="flow reloads")
            try:
                if server is not None:
                    await server.start()
                    self._say(f"listening on {server.url}")
                async with publisher, history:
                    return await self._run()
            finally:
                await cancel_and_wait(reloads)
                await self.host.stop()
                if server is not None:
                    await server.stop()

    def _signalled(self, number: signal.Signals) -> None:
        closed = self._terminal and not has_terminal()
        if number == signal.SIGHUP and self._options.read_files is not None and not closed:
            self._reload_wanted.set()
        else:
            self._told += 1
            self._signal.set()

    async def _reloads(self) -> None:
        """Reload after each SIGHUP. Signals that arrive during a reload cause another one."""
        while True:
            await self._reload_wanted.wait()
            await self._begun.wait()  # the flows start when the server has replied
            self._reload_wanted.clear()
            try:
                report = await reload(self.host)
            except FlowFileError as error:
                for line in error.problems:
                    self._say(line)
                self._say(f"reload: {counted(len(error.problems), 'problem')}; nothing was changed")
            except FlowError as error:
                self._say(f"reload: nothing was changed: {error}")
            except Exception as error:  # the flows continue, and so does the next reload
                log.exception("reload")
                self._say(f"reload: {summary_of(error)}")
            else:
                for line in reload_texts(report):
                    self._say(line)

    async def _run(self) -> int:
        work = asyncio.create_task(self._work())
        if await self._until(work):
            return self._status(True)
        self._signal.clear()
        work.cancel()
        self._say("draining; a second signal stops immediately")
        draining = asyncio.create_task(self.host.drain())
        if not await self._until(draining):
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            self._say("stopped immediately: events in flight are not settled")
            return 1
        reports = draining.result()
        for alias, report in reports.items():
            self._say(drained_text(alias, report.settled, report.seconds, report.abandoned))
        return self._status(all(each.complete for each in reports.values()))

    async def _until(self, work: asyncio.Task[object]) -> bool:
        """Wait for ``work`` or a signal. Return whether ``work`` is done. Its exception is raised."""
        signalled = asyncio.create_task(self._signal.wait())
        try:
            await asyncio.wait((work, signalled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            signalled.cancel()
        if work.done():
            work.result()
            return True
        return False

    async def _work(self) -> object:
        await self.host.start(self._flows)
        self._begun.set()
        if self._options.stay:
            await asyncio.Event().wait()
        await self.host.finished()
        return None

    def _status(self, complete: bool) -> int:
        for each in self.host.failed:
            self._say(f"failed: {each}")
        if not complete or self.host.failed:
            return 1
        return int(self.host.shared.get("exit_code", 0))  # set by a connector of type exit


def has_terminal() -> bool:
    """Return whether the process has a controlling terminal. It has none any more after its terminal was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def reload_texts(report: ReloadReport) -> list[str]:
    """Return lines about a reload."""
    drains = [
        drained_text(alias, each.settled, each.seconds, each.abandoned) for alias, each in report.drained.items()
    ]
    return [*drains, f"reload: {report}"]


def drained_text(alias: str, settled: int, seconds: float, abandoned: Mapping[str, int]) -> str:
    """Return a line about a drain."""
    left = ", ".join(f"{count:,} of {source}" for source, count in abandoned.items() if count)
    text = f"{alias}: {counted(settled, 'event')} settled while draining, {seconds:.1f} s"
    return f"{text}; abandoned: {left}" if left else f"{text}; nothing is left"
