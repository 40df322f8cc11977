"""Starts the server, the sample programs, and the console, and stops them in the reverse order.

Rule 1: the other programs are ``attached``: they end if this process does. They have sessions of their own, so that
        Ctrl-C reaches only this process, which stops the worker before its server.
Rule 2: the lock of the directory is inherited. It lasts until the last of the programs has ended.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import redis
import uvloop

from tidelog.client.asyncclient import AsyncClient
from tidelog.console.application import ConsoleOptions, ConsoleServer
from tidelog.console.errors import ConsoleError
from tidelog.console.pages.nextsteps import NextSteps
from tidelog.operating import attached
from tidelog.operating.signals import ENDING, handling
from tidelog.quickstart import history, ports
from tidelog.quickstart.errors import QuickstartError
from tidelog.quickstart.folder import opened
from tidelog.serverprogram import server_environment
from tidelog.transport.access import Access
from tidelog.transport.cancellation import cancel_and_wait

SERVER_PORT: Final = 6379
CONSOLE_PORT: Final = 9899
STARTS_WITHIN: Final = 60.0  # s for the server, and for the sample data
STOPS_WITHIN: Final = 15.0  # s for each program; acknowledged writes survive SIGKILL
TURN: Final = 0.05  # s between two checks whether a program is ready
SAMPLES: Final = "tidelog.quickstart.samples"
LINES: Final = 5  # the last lines of the log of a program that has failed are printed
QUOTED: Final = 2000  # bytes of them, at most


@dataclass(frozen=True)
class QuickstartOptions:
    """The options of a quickstart."""

    directory: Path | None  # None: a temporary one
    port: int | None = None  # of the server; None: the usual one, or the next free one
    console_port: int | None = None  # the same for the console


@dataclass(frozen=True)
class SampleProgram:
    """A program that quickstart has started."""

    name: str
    process: Process
    log: Path

    def ended(self) -> QuickstartError:
        """Return the error that this program has ended."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - QUOTED))
            last = "\n".join(file.read().decode(errors="replace").splitlines()[-LINES:])
        return QuickstartError(
            f"{self.name} has ended with status {self.process.returncode}. {self.log} ends with\n{last}"
        )

    async def until(self, ready: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition. Raises QuickstartError if the program ends before, or if it takes too long."""
        try:
            async with asyncio.timeout(STARTS_WITHIN):
                while True:
                    if self.process.returncode is not None:
                        raise self.ended()
                    with suppress(redis.RedisError, OSError):  # not ready
                        if await ready():
                            return
                    await asyncio.sleep(TURN)
        except TimeoutError:
            raise QuickstartError(f"{self.name} is not ready after {STARTS_WITHIN:g} s; see {self.log}") from None


class Quickstart:
    """The programs of a quickstart. say: prints a line."""

    def __init__(self, options: QuickstartOptions, folder: Path, lock: int, say: Callable[[str], None]) -> None:
        self._options = options
        self._folder = folder
        self._lock = lock
        self._say = say
        self._processes: list[Process] = []

    async def run(self, show: Callable[[str], None]) -> None:
        """Run all programs until a signal. show: gets the address of the console. Raises QuickstartError."""
        signals: asyncio.Queue[int] = asyncio.Queue()
        with handling(ENDING, signals.put_nowait):
            running = asyncio.create_task(self._run(show))
            received = asyncio.create_task(signals.get())
            await asyncio.wait({running, received}, return_when=asyncio.FIRST_COMPLETED)
            received.cancel()
            if not running.done():
                self._say("Stopping ...")
                running.cancel()
                killing = asyncio.create_task(self._kill_at_signal(signals))
                await asyncio.wait({running})
                await cancel_and_wait(killing)
        if not running.cancelled():
            running.result()

    async def _kill_at_signal(self, signals: asyncio.Queue[int]) -> None:
        await signals.get()
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.kill()

    async def _run(self, show: Callable[[str], None]) -> None:
        self._say(f"Starting a server with sample data in {self._folder} ...")
        if self._options.console_port is not None:
            ports.choose(self._options.console_port, CONSOLE_PORT, "--console-port")
        async with AsyncExitStack() as stack:
            server, url = await self._start_server(stack)
            samples = await stack.enter_async_context(
                self._attached("the sample program", "samples.log", (SAMPLES,), TIDELOG_URL=url)
            )
            async with AsyncClient(url, retry=None) as client:

                async def is_complete() -> bool:
                    return bool(await client.redis.exists(history.MARK))

                await samples.until(is_complete)
            console = await self._start_console(url)
            stack.push_async_callback(console.stop)
            self._say(f"Server   {url}")
            self._say(f"Console  {console.url}  (user default, no password)")
            self._say("Press Ctrl-C to stop.")
            show(console.url)
            await self._until_the_server_ends(server, samples)

    async def _start_server(self, stack: AsyncExitStack) -> tuple[SampleProgram, str]:
        """Start the server, and return it and its URL when it replies."""
        while True:
            port = self._port(self._options.port, SERVER_PORT, "--port")
            url = f"redis://{ports.HOST}:{port}"
            words = ("_tidelog_server", "--bind", ports.HOST, "--port", str(port), "--dir", str(self._folder / "data"))
            server = await stack.enter_async_context(self._attached("the server", "server.log", words))
            async with AsyncClient(url, retry=None) as client:
                try:
                    await server.until(partial(_is_process, client, server.process.pid))
                except QuickstartError:
                    if self._options.port is None and server.process.returncode is not None and not ports.is_free(port):
                        continue  # another program, such as a second quickstart, has taken the port meanwhile
                    raise
            return server, url

    async def _start_console(self, url: str) -> ConsoleServer:
        while True:
            port = self._port(self._options.console_port, CONSOLE_PORT, "--console-port")
            console = self._console(url, port)
            try:
                await console.start()
            except ConsoleError as error:
                if self._options.console_port is None and not ports.is_free(port):
                    continue
                raise QuickstartError(f"{str(error).partition(';')[0]}; use another --console-port") from None
            return console

    def _port(self, given: int | None, usual: int, option: str) -> int:
        port = ports.choose(given, usual, option)
        if given is None and port != usual:
            self._say(f"Port {usual} is in use, so port {port} is used ({option} chooses another one).")
        return port

    def _console(self, url: str, port: int) -> ConsoleServer:
        about = NextSteps(url, "" if self._options.directory is None else shlex.quote(str(self._folder.resolve())))
        audit = str(self._folder / "console.jsonl")
        return ConsoleServer(
            ConsoleOptions(Access.of(url), f"{ports.HOST}:{port}", audit_file=audit, next_steps=about)
        )  # fmt: skip

    async def _until_the_server_ends(self, server: SampleProgram, samples: SampleProgram) -> None:
        """Return never. Raises QuickstartError when the server has ended."""
        ending = asyncio.create_task(samples.process.wait())
        ended = asyncio.create_task(server.process.wait())
        try:
            await asyncio.wait({ending, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self._say(f"{samples.ended()}\nThe server and the console continue without it.")
            await ended
        finally:
            await cancel_and_wait(ending)
            await cancel_and_wait(ended)
        raise server.ended()

    @asynccontextmanager
    async def _attached(
        self, name: str, log: str, words: tuple[str, ...], **settings: str
    ) -> AsyncIterator[SampleProgram]:
        """Run a program until the block ends."""
        path = self._folder / log
        with path.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", attached.__file__, *words, stdin=PIPE, stdout=output, stderr=STDOUT,
                env=server_environment() | settings, start_new_session=True, pass_fds=(self._lock,),
            )  # fmt: skip
        self._processes.append(process)
        try:
            yield SampleProgram(name, process, path)
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                async with asyncio.timeout(STOPS_WITHIN):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


async def _is_process(client: AsyncClient, pid: int) -> bool:
    """Return whether this process answers."""
    return bool((await client.redis.info("server"))["process_id"] == pid)


def run(options: QuickstartOptions, say: Callable[[str], None], show: Callable[[str], None]) -> None:
    """Run a quickstart until SIGTERM, SIGINT or SIGHUP.

    say: prints a line. show: gets the address of the console when all programs are ready. Raises QuickstartError.
    """
    with opened(options.directory) as (folder, lock), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Quickstart(options, folder, lock, say).run(show))
    if options.directory is not None:
        place = shlex.quote(str(options.directory))
        say(f"Stopped. The data remains in {place}. To delete it: rm -r {place}")
