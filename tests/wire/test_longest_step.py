"""No command holds the server up: long ones are done in slices, or their arguments are limited [49].

A step is a callback of the event loop. Its length is the CPU time of the server's thread, as other programs may use the
same cores; the limit is several times what steps take, and a fraction of what these calls took when each was one step.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from commands.session import KINDS
from respserver.program import GENERATIONS
from respserver.testing import RunningServer, start_in_thread
from tests.wire.rawclient import Raw, pack

pytestmark = pytest.mark.slow

LONGEST = 0.1  # seconds
MANY = 40_000  # groups, consumers, channels
LONG = 96 << 20  # bytes of a string


class Steps:
    """Measures the steps of all event loops in threads that are not the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0.0
        self.where = ""
        run, mine = asyncio.Handle._run, threading.get_ident()

        def measured(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.longest and threading.get_ident() != mine:
                self.longest, self.where = took, repr(handle)

        monkeypatch.setattr(asyncio.Handle, "_run", measured)

    def check(self) -> None:
        assert self.longest < LONGEST, self.where
        self.longest = 0.0


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    before = gc.get_threshold()
    gc.set_threshold(*GENERATIONS)  # as the program does
    yield Steps(monkeypatch)
    gc.set_threshold(*before)


@pytest.fixture
def server(steps: Steps) -> Iterator[RunningServer]:
    with start_in_thread() as server:
        yield server


@pytest.fixture
def c(server: RunningServer) -> Iterator[Raw]:
    with Raw(server.port) as c:
        c.sock.settimeout(60)
        yield c


Words = tuple[Any, ...]
NAMES = [b"name:%06d" % n for n in range(5 * MANY)]


# -- arguments that are limited ----------------------------------------------------------------------------------
def limited(name: str, most: int, given: int) -> str:
    return f"ERR {name} takes at most {most} arguments in one call, not {given}"


LIMITED: list[tuple[Words, str]] = [
    (("COMMAND", "INFO", *["get"] * 10_001), limited("COMMAND INFO", 10_000, 10_001)),
    (("COMMAND", "DOCS", *["get"] * 10_001), limited("COMMAND DOCS", 10_000, 10_001)),
    (("COMMAND", "GETKEYS", "MGET", *["k"] * 10_000), limited("COMMAND GETKEYS", 10_000, 10_001)),
    (("COMMAND", "GETKEYSANDFLAGS", "MGET", *["k"] * 10_000), limited("COMMAND GETKEYSANDFLAGS", 10_000, 10_001)),
    (("CONFIG", "GET", *["*"] * 251), limited("CONFIG GET", 250, 251)),
    (
        ("CONFIG", "GET", *["*?" + "x" * 1000] * 5),
        "ERR the patterns with ?, [ or \\ in one call can have at most 5000 bytes together, not 5010",
    ),
    (
        ("ACL", "SETUSER", "u", *["~*?" + "x" * 800, "%R~*?" + "x" * 800, "&*[x]" + "x" * 800] * 3, "~a*b" + "x" * 800),
        "ERR the patterns with ?, [ or \\ in one call can have at most 5000 bytes together, not 7239",
    ),
    (("CONFIG", "SET", *["maxmemory", "0"] * 251), limited("CONFIG SET", 500, 502)),
    (("ACL", "SETUSER", "u", *["on"] * 5000), limited("ACL SETUSER", 5000, 5001)),
    (("ACL", "DELUSER", *["u"] * 10_001), limited("ACL DELUSER", 10_000, 10_001)),
    (("ACL", "DRYRUN", "u", "MGET", *["k"] * 9999), limited("ACL DRYRUN", 10_000, 10_001)),
    (("CLIENT", "LIST", "ID", *["1"] * 10_000), limited("CLIENT LIST", 10_000, 10_001)),
    (("CLIENT", "KILL", *["ID", "999"] * 5001), limited("CLIENT KILL", 10_000, 10_002)),
    (("CLIENT", "TRACKING", "ON", "BCAST", *["PREFIX", "x"] * 10_005), limited("CLIENT TRACKING", 20_010, 20_012)),
    (("LATENCY", "HISTOGRAM", *["get"] * 10_001), limited("LATENCY HISTOGRAM", 10_000, 10_001)),
    (("LATENCY", "RESET", *["get"] * 10_001), limited("LATENCY RESET", 10_000, 10_001)),
    (("INFO", *["server"] * 10_001), limited("INFO", 10_000, 10_001)),
    (("SCRIPT", "EXISTS", *["x"] * 10_001), limited("SCRIPT EXISTS", 10_000, 10_001)),
    (("WATCH", *NAMES[:10_001]), limited("WATCH", 10_000, 10_001)),
    (("XREAD", "STREAMS", *["s"] * 5001, *["0"] * 5001), "ERR XREAD takes at most 5000 keys in one call, not 5001"),
    (
        ("XREADGROUP", "GROUP", "g", "c", "STREAMS", *["s"] * 5001, *[">"] * 5001),
        "ERR XREADGROUP takes at most 5000 keys in one call, not 5001",
    ),
    (("TAPPEND", "s", *["f", "v"] * 32_769), limited("TAPPEND", 65_537, 65_539)),
    (("TAPPEV", "s", "COUNT", 1, *["f", "v"] * 32_769), limited("TAPPEV", 65_539, 65_541)),
    (("XADD", "s", "*", *["f", "v"] * 32_778), limited("XADD", 65_556, 65_558)),
    (
        ("TMAPPEND", "s", "FIELDS", 32_769, *["f"] * 32_769, "VALUES", *["v"] * 32_769),
        "ERR an entry can have at most 32768 fields, not 32769",
    ),
    (
        ("TSTAGE", "st", 0, "s", "FIELDS", 32_769, *["f"] * 32_769, "VALUES", *["v"] * 32_769),
        "ERR an entry can have at most 32768 fields, not 32769",
    ),
    (
        ("SETRANGE", "k", (512 << 20) - 1, "x"),
        "ERR SETRANGE would add 536870911 zero bytes to the string; at most 8388608 are allowed in one call",
    ),
    (
        ("XGROUP", "CREATE", "s", "g" * 4097, "$", "MKSTREAM"),
        "ERR the name of the group has 4097 bytes; at most 4096 are allowed",
    ),
    (
        ("TREAD", "s", 0, 1, "GROUP", "g" * 4097, 0),
        "ERR the name of the group has 4097 bytes; at most 4096 are allowed",
    ),
]


@pytest.mark.parametrize(("words", "error"), LIMITED, ids=[" ".join(map(str, words[:2])) for words, _ in LIMITED])
def test_more_arguments_than_that_are_an_error(c: Raw, steps: Steps, words: Words, error: str) -> None:
    assert c(*words) == error
    assert c("DBSIZE") == 0
    steps.check()


def test_the_same_in_a_transaction(c: Raw) -> None:
    c("MULTI")
    assert "takes at most" in c("CONFIG", "GET", *["*"] * 251)
    assert "EXECABORT" in c("EXEC")


def test_the_number_of_watched_keys(c: Raw) -> None:
    assert c("WATCH", *NAMES[:9999]) == b"OK"
    assert c("WATCH", *NAMES[:100], "one") == b"OK"
    assert c("WATCH", "another") == "ERR a client can watch at most 10000 keys"
    c("UNWATCH")
    assert c("WATCH", "another") == b"OK"


@pytest.mark.parametrize("command", ["XREADGROUP", "XCLAIM", "XAUTOCLAIM", "XGROUP CREATECONSUMER"])
def test_long_names_of_consumers(c: Raw, command: str) -> None:
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    call: dict[str, Callable[[bytes], Any]] = {
        "XREADGROUP": lambda name: c("XREADGROUP", "GROUP", "g", name, "STREAMS", "s", ">"),
        "XCLAIM": lambda name: c("XCLAIM", "s", "g", name, 0, "1-1"),
        "XAUTOCLAIM": lambda name: c("XAUTOCLAIM", "s", "g", name, 0, 0),
        "XGROUP CREATECONSUMER": lambda name: c("XGROUP", "CREATECONSUMER", "s", "g", name),
    }
    assert call[command](b"n" * 4097) == "ERR the name of the consumer has 4097 bytes; at most 4096 are allowed"
    assert c("XINFO", "CONSUMERS", "s", "g") == []
    assert "ERR" not in str(call[command](b"n" * 4096))


# -- calls with as many arguments as are allowed, and answers of any length ---------------------------------------
def nothing(_: Raw) -> None:
    """Nothing is needed."""


def patterns(c: Raw) -> None:
    for start in (0, 4990):
        c("ACL", "SETUSER", "u", "on", "+@all", *[b"~k%05d:*" % n for n in range(start, start + 4990)])


def listed(c: Raw) -> None:
    c("CONFIG", "SET", "slowlog-log-slower-than", 0, "slowlog-max-len", 30_000)
    c.pipeline(*[("GET", "k")] * 30_000)


CALLS: dict[str, tuple[Callable[[Raw], None], Words, Callable[[Any], bool]]] = {
    "COMMAND INFO": (nothing, ("COMMAND", "INFO", *["get"] * 10_000), lambda reply: len(reply) == 10_000),
    "COMMAND DOCS": (nothing, ("COMMAND", "DOCS", *["get"] * 10_000), lambda reply: len(reply) == 2),
    "COMMAND GETKEYSANDFLAGS": (
        nothing, ("COMMAND", "GETKEYSANDFLAGS", "MGET", *["k"] * 9999), lambda reply: len(reply) == 9999
    ),
    "CONFIG GET": (
        nothing, ("CONFIG", "GET", *[b"[a-z]" * 10 + b"*%d" % n for n in range(90)]), lambda reply: reply == []
    ),
    "CLIENT TRACKING": (
        nothing,
        ("CLIENT", "TRACKING", "ON", "REDIRECT", 1, "BCAST", *[x for n in range(10_000) for x in ("PREFIX", NAMES[n])]),
        lambda reply: reply == b"OK",
    ),
    "ACL SETUSER": (
        nothing, ("ACL", "SETUSER", "u", *[b"~k%d:*" % n for n in range(4999)]), lambda reply: reply == b"OK"
    ),
    "ACL DRYRUN": (
        patterns, ("ACL", "DRYRUN", "u", "MGET", *[b"k%05d:x" % n for n in range(9980)]), lambda reply: reply == b"OK"
    ),
    "ACL LIST": (patterns, ("ACL", "LIST"), lambda reply: len(reply) == 2),
    "LATENCY HISTOGRAM": (nothing, ("LATENCY", "HISTOGRAM", *NAMES[:10_000]), lambda reply: reply == []),
    "SLOWLOG GET": (listed, ("SLOWLOG", "GET", -1), lambda reply: len(reply) == 30_000),
    "PUBSUB NUMSUB": (nothing, ("PUBSUB", "NUMSUB", *NAMES), lambda reply: len(reply) == 2 * len(NAMES)),
    "XADD": (nothing, ("XADD", "s", "*", *["f", "v"] * 32_768), lambda reply: b"-" in reply),
    "TSTAGE": (
        nothing, ("TSTAGE", "st", 0, "s", "FIELDS", 2, "a", "b", "VALUES", *NAMES),
        lambda reply: reply == len(NAMES) // 2,
    ),
    "SETRANGE": (nothing, ("SETRANGE", "k", 8 << 20, "x"), lambda reply: reply == (8 << 20) + 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_longest_step(c: Raw, steps: Steps, name: str) -> None:
    prepare, words, right = CALLS[name]
    prepare(c)
    steps.longest = 0.0
    assert right(c(*words))
    steps.check()


def test_a_stream_with_many_groups(c: Raw, steps: Steps) -> None:
    for start in range(0, MANY, 10_000):
        c.pipeline(*[("XGROUP", "CREATE", "s", b"g%06d" % n, "$", "MKSTREAM") for n in range(start, start + 10_000)])
    steps.longest = 0.0
    for words in (("XINFO", "GROUPS", "s"), ("TGROUP", "LIST", "s")):
        described = c(*words)
        assert [item[1] for item in described] == [b"g%06d" % n for n in range(MANY)]
        steps.check()
    full = c("XINFO", "STREAM", "s", "FULL")[-1]
    assert [item[1] for item in full] == [b"g%06d" % n for n in range(MANY)]
    steps.check()
    assert MANY in c("TINFO", "s")
    steps.check()
    assert c("MEMORY", "USAGE", "s") > MANY
    steps.check()


def test_a_group_with_many_consumers(c: Raw, steps: Steps) -> None:
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    for start in range(0, MANY, 10_000):
        c.pipeline(*[("XGROUP", "CREATECONSUMER", "s", "g", b"c%06d" % n) for n in range(start, start + 10_000)])
    c("XADD", "s", "*", "f", "v")
    c("XREADGROUP", "GROUP", "g", "c000007", "STREAMS", "s", ">")
    steps.longest = 0.0
    names = [b"c%06d" % n for n in range(MANY)]
    assert [item[1] for item in c("XINFO", "CONSUMERS", "s", "g")] == names
    steps.check()
    (group,) = c("XINFO", "STREAM", "s", "FULL")[-1]
    assert [item[1] for item in group[-1]] == names
    steps.check()
    assert c("XPENDING", "s", "g")[3] == [[b"c000007", b"1"]]
    steps.check()


def test_a_long_string(c: Raw, steps: Steps) -> None:
    for end in range(8 << 20, LONG + 1, 8 << 20):
        assert c("SETRANGE", "k", end - 1, "x") == end
    steps.longest = 0.0
    value = c("GET", "k")
    assert len(value) == LONG
    steps.check()
    assert c("GETRANGE", "k", 1, -2) == value[1:-1]
    steps.check()
    assert c("MGET", "k", "none") == [value, None]
    steps.check()


# -- subscriptions -------------------------------------------------------------------------------------------------
SUBSCRIPTIONS = {
    "SUBSCRIBE": ("UNSUBSCRIBE", NAMES[:MANY]),
    "SSUBSCRIBE": ("SUNSUBSCRIBE", NAMES[:MANY]),
    "PSUBSCRIBE": ("PUNSUBSCRIBE", [b"%04d" % n * 1024 for n in range(1000)]),
}


@pytest.mark.parametrize("command", SUBSCRIPTIONS)
@pytest.mark.parametrize("how", ["by name", "all", "reset", "closed"])
def test_subscriptions(c: Raw, server: RunningServer, steps: Steps, command: str, how: str) -> None:
    end, names = SUBSCRIPTIONS[command]
    c.send(command, *names)
    kind = command.lower().encode()
    assert [c.read() for _ in names] == [[kind, name, n] for n, name in enumerate(names, 1)]
    pubsub = server.server.pubsub
    if how == "closed":
        c.close()
    elif how == "reset":
        assert c("RESET") == b"RESET"
    else:
        c.send(end, *(names if how == "by name" else ()))
        counts = [c.read()[2] for _ in names]
        assert counts == list(range(len(names) - 1, -1, -1))
    deadline = time.monotonic() + 30
    while server.call(lambda: sum(map(pubsub.count, KINDS))):
        assert time.monotonic() < deadline
    steps.check()


def test_patterns_that_take_long_to_compile(c: Raw, steps: Steps) -> None:
    names = [b"*a?b[c-d]%04d*" % n + b"?x" * 100 for n in range(500)]
    c.send("PSUBSCRIBE", *names)
    assert [c.read()[1] for _ in names] == names
    steps.check()


def test_messages_come_after_the_confirmation_of_their_channel(c: Raw, server: RunningServer) -> None:
    """Also while the other channels of the same call are not subscribed yet."""
    with Raw(server.port) as other:
        c.sock.sendall(pack("SUBSCRIBE", *NAMES[:20_000]) + pack("PING"))
        while other("PUBLISH", NAMES[0], "hello") == 0:
            pass
        got: list[Any] = []
        while not got or got[-1][0] != b"pong":
            got.append(c.read())
    kinds = [item[0] for item in got]
    assert kinds.count(b"subscribe") == 20_000
    assert kinds.index(b"message") > 0
    assert got[0] == [b"subscribe", NAMES[0], 1]


# -- many commands, many readers -----------------------------------------------------------------------------------
def test_a_pipeline_of_commands_that_take_some_time(c: Raw, server: RunningServer, steps: Steps) -> None:
    calls = 600
    with Raw(server.port) as other:
        sender = threading.Thread(target=lambda: c.sock.sendall(pack("CONFIG", "GET", "*[a-z]*[a-z]*") * calls))
        sender.start()
        assert other("PING") == b"PONG"
        sizes = {len(c.read()) for _ in range(calls)}
        sender.join()
    assert len(sizes) == 1
    steps.check()


def test_many_readers_of_many_keys(c: Raw, server: RunningServer, steps: Steps) -> None:
    keys = NAMES[:300]
    c.pipeline(*[("XGROUP", "CREATE", key, "g", "$", "MKSTREAM") for key in keys])
    readers = [Raw(server.port) for _ in range(100)]
    for number, reader in enumerate(readers):
        reader.send("XREADGROUP", "GROUP", "g", number, "BLOCK", 0, "STREAMS", *keys, *[">"] * len(keys))
    while server.call(lambda: server.server.blocking.count) < len(readers):
        pass
    steps.longest = 0.0
    c.pipeline(*[("XADD", key, "*", "f", "v") for key in keys])
    for reader in readers:
        assert sum(len(entries) for _, entries in reader.read()) >= 1
        reader.close()
    steps.check()


def test_all_readers_of_a_group_are_served_in_turn(c: Raw, server: RunningServer) -> None:
    """However long it takes: what is left when others have their turn is done after them."""
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    readers = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(300)]
    for number, reader in enumerate(readers):
        reader.sendall(pack("XREADGROUP", "GROUP", "g", number, "COUNT", 1, "BLOCK", 0, "STREAMS", "s", ">"))
    while server.call(lambda: server.server.blocking.count) < len(readers):
        pass
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(len(readers)))
    for reader in readers:
        assert reader.recv(1000).startswith(b"*1")
        reader.close()
    assert c("XPENDING", "s", "g")[0] == len(readers)
