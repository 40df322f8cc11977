"""CLIENT PAUSE, UNPAUSE, REPLY and KILL, MONITOR and RESET, each in the states that make them hard."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from respserver.clients.connection import Connection
from respserver.testing import RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.rawclient import Raw, pack

Connect = Callable[..., Raw]
BIG = 64  # kB of the value of each entry in a large stream
COUNT = 300  # entries of it: more than sockets and buffers between the two ends hold


def connections(server: RunningServer) -> list[Connection]:
    """Those that the server has; the condition is looked at on the server's own thread."""
    found = [session.transport for session in server.server.clients.all()]
    return [conn for conn in found if isinstance(conn, Connection)]


def seen(server: RunningServer, test: Callable[[Connection], object]) -> None:
    """Wait until a connection is in the state that ``test`` finds."""
    eventually(lambda: server.call(lambda: any(test(conn) for conn in connections(server))))


def closed(raw: Raw) -> bool:
    """Read until the server closes; False if it answers instead."""
    try:
        raw.read()
    except (EOFError, ConnectionError):
        return True
    return False


def fill(c: Raw, key: str = "big") -> None:
    """A stream that takes many ticks to send."""
    value = b"x" * (BIG * 1024)
    c.pipeline(*[("TAPPEND", key, "f", value)] * COUNT)


@pytest.fixture
def stuck(c: Raw, connect: Connect, hand: RunningServer) -> Raw:
    """A client that asked for a large range and reads nothing of it."""
    fill(c)
    raw = connect()
    raw("CLIENT", "SETNAME", "stuck")
    raw.send("TRANGE", "big", "-", "+")
    seen(hand, lambda conn: conn.output.streaming is not None and conn.flow.throttled)
    return raw


# -- PAUSE -------------------------------------------------------------------------------------------------------
def test_pause_holds_everything_until_its_time(c: Raw, connect: Connect, hand: RunningServer) -> None:
    other = connect()
    assert c("CLIENT", "PAUSE", 500) == b"OK"
    other.sock.sendall(pack("SET", "k", 1) + pack("GET", "k"))
    seen(hand, lambda conn: conn.flow.paused)
    other.send("INCR", "k")  # arrives while the others wait: must not overtake them
    seen(hand, lambda conn: len(conn.input.backlog) == 3)
    hand.advance(400)
    assert other.nothing_yet()
    hand.advance(200)
    assert [other.read() for _ in range(3)] == [b"OK", b"1", 2]


def test_unpause_ends_it_at_once(c: Raw, connect: Connect, hand: RunningServer) -> None:
    other = connect()
    c("CLIENT", "PAUSE", 100_000)
    other.send("PING")
    seen(hand, lambda conn: conn.flow.paused)
    assert c("CLIENT", "UNPAUSE") == b"OK"
    assert other.read() == b"PONG"
    assert other("PING") == b"PONG"


def test_pause_write_lets_reads_through(c: Raw, connect: Connect, hand: RunningServer) -> None:
    c("TAPPEND", "s", "a", "b")
    third = connect()
    assert third.pipeline(("MULTI",), ("TAPPEND", "t", "c", "d")) == [b"OK", b"QUEUED"]
    c("CLIENT", "PAUSE", 100_000, "WRITE")
    other = connect()
    assert len(other("TRANGE", "s", "-", "+")) == 1
    assert len(other("TREAD", "s", "0", 10)) == 1
    assert other.pipeline(("MULTI",), ("TLEN", "s"), ("EXEC",)) == [b"OK", b"QUEUED", [1]]
    other.send("TREAD", "s", "0", 10, "GROUP", "g", 0)  # a write [13]
    seen(hand, lambda conn: conn.flow.paused)
    third.send("EXEC")
    seen(hand, lambda conn: conn.flow.paused and conn.session.multi)
    c("CLIENT", "UNPAUSE")
    assert len(other.read()) == 1
    assert len(third.read()) == 1
    assert c("TLEN", "t") == 1


