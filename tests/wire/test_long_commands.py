"""Long commands are done in slices: others are served meanwhile, and nothing is lost, whatever happens in between."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from respserver.execution import slices
from respserver.runtime.tickclient import TickClient
from respserver.testing import RunningServer
from storage.keyspace.memory import stream_bytes
from tests.wire.rawclient import Raw, pack
from tests.wire.turns import MANY, Steps, fill

Connect = Callable[..., Raw]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn does one slice only."""
    monkeypatch.setattr(slices, "TURN_NS", 1)


def strings(c: Raw) -> list[str]:
    names = [f"k{n}" for n in range(MANY)]
    assert c("MSET", *[word for name in names for word in (name, "v")]) == b"OK"
    return names


@pytest.mark.interpreted
@pytest.mark.parametrize("command", ["TACK", "TNACK", "TTOUCH", "UNLINK", "TDROP", "TPERSIST"])
def test_others_see_the_slices_so_far(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    ids, names = fill(c), strings(c)
    c.pipeline(*[("TSTAGE", f"k{n}", 100_000, "t", "FIELDS", 1, "f", "VALUES", n) for n in range(MANY)])
    words: dict[str, tuple[Any, ...]] = {
        "TACK": ("TACK", "s", "g", *ids), "TNACK": ("TNACK", "s", "g", *ids), "TTOUCH": ("TTOUCH", "s", "g", 7, *ids),
        "UNLINK": ("UNLINK", *names), "TDROP": ("TDROP", *names),
        "TPERSIST": ("TPERSIST", *names),
    }  # fmt: skip
    seen = set[int]()

    def look(_: int) -> None:
        ks = hand.server.data.ks
        group = ks.keys[b"s"].groups[b"g"]  # type: ignore[union-attr]
        kept = sum(not stage.ttl for stage in ks.stages.by_name.values())
        counted = {"UNLINK": len(ks.keys), "TDROP": len(ks.stages.by_name), "TPERSIST": kept}
        seen.add((counted | {"TACK": len(group.pending)}).get(
            command, len(group.pending.due(hand.server.clock.now() + 7, MANY))))  # fmt: skip

    steps = Steps(hand, monkeypatch, look)
    c.sock.sendall(pack(*words[command]) + pack("PING"))
    assert [c.read(), c.read()] == [MANY, b"PONG"]
    assert steps.turns >= 5
    assert len(seen) >= 4
    assert c(*words[command]) in (0, MANY)


@pytest.mark.interpreted
def test_messages_change_hands_in_slices(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(c)
    c("XGROUP", "SETID", "s", "g", 0)
    owned = set[int]()

    def look(_: int) -> None:
        stream: Any = hand.server.data.ks.keys[b"s"]
        group = stream.groups[b"g"]
        group.offset = stream.last_id  # as if another consumer had read
        consumer = group.consumers.get(b"c")
        owned.add(group.pending.owned(consumer.number) if consumer is not None else 0)

    steps = Steps(hand, monkeypatch, look)
    assert len(c("XCLAIM", "s", "g", "c", 0, *ids, "JUSTID")) == MANY
    assert steps.turns >= 5
    assert len(owned) >= 4
    group = c("XINFO", "GROUPS", "s")[0]
    assert group[group.index(b"last-delivered-id") + 1] == ids[-1].replace(b".", b"-")
    turns = steps.turns
    assert len(c("XCLAIM", "s", "g", "c", 0, *ids)) == MANY
    assert c("XNACK", "s", "g", "FAIL", "IDS", MANY, *ids) == MANY
    assert steps.turns >= turns + 10
    assert c("XPENDING", "s", "g", "-", "+", 10, "c") == []


@pytest.mark.interpreted
@pytest.mark.parametrize("how", ["closed", "shut down"])
def test_it_is_finished_without_its_client(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    ids, late = fill(c), connect()

    def leave(turn: int) -> None:
        if turn == 3 and how == "closed":
            for session in hand.server.clients.all():
                if session.last_command == "tack" and session.transport is not None:
                    session.transport.kill()

    Steps(hand, monkeypatch, leave)
    late.send("TACK", "s", "g", *ids)
    if how == "closed":
        with pytest.raises((EOFError, ConnectionError)):
            late.read()
    else:
        late.sock.shutdown(socket.SHUT_WR)
        assert late.read() == MANY
    while c("TPENDING", "s", "g")[0]:
        pass
    hand.call(lambda: None)
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("TPENDING", "s", "g")[0] == 0


@pytest.mark.interpreted
def test_commands_behind_it_are_answered_though_the_client_has_shut_down_its_side(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are still in the socket, because reading has stopped."""
    ids, late, many = fill(c), connect(), 5000

    def pause(turn: int) -> None:
        if turn == 1:
            hand.server.pauses.pause(10_000, writes_only=True)

    Steps(hand, monkeypatch, pause)
    session = hand.server.clients.get(late("CLIENT", "ID"))
    assert session is not None
    late.sock.sendall(pack("TACK", "s", "g", *ids) + pack("INCR", "n") * many)
    while session.transport is None or session.transport.stats().reading:
        hand.call(lambda: None)
    late.sock.sendall(pack("INCR", "n"))
    late.sock.shutdown(socket.SHUT_WR)
    for _ in range(3):
        hand.call(hand.server.on_time)
    assert c("CLIENT", "UNPAUSE") == b"OK"
    assert late.read() == MANY
    assert [late.read() for _ in range(many + 1)] == list(range(1, many + 2))


def test_it_is_in_the_slow_log_with_all_its_time(c: Raw) -> None:
    ids = fill(c)
    c("CONFIG", "SET", "slowlog-log-slower-than", 0)
    c("CONFIG", "RESETSTAT")
    c("TACK", "s", "g", *ids)
    entries = [entry for entry in c("SLOWLOG", "GET", 10) if entry[3][0] == b"TACK"]
    assert {entry[3][-1] for entry in entries} == {b"... (%d more arguments)" % (MANY + 3 - 31)}
    assert all(len(entry[3]) == 32 for entry in entries)
    assert c("INFO", "commandstats").count(b"cmdstat_tack:calls=1,") == 1


def test_a_malformed_id_changes_nothing(c: Raw) -> None:  # [22]
    ids = fill(c)
    for command in (("TACK", "s", "g"), ("TNACK", "s", "g"), ("TTOUCH", "s", "g", 7)):
        assert c(*command, *ids, "x").startswith("ERR Invalid stream ID")
    assert c("TPENDING", "s", "g")[0] == MANY
    assert c("TREAD", "s", 0, 10, "GROUP", "g", 0) == []


def test_an_id_given_twice_counts_once(c: Raw) -> None:  # [22], [29]
    ids = fill(c)
    assert c("TNACK", "s", "g", "DELAY", 5, *ids, *reversed(ids)) == MANY
    assert c("TTOUCH", "s", "g", 5, *ids, *ids) == MANY
    assert c("TACK", "s", "g", *ids, *ids) == MANY
    assert c("TACK", "s", "none", *ids) == c("TNACK", "none", "g", *ids) == 0


@pytest.mark.interpreted
def test_inside_exec_it_is_one_step(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, names = fill(c), strings(c)
    steps = Steps(hand, monkeypatch, lambda _: None)
    c.pipeline(("MULTI",), ("TACK", "s", "g", *ids), ("UNLINK", *names), ("KEYS", "*"), ("SCAN", 0, "COUNT", 2000))
    acknowledged, unlinked, keys, (cursor, page) = c("EXEC")
    assert (acknowledged, unlinked, keys, cursor, page) == (MANY, MANY, [b"s"], b"0", [b"s"])
    assert steps.turns == 0


@pytest.mark.interpreted
def test_writes_that_are_held_back_hold_it_back(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, other = fill(c), connect()

    def pause(turn: int) -> None:
        if turn == 7:
            hand.server.pauses.pause(10_000, writes_only=True)

    Steps(hand, monkeypatch, pause)
    c.send("TACK", "s", "g", *ids)
    while not (0 < other("TPENDING", "s", "g")[0] < MANY):
        pass
    left = other("TPENDING", "s", "g")[0]
    assert other("CLIENT", "UNBLOCK", 1) == 0
    assert other("TPENDING", "s", "g")[0] == left
    assert other("CLIENT", "UNPAUSE") == b"OK"
    assert c.read() == MANY


@pytest.mark.interpreted
def test_a_leader_that_becomes_a_replica_ends_it(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = fill(c)

    def demote(turn: int) -> None:
        if turn == 7:
            hand.server.roles.follow("127.0.0.1", 1)

    Steps(hand, monkeypatch, demote)
    assert c("TACK", "s", "g", *ids).startswith("UNBLOCKED force unblock")
    assert 0 < c("TPENDING", "s", "g")[0] < MANY
    assert c("REPLICAOF", "NO", "ONE") == b"OK"
    assert c("TACK", "s", "g", *ids) < MANY


def test_a_long_list_of_pending_messages(c: Raw) -> None:
    """It is as it was when the command ran, also if much changes while it is sent."""
    ids = fill(c)
    rows = c("TPENDING", "s", "g", "-", "+", MANY * 2)
    assert [row[0] for row in rows] == ids
    assert c("TPENDING", "s", "g", ids[7], ids[-8], MANY) == rows[7:-7]
    assert c("TPENDING", "s", "g", ids[7], "+", 2000) == rows[7:2007]
    assert c("TPENDING", "s", "g", "-", ids[999], MANY) == rows[:1000]
    got = c.pipeline(("TPENDING", "s", "g", "-", "+", MANY), ("TACK", "s", "g", *ids))
    assert got == [rows, MANY]
    assert c("TPENDING", "s", "g", "-", "+", MANY) == []


@pytest.mark.interpreted
def test_flushall_frees_memory_in_slices(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, other = strings(c), connect()
    other("WATCH", names[0])
    empty = set[int]()
    steps = Steps(hand, monkeypatch, lambda _: empty.add(len(hand.server.data.ks.keys)))
    assert c.pipeline(("FLUSHALL",), ("SET", "new", "v"), ("KEYS", "*")) == [b"OK", b"OK", [b"new"]]
    assert steps.turns >= MANY // 1000
    assert 0 in empty
    assert other.pipeline(("MULTI",), ("PING",), ("EXEC",))[2] is None
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("KEYS", "*") == [b"new"]


def test_replies_of_many_keys(c: Raw) -> None:
    names = strings(c)
    c("SET", "large", b"x" * 1_000_000)
    assert c("MGET", *names, "none") == [b"v"] * MANY + [None]
    assert c("MGET", *["large"] * 50) == [b"x" * 1_000_000] * 50
    assert sorted(c("KEYS", "*")) == sorted([*[name.encode() for name in names], b"large"])
    assert sorted(c("KEYS", "k1?")) == [b"k1%d" % n for n in range(10)]
    cursor, page = c("SCAN", 0, "COUNT", 4000, "MATCH", "k*", "TYPE", "string")
    assert (int(cursor) > 0, len(page)) == (True, 3999)
    cursor, rest = c("SCAN", cursor, "COUNT", 4000)
    assert (cursor, len({*page, *rest})) == (b"0", MANY)
    assert c("EXISTS", *names, *names) == 2 * MANY
    assert c("TOUCH", *names, "none") == MANY
    assert c("DEL", *names, *names) == MANY
    assert c("KEYS", "*") == [b"large"]


def test_keys_whose_time_is_over(c: Raw, hand: RunningServer) -> None:
    names = strings(c)
    for name in names[:10]:
        c("PEXPIRE", name, 5)
    hand.advance(5)
    hand.call(lambda: None)
    assert c("MGET", *names).count(None) == 10
    for name in names[10:20]:
        c("PEXPIRE", name, 5)
    assert c("MSET", *[word for name in names[10:15] for word in (name, "w")]) == b"OK"
    assert c("TTL", names[10]) == -1
    hand.server.clock.move(5)  # type: ignore[attr-defined]
    assert c("EXISTS", *names[10:20], *names[10:20]) == 10
    assert c("DEL", *names) == MANY - 15


@pytest.mark.interpreted
def test_info_sums_up_many_streams_in_slices(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    c.pipeline(*[("TAPPEND", f"s{n}", "f", "v") for n in range(MANY)])
    steps = Steps(hand, monkeypatch, lambda _: None)
    assert b"streams:5000\r\nstream_entries:5000\r\n" in c("INFO", "streams")
    assert steps.turns >= 2
    before = steps.turns
    assert b"# Server" in c("INFO", "server")
    assert steps.turns == before


@pytest.mark.interpreted
@pytest.mark.parametrize("command", [("MEMORY", "STATS"), ("MEMORY", "DOCTOR"), ("INFO", "memory")])
def test_the_memory_of_many_groups_is_summed_up_in_slices(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def groups() -> None:
        c.pipeline(*[("TREAD", f"s{n}", "", 0, "GROUP", "g", 0) for n in range(MANY)])

    groups()
    counted = hand.call(lambda: stream_bytes(hand.server.data.ks))
    c("FLUSHALL")
    groups()
    steps = Steps(hand, monkeypatch, lambda _: None)
    c(*command)
    assert steps.turns >= 2
    assert not hand.call(lambda: len(hand.server.data.ks.uncounted))
    assert hand.call(lambda: stream_bytes(hand.server.data.ks)) == counted


@pytest.mark.interpreted
@pytest.mark.parametrize("ended", [False, True])
def test_many_readers_are_answered_in_several_turns(c: Raw, connect: Connect, hand: RunningServer, ended: bool) -> None:
    """A thousand replies of one tick; also if the server ends right after it."""
    readers = [connect() for _ in range(1100)]
    for reader in readers:
        reader.send("TREAD", "s", "", 10, "BLOCK", 0)
    while b"blocked_clients:1100\r\n" not in c("INFO", "clients"):
        pass
    sizes: list[int] = []
    ticks = hand.server.ticks
    send_all = ticks._send_all

    def counted(clients: list[TickClient]) -> None:
        sizes.append(len(clients))
        send_all(clients)

    hand.call(lambda: setattr(ticks, "_send_all", counted))
    c("TAPPEND", "s", "f", "v")
    if ended:
        c.send("SHUTDOWN", "NOSAVE", "NOW")
    assert {reader.read()[0][2] for reader in readers} == {b"v"}
    if not ended:
        assert c("PING") == b"PONG"
    assert len([size for size in sizes if size > 100]) >= 3
    assert max(sizes) <= 500 or ended
