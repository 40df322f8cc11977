"""``python -m benchmarks.turns``: how long one command keeps the event loop from the others.

The server runs in a thread of this process, on asyncio's own loop, from the modules of the checkout. What counts is the
thread's CPU time in one turn of the loop, so other programs on the machine don't disturb it, and neither does the load.
A PING that arrives meanwhile waits for the turn's end. So the longest turn is the longest PING on an otherwise idle
machine, without what the disk takes.
"""

from __future__ import annotations

import gc
import resource
import socket
import time
import urllib.request
from asyncio import Handle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import click

from benchmarks.entries import pack
from benchmarks.registry import counted
from respserver.program import GENERATIONS
from respserver.testing import HandClock, RunningServer, start_in_thread
from tidelog.testing import free_port

Words = tuple[bytes | str | int, ...]

PONG: Final = b"+PONG\r\n"
RETRY: Final = 1000  # ms
AT_ONCE: Final = 5000  # keys or entries of one command that fills
GROUP: Final[Words] = ("GROUP", "g", 0, "RETRY", RETRY, 0)


class Server:
    """A server, what its loop does, and a connection to it."""

    def __init__(self, running: RunningServer) -> None:
        self.running = running
        self.longest = 0  # ns of CPU time in one turn of the loop
        self.slowest = 0, ""  # the same in one callback, and which
        self.start = HandClock().now()
        self.sock = socket.create_connection(("127.0.0.1", running.port))
        loop: Any = running._loop
        once, run = loop._run_once, Handle._run

        def turn() -> None:
            before = time.thread_time_ns()
            once()
            self.longest = max(self.longest, time.thread_time_ns() - before)

        def callback(handle: Any) -> None:
            before = time.thread_time_ns()
            called = getattr(handle._callback, "__qualname__", "") or str(handle._callback)
            run(handle)
            self.slowest = max(self.slowest, (time.thread_time_ns() - before, called))

        setattr(Handle, "_run", callback)  # noqa: B010 - mypy doesn't know it
        running.call(lambda: setattr(loop, "_run_once", turn))

    def reset(self) -> None:
        self.longest, self.slowest = 0, (0, "")

    def run(self, *commands: Words) -> None:
        """Send the commands together and wait for the last reply. Replies are not parsed."""
        self.sock.sendall(b"".join(pack(*words) for words in commands) + pack("PING"))
        end = b""
        while not end.endswith(PONG):
            end = (end + self.sock.recv(1 << 20))[-len(PONG) :]

    def ids(self, count: int) -> list[str]:
        """Of the first entries: the clock stands still while they are added."""
        return [f"{self.start}.{seq}" for seq in range(count)]

    def entries(self, count: int) -> None:
        for at in range(0, count, AT_ONCE):
            self.run(("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(at, min(at + AT_ONCE, count))))

    def pending(self, count: int) -> None:
        self.entries(count)
        self.run(("TREAD", "s", 0, count, *GROUP))

    def owned(self, count: int) -> list[str]:
        """A group of whose entries two consumers have every other one, each as a run of its own."""
        self.entries(count)
        self.run(("XGROUP", "CREATE", "s", "g", 0))
        for at in range(0, count, AT_ONCE):
            names = ("ann", "bob") * (min(AT_ONCE, count - at) // 2)
            self.run(*[("XREADGROUP", "GROUP", "g", name, "COUNT", 1, "STREAMS", "s", ">") for name in names])
        return self.ids(count)

    def strings(self, count: int) -> list[str]:
        names = [f"key:{number}" for number in range(count)]
        for at in range(0, count, AT_ONCE):
            self.run(("MSET", *[word for name in names[at : at + AT_ONCE] for word in (name, "value")]))
        return names

    def streams(self, count: int) -> None:
        for at in range(0, count, AT_ONCE):
            self.run(*[("TAPPEND", f"stream:{n}", "f", "v") for n in range(at, min(at + AT_ONCE, count))])

    def checkpoint(self) -> None:
        """BGSAVE, and wait until it has ended."""
        saves = self.running.server.checkpoints.saves
        before = saves.count
        self.run(("BGSAVE",))
        while saves.count == before:
            time.sleep(0.01)


Measured = Iterator[Callable[[], object]]


def _keys(server: Server, scale: int) -> Measured:
    names = server.strings(500_000 // scale)
    yield lambda: server.run(("KEYS", "*1*"))
    yield lambda: server.run(("SCAN", 0, "COUNT", len(names)))
    yield lambda: server.run(("UNLINK", *names))


def _flushall(server: Server, scale: int) -> Measured:
    server.strings(500_000 // scale)
    yield lambda: server.run(("FLUSHALL",))


def _expire(server: Server, scale: int) -> Measured:
    names = server.strings(500_000 // scale)
    for at in range(0, len(names), AT_ONCE):
        server.run(*[("PEXPIRE", name, RETRY) for name in names[at : at + AT_ONCE]])
    real = server.running.server
    real._by_hand = False  # it goes on by itself
    real.clock.move(RETRY)  # type: ignore[attr-defined]

    def expire() -> None:
        server.running.call(real.on_time)
        while len(real.data.ks.keys):
            time.sleep(0.01)

    yield expire


def _save_strings(server: Server, scale: int) -> Measured:
    names = server.strings(500_000 // scale)
    yield lambda: server.run(("SAVE",))
    server.run(("MSET", *[word for name in names for word in (name, "other")]))
    yield server.checkpoint


def _save_streams(server: Server, scale: int) -> Measured:
    server.streams(200_000 // scale)
    yield lambda: server.run(("INFO",))
    yield lambda: server.run(("MEMORY", "STATS"))
    yield lambda: server.run(("SAVE",))


def _read(server: Server, scale: int) -> Measured:
    count = 600_000 // scale
    server.entries(count)
    yield lambda: server.run(("TREAD", "s", 0, count, *GROUP))
    server.running.advance(RETRY)
    yield lambda: server.run(("TREAD", "s", 0, count, *GROUP))
    yield lambda: server.run(("TREAD", "s", 0, count, "GROUP", "other", 0))


def _pending(server: Server, scale: int) -> Measured:
    count = 600_000 // scale
    server.pending(count)
    ids = server.ids(count)
    yield lambda: server.run(("TPENDING", "s", "g", "-", "+", count))
    yield lambda: server.run(("TTOUCH", "s", "g", 5, *ids))
    yield lambda: server.run(("TNACK", "s", "g", *ids))
    yield lambda: server.run(("TACK", "s", "g", *ids))


def _consumer(server: Server, scale: int) -> Measured:
    """One consumer gets everything: once as new, then as what it has pending."""
    count = 200_000 // scale
    server.entries(count)
    server.run(("XGROUP", "CREATE", "s", "g", 0))
    read: Words = ("XREADGROUP", "GROUP", "g", "ann")
    yield lambda: server.run((*read, "STREAMS", "s", ">"))
    yield lambda: server.run((*read, "STREAMS", "s", 0))
    server.running.advance(RETRY)
    yield lambda: server.run((*read, "CLAIM", RETRY, "STREAMS", "s", ">"))
    yield lambda: server.run(("XINFO", "STREAM", "s", "FULL", "COUNT", 0))
    yield lambda: server.run(("XPENDING", "s", "g", "-", "+", count))
    yield lambda: server.run(("XPENDING", "s", "g", "IDLE", 1, "-", "+", count, "ann"))
    yield lambda: server.run(("XAUTOCLAIM", "s", "g", "bob", 0, 0, "COUNT", count))
    yield lambda: server.run(("XAUTOCLAIM", "s", "g", "ann", 0, 0, "COUNT", count, "JUSTID"))


def _owned(server: Server, scale: int) -> Measured:
    """Many IDs, of messages that two consumers got in turn, one at a time."""
    count = 100_000 // scale
    ids = server.owned(count)
    yield lambda: server.run(("XCLAIM", "s", "g", "bob", 0, *ids))
    yield lambda: server.run(("XNACK", "s", "g", "FAIL", "IDS", count, *ids))
    yield lambda: server.run(("XACK", "s", "g", *ids[::3]))
    yield lambda: server.run(("XACKDEL", "s", "g", "ACKED", "IDS", count, *ids))
    server.run(("XGROUP", "SETID", "s", "g", 0), ("XREADGROUP", "GROUP", "g", "ann", "STREAMS", "s", ">"))
    yield lambda: server.run(("XDEL", "s", *ids[::3]))
    yield lambda: server.run(("XDELEX", "s", "DELREF", "IDS", count, *ids))


def _xtrim(server: Server, scale: int) -> Measured:
    count = 200_000 // scale
    server.owned(count)
    server.run(*[("XACK", "s", "g", *server.ids(count)[at::5]) for at in range(2)])
    yield lambda: server.run(("XTRIM", "s", "ACKED", "MAXLEN", 0))
    yield lambda: server.run(("XTRIM", "s", "DELREF", "MAXLEN", 0))


def _forget(server: Server, scale: int) -> Measured:
    count = 500_000 // scale
    server.owned(count)
    yield lambda: server.run(("XGROUP", "DELCONSUMER", "s", "g", "ann"))
    yield lambda: server.run(("XGROUP", "DESTROY", "s", "g"))
    yield lambda: server.run(("XRANGE", "s", "-", "+"))
    yield lambda: server.run(("XREVRANGE", "s", "+", "-"))
    yield lambda: server.run(("XREAD", "STREAMS", "s", 0))


def _metrics(server: Server, scale: int) -> Measured:
    """Scrapes of /metrics: the first one walks over all streams, later ones reuse its result."""
    count = 100_000 // scale
    server.streams(count)
    for at in range(0, count, 100):
        server.run(("XGROUP", "CREATE", f"stream:{at}", "g", 0))
    port = free_port()
    server.run(("CONFIG", "SET", "metrics-port", port))

    def scrape() -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            answer.read()

    yield scrape
    yield scrape
    server.run(("CONFIG", "SET", "metrics-keys", 10_000, "metrics-key-pattern", "stream:*"))
    yield scrape


def _readers(server: Server, scale: int) -> Measured:
    """Both ends of each connection are in this process."""
    count = 9_000 // scale
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with ExitStack() as stack:
        address = "127.0.0.1", server.running.port
        waiting = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(count)]
        for sock in waiting:
            sock.sendall(pack("TREAD", "s", "", 10, "BLOCK", 0))
        while server.running.call(lambda: server.running.server.blocking.count) < count:
            time.sleep(0.01)

        def wake() -> None:
            server.run(("TAPPEND", "s", "f", "v"))
            for sock in waiting:
                sock.recv(100)

        yield wake


CASES: Final[dict[str, tuple[Callable[[Server, int], Measured], tuple[str, ...]]]] = {
    "keys": (_keys, ("KEYS of 500k keys", "SCAN of 500k keys", "UNLINK of 500k keys")),
    "flushall": (_flushall, ("FLUSHALL of 500k keys",)),
    "expire": (_expire, ("500k keys expire at the same time",)),
    "strings": (_save_strings, ("SAVE of 500k strings", "BGSAVE of 500k strings")),
    "streams": (_save_streams, ("INFO with 200k streams", "MEMORY STATS with 200k streams", "SAVE of 200k streams")),
    "read": (_read, ("TREAD of 600k new", "TREAD of 600k due", "TREAD of 600k new without RETRY")),
    "pending": (
        _pending,
        ("TPENDING of 600k messages", "TTOUCH of 600k messages", "TNACK of 600k messages", "TACK of 600k messages"),
    ),
    "consumer": (
        _consumer,
        (
            "XREADGROUP of 200k new", "XREADGROUP of 200k pending", "XREADGROUP CLAIM of 200k",
            "XINFO STREAM FULL of 200k", "XPENDING of 200k", "XPENDING IDLE of 200k", "XAUTOCLAIM of 200k",
            "XAUTOCLAIM JUSTID of 200k",
        ),
    ),
    "owned": (
        _owned,
        (
            "XCLAIM of 100k", "XNACK of 100k", "XACK of 33k", "XACKDEL ACKED of 100k", "XDEL of 33k",
            "XDELEX DELREF of 100k",
        ),
    ),
    "xtrim": (_xtrim, ("XTRIM ACKED of 200k", "XTRIM DELREF of 200k")),
    "forget": (
        _forget,
        (
            "XGROUP DELCONSUMER with 250k", "XGROUP DESTROY with 250k", "XRANGE of 500k", "XREVRANGE of 500k",
            "XREAD of 500k",
        ),
    ),
    "metrics": (
        _metrics,
        ("first scrape with 100k streams", "scrape with 100k streams", "scrape of 10k of 100k streams"),
    ),
    "readers": (_readers, ("an append to 9k readers",)),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("cases", nargs=-1, type=click.Choice(tuple(CASES)))
@click.option("--scale", default="1", show_default=True, help="Divide all numbers by this.")
def main(cases: tuple[str, ...], scale: str) -> None:
    """Measure the longest turn of the event loop during long commands: the cases named, or all of them."""
    gc.set_threshold(*GENERATIONS)  # as in the server's program
    click.echo(f"{'':36} {'longest turn, ms of CPU':>24} {'whole, s':>9}  most of it in")
    for name in cases or CASES:
        case, titles = CASES[name]
        with start_in_thread(clock=HandClock(), wal_size="64mb") as running:
            server = Server(running)
            for title, measure in zip(titles, case(server, counted(scale)), strict=True):
                server.reset()
                began = time.perf_counter()
                measure()
                took = time.perf_counter() - began
                running.call(lambda: None)  # the turn that brought the reply is over
                cpu, called = server.slowest
                click.echo(f"{title:36} {server.longest / 1e6:24.1f} {took:9.2f}  {called} {cpu / 1e6:.1f}")
            server.sock.close()


if __name__ == "__main__":
    main()
