"""A server in the test's own thread: real parts, a clock that tests move, and connections without sockets.

Nothing happens between two lines of a test. ``Peer.send`` hands bytes to the connection and returns at once.
``LocalServer.turn`` runs the event loop once, and so a tick that was queued. ``LocalServer.events`` has, in order, the
batches that became durable and the pieces that were written to transports.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from commands.declare import TABLE, Command, Description, Handler
from commands.session import Session
from respserver.clients.connection import Connection
from respserver.config.config import Config
from respserver.execution.dispatch import TURN_NS
from respserver.observe.logs import Logger
from respserver.server import RespServer
from respserver.testing import STEP_MS, HandClock

Event = tuple[object, ...]


def pack(*words: str | bytes | int) -> bytes:
    """A command as clients send it."""
    raw = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(raw) + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in raw])


class Wire(asyncio.Transport):
    """A transport that keeps what is written. While ``full``, the peer takes nothing."""

    def __init__(self, server: LocalServer) -> None:
        super().__init__()
        self.protocol: Connection
        self.info: dict[str, object] = {"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 6379)}
        self.written: list[bytes] = []
        self.reading = True
        self.closing = False
        self.aborted = False
        self.full = False
        self._server = server
        self._high = 1 << 62
        self._buffered = 0
        self._paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.info.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self._buffered

    def write(self, data: Any) -> None:
        if self.closing:
            return
        self._server.events.append(("write", self.protocol.session.id, bytes(data)))
        self.written.append(bytes(data))
        if self.full:
            self._buffered += len(data)
            if self._buffered > self._high and not self._paused:
                self._paused = True
                self.protocol.pause_writing()

    def drain(self) -> None:
        """The peer takes everything, and goes on taking."""
        self.full = False
        self._buffered = 0
        if self._paused:
            self._paused = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert self.reading, "reading is stopped already"
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading, "reading is not stopped"
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self._server.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


class Peer:
    """A client: its end of a Wire."""

    def __init__(self, server: LocalServer) -> None:
        self.wire = Wire(server)
        self.conn = cast(Connection, server.server.listeners.factory())
        self.wire.protocol = self.conn
        self.conn.connection_made(self.wire)
        self._server = server

    @property
    def session(self) -> Session:
        return self.conn.session

    def send(self, *words: str | bytes | int) -> None:
        """One command."""
        self.conn.data_received(pack(*words))

    def pipeline(self, *commands: Sequence[str | bytes | int]) -> None:
        """Several commands that arrive in one chunk."""
        self.conn.data_received(b"".join([pack(*words) for words in commands]))

    def taken(self) -> bytes:
        """Everything that was written since the last call."""
        data = b"".join(self.wire.written)
        self.wire.written.clear()
        return data

    def ask(self, *words: str | bytes | int) -> bytes:
        """The reply to one command."""
        self.send(*words)
        self._server.settle()
        return self.taken()


class Disk:
    """The file of the WAL, which can be made to take no writes: its descriptor becomes that of a read-only file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = -1

    def breaks(self) -> None:
        """Writes raise OSError from now on."""
        if self._saved < 0:
            descriptor = self._descriptor()
            self._saved = os.dup(descriptor)
            refusing = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            os.dup2(refusing, descriptor, inheritable=False)
            os.close(refusing)

    def heals(self) -> None:
        if self._saved >= 0:
            os.dup2(self._saved, self._descriptor(), inheritable=False)
            os.close(self._saved)
            self._saved = -1

    def _descriptor(self) -> int:
        for name in os.listdir("/proc/self/fd"):
            descriptor = int(name)
            try:
                if descriptor != self._saved and os.readlink(f"/proc/self/fd/{name}") == str(self._path):
                    return descriptor
            except OSError:  # that of the listing itself
                continue
        raise AssertionError(f"{self._path} is not open")


class LocalServer:
    """A Server that listens nowhere. ``options`` are directives, with ``_`` for ``-``."""

    def __init__(self, directory: Path, **options: str) -> None:
        argv = ["--dir", str(directory / "data"), "--logfile", str(directory / "log")]
        for name, value in {"wal_size": "1mb", "slowlog_log_slower_than": "-1", **options}.items():
            argv += ["--" + name.replace("_", "-"), value]
        (directory / "log").touch()
        self.events: list[Event] = []
        self.clock = HandClock()
        self.loop = asyncio.new_event_loop()
        self._log_file = directory / "log"
        self._declared: list[bytes] = []

        async def build() -> RespServer:
            return RespServer(Config.load(argv), Logger(str(self._log_file), "debug"), self.clock)

        self.server = self.loop.run_until_complete(build())
        self.server.ticks.on_batch = lambda offset, batch: self.events.append(("append", offset, batch))
        self.disk = Disk(directory / "data" / "tail")

    def close(self) -> None:
        """End without a checkpoint, as after a kill."""
        for word in self._declared:
            del TABLE[word]
        self.disk.heals()
        self.server.data.close()
        self.loop.close()

    def connect(self) -> Peer:
        return Peer(self)

    def turn(self) -> None:
        """One turn of the event loop: everything that was scheduled before."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def settle(self) -> None:
        """Turns until nothing more follows from what happened.

        A turn in which the commands of a client may have reached the time limit, as on a busy machine, does not count.
        """
        complete = 0
        while complete < 10:
            began = time.perf_counter_ns()
            self.turn()
            complete += time.perf_counter_ns() - began < TURN_NS

    def advance(self, ms: int) -> None:
        """Move the clock, and do the work of the time that passes."""
        while ms > 0:
            self.clock.move(min(ms, STEP_MS))
            ms -= STEP_MS
            self.server.on_time()
            self.settle()

    def log(self) -> str:
        """The server's log lines."""
        return self._log_file.read_text()

    def declare(
        self, name: str, handler: Handler, flags: str = "", traits: str = "", arity: int = -1,
        writes: Callable[[list[bytes]], bool] | None = None,
    ) -> Command:  # fmt: skip
        """Add a command to the table, for the time of this test."""
        word = name.lower().encode()
        assert word not in TABLE
        command = Command(
            name.lower(), handler, (), frozenset(flags.split()), Description("generic", "0.1.0", "O(1)"), arity, (),
            frozenset(traits.split()),
        )  # fmt: skip
        command.writes = writes
        for each in (word, word.upper()):
            TABLE[each] = command
            self._declared.append(each)
        return command