def test_a_paused_client_that_hangs_up_runs_nothing(c: Raw, connect: Connect, hand: RunningServer) -> None:
    other = connect()
    c("CLIENT", "PAUSE", 100_000, "WRITE")
    other.send("SET", "k", 1)
    seen(hand, lambda conn: conn.flow.paused)
    assert c("CLIENT", "KILL", "SKIPME", "yes") == 1
    assert closed(other)
    c("CLIENT", "UNPAUSE")
    assert c("EXISTS", "k") == 0


def test_what_a_paused_client_sends_is_bounded(c: Raw, connect: Connect, hand: RunningServer) -> None:
    """Few commands with large values: their bytes count, not only their number."""
    c("CLIENT", "PAUSE", 100_000)
    other = connect()
    other.sock.settimeout(0.3)
    with pytest.raises(TimeoutError):  # noqa: PT012 - the loop is the subject
        for _ in range(100):
            other.send("SET", "k", b"x" * 1_000_000)
    held = hand.call(lambda: max(len(b"".join(map(b"".join, conn.input.backlog))) for conn in connections(hand)))
    assert held < 8_000_000
    other.sock.settimeout(60)
    c("CLIENT", "UNPAUSE")
    assert other.read() == b"OK"


# -- REPLY -------------------------------------------------------------------------------------------------------
def test_reply_off_and_on(c: Raw) -> None:
    c.sock.sendall(pack("CLIENT", "REPLY", "OFF") + pack("SET", "k", 1) + pack("NOSUCH") + pack("GET", "k"))
    assert c("CLIENT", "REPLY", "ON") == b"OK"
    assert c("GET", "k") == b"1"


def test_reply_skip_leaves_out_one(c: Raw) -> None:
    c.sock.sendall(pack("CLIENT", "REPLY", "SKIP") + pack("SET", "k", 1) + pack("GET", "k"))
    assert c.read() == b"1"


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_a_blocked_client_without_replies(c: Raw, connect: Connect, hand: RunningServer, mode: str) -> None:
    reader = connect()
    reader.sock.sendall(pack("CLIENT", "REPLY", mode) + pack("TREAD", "s", "", 1, "BLOCK", 0))
    seen(hand, lambda conn: conn.flow.wait is not None)
    c("TAPPEND", "s", "a", "b")
    if mode == "OFF":
        assert reader("CLIENT", "REPLY", "ON") == b"OK"
    assert reader("PING", "next") == b"next"


def test_a_streamed_reply_that_is_off(c: Raw) -> None:
    fill(c)
    c.sock.sendall(pack("CLIENT", "REPLY", "SKIP") + pack("TRANGE", "big", "-", "+") + pack("PING"))
    assert c.read() == b"PONG"


# -- KILL --------------------------------------------------------------------------------------------------------
def test_kill_a_client_that_does_not_read(c: Raw, stuck: Raw, hand: RunningServer) -> None:
    assert c("CLIENT", "KILL", "SKIPME", "yes") == 1
    eventually(lambda: b"name=stuck" not in c("CLIENT", "LIST"))


def test_kill_a_blocked_client_in_the_middle_of_a_pipeline(c: Raw, connect: Connect, hand: RunningServer) -> None:
    reader = connect()
    reader.sock.sendall(pack("TREAD", "s", "", 1, "BLOCK", 0) + pack("SET", "k", 1))
    seen(hand, lambda conn: conn.flow.wait is not None)
    assert c("CLIENT", "KILL", "SKIPME", "yes") == 1
    assert closed(reader)
    assert c("TAPPEND", "s", "a", "b")
    assert c("EXISTS", "k") == 0


