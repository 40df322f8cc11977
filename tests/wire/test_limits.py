"""Peers that ask too much: too many, too large, too slow, too silent, or no Redis clients at all.

Memory is measured from outside: RssAnon of a tidelog-server process.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from respserver.clients.connection import Connection
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw, pack
from tidelog.testing import Server, running_server

Connect = Callable[..., Raw]
MB = 1024 * 1024


@pytest.fixture(scope="module")
def process() -> Iterator[Server]:
    """A real server, on the event loop that users get."""
    with running_server(appendfsync="no", save="", wal_size="8mb", node_cache_size="4mb") as server:
        yield server


@pytest.fixture
def p(process: Server) -> Iterator[Raw]:
    """A connection to the process, whose directives are as they were afterwards."""
    with Raw(process.port) as raw:
        yield raw
        raw("CONFIG", "SET", "client-query-buffer-limit", "1gb", "proto-max-bulk-len", "512mb")


def anonymous(server: Server) -> int:
    """Bytes of the process's own memory."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def until_closed(raw: Raw) -> list[Any]:
    """Replies until the server closes."""
    said = []
    try:
        while True:
            said.append(raw.read())
    except (EOFError, ConnectionError):
        return said


def local_address() -> str:
    """An address of this machine that is not the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing: asks the routing table
        except OSError:
            pytest.skip("this machine has no network but its own")
        address: str = sock.getsockname()[0]
    return address


# -- how many, how long ------------------------------------------------------------------------------------------
def test_maxclients(c: Raw, connect: Connect) -> None:
    c("CONFIG", "SET", "maxclients", 2)
    second, third = connect(), connect()
    assert second("PING") == b"PONG"
    assert until_closed(third)[:1] in (["ERR max number of clients reached"], [])
    assert b"rejected_connections:1" in c("INFO", "stats")
    second.close()
    eventually(lambda: b"connected_clients:1\r" in c("INFO", "clients"))
    assert connect()("PING") == b"PONG"


def test_idle_clients_are_closed_and_busy_ones_are_not(c: Raw, connect: Connect, hand: RunningServer) -> None:
    c("CONFIG", "SET", "timeout", 10)
    idle, blocked, subscribed, old, late = (connect() for _ in range(5))
    idle("PING")
    blocked.send("TREAD", "s", "", 1, "BLOCK", 0)
    subscribed("SUBSCRIBE", "a")
    old("WATCH", "k")
    for _ in range(3):
        hand.advance(6000)
        assert c("PING") == b"PONG"
        assert late("PING") == b"PONG"
    assert until_closed(idle) == until_closed(old) == []
    c("TAPPEND", "s", "a", "b")
    assert len(blocked.read()) == 1
    assert c("PUBLISH", "a", "x") == 1


def test_an_idle_client_that_does_not_read_is_closed_too(c: Raw, connect: Connect, hand: RunningServer) -> None:
    stuck = connect()
    stuck.sock.sendall(pack("ECHO", b"x" * 16 * MB))
    eventually(lambda: hand.call(lambda: any(isinstance(s.transport, Connection) and s.transport.flow.throttled
                                           for s in hand.server.clients)))  # fmt: skip
    c("CONFIG", "SET", "timeout", 10)
    hand.advance(6000)
    c("PING")
    hand.advance(6000)
    eventually(lambda: b"connected_clients:1\r" in c("INFO", "clients"))


# -- what waits for a peer that doesn't read ---------------------------------------------------------------------
def publish_until_cut(c: Raw, size: int, most: int) -> int:
    """Bytes of messages published until the one subscriber is gone."""
    sent = 0
    while sent < most:
        sent += size
        if not c("PUBLISH", "news", b"x" * size):
            return sent
    raise AssertionError(f"still there after {sent} bytes")


def test_a_subscriber_that_does_not_read_is_cut(process: Server, p: Raw) -> None:
    before = anonymous(process)
    with Raw(process.port) as deaf:
        deaf("SUBSCRIBE", "news")
        assert publish_until_cut(p, MB, 60 * MB) > 30 * MB  # 32 MB by default, and what the sockets hold
        assert anonymous(process) - before < 60 * MB
    assert p("PUBLISH", "news", "x") == 0


def test_small_limits_count_as_well(c: Raw, connect: Connect) -> None:
    c("CONFIG", "SET", "client-output-buffer-limit", "pubsub 64kb 0 0")
    deaf = connect()
    deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf("SUBSCRIBE", "news")
    assert publish_until_cut(c, 16 * 1024, 8 * MB)


def test_the_soft_limit_counts_seconds(c: Raw, connect: Connect, hand: RunningServer) -> None:
    c("CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 1mb 5")
    deaf = connect()
    deaf("SUBSCRIBE", "news")
    for _ in range(16):
        assert c("PUBLISH", "news", b"x" * MB) == 1
    hand.advance(4500)
    assert c("PUBLISH", "news", "x") == 1
    hand.advance(1000)
    eventually(lambda: c("PUBLISH", "news", "x") == 0)


def test_slow_readers_of_a_huge_range_cost_little_memory(process: Server, p: Raw) -> None:
    p("DEL", "huge")
    value = b"%064d" % 7 * 1024
    for _ in range(100):
        p.pipeline(*[("TAPPEND", "huge", "f", value)] * 10)  # 64 MB of reply
    p("SAVE")  # its nodes leave memory
    before = anonymous(process)
    with ExitStack() as stack:
        slow = [stack.enter_context(Raw(process.port)) for _ in range(6)]
        for at, raw in enumerate(slow):
            raw.send(*(("TRANGE", "huge", "-", "+") if at % 2 else ("TREVRANGE", "huge", "+", "-")))
            raw.send("PING")
            assert raw.sock.recv(1, socket.MSG_PEEK)  # it has begun
        assert p("PING") == b"PONG"
        assert anonymous(process) - before < 40 * MB
        entries = slow[0].read()
        assert (len(entries), slow[0].read()) == (1000, b"PONG")
        assert entries[0][0] > entries[-1][0]
    p("DEL", "huge")
    eventually(lambda: b"connected_clients:1\r" in p("INFO", "clients"))


# -- what a peer sends -------------------------------------------------------------------------------------------
GARBAGE = {
    "tls hello": bytes.fromhex("16030100f1010000ed0303") + bytes(range(256)),
    "nulls": b"\0" * 70_000,
    "long line": b"x" * 70_000,
    "no bulk": b"*1\r\n:1\r\n",
    "nested": b"*1\r\n*1\r\n$4\r\nPING\r\n",
    "map": b"*1\r\n%1\r\n",
    "negative bulk": b"*1\r\n$-1\r\n",
    "bulk too large": b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\n",
    "bulk beyond 64 bits": b"*1\r\n$99999999999999999999\r\n",
    "too many arguments": b"*1048577\r\n",
    "quotes": b'SET "k\r\n',
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage(process: Server, p: Raw, kind: str) -> None:
    """Commands before it are answered; then the error, then the end."""
    with Raw(process.port) as raw:
        raw.sock.sendall(pack("PING") + GARBAGE[kind])
        raw.sock.shutdown(socket.SHUT_WR)
        said = until_closed(raw)
    assert said[0] == b"PONG"
    if kind != "tls hello":  # ends as an unfinished inline command
        assert said[-1].startswith("ERR Protocol error: ")
    assert p("PING") == b"PONG"


@pytest.mark.parametrize("line", [b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: here\r\n"])
def test_a_browser_that_was_tricked_gets_nowhere(c: Raw, connect: Connect, line: bytes) -> None:
    raw = connect()
    raw.sock.sendall(line + b"Content-Length: 20\r\n\r\nSET k stolen\r\n")
    until_closed(raw)
    assert c("EXISTS", "k") == 0


def test_a_peer_that_announces_much_costs_nothing(process: Server, p: Raw) -> None:
    before = anonymous(process)
    peers = [Raw(process.port) for _ in range(20)]
    for at, raw in enumerate(peers):
        raw.sock.sendall(b"*1048576\r\n$3\r\nDEL\r\n" if at % 2 else b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nxx")
    eventually(lambda: p("CLIENT", "LIST").count(b"qbuf=0 ") <= 1)
    assert anonymous(process) - before < 10 * MB
    for raw in peers:
        raw.close()


def test_a_gigabyte_that_is_not_allowed_is_not_taken(process: Server, p: Raw) -> None:
    before = anonymous(process)
    sent = 0
    with Raw(process.port) as raw:
        raw.sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1073741824\r\n")
        chunk = b"x" * MB
        with pytest.raises(OSError):  # noqa: PT012 - the loop is the subject
            for _ in range(1024):
                raw.sock.sendall(chunk)
                sent += MB
    assert sent < 64 * MB
    assert anonymous(process) - before < 10 * MB


def test_a_quarter_of_a_gigabyte_in_commands_passes_through(process: Server, p: Raw) -> None:
    """Its replies are not read for long: the server stops taking more, instead of keeping all of it."""
    before = anonymous(process)
    command = pack("ECHO", b"x" * MB)
    sent = received = 0
    with Raw(process.port) as raw:
        raw.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):  # noqa: PT012 - the loop is the subject
            while sent < 128 * MB:
                sent += raw.sock.send(memoryview(command)[sent % len(command) :])
        assert anonymous(process) - before < 40 * MB
        raw.sock.setblocking(False)
        whole = 256 * len(command)
        reply_size = len(b"$1048576\r\n") + MB + 2
        buffer = bytearray(4 * MB)
        while received < 256 * reply_size:
            try:
                received += raw.sock.recv_into(buffer)
            except BlockingIOError:
                pass
            if sent < whole:
                try:
                    sent += raw.sock.send(memoryview(command)[sent % len(command) :])
                except BlockingIOError:
                    pass
    assert received == 256 * reply_size
    assert anonymous(process) - before < 60 * MB


def accepted(raw: Raw, chunk: bytes) -> int:
    """Bytes that the server takes until it has taken nothing for half a second."""
    sent = 0
    raw.sock.settimeout(0.5)
    with pytest.raises(TimeoutError):  # noqa: PT012 - the loop is the subject
        while sent < 200 * MB:
            sent += raw.sock.send(chunk)
    return sent


WAITING = [("TREAD", "none", "", 1, "BLOCK", 0), ("CLIENT", "PAUSE", 100_000), ("WAIT", 1, 0)]


@pytest.mark.parametrize("command", WAITING)
@pytest.mark.parametrize("behind", [pack("PING"), pack("SET", "k", b"x" * 100_000)])
def test_what_waits_behind_a_command_is_limited(
    process: Server, p: Raw, command: tuple[Any, ...], behind: bytes
) -> None:
    """The server stops reading from a blocked or paused client."""
    before = anonymous(process)
    with Raw(process.port) as raw:
        name = raw("CLIENT", "ID")
        raw.send(*command)
        assert accepted(raw, behind * (MB // len(behind))) < 30 * MB  # most of it in the sockets' buffers
        assert anonymous(process) - before < 20 * MB
        assert p("CLIENT", "KILL", "ID", name) == 1
    p("CLIENT", "UNPAUSE")
    eventually(lambda: b"connected_clients:1\r" in p("INFO", "clients"))


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_peer_that_leaves_with_much_behind_a_blocked_command(process: Server, p: Raw, how: str) -> None:
    """Nothing is read from it, and its end is noticed all the same."""
    raw = Raw(process.port)
    raw.send("TREAD", "none", "", 1, "BLOCK", 0)
    eventually(lambda: b"blocked_clients:1\r" in p("INFO", "clients"))
    raw.sock.sendall(pack("PING") * 5000)
    eventually(lambda: b" events= cmd=tread " in p("CLIENT", "LIST"))  # it is not read any more
    if how == "reset":
        raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()
    eventually(lambda: b"connected_clients:1\r" in p("INFO", "clients"))


def test_a_large_value_goes_in_and_out(process: Server, p: Raw) -> None:
    value = bytes(range(256)) * (24 * 4096)  # 24 MB
    assert p("SET", "large", value) == b"OK"
    assert p("GET", "large") == value
    p("DEL", "large")


def test_limits_reach_open_connections(process: Server, p: Raw) -> None:
    with Raw(process.port) as one, Raw(process.port) as other:
        assert one("SET", "k", b"x" * 3 * MB) == b"OK"
        assert other("DEL", "k") == 1
        assert p("CONFIG", "SET", "proto-max-bulk-len", "1mb") == b"OK"
        one.sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n")
        assert until_closed(one) == ["ERR Protocol error: invalid bulk length"]
        assert p("CONFIG", "SET", "proto-max-bulk-len", "512mb", "client-query-buffer-limit", "1mb") == b"OK"
        other.sock.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000000\r\n")
        assert until_closed(other) == ["ERR Protocol error: query buffer limit exceeded"]


@pytest.mark.parametrize("command", ["KEYS", "SCAN 0 MATCH", "PSUBSCRIBE a*", "PUBSUB CHANNELS", "CONFIG GET port",
                                     "COMMAND LIST FILTERBY PATTERN"])  # fmt: skip
def test_a_pattern_has_a_limit(c: Raw, command: str) -> None:
    """Nothing of the command is done."""
    words = command.split()
    assert c(*words, "[^a]" * 1024 + "*") == "ERR the pattern has 4097 bytes; at most 4096 are allowed"
    assert c("PUBSUB", "NUMPAT") == 0
    assert c(*words, "[^a]" * 1024) is not None
    c("RESET")


# -- half-closed connections: printf ... | nc --------------------------------------------------------------------
def ask_and_hang_up(port: int, request: bytes) -> list[Any]:
    with Raw(port) as raw:
        raw.sock.sendall(request)
        raw.sock.shutdown(socket.SHUT_WR)
        return until_closed(raw)


HALF_CLOSED: dict[str, tuple[bytes, int]] = {
    "inline": (b"PING\r\nECHO x\r\n", 2),
    # 2 MB: who sends much more without reading waits for the server, which waits for replies to be read
    "pipeline": (pack("ECHO", b"x" * 10_000) * 200, 200),
    "nothing": (b"", 0),
    "incomplete": (b"PING\r\n*1\r\n$4\r\nPI", 1),
    "quit": (b"PING\r\nQUIT\r\nPING\r\n", 2),
    "blocks": (pack("PING") + pack("TREAD", "none", "", 1, "BLOCK", 0) + pack("PING"), 1),
    "streams": (pack("TRANGE", "wide", "-", "+") * 3 + pack("PING"), 4),
    "streams, then blocks": (pack("TRANGE", "wide", "-", "+") + pack("TREAD", "none", "", 1, "BLOCK", 0), 1),
    "streams, then is silent": (pack("TRANGE", "wide", "-", "+") + pack("CLIENT", "REPLY", "OFF") + pack("PING"), 1),
    "subscribes": (pack("SUBSCRIBE", "a"), 1),
    "transaction": (pack("MULTI") + pack("TRANGE", "wide", "-", "+") + pack("EXEC"), 3),
}


@pytest.mark.parametrize("kind", HALF_CLOSED)
def test_half_closed(process: Server, p: Raw, c: Raw, hand: RunningServer, kind: str) -> None:
    """On both event loops: all replies arrive, then the end; nobody waits for ever."""
    request, replies = HALF_CLOSED[kind]
    for raw, port in ((p, process.port), (c, hand.port)):
        if "wide" in request.decode("latin-1"):
            raw.pipeline(("DEL", "wide"), *[("TAPPEND", "wide", "f", b"x" * 60_000)] * 100)
        assert len(ask_and_hang_up(port, request)) == replies
        while b"connected_clients:1\r" not in raw("INFO", "clients"):
            pass


# -- logging in --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def locked() -> Iterator[RunningServer]:
    with start_in_thread(clock=HandClock(), requirepass="secret") as server:
        yield server


@pytest.mark.parametrize("login", [("AUTH", "secret"), ("HELLO", 2, "AUTH", "default", "secret")])
def test_large_commands_right_after_the_login(locked: RunningServer, login: tuple[Any, ...]) -> None:
    """In one chunk: the limits for strangers hold up to the login and not a byte further."""
    value = b"x" * 100_000
    behind = pack("SET", "k", value) + pack("MSET", *["a", "b"] * 20) + pack("GET", "k")
    with Raw(locked.port) as raw:
        raw.sock.sendall(pack(*login) + behind)
        assert [raw.read() for _ in range(4)][1:] == [b"OK", b"OK", value]
        assert raw("PING") == b"PONG"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (pack("SET", "k", b"x" * 20_000), "ERR Protocol error: unauthenticated bulk length"),
        (pack("MSET", *["a", "b"] * 10), "ERR Protocol error: unauthenticated multibulk length"),
        (pack("AUTH", "wrong") + pack("SET", "k", b"x" * 20_000), "ERR Protocol error: unauthenticated bulk length"),
    ],
)
def test_strangers_may_not_send_much(locked: RunningServer, request_: bytes, error: str) -> None:
    with Raw(locked.port) as raw:
        raw.sock.sendall(request_)
        assert until_closed(raw)[-1] == error


def test_strangers_that_wait_may_not_send_much() -> None:
    """During a pause, passwords of 16 KB wait as bytes do, not as 4096 commands."""
    with start_in_thread(requirepass="secret") as server, Raw(server.port) as owner, Raw(server.port) as raw:
        owner("AUTH", "secret")
        owner("CLIENT", "PAUSE", 100_000)
        accepted(raw, pack("AUTH", b"x" * 16_000) * 50)
        waiting = max(int(line.split(b"qbuf=")[1].split()[0]) for line in owner("CLIENT", "LIST").splitlines())
        assert 0 < waiting < 3 * MB
        owner("CLIENT", "UNPAUSE")


def test_strangers_may_do_little(locked: RunningServer) -> None:
    with Raw(locked.port) as raw:
        assert raw.pipeline(("PING",), ("GET", "k"), ("MULTI",), ("SUBSCRIBE", "a"), ("CONFIG", "GET", "*")) == [
            "NOAUTH Authentication required."
        ] * 5
        assert raw("AUTH", "wrong") == "WRONGPASS invalid username-password pair or user is disabled."
        assert raw("HELLO", 3).startswith("NOAUTH HELLO must be called with the client already authenticated")
        assert raw("NOSUCH").startswith("ERR unknown command")
        assert raw("QUIT") == b"OK"


def test_limits_for_strangers_are_back_after_reset(locked: RunningServer) -> None:
    with Raw(locked.port) as raw:
        assert raw.pipeline(("AUTH", "secret"), ("RESET",)) == [b"OK", b"RESET"]
        raw.send("SET", "k", b"x" * 20_000)
        assert until_closed(raw) == ["ERR Protocol error: unauthenticated bulk length"]


def test_a_password_set_later_holds_for_new_connections(c: Raw, connect: Connect) -> None:
    c("CONFIG", "SET", "requirepass", "later")
    assert c("PING") == b"PONG"  # who was in stays in, as with Redis
    new = connect()
    assert new.pipeline(("PING",), ("AUTH", "later"), ("PING",)) == ["NOAUTH Authentication required.", b"OK", b"PONG"]


def test_protected_mode(process: Server) -> None:
    address = local_address()
    with running_server(bind="*", wal_size="1mb") as server:
        with socket.create_connection((address, server.port), timeout=10) as sock:
            assert sock.recv(1000).startswith(b"-DENIED tidelog is running in protected mode")
        with Raw(server.port) as raw:
            assert raw("CONFIG", "SET", "protected-mode", "no") == b"OK"
        with socket.create_connection((address, server.port), timeout=10) as sock:
            sock.sendall(b"PING\r\n")
            assert sock.recv(1000) == b"+PONG\r\n"


# -- rename-command ----------------------------------------------------------------------------------------------
def test_renamed_commands() -> None:
    with start_in_thread(rename_command=["config", "c0nf"]) as server, Raw(server.port) as c:
        assert c("CONFIG", "GET", "port").startswith("ERR unknown command 'CONFIG'")
        assert c("C0NF", "GET", "maxclients") == c("c0nf", "get", "maxclients") == [b"maxclients", b"10000"]
        assert c("c0nf", "set", "x") == "ERR wrong number of arguments for 'c0nf|set' command"
        names = c("COMMAND", "LIST")
        assert b"c0nf" in names
        assert b"config" not in names
        assert [row[0] for row in c("COMMAND", "INFO", "c0nf", "c0nf|get", "get")] == [b"c0nf", b"c0nf|get", b"get"]
        assert c("COMMAND", "INFO", "config") == [None]
        assert c("COMMAND", "DOCS", "c0nf")[0] == b"c0nf"
        assert b"C0NF <subcommand>" in c("c0nf", "HELP")[0]
        assert c.pipeline(("MULTI",), ("c0nf", "GET", "port"), ("CONFIG", "GET", "port"))[1] == b"QUEUED"
        c("DISCARD")
        c("c0nf", "set", "slowlog-log-slower-than", 0)
        c("c0nf", "set", "requirepass", "secret")
        assert any(entry[3][-1] == b"(redacted)" for entry in c("SLOWLOG", "GET"))
    with start_in_thread() as server, Raw(server.port) as c:  # the next server knows nothing of that
        assert c("CONFIG", "GET", "maxclients") == [b"maxclients", b"10000"]
        assert c("c0nf", "GET", "maxclients").startswith("ERR unknown command")


def test_a_command_taken_away(tmp_path: Path) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text('rename-command FLUSHALL ""\nrename-command GET take\nrename-command SET GET\n')
    from respserver.config.config import Config
    from respserver.config.renames import rename

    undo = rename(Config.load([str(conf)]).rename_command)
    try:
        with start_in_thread() as server, Raw(server.port) as c:
            assert c("FLUSHALL").startswith("ERR unknown command")
            assert c.pipeline(("GET", "k", "v"), ("TAKE", "k")) == [b"OK", b"v"]
            assert c("COMMAND", "COUNT") == len([name for name in c("COMMAND", "LIST") if b"|" not in name])
    finally:
        undo()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("nosuch x", "No such command in rename-command: 'nosuch'"),
        ("get set", "Target command name already exists: 'set'"),
    ],
)
def test_renames_that_can_not_be(words: str, text: str) -> None:
    from respserver.config.conffile import ConfigError

    with pytest.raises(ConfigError, match=text), start_in_thread(rename_command=words.split()):
        pass


def test_entries_of_one_command_are_bounded(c: Raw) -> None:
    answer = c("TMAPPEND", "s", "FIELDS", 1, b"f" * (1 << 20), "VALUES", *(["v"] * 600))
    assert answer == "ERR the entries of one command may take 512 MiB together"
    assert c("EXISTS", "s") == 0
