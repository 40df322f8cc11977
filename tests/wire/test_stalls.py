"""The time for which the server was not there for its clients is not their silence [73]: it was stopped or busy, its
clock was set, or it took no writes. Nothing ends by that, and no message falls due."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from respserver.clients.sockets import AVAILABLE, Sockets
from respserver.testing import HandClock, RunningServer, start_in_thread
from tests.waiting import eventually
from tests.wire.faults import Fault
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]
TTL, RETRY = 2000, 500


def read(c: Raw, count: int = 3, *more: Any) -> Any:
    return c("TREAD", "jobs", "0", count, "GROUP", "w", TTL, *more)


def stage(c: Raw, value: str) -> Any:
    return c("TSTAGE", "st", TTL, "out", "FIELDS", 1, "f", "VALUES", value)


def log_offset(c: Raw) -> int:
    return int(c("INFO", "persistence").split(b"log_offset:")[1].split(b"\r")[0])


@pytest.fixture
def c(connect: Connect) -> Raw:
    """There is a group with three pending messages, which fall due in RETRY, and a stage. Both end after TTL."""
    client = connect()
    for number in range(5):
        client("TAPPEND", "jobs", "n", number)
    assert len(read(client, 3, "RETRY", RETRY, 0, "MAXDELIVERIES", 1, "DEADLETTER", "dead")) == 3
    assert stage(client, "a") == 1
    return client


def untouched(c: Raw) -> bool:
    """Whether nothing has ended, and nothing was given up."""
    pending = c("TPENDING", "jobs", "w")
    return not isinstance(pending, str) and pending[0] == 3 and not c("EXISTS", "dead") and staged(c) == 1


def staged(c: Raw) -> int:
    return int(c("INFO", "streams").split(b"stages:")[1].split(b"\r")[0])


def stop(hand: RunningServer, _: Raw) -> None:
    hand.stall(4000)


def set_forward(hand: RunningServer, _: Raw) -> None:
    hand.call(lambda: hand.server.clock.set(3_600_000))  # type: ignore[attr-defined]


def set_back(hand: RunningServer, _: Raw) -> None:
    hand.call(lambda: hand.server.clock.set(-3_600_000))  # type: ignore[attr-defined]


def too_few_replicas(hand: RunningServer, c: Raw) -> None:
    c("CONFIG", "SET", "min-replicas-to-write", 1)
    hand.advance(10_000)
    assert read(c, 0).startswith("NOREPLICAS")
    c("CONFIG", "SET", "min-replicas-to-write", 0)


def pause(hand: RunningServer, c: Raw) -> None:
    c("CLIENT", "PAUSE", 10_000, "WRITE")
    hand.advance(9900)
    c("CLIENT", "UNPAUSE")


def full_disk(hand: RunningServer, c: Raw) -> None:
    disk = Fault(hand, lambda: hand.server.data.disk, "append")
    with Raw(hand.port) as writer:
        disk.breaks()
        writer.send("SET", "k", "v")
        eventually(lambda: hand.server.ticks.stalled)
        hand.advance(10_000)
        assert c("TACK", "jobs", "w", "1.1").startswith("MISCONF")
        disk.heals()
        hand.advance(100)
        assert writer.read() == b"OK"


AWAY = [stop, set_forward, set_back, too_few_replicas, pause, pytest.param(full_disk, marks=pytest.mark.interpreted)]


@pytest.mark.parametrize("away", AWAY)
def test_nothing_ends_because_the_server_was_away(hand: RunningServer, c: Raw, away: Callable[..., None]) -> None:
    hand.advance(300)
    away(hand, c)
    assert untouched(c)
    hand.advance(100)
    assert untouched(c)
    for _ in range(15):  # the time that they had left, and no more
        hand.advance(100)
        if c("EXISTS", "dead"):
            break
    assert c("TLEN", "dead") == 3
    hand.advance(2000)
    assert c("TPENDING", "jobs", "w").startswith("NOGROUP")
    assert staged(c) == 0


@pytest.mark.parametrize("away", AWAY)
def test_what_is_due_is_shown_when_it_will_be(hand: RunningServer, c: Raw, away: Callable[..., None]) -> None:
    c("TREAD", "jobs", "0", 3, "GROUP", "v", 0, "RETRY", RETRY, 0)
    hand.advance(300)
    now = hand.server.clock.now()
    before = c("TPENDING", "jobs", "v")[3] - now
    away(hand, c)
    hand.call(hand.server.served_time.update)
    after = c("TPENDING", "jobs", "v")[3] - hand.server.clock.now()
    assert before - 200 <= after <= before
    assert c("TPENDING", "jobs", "v", "-", "+", 1)[0][3] == c("TPENDING", "jobs", "v")[3]
    assert c("TPENDING", "jobs", "v", "-", "+", 1)[0][2] == now - 300, "this is history"


def test_what_has_arrived_is_done_before_anything_ends(hand: RunningServer, connect: Connect, c: Raw) -> None:
    """Each of two clients was in time, though the server could not see that."""
    other = connect()
    hand.advance(400)
    ids = [row[0] for row in c("TPENDING", "jobs", "w", "-", "+", 3)]
    reader = connect()
    reader.send("TREAD", "jobs", "0", 9, "BLOCK", 0, "GROUP", "w", TTL)
    assert len(reader.read()) == 2, "the new ones"
    reader.send("TREAD", "jobs", "0", 9, "BLOCK", 0, "GROUP", "w", TTL)
    hand.stall(4000)
    other.send("TACK", "jobs", "w", *ids)
    other.send("TSTAGE", "st", TTL, "out", "FIELDS", 1, "f", "VALUES", "b")
    hand.advance(200)
    assert other.read() == 3
    assert other.read() == 2
    hand.advance(1000)
    assert reader.nothing_yet()
    assert not c("EXISTS", "dead")


@pytest.mark.interpreted
@pytest.mark.skipif(not AVAILABLE, reason="nothing is compiled here: transports read all sockets")
@pytest.mark.parametrize(("needed", "taken"), [(5, 5), (1000, 20)])
def test_nothing_ends_before_all_sockets_were_read(
    hand: RunningServer, c: Raw, monkeypatch: pytest.MonkeyPatch, needed: int, taken: int
) -> None:
    """It takes as many turns as it needs, but at most two seconds: somebody may send without an end."""
    ended: list[bool] = []

    def turn(_: Sockets) -> bool:
        ended.append(b"dead" in hand.server.data.ks.keys)
        hand.server.clock.move(100)  # type: ignore[attr-defined]
        return len(ended) < needed

    hand.advance(400)
    hand.stall(4000)
    hand.call(lambda: hand.server.served_time.update())  # as a command may do that comes first
    monkeypatch.setattr(Sockets, "turn", turn)
    hand.call(hand.server.on_time)
    eventually(lambda: len(ended) >= taken)
    assert not any(ended[:taken])
    monkeypatch.undo()
    hand.advance(100)
    assert c("TLEN", "dead") == 3


def test_a_client_that_is_always_late_still_sees_ends(hand: RunningServer, c: Raw) -> None:
    """A server that is overloaded for good: its time goes on, though slower."""

    def slow_round() -> None:
        hand.server.clock.move(300)  # type: ignore[attr-defined]
        hand.server.on_time()

    hand.stall(0)
    for _ in range(5):
        hand.call(slow_round)
    eventually(lambda: c("TLEN", "dead") == 3)


def test_a_client_is_not_idle_because_the_server_was_away(hand: RunningServer, connect: Connect) -> None:
    c, silent = connect(), connect()
    c("CONFIG", "SET", "timeout", 1)
    hand.stall(0)
    stopping, sent = threading.Event(), threading.Event()

    def stopped() -> None:
        stopping.set()
        assert sent.wait(10)
        hand.server.clock.move(4000)  # type: ignore[attr-defined]
        hand.server.on_time()

    with ThreadPoolExecutor(1) as pool:
        stop = pool.submit(hand.call, stopped)
        assert stopping.wait(10)  # the server must not answer before
        c.send("PING")
        sent.set()
        stop.result(20)
    assert c.read() == b"PONG"
    eventually(lambda: c("INFO", "clients").split(b"connected_clients:")[1].split()[0] == b"1")
    with pytest.raises((EOFError, ConnectionError)):
        silent("PING")


def test_a_refused_call_is_a_sign_of_life(hand: RunningServer, c: Raw) -> None:
    for name, value, refusal in (("min-replicas-to-write", 1, "NOREPLICAS"), ("maxmemory", 1, "OOM")):
        hand.advance(1500)
        c("CONFIG", "SET", name, value)
        assert stage(c, "b").startswith(refusal)
        assert refusal == "OOM" or read(c, 0).startswith(refusal)
        c("CONFIG", "SET", name, 0)
        if refusal == "OOM":
            assert read(c, 0) == []
    hand.advance(1500)
    assert c("TPENDING", "jobs", "w")[0] == 0
    assert stage(c, "b") == 2


@pytest.mark.parametrize("call", [
    ("TACK", "jobs", "w", "1.1"), ("TNACK", "jobs", "w", "1.1"), ("TTOUCH", "jobs", "w", 1, "1.1"),
    ("TGROUP", "SETID", "jobs", "w", "0"), ("TWAIT", 1, "GROUP", "w", "jobs"),
    ("TREAD", "jobs", "0", 1, "RETRY", 5, 0, "GROUP", "w", TTL),
    ("XACK", "jobs", "w", "1-1"), ("XREADGROUP", "COUNT", 1, "GROUP", "w", "me", "STREAMS", "jobs", ">"),
    ("XAUTOCLAIM", "jobs", "w", "me", 0, "0"), ("XCLAIM", "jobs", "w", "me", 0, "1-1"),
    ("XGROUP", "CREATECONSUMER", "jobs", "w", "me"), ("XACKDEL", "jobs", "w", "IDS", 1, "1-1"),
], ids=lambda call: str(call[0]))  # fmt: skip
@pytest.mark.parametrize("queued", [False, True])
def test_so_is_every_call_that_names_a_group(
    hand: RunningServer, connect: Connect, call: tuple[Any, ...], queued: bool
) -> None:
    c = connect()
    c("TAPPEND", "jobs", "n", 1)
    read(c, 0)
    if queued:
        c("MULTI")
        c(*call)
    hand.advance(1500)
    with Raw(hand.port) as other:
        other("CONFIG", "SET", "min-replicas-to-write", 1)
        if queued:
            assert c("EXEC").startswith("EXECABORT")
        else:
            assert c(*call).startswith("NOREPLICAS")
        other("CONFIG", "SET", "min-replicas-to-write", 0)
    hand.advance(1500)
    assert c("TPENDING", "jobs", "w") == [0, None, None, None]
    hand.advance(1500)
    assert c("TPENDING", "jobs", "w").startswith("NOGROUP")


def test_a_refused_call_that_makes_no_sense_is_refused_all_the_same(hand: RunningServer, c: Raw) -> None:
    c("SET", "string", 1)
    c("CONFIG", "SET", "min-replicas-to-write", 1)
    for call in (
        ("TREAD", "jobs", "0", 1, "GROUP"), ("TWAIT", 1, "GROUP", "w", "string"),
        ("XREADGROUP", "GROUP", "w", "me", "COUNT", 1, "STREAMS"), ("XREADGROUP", "a", "b", "c", "d", "e", "f"),
        ("TACK", "string", "w", "1"), ("TSTAGE", "other", 1, "t", "FIELDS", 1, "a", "b", "c"),
    ):  # fmt: skip
        assert c(*call).startswith("NOREPLICAS"), call


def stop_between_updates(hand: RunningServer, _: Raw) -> None:
    hand.call(lambda: hand.server.clock.move(4000))  # type: ignore[attr-defined]


@pytest.mark.parametrize("away", [stop_between_updates, pause])
def test_served_time_never_goes_back(hand: RunningServer, connect: Connect, away: Callable[..., None]) -> None:
    """Entries with the same delay are delivered in the order of their calls, even if the server stalls in between."""
    client = connect()
    client("TDELAY", "later", "IN", 3_600_000, "n", 0)  # the first delayed entry
    hand.stall(0)
    hand.call(lambda: hand.server.clock.move(80))  # type: ignore[attr-defined]  # as between two updates
    client("TDELAY", "later", "IN", 3_600_000, "n", 1)
    away(hand, client)
    client("TDELAY", "later", "IN", 3_600_000, "n", 2)
    listed = client("TDELAY", "later", "LIST")[1]
    assert [entry[-1] if isinstance(entry[-1], bytes) else entry[-1][-1] for entry in listed] == [b"0", b"1", b"2"]


def test_redis_time_goes_on(hand: RunningServer, connect: Connect) -> None:
    """Keys expire, and consumers' messages are idle, by the wall clock."""
    c = connect()
    c("SET", "lease", "me", "PX", 2000)
    c("XADD", "x", "*", "f", "v")
    c("XGROUP", "CREATE", "x", "g", "0")
    c("XREADGROUP", "GROUP", "g", "me", "STREAMS", "x", ">")
    read(c, 0)
    hand.stall(4000)
    assert c("GET", "lease") is None
    assert c("XPENDING", "x", "g", "-", "+", 1)[0][2] == 4000
    assert len(c("XAUTOCLAIM", "x", "g", "you", 4000, "0")[1]) == 1