def test_nothing_runs_after_ones_own_kill_or_quit(c: Raw, connect: Connect) -> None:
    for last in (("CLIENT", "KILL", "SKIPME", "no", "MAXAGE", 0), ("QUIT",)):
        other = connect()
        if last[0] == "CLIENT":
            last = ("CLIENT", "KILL", "SKIPME", "no", "ID", other("CLIENT", "ID"))
        other.sock.sendall(pack(*last) + pack("SET", "k", 1))
        assert other.read() in (1, b"OK")
        assert closed(other)
    assert c("EXISTS", "k") == 0


def test_what_a_killed_client_sends_at_once_does_not_run(hand: RunningServer, c: Raw, connect: Connect) -> None:
    victim = connect()
    number = victim("CLIENT", "ID")

    def kill_and_receive() -> None:
        server = hand.server
        session = server.clients.get(number)
        assert session is not None
        conn = session.transport
        assert isinstance(conn, Connection)
        conn.kill()
        conn.data_received(pack("SET", "k", 1))

    hand.call(kill_and_receive)
    assert closed(victim)
    assert c("EXISTS", "k") == 0


def test_kill_inside_exec_still_answers(c: Raw) -> None:
    number = c("CLIENT", "ID")
    replies = c.pipeline(("MULTI",), ("SET", "k", 1), ("CLIENT", "KILL", "ID", number, "SKIPME", "no"), ("EXEC",))
    assert replies[-1] == [b"OK", 1]
    assert closed(c)


# -- MONITOR -----------------------------------------------------------------------------------------------------
def test_monitor_shows_a_transaction_when_it_runs(c: Raw, connect: Connect) -> None:
    watcher = connect()
    assert watcher("MONITOR") == b"OK"
    c.pipeline(("MULTI",), ("SET", "k", "v"), ("EXEC",))
    shown = [watcher.read().decode().split("] ", 1)[1] for _ in range(3)]
    assert shown == ['"MULTI"', '"SET" "k" "v"', '"EXEC"']


def test_a_monitor_that_does_not_read_is_cut(c: Raw, connect: Connect) -> None:
    c("CONFIG", "SET", "client-output-buffer-limit", "pubsub 3mb 0 0")
    watcher = connect()
    watcher("MONITOR")
    value = b"x" * 100_000
    for _ in range(40):
        c.pipeline(*[("ECHO", value)] * 10)
        if b"cmd=monitor" not in c("CLIENT", "LIST"):
            break
    assert b"cmd=monitor" not in c("CLIENT", "LIST")


# -- pushes and streams ------------------------------------------------------------------------------------------
def test_a_message_waits_for_the_end_of_a_streamed_reply(c: Raw, connect: Connect, hand: RunningServer) -> None:
    fill(c)
    both = connect(3)
    both("SUBSCRIBE", "news")
    both.send("TRANGE", "big", "-", "+")
    seen(hand, lambda conn: conn.output.streaming is not None and conn.flow.throttled)
    assert c("PUBLISH", "news", "hello") == 1
    both.send("PING")
    entries = both.read()
    assert len(entries) == COUNT
    assert all(len(entry) == 3 for entry in entries)
    assert [both.read(), both.read()] == [[b"message", b"news", b"hello"], b"PONG"]


def test_a_damaged_node_in_the_middle_of_a_stream_hurts_nobody_else(c: Raw, stuck: Raw, hand: RunningServer) -> None:
    """The reply can't be finished: its client is cut. The tick goes on for everyone."""
    from resp.errors import CorruptError

    def broken() -> object:
        raise CorruptError("a node is damaged")
        yield

    def damage() -> None:
        conn = next(conn for conn in connections(hand) if conn.output.streaming)
        assert conn.output.streaming is not None
        conn.output.streaming.pieces = broken()  # type: ignore[assignment]

    hand.call(damage)
    with pytest.raises((EOFError, ConnectionError)):  # noqa: PT012 - the loop is the subject
        while True:
            stuck.read()
    assert c("PING") == b"PONG"


