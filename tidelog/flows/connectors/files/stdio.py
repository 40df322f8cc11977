"""``stdio``: standard input as a source, standard output or error as a sink. By default, messages are lines of text.

Standard input is read only within a pull. A paused flow therefore leaves the bytes there, and an interruption loses
none.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal
from weakref import WeakKeyDictionary

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import PeerGoneError
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.payload import LinePayloadOptions, NameOrOptions, PayloadReader, PayloadWriter
from tidelog.flows.connectors.sockets.descriptors import PipeWriter, watching

CHUNK: Final = 64 << 10  # bytes read at a time

_readers: dict[int, StdioConnector] = {}  # the only reader of each descriptor
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, asyncio.Lock]] = WeakKeyDictionary()
# by event loop and descriptor, so that the lines of two sinks do not mix


class StdioOptions(LinePayloadOptions):
    """Options of ``stdio``."""

    codec: NameOrOptions = "string"  # The codec of the lines.
    output: Literal["stdout", "stderr"] = "stdout"  # Sink: the stream to write to, `stdout` or `stderr`.


class StdioConnector(Source, Sink):
    """Reads standard input, whose end ends the source, and writes standard output or error."""

    type = "stdio"
    Options = StdioOptions
    stdin = 0  # descriptor; tests replace it

    def __init__(self, options: StdioOptions | None = None) -> None:
        super().__init__()
        options = options or StdioOptions()
        self._reading = PayloadReader(options)
        self._writing = PayloadWriter(options)
        self._output = 1 if options.output == "stdout" else 2
        self._writer = PipeWriter(self._output)
        self._found: deque[Event] = deque()
        self._number = 0
        self._ended = False

    async def connect(self) -> None:
        if self.context.source is not None and _readers.setdefault(self.stdin, self) is not self:
            raise OSError("another connector of this process already reads standard input")

    async def close(self) -> None:
        if _readers.get(self.stdin) is self:
            del _readers[self.stdin]

    # -- source ----------------------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        return len(self._found)

    async def pull(self, limit: int) -> list[Event] | None:
        while not self._found:
            if self._ended:
                return None
            try:
                data = await self._read()
            except TimeoutError:
                self._found += self._reading.idle()
                continue
            if data is None:
                return []
            if data:
                self.context.received(len(data))
                self._found += self._reading.feed(data)
            else:
                self._ended = True
                self._found += self._reading.end()
        found = [self._found.popleft() for _ in range(min(limit, len(self._found)))]
        for event in found:
            event.id = self._number
            self._number += 1
        return found

    async def _read(self) -> bytes | None:
        """Read bytes; none at the end of the input. Returns None if the pull was interrupted.

        Raises TimeoutError if a message has ended, because no bytes have arrived.
        """
        with watching(self.stdin) as readable:
            if readable is None:
                return await asyncio.to_thread(os.read, self.stdin, CHUNK)
            async with asyncio.timeout(self._reading.waits):
                if not await self.wait(readable):
                    return None
        try:
            return os.read(self.stdin, CHUNK)
        except BlockingIOError:  # another process has read the bytes
            return None

    # -- sink ------------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Sequence[Outcome]:
        pieces, outcomes = self._writing.batch(events)
        lock = _locks.setdefault(asyncio.get_running_loop(), {}).setdefault(self._output, asyncio.Lock())
        async with lock:
            try:
                await self._writer.write(pieces)
            except BrokenPipeError as error:  # a closed pipe can't be reopened
                raise PeerGoneError("the reader of the output has closed it") from error
        self.context.sent(sum(map(len, pieces)))
        return outcomes
