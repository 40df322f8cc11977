"""Commands, error replies and closed gates that several tests of the server's parts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commands.context import Await, Chunks, Context, Reply
from resp.errors import CommandError
from tests.respserver.local import LocalServer, Peer

OK = b"+OK\r\n"
NOAUTH = b"-NOAUTH Authentication required.\r\n"
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
READONLY = b"-READONLY You can't write against a read only replica.\r\n"
MISCONF = b"-MISCONF the test says so\r\n"
NOREPLICAS = b"-NOREPLICAS Not enough good replicas to write.\r\n"
MASTERDOWN = b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n"
LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"
NO_MULTI = b"-ERR Command not allowed inside a transaction\r\n"
SUBSCRIBED = (
    b"-ERR Can't execute 'probe': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this"
    b" context\r\n"
)
BUG = b"-ERR internal error: the command failed because of a bug in the server, see its log\r\n"


def say_ok(ctx: Context, argv: list[bytes]) -> Reply:
    return OK


def fail(ctx: Context, argv: list[bytes]) -> Reply:
    raise CommandError("WRONG the test says so")


class Stream:
    """A command whose reply is streamed: STREAM pieces bytes. ``events`` tells what became of its pieces."""

    def __init__(self, local: LocalServer) -> None:
        self.events: list[object] = []
        self.error: Exception | None = None  # raised instead of the second piece
        local.declare("STREAM", self.handle)

    def handle(self, ctx: Context, argv: list[bytes]) -> Reply:
        return Chunks(self.pieces(int(argv[1]), int(argv[2])), lambda: self.events.append("closed"))

    def pieces(self, count: int, size: int) -> Iterator[bytes]:
        for number in range(count):
            if number and self.error is not None:
                raise self.error
            self.events.append(number)
            yield b"+" + b"%d" % number * size + b"\r\n"


class Parked:
    """A command that waits until ``reply`` is set."""

    def __init__(self, local: LocalServer) -> None:
        self.reply: bytes | None = None
        self._local = local
        local.declare("PARK", self.handle, "blocking")

    def handle(self, ctx: Context, argv: list[bytes]) -> Reply:
        return Await(0, lambda: self.reply, lambda: b"")

    def release(self) -> None:
        self.reply = b"+released\r\n"
        self._local.server.blocking.acknowledged()
        self._local.settle()


def out_of_memory(local: LocalServer) -> None:
    """There are data, and nothing may be in memory."""
    local.server.data.ks.set_string(b"full", b"")
    local.server.data.ks.take_batch()
    local.server.config.set([(b"maxmemory", b"1")])
    assert local.server.memory.check()


CLOSE: dict[str, Callable[[LocalServer, Peer], object]] = {
    "no password": lambda local, one: setattr(one.session, "authenticated", False),
    "memory": lambda local, one: out_of_memory(local),
    "replica": lambda local, one: local.server.gates.role(readonly=True, stale=False),
    "disk": lambda local, one: local.server.gates.disk("MISCONF the test says so"),
    "too few replicas": lambda local, one: local.server.gates.replicas(True),
    "subscribed": lambda local, one: one.session.channels.add(b"c"),
    "stale": lambda local, one: local.server.gates.role(readonly=True, stale=True),
    "loading": lambda local, one: local.server.gates.load(True),
}
