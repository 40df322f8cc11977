"""MULTI, EXEC, DISCARD, WATCH: as Redis in what both have, and with streams, blocking and errors in the middle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commands.declare import TABLE
from respserver.testing import RunningServer
from tests.waiting import eventually
from tests.wire.rawclient import Raw, pack
from tidelog.testing import Server, running_server

if TYPE_CHECKING:
    from tests.conftest import RedisServer

Connect = Callable[..., Raw]

SCRIPTS: dict[str, list[tuple[Any, ...]]] = {
    "empty": [("MULTI",), ("EXEC",)],
    "plain": [("MULTI",), ("SET", "k", "1"), ("INCR", "k"), ("GET", "k"), ("EXEC",)],
    "one fails": [("SET", "k", "x"), ("MULTI",), ("INCR", "k"), ("SET", "l", "1"), ("EXEC",), ("GET", "l")],
    "unknown command": [("MULTI",), ("NOSUCH", "x"), ("SET", "k", "1"), ("EXEC",), ("GET", "k"), ("EXEC",)],
    "arity": [("MULTI",), ("GET",), ("EXEC",), ("PING",)],
    "unknown subcommand": [("MULTI",), ("CLIENT", "NOSUCH"), ("EXEC",)],
    "nested": [("MULTI",), ("MULTI",), ("SET", "k", "1"), ("EXEC",)],
    "without multi": [("EXEC",), ("DISCARD",)],
    "exec with arguments": [("MULTI",), ("EXEC", "x"), ("EXEC",)],
    "discard": [("MULTI",), ("SET", "k", "1"), ("DISCARD",), ("GET", "k"), ("EXEC",)],
    "discard after error": [("MULTI",), ("NOSUCH",), ("DISCARD",), ("MULTI",), ("PING",), ("EXEC",)],
    "watch inside": [("MULTI",), ("WATCH", "k"), ("PING",), ("EXEC",)],
    "unwatch inside": [("MULTI",), ("UNWATCH",), ("EXEC",)],
    "own change": [("WATCH", "k"), ("SET", "k", "1"), ("MULTI",), ("EXEC",), ("MULTI",), ("PING",), ("EXEC",)],
    "unwatched": [("WATCH", "k"), ("SET", "k", "1"), ("UNWATCH",), ("MULTI",), ("PING",), ("EXEC",)],
    "watch twice": [("WATCH", "k", "k"), ("WATCH", "k"), ("MULTI",), ("GET", "k"), ("EXEC",)],
    "watch missing": [("WATCH", "k"), ("DEL", "k"), ("MULTI",), ("PING",), ("EXEC",)],
    "watch flush": [("SET", "k", "1"), ("WATCH", "k"), ("FLUSHALL",), ("MULTI",), ("PING",), ("EXEC",)],
    "watch missing flush": [("WATCH", "k"), ("FLUSHALL",), ("MULTI",), ("PING",), ("EXEC",)],
    "watch failed command": [("SET", "k", "x"), ("WATCH", "k"), ("INCR", "k"), ("MULTI",), ("PING",), ("EXEC",)],
    "watch expire": [("SET", "k", "x"), ("WATCH", "k"), ("EXPIRE", "k", "100"), ("MULTI",), ("PING",), ("EXEC",)],
    "discard unwatches": [("WATCH", "k"), ("SET", "k", "1"), ("MULTI",), ("DISCARD",), ("MULTI",), ("EXEC",)],
    "save inside": [("MULTI",), ("SAVE",), ("EXEC",)],
    "reset inside": [("MULTI",), ("SET", "k", "1"), ("RESET",), ("EXEC",), ("GET", "k")],
    "subscribe inside": [("MULTI",), ("SUBSCRIBE", "a"), ("EXEC",), ("GET", "k"), ("UNSUBSCRIBE",), ("PING",)],
    "resp3 change inside": [("MULTI",), ("HELLO", "9"), ("GET", "nokey"), ("EXEC",)],
    "resp3 dirty": [("WATCH", "k"), ("SET", "k", "1"), ("MULTI",), ("EXEC",)],
}


@pytest.mark.parametrize("proto", [2, 3])
@pytest.mark.parametrize("script", SCRIPTS)
def test_as_redis(server: RunningServer, redis_server: RedisServer, script: str, proto: int) -> None:
    answers = []
    for port in (server.port, redis_server.port):
        with Raw(port, proto) as c:
            answers.append(repr([c(*words) for words in SCRIPTS[script]]))  # errors inside an array compare by text
    assert answers[0] == answers[1]


def test_streams_in_a_transaction(c: Raw) -> None:
    first, second, length, entries, refused = c.pipeline(
        ("MULTI",), ("TAPPEND", "s", "a", "1"), ("TAPPEND", "s", "a", "2"), ("TLEN", "s"), ("TRANGE", "s", "-", "+"),
        ("TREAD", "s", "nonsense", 1), ("EXEC",),
    )[-1]  # fmt: skip
    assert length == 2
    assert [entry[0] for entry in entries] == [first, second]
    assert str(refused).startswith("ERR Invalid stream ID")


@pytest.mark.parametrize("block", [0, 5000])
def test_blocking_reads_do_not_wait_inside(c: Raw, block: int) -> None:
    """[10]; in RESP2 and RESP3 the null is the one of a timeout."""
    c("MULTI")
    c("TREAD", "s", "", 1, "BLOCK", block)
    c("TREAD", "s", "", 1, "BLOCK", block, "GROUP", "g", 0)
    c("PING")
    assert c("EXEC") == [None, None, b"PONG"]


def test_blocked_readers_are_served_after_the_whole_transaction(c: Raw, connect: Connect) -> None:
    readers = [connect() for _ in range(3)]
    for reader in readers:
        reader.send("TREAD", "s", "0", 10, "BLOCK", 0)
    while b"blocked_clients:3" not in c("INFO", "clients"):
        pass
    c.pipeline(("MULTI",), ("TAPPEND", "s", "n", 1), ("TAPPEND", "s", "n", 2), ("EXEC",))
    assert [[entry[2] for entry in reader.read()] for reader in readers] == [[b"1", b"2"]] * 3


@pytest.mark.parametrize(
    "change",
    [
        ("TAPPEND", "s", "a", "b"), ("TAPPEV", "s", "COUNT", 0), ("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", 1),
        ("TREAD", "s", "0", 1, "GROUP", "g", 0), ("DEL", "s"), ("FLUSHDB",), ("PEXPIRE", "s", 10),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_watching_a_stream(c: Raw, connect: Connect, change: tuple[Any, ...]) -> None:
    c("TAPPEND", "s", "a", "b")
    c("WATCH", "s")
    connect()(*change)
    assert c.pipeline(("MULTI",), ("TAPPEND", "s", "c", "d"), ("EXEC",))[-1] is None


def test_reading_a_watched_stream_is_no_change(c: Raw, connect: Connect) -> None:
    c("TAPPEND", "s", "a", "b")
    c("WATCH", "s", "t")
    other = connect()
    other("TREAD", "s", "0", 1)
    other("TRANGE", "s", "-", "+")
    other("TAPPEV", "s", "COUNT", 10)
    other("TACK", "s", "g", "1.1")
    assert c.pipeline(("MULTI",), ("PING",), ("EXEC",))[-1] == [b"PONG"]


def test_a_watched_key_that_expires(c: Raw, hand: RunningServer) -> None:
    c("SET", "k", "v", "PX", 100)
    c("WATCH", "k")
    hand.advance(200)
    assert c.pipeline(("MULTI",), ("PING",), ("EXEC",))[-1] is None


def test_a_large_range_in_a_transaction_is_streamed_whole(c: Raw) -> None:
    value = b"x" * 50_000
    c.pipeline(*[("TAPPEND", "s", "f", value)] * 200)
    replies = c.pipeline(
        ("MULTI",), ("PING",), ("TRANGE", "s", "-", "+"), ("TREVRANGE", "s", "+", "-"), ("PING", "last"), ("EXEC",),
        ("PING", "after"),
    )  # fmt: skip
    pong, forth, back, last = replies[-2]
    assert (pong, len(forth), last, replies[-1]) == (b"PONG", 200, b"last", b"after")
    assert back == forth[::-1]


@pytest.mark.parametrize("word", ["ON", "SKIP"])
def test_client_reply_inside_keeps_the_array_whole(c: Raw, word: str) -> None:
    c.pipeline(("MULTI",), ("CLIENT", "REPLY", word), ("PING",))
    assert c("EXEC") == [b"OK", b"PONG"]
    if word == "SKIP":
        c.send("PING", "skipped")
    assert c("PING", "heard") == b"heard"


def test_client_reply_off_inside(c: Raw) -> None:
    c.pipeline(("MULTI",), ("CLIENT", "REPLY", "OFF"), ("SET", "k", 1))
    c.send("EXEC")
    assert c("CLIENT", "REPLY", "ON") == b"OK"
    assert c("GET", "k") == b"1"


@pytest.mark.parametrize("mode", ["OFF", "SKIP"])
def test_queueing_without_replies(c: Raw, mode: str) -> None:
    c.sock.sendall(pack("CLIENT", "REPLY", mode) + pack("MULTI") + pack("SET", "k", 1) + pack("EXEC"))
    if mode == "SKIP":
        assert [c.read(), c.read()] == [b"QUEUED", [b"OK"]]
    else:
        assert c("CLIENT", "REPLY", "ON") == b"OK"
    assert c("GET", "k") == b"1"


def test_a_bug_in_one_command_spoils_only_its_own_reply(c: Raw, hand: RunningServer, monkeypatch: Any) -> None:
    """Whatever is thrown: the array is whole, and what follows in the same pipeline may block again."""

    def broken(ctx: object, argv: list[bytes]) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(TABLE[b"echo"], "handler", broken)
    traced: list[str] = []
    monkeypatch.setattr(type(hand.server.logger), "trace", lambda self, text, error: traced.append(text))
    batch = [("MULTI",), ("SET", "k", 1), ("ECHO", "x"), ("INCR", "k"), ("EXEC",)]
    c.sock.sendall(b"".join(pack(*words) for words in batch) + pack("TREAD", "s", "", 1, "BLOCK", 0))
    replies = [c.read() for _ in batch]
    assert replies[-1][0::2] == [b"OK", 2]
    assert str(replies[-1][1]).startswith("ERR internal error")
    assert len(traced) == 1
    with Raw(hand.port) as other:
        while b"blocked_clients:1" not in other("INFO", "clients"):
            pass
        other("TAPPEND", "s", "a", "b")
    assert len(c.read()) == 1


@pytest.mark.interpreted
def test_everything_of_a_transaction_is_one_batch(c: Raw, hand: RunningServer) -> None:
    batches: list[bytes] = []
    append = hand.server.data.disk.append

    def noting(batch: bytes, written: Callable[[int, bytes], None] | None) -> None:
        batches.append(batch)
        append(batch, written)

    hand.call(lambda: setattr(hand.server.data.disk, "append", noting))
    c.pipeline(("MULTI",), ("SET", "k", 1), ("TAPPEND", "s", "a", "b"), ("DEL", "k"), ("EXEC",))
    assert len(batches) == 1


def test_the_queue_of_a_transaction_is_bounded(c: Raw, connect: Connect) -> None:
    """Queued commands count against client-query-buffer-limit, as in Redis."""
    c("CONFIG", "SET", "client-query-buffer-limit", "1mb")
    other = connect()
    other("MULTI")
    with pytest.raises((EOFError, ConnectionError)):  # noqa: PT012 - the loop is the subject
        for _ in range(200):
            other("SET", "k", b"x" * 10_000)
    assert c("PING") == b"PONG"


@pytest.mark.parametrize("save", ["BGSAVE", "BGREWRITEAOF"])
@pytest.mark.interpreted
def test_a_transaction_is_one_batch_even_around_a_checkpoint(hand: RunningServer, c: Raw, save: str) -> None:
    disk = hand.server.data.disk
    batches: list[bytes] = []
    append = disk.append

    def noted(batch: bytes, written: Callable[[int, bytes], None] | None) -> None:
        batches.append(batch)
        append(batch, written)

    hand.call(lambda: setattr(disk, "append", noted))
    checkpoints = hand.server.checkpoints
    saves = checkpoints.saves if save == "BGSAVE" else checkpoints.rewrites
    answers = c.pipeline(("MULTI",), ("SET", "a", 1), (save,), ("SET", "b", 2), ("EXEC",))
    assert answers[-1][1].endswith(b"scheduled")
    assert len(batches) == 1
    hand.advance(100)
    eventually(lambda: saves.count == 1)


@pytest.mark.parametrize("words", [("DEBUG", "RELOAD"), ("DEBUG", "LOADAOF")])
def test_no_reload_inside_a_transaction(c: Raw, words: tuple[str, ...]) -> None:
    c("MULTI")
    assert c(*words) == "ERR Command not allowed inside a transaction"
    assert c("EXEC").startswith("EXECABORT")


@pytest.mark.parametrize("command", [("GET", "large"), ("TRANGE", "s", "-", "+")])
def test_a_reply_beyond_the_output_limit(command: tuple[str, ...]) -> None:
    """As in Redis: everything is done, and the client is closed. What it would be sent does not pile up meanwhile."""
    with running_server(save="", client_output_buffer_limit="normal 4mb 0 0") as server, Raw(server.port) as c:
        c("SET", "large", b"x" * 200_000)
        c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *[b"x" * 400_000, *[b"x" * 1000] * 50])
        before = peak(server)
        with Raw(server.port) as late:
            late.pipeline(("MULTI",), ("SET", "a", 1), *[command] * 2000, ("SET", "b", 2))
            with pytest.raises((EOFError, ConnectionError)):
                late("EXEC")
        assert c("MGET", "a", "b") == [b"1", b"2"]
        assert b"client_output_buffer_limit_disconnections:1\r\n" in c("INFO", "stats")
        assert peak(server) - before < 40 << 20


def test_a_reply_that_is_made_while_it_is_sent_may_be_long(c: Raw) -> None:
    c("CONFIG", "SET", "client-output-buffer-limit", "normal 3mb 0 0")
    c("SET", "large", b"x" * 200_000)
    c.pipeline(("MULTI",), *[("GET", "large")] * 9, ("MGET", *["large"] * 20))
    assert c("EXEC") == [*[b"x" * 200_000] * 9, [b"x" * 200_000] * 20]


def peak(server: Server) -> int:
    """The most bytes of memory that the process has ever had."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