# -- RESET -------------------------------------------------------------------------------------------------------
STATES: dict[str, list[tuple[str, ...]]] = {
    "plain": [],
    "multi": [("MULTI",), ("SET", "k", "1")],
    "aborted": [("MULTI",), ("NOSUCH",)],
    "watching": [("WATCH", "w")],
    "subscribed": [("SUBSCRIBE", "a"), ("PSUBSCRIBE", "b*")],
    "resp3": [("HELLO", "3")],
    "resp3 subscribed": [("HELLO", "3"), ("SUBSCRIBE", "a")],
    "monitor": [("MONITOR",)],
    "named": [("CLIENT", "SETNAME", "n")],
    "no touch": [("CLIENT", "NO-TOUCH", "ON"), ("CLIENT", "NO-EVICT", "ON")],
}


@pytest.mark.parametrize("state", STATES)
def test_reset(c: Raw, connect: Connect, state: str, hand: RunningServer) -> None:
    other = connect()
    for words in STATES[state]:
        other(*words)
    assert other("RESET") == b"RESET"
    assert c("PUBLISH", "a", "x") == c("PUBLISH", "b1", "x") == 0
    c("SET", "w", 1)
    assert other.pipeline(("MULTI",), ("CLIENT", "GETNAME"), ("EXEC",)) == [b"OK", b"QUEUED", [None]]
    assert other("HGETALL") == "ERR unknown command 'HGETALL', with args beginning with: "
    line = other("CLIENT", "INFO").decode()
    assert " flags=N " in line
    assert " resp=2 " in line
    assert c("EXISTS", "k") == 0


def test_reset_with_replies_off(c: Raw) -> None:
    c.sock.sendall(pack("CLIENT", "REPLY", "OFF"))
    assert c("RESET") == b"RESET"


def test_reset_logs_out() -> None:
    with start_in_thread(requirepass="secret") as server, Raw(server.port) as c:
        assert c("AUTH", "secret") == b"OK"
        assert c.pipeline(("MULTI",), ("PING",), ("RESET",))[-1] == b"RESET"
        assert c("PING") == "NOAUTH Authentication required."
        assert c("HELLO", 3, "AUTH", "default", "secret")[b"proto"] == 3


def test_a_reply_never_overtakes_its_batch(c: Raw, connect: Connect, hand: RunningServer) -> None:
    """A socket that takes bytes again between a command and the end of its tick gets nothing of that command yet."""
    reader, writer = connect(), connect()
    ours = writer("CLIENT", "ID")
    reader.sock.sendall(pack("ECHO", b"x" * 16_000_000) + pack("TREAD", "s", "", 1, "BLOCK", 0))
    seen(hand, lambda conn: conn.flow.throttled)

    def park() -> None:
        conn = next(conn for conn in connections(hand) if conn.flow.throttled)
        conn.flow.throttled = False  # as if the socket had taken what it was given
        conn.run_backlog()
        assert conn.flow.wait is not None
        conn.flow.throttled = True

    hand.call(park)

    def append_and_resume() -> tuple[int, int]:
        conn = next(conn for conn in connections(hand) if conn.flow.wait is not None)
        other = next(conn for conn in connections(hand) if conn.session.id == ours)
        other.data_received(pack("TAPPEND", "s", "a", "b"))
        before = conn.session.total_out
        conn.resume_writing()
        return len(hand.server.data.ks.log), conn.session.total_out - before

    records, written = hand.call(append_and_resume)
    assert records > 0  # none of it on disk
    assert written == 0
    assert len(writer.read()) > 10
    assert len(reader.read()) == 16_000_000
    assert len(reader.read()) == 1


def test_a_closed_connection_is_freed_without_a_collection(hand: RunningServer, c: Raw) -> None:
    """The program never runs a full collection."""

    def alive() -> int:
        return sum(type(each) is Connection for each in gc.get_objects())

    c("PING")
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(3):
            with Raw(hand.port) as client:
                client("SET", "k", "v")
        eventually(lambda: hand.call(lambda: len(connections(hand)) == 1))
        eventually(lambda: hand.call(lambda: True))
        assert alive() == before
    finally:
        gc.enable()
