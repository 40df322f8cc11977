"""``subprocess``: runs a program, reads messages from its standard output, and writes messages to its standard input.

Rule 1: The program is restarted when it exits, after the delays of ``reconnect``. With ``restart: on_failure``, exit
        status 0 ends the source.
Rule 2: Its output is read until its end. An incomplete last message of a program that failed goes to ``err``.
Rule 3: At most about FOUND events or PENDING bytes are read in advance. After that, the program waits for its pipe.
Rule 4: With ``acknowledge``, the n-th message on standard output acknowledges the n-th message on standard input.
        Events without an acknowledgement are retried when the program exits. Without ``acknowledge``, an event is
        settled when the pipe has accepted its bytes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import field

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import DisconnectedError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import RETRY
from tidelog.flows.connectors.payload import LinePayloadOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.processes.child import CHUNK, ChildProcess, find_program
from tidelog.options.units import Duration

FOUND: Final = 1_000  # decoded events that were not pulled
PENDING: Final = 4 << 20  # bytes of them
GRACE: Final = 1.0  # s without output after which the children of a program that has ended are killed


class SubprocessOptions(LinePayloadOptions, kw_only=True):
    """Options of ``subprocess``."""

    args: list[str]  # The program and its arguments. There is no shell: `["sh", "-c", "..."]` runs one.
    directory: str | None = None  # The working directory. `null`: that of this process.
    environment: dict[str, str] = field(default_factory=dict)
    # Environment variables in addition to those of this process. The API does not show their values.
    restart: Literal["always", "on_failure"] = "always"
    # Source: whether the program is also restarted after exit status 0. `on_failure`: this ends the source.
    acknowledge: bool = False
    # Sink: whether the program writes a message for each message that it has processed. `false`: an event is settled
    # when the pipe has accepted it.
    stderr: Literal["log", "discard"] = "log"
    # `log`: up to 10 lines of standard error per second are logged. `discard`: none.
    stop_timeout: Duration = Duration(5)  # Time between SIGTERM and SIGKILL when the flow ends.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.args or not self.args[0]:
            raise ValueError('args is empty: name a program and its arguments, such as ["tail", "-F", "app.log"]')
        if any("\0" in each for each in (*self.args, *self.environment, *self.environment.values())):
            raise ValueError("args and environment can't contain null characters")
        if any(not name or "=" in name for name in self.environment):
            raise ValueError("the name of an environment variable is empty or contains =")


class SubprocessConnector(Source, Sink):
    """A program and its pipes."""

    type = "subprocess"
    Options = SubprocessOptions

    def __init__(self, options: SubprocessOptions) -> None:
        super().__init__()
        self._options = options
        self._child: ChildProcess | None = None
        self._reading: PayloadReader
        self._writing: PayloadWriter
        self._task: asyncio.Task[None] | None = None
        self._found: deque[Event] = deque()
        self._size = 0  # bytes that were read since ``_found`` was empty
        self._numbers = itertools.count()
        self._changed = asyncio.Event()  # events were found or pulled, or the program has ended
        self._acknowledged = 0  # messages of the current program on standard output
        self._written = 0  # messages to its standard input
        self._runs = False  # the program runs, or its output is read
        self._waits = False  # for output
        self._read_bytes = 0
        self._ended = False  # the source has ended

    @classmethod
    def option_errors(cls, options: SubprocessOptions, *, source: bool) -> list[str]:
        errors = super().option_errors(options, source=source)
        if source and options.acknowledge and not PayloadReader(options).splits:
            errors.append("acknowledge requires a preprocessor that splits the output into messages, such as separate")
        return errors

    @classmethod
    def option_warnings(cls, options: SubprocessOptions, *, source: bool) -> list[str]:  # noqa: ARG003
        try:
            find_program(options.args[0], options.directory, options.environment.get("PATH"))
        except FileNotFoundError as error:
            return [f"args: {error}"]
        return []

    async def connect(self) -> None:
        options = self._options
        if self._ended:
            return
        self._reading, self._writing = PayloadReader(options), PayloadWriter(options)
        self._acknowledged = self._written = 0
        reads = self.context.source is not None or options.acknowledge
        child = self._child = await ChildProcess.start(
            options.args, f"{self.context.flow}: {self.context.name}", directory=options.directory,
            environment=options.environment, reads=reads, writes=self.context.sink is not None, stderr=options.stderr,
        )  # fmt: skip
        self.context.described["pid"] = child.process.pid
        self._runs = True
        self._task = asyncio.get_running_loop().create_task(self._watch(child))

    async def close(self) -> None:
        task, self._task = self._task, None
        child, self._child = self._child, None
        await cancel(task)
        self._runs = False
        self._changed.set()
        self.context.described.pop("pid", None)
        if child is not None:
            await child.stop(self._options.stop_timeout)

    async def _watch(self, child: ChildProcess) -> None:
        """Read the output to its end, and report the end of the program."""
        broken = ""
        try:
            if child.process.stdout is not None:
                await self._whole(child, child.process.stdout)
        except ValueError as error:  # the rest of the output can't be read
            broken = str(error)
            await child.stop(self._options.stop_timeout)
        how = await child.ended()
        if child.process.stdout is not None and not broken:
            self._last(failed=child.process.returncode != 0, how=how)
        self._runs = False
        self._changed.set()
        succeeded = child.process.returncode == 0 and not broken
        if succeeded and self.context.sink is None and self._options.restart == "on_failure":
            self._ended = True
        else:
            self.context.disconnected(DisconnectedError(broken or f"the program {self._options.args[0]} {how}"))

    async def _whole(self, child: ChildProcess, output: asyncio.StreamReader) -> None:
        """Read the output to its end. If the program has ended, its children can't keep the output open for long."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read(output))
        ending = loop.create_task(child.exited())
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            while not reading.done():
                read = self._read_bytes
                await asyncio.wait((reading,), timeout=GRACE if ending.done() else None)
                if ending.done() and self._waits and read == self._read_bytes:
                    child.kill()
            reading.result()
        finally:
            await cancel(reading, ending)

    async def _read(self, output: asyncio.StreamReader) -> None:
        while True:
            while len(self._found) >= FOUND or self._size >= PENDING:
                self._changed.clear()
                await self._changed.wait()
            self._waits = True
            try:
                async with asyncio.timeout(self._reading.waits):
                    data = await output.read(CHUNK)
            except TimeoutError:
                self._add(self._reading.idle())
                continue
            finally:
                self._waits = False
            if not data:
                return
            self._read_bytes += len(data)
            self.context.received(len(data))
            for part in self._reading.portions(data):
                self._size += len(part)
                self._add(self._reading.feed(part))
                if self._reading.broken:
                    raise ValueError(self._reading.broken)

    def _last(self, *, failed: bool, how: str) -> None:
        """Add the messages at the end of the output."""
        events = self._reading.end()
        if failed:  # the output ends somewhere in a message
            for event in events:
                event.meta.setdefault("error", f"the program {how} within this message")
                event.path = "err"
        self._add(events)

    def _add(self, events: list[Event]) -> None:
        if not events:
            return
        self._acknowledged += len(events)
        if self.context.source is not None:
            self._found += events
        else:
            self._size = 0
        self._changed.set()

    # -- source ----------------------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        expected = self._written - self._acknowledged if self._options.acknowledge and self._runs else 0
        return len(self._found) + max(0, expected)

    async def pull(self, limit: int) -> list[Event] | None:
        if not self._found:
            if self._ended:
                return None
            self._changed.clear()
            if not await self.wait(self._changed.wait()):
                return []
        found = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
        if not self._found:
            self._size = 0
        self._changed.set()  # there is room
        for event in found:
            event.id = next(self._numbers)
        return found

    # -- sink ------------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        child = self._child
        if child is None or child.process.stdin is None or not self._runs:
            raise DisconnectedError("the program does not run")
        messages, outcomes = self._writing.messages(events)
        child.process.stdin.writelines([piece for _, piece in messages])
        before = self._written
        self._written += len(messages)
        await child.process.stdin.drain()
        self.context.sent(sum(len(piece) for _, piece in messages))
        if self._options.acknowledge:
            while self._runs and child is self._child and self._acknowledged < before + len(messages):
                self._changed.clear()
                await self._changed.wait()
            for indexes, _ in messages[max(0, self._acknowledged - before) :]:
                for each in indexes:
                    outcomes[each] = (RETRY, "the program has ended before it acknowledged this message")
        return outcomes