def test_claims_wait_by_the_wall_clock(hand: RunningServer, connect: Connect) -> None:
    c, waiter = connect(), connect()
    c("XADD", "x", "*", "f", "v")
    c("XGROUP", "CREATE", "x", "g", "0")
    c("XREADGROUP", "GROUP", "g", "me", "STREAMS", "x", ">")
    waiter.send("XREADGROUP", "GROUP", "g", "you", "BLOCK", 0, "CLAIM", 3000, "STREAMS", "x", ">")
    c("PING")
    hand.stall(4000)
    hand.advance(100)
    assert waiter.read()[0][0] == b"x"


def test_without_groups_and_stages_nothing_is_logged(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    c("TAPPEND", "s", "f", "v")
    before = log_offset(c)
    hand.stall(4000)
    hand.advance(100)
    set_forward(hand, c)
    hand.advance(100)
    assert log_offset(c) == before


def test_a_shift_is_logged_once(hand: RunningServer, c: Raw) -> None:
    hand.stall(4000)
    hand.advance(100)
    before = log_offset(c)
    hand.advance(300)
    assert log_offset(c) == before


@pytest.mark.parametrize("command", ["RELOAD", "LOADAOF"])
def test_it_is_still_so_when_the_data_is_read_back(hand: RunningServer, c: Raw, command: str) -> None:
    c("TREAD", "jobs", "0", 3, "GROUP", "v", 0, "RETRY", RETRY, 0)
    hand.advance(300)
    hand.stall(4000)
    hand.advance(100)
    due, digest = c("TPENDING", "jobs", "v")[3], c("DEBUG", "DIGEST")
    assert c("DEBUG", command) == b"OK"
    assert (c("TPENDING", "jobs", "v")[3], c("DEBUG", "DIGEST")) == (due, digest)
    assert untouched(c)


def test_and_while_writes_are_refused(hand: RunningServer, c: Raw) -> None:
    """Nothing of that is in the log yet."""
    c("CONFIG", "SET", "min-replicas-to-write", 1)
    hand.advance(4000)
    assert c("DEBUG", "LOADAOF") == b"OK"
    c("CONFIG", "SET", "min-replicas-to-write", 0)
    hand.advance(100)
    assert untouched(c)


@pytest.mark.interpreted
def test_a_message_that_is_delivered_meanwhile_is_not_late(
    hand: RunningServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of a server group without a valid lease executes calls, although it sends no replies."""
    c = connect()
    c("TAPPEND", "jobs", "n", 1)
    assert read(c, 0) == []
    hand.advance(100)
    monkeypatch.setattr(hand.server.served_time, "refuses", lambda: True)
    hand.advance(10_000)
    assert len(read(c, 1, "RETRY", RETRY, 2 * RETRY)) == 1
    hand.advance(10_000)
    monkeypatch.undo()
    hand.advance(100)
    _, _, _, due, expires = c("TPENDING", "jobs", "w", "-", "+", 1)[0]
    now = hand.server.clock.now()
    assert RETRY - 200 <= due - now <= RETRY
    assert 2 * RETRY - 200 <= expires - now <= 2 * RETRY


@pytest.mark.interpreted
def test_nothing_that_is_delayed_meanwhile_is_early_on_the_next_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader of a server group without a valid lease executes calls; the next leader has their effects."""
    clock = HandClock()
    with start_in_thread(tmp_path, clock) as hand, Raw(hand.port) as c:
        for number in range(2):
            c("TAPPEND", "jobs", "n", number)
        first, second = (entry[0] for entry in read(c, 2, "RETRY", RETRY, 0))
        hand.advance(100)
        monkeypatch.setattr(hand.server.served_time, "refuses", lambda: True)
        hand.advance(10_000)
        c("TDELAY", "later", "IN", 2000, "n", 1)
        assert c("TNACK", "jobs", "w", "DELAY", 2000, first) == 1
        assert c("TTOUCH", "jobs", "w", 2000, second) == 1
        wanted = clock.now() + 2000
    monkeypatch.undo()
    with start_in_thread(tmp_path, clock) as hand, Raw(hand.port) as c:
        assert [row[3] for row in c("TPENDING", "jobs", "w", "-", "+", 9)] == [wanted] * 2
        assert [row[1] for row in c("TDELAY", "later", "LIST")[1]] == [wanted]


def test_a_restart_goes_on_from_there(tmp_path: Path) -> None:
    clock = HandClock()
    with start_in_thread(tmp_path, clock) as hand, Raw(hand.port) as c:
        c("TAPPEND", "jobs", "n", 1)
        assert len(read(c, 1, "RETRY", RETRY, 0)) == 1
        hand.stall(4000)
        hand.advance(100)
        due = c("TPENDING", "jobs", "w")[3]
        assert due > clock.now()
    with start_in_thread(tmp_path, clock) as hand, Raw(hand.port) as c:
        assert c("TPENDING", "jobs", "w")[3] == due
        assert read(c) == []
    clock.move(RETRY)
    with start_in_thread(tmp_path, clock) as hand, Raw(hand.port) as c:
        assert len(read(c)) == 1, "[24]: it fell due while the server was down"
