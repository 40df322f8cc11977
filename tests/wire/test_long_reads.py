"""A group's long reads are done in slices: each message is delivered once, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from respserver.execution import slices
from respserver.testing import RunningServer
from storage.streams.stream import Stream
from tests.wire.rawclient import Raw
from tests.wire.turns import MANY, Steps, fill

Connect = Callable[..., Raw]
NEW = 22_000  # slices have 5000 new entries
RETRY = ("RETRY", 1000, 0)


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn does one slice only."""
    monkeypatch.setattr(slices, "TURN_NS", 1)


def append(c: Raw, count: int = NEW) -> list[bytes]:
    """Add entries to the stream, in one millisecond; their IDs."""
    first, _ = c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(count))
    ms, seq = first.split(b".")
    return [b"%b.%d" % (ms, int(seq) + number) for number in range(count)]


@pytest.mark.interpreted
@pytest.mark.parametrize("retry", [("RETRY", 1, 0), ()])
def test_a_read_of_many_due_messages(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, retry: tuple[str | int, ...]
) -> None:
    """Each comes once, in the order in which they fell due, and new entries after all of them."""
    ids = fill(c)
    c("TNACK", "s", "g", ids[-1])
    c("TAPPEND", "s", "f", "new")
    c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(3))
    hand.advance(1000)
    steps = Steps(hand, monkeypatch, lambda _: hand.server.clock.move(2))  # type: ignore[attr-defined]
    reply = c("TREAD", "s", 0, MANY + 2, "GROUP", "g", 0, *retry, "WITHINFO")
    assert steps.turns >= MANY // 1000
    assert [entry[0] for entry in reply[1 : MANY + 1]] == [ids[-1], *ids[:-1]]
    assert [entry[2] for entry in reply[MANY + 1 :]] == [b"new", b"0"]
    assert {row[1] for row in c("TPENDING", "s", "g", ids[0], ids[-1], MANY)} == {2}


@pytest.mark.interpreted
def test_a_group_that_ends_while_its_messages_are_redelivered(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(c)
    hand.advance(1000)
    other = connect()
    Steps(hand, monkeypatch, lambda turn: other.send("TGROUP", "DESTROY", "s", "g") if turn == 1 else None)
    assert c("TREAD", "s", 0, MANY, "GROUP", "g", 0).startswith("NOGROUP")
    assert other.read() == 1


def test_a_reader_that_waited_gets_some_of_many_due_messages(c: Raw, connect: Connect, hand: RunningServer) -> None:
    ids, waiting = fill(c), connect()
    waiting.send("TREAD", "s", 0, MANY, "GROUP", "g", 0, "BLOCK", 0)
    assert waiting.nothing_yet()
    c("TNACK", "s", "g", *ids)
    assert [entry[0] for entry in waiting.read()] == ids[:1000]
    c("TAPPEND", "s", "f", "new")
    assert [entry[0] for entry in waiting("TREAD", "s", 0, MANY, "GROUP", "g", 0)][:-1] == ids[1000:]


@pytest.mark.interpreted
@pytest.mark.parametrize("retry", [RETRY, ()])
def test_a_read_of_many_new_entries(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, retry: tuple[str | int, ...]
) -> None:
    """Others see what is pending so far. Without RETRY nothing is, so one step is enough."""
    ids = append(c)
    seen = list[int]()

    def look(_: int) -> None:
        seen.append(len(hand.server.data.ks.keys[b"s"].groups[b"g"].pending))  # type: ignore[union-attr]

    Steps(hand, monkeypatch, look)
    reply = c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *retry, "WITHINFO")
    assert reply[0] == [ids[0], ids[-1]]
    assert [entry[0] for entry in reply[1:]] == ids
    assert seen == ([5000, 10_000, 15_000, 20_000, NEW] if retry else [])
    assert c("TREAD", "s", 0, NEW, "GROUP", "g", 0) == []
    assert c("TPENDING", "s", "g")[0] == (NEW if retry else 0)
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("TPENDING", "s", "g")[0] == (NEW if retry else 0)
    assert c("TREAD", "s", 0, NEW, "GROUP", "g", 0) == []


@pytest.mark.interpreted
def test_due_messages_and_then_new_entries_up_to_the_count(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fill(c)
    hand.advance(1000)
    new = append(c)
    steps = Steps(hand, monkeypatch, lambda _: None)
    reply = c("TREAD", "s", 0, MANY + 12_000, "GROUP", "g", 0, *RETRY)
    assert [entry[0] for entry in reply] == [*old, *new[:12_000]]
    assert steps.turns >= MANY // 1000 + 3
    assert [entry[0] for entry in c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)] == new[12_000:]


@pytest.mark.interpreted
def test_entries_that_are_added_or_evicted_meanwhile(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply has what was delivered; what was added meanwhile is left for the next read."""
    ids, other = append(c), connect()

    def change(turn: int) -> None:
        if turn == 2:
            other.send("TAPPEV", "s", "MINID", ids[9000], "f", "v")

    Steps(hand, monkeypatch, change)
    assert [entry[0] for entry in c("TREAD", "s", 0, NEW * 2, "GROUP", "g", 0, *RETRY)] == ids
    added = other.read()
    assert c("TPENDING", "s", "g")[0] == NEW
    assert [entry[0] for entry in c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)] == [added]


@pytest.mark.interpreted
def test_eviction_that_overtakes_it_ends_it(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, other = append(c), connect()

    def change(turn: int) -> None:
        if turn == 2:
            other.send("TAPPEV", "s", "MINID", ids[17_000], "f", "v")

    steps = Steps(hand, monkeypatch, change)
    first = c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)
    other.read()
    assert 10_000 <= len(first) < NEW
    assert [entry[0] for entry in first] == ids[: len(first)]
    before = steps.turns
    null, *rest = c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)
    assert (null, [entry[0] for entry in rest[:-1]]) == (None, ids[17_000:])
    assert steps.turns == before + 2
    assert c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY) == []


@pytest.mark.interpreted
@pytest.mark.parametrize("count", [10, NEW])
def test_readers_at_the_same_time_share_the_entries(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    ids, other = append(c), connect()

    def read(turn: int) -> None:
        if turn == 2:
            other.send("TREAD", "s", 0, count, "GROUP", "g", 0, *RETRY)

    Steps(hand, monkeypatch, read)
    mine = [entry[0] for entry in c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)]
    others = [entry[0] for entry in other.read()]
    assert 10_000 <= len(mine) < NEW
    rest = [entry[0] for entry in c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)]
    assert sorted([*mine, *others, *rest]) == sorted(ids)
    assert c("TPENDING", "s", "g")[0] == NEW


@pytest.mark.interpreted
@pytest.mark.parametrize("how", [("TGROUP", "DESTROY", "s", "g"), ("DEL", "s"), ("FLUSHALL",)])
def test_a_group_that_ends_while_new_entries_are_delivered(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    append(c)
    assert c("SAVE") == b"OK"
    other = connect()
    Steps(hand, monkeypatch, lambda turn: other.send(*how) if turn == 2 else None)
    assert c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY).startswith("NOGROUP")
    assert other.read() in (1, b"OK")
    assert pins(hand) == 0
    assert len(c("TREAD", "s", 0, 10, "GROUP", "g", 0)) == (10 if how[0] == "TGROUP" else 0)


@pytest.mark.interpreted
def test_a_leader_that_becomes_a_replica_ends_it(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = append(c)

    def demote(turn: int) -> None:
        if turn == 2:
            hand.server.roles.follow("127.0.0.1", 1)

    Steps(hand, monkeypatch, demote)
    assert c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY).startswith("UNBLOCKED force unblock")
    assert pins(hand) == 0
    assert c("REPLICAOF", "NO", "ONE") == b"OK"
    assert c("TPENDING", "s", "g")[0] == 10_000
    assert [entry[0] for entry in c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)] == ids[10_000:]


@pytest.mark.interpreted
def test_its_client_leaves(c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was meant for it falls due like anything that a reader did not acknowledge."""
    ids, late = append(c), connect()

    def leave(turn: int) -> None:
        if turn == 2:
            for session in hand.server.clients.all():
                if session.last_command == "tread" and session.transport is not None:
                    session.transport.kill()

    Steps(hand, monkeypatch, leave)
    late.send("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)
    with pytest.raises((EOFError, ConnectionError)):
        late.read()
    while c("TPENDING", "s", "g")[0] < NEW:
        pass
    assert pins(hand) == 0
    hand.advance(1000)
    assert [entry[0] for entry in c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)] == ids


@pytest.mark.interpreted
def test_the_data_is_read_anew_meanwhile(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(c)
    other = connect()
    Steps(hand, monkeypatch, lambda turn: other.send("DEBUG", "RELOAD") if turn == 2 else None)
    assert c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY).startswith("NOGROUP")
    assert other.read() == b"OK"
    assert 10_000 <= c("TPENDING", "s", "g")[0] < NEW


def test_inside_exec_it_is_one_step(c: Raw) -> None:
    ids = append(c)
    c.pipeline(("MULTI",), ("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY), ("TPENDING", "s", "g"))
    entries, pending = c("EXEC")
    assert [entry[0] for entry in entries] == ids
    assert pending[0] == NEW


def test_a_reader_that_waited_gets_some_of_many_new_entries(c: Raw, connect: Connect) -> None:
    waiting, other = connect(), connect()
    for reader in (waiting, other):
        reader.send("TREAD", "s", 0, NEW, "GROUP", "g", 0, *(RETRY if reader is waiting else ()), "BLOCK", 0)
        assert reader.nothing_yet()
    ids = append(c)
    assert [entry[0] for entry in waiting.read()] == ids[:5000]
    assert [entry[0] for entry in other.read()] == ids[5000:]


def test_a_group_that_eviction_has_overtaken(c: Raw, hand: RunningServer) -> None:
    """One null, and no second one; also where due messages come first and no entry is new."""
    fill(c)
    append(c, 3)
    c("TAPPEV", "s", "COUNT", 0)
    hand.advance(1000)
    reply = c("TREAD", "s", 0, MANY * 2, "GROUP", "g", 0, *RETRY)
    assert reply == [None] * (MANY + 1)
    assert c("TREAD", "s", 0, MANY * 2, "GROUP", "g", 0, *RETRY) == []


def pins(hand: RunningServer) -> int:
    """Long replies that hold a view of the store."""
    return hand.call(lambda: hand.server.data.disk.store.view.pins)


@pytest.mark.interpreted
@pytest.mark.parametrize("after", [0, 1])
def test_entries_at_the_end_that_were_deleted_before(c: Raw, after: int) -> None:
    """Those from 10,000 on; one may follow."""
    ids = append(c, 10_100 + after)
    c("XDEL", "s", *[entry_id.replace(b".", b"-") for entry_id in ids[10_000:10_100]])
    reply = c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)
    assert [entry[0] for entry in reply] == ids[:10_000] + ids[10_100:]


@pytest.mark.interpreted
@pytest.mark.parametrize("evicted", [False, True])
def test_an_entry_between_two_slices_is_deleted_meanwhile(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, evicted: bool
) -> None:
    """The read ends before it, and the next one goes on after it. It is deleted before the slice that ends there."""
    ids = append(c)

    def change(turn: int) -> None:
        ks = hand.server.data.ks
        stream = ks.keys[b"s"]
        assert isinstance(stream, Stream)
        if turn == 1:
            ks.delete_entries(b"s", stream, [10_000], stream.id_at(10_000))
        elif turn == 2 and evicted:
            ks.evict(b"s", stream, 10_001, stream.id_at(9999))

    Steps(hand, monkeypatch, change)
    first = c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)
    assert [entry[0] for entry in first] == ids[:10_000]
    rest = c("TREAD", "s", 0, NEW, "GROUP", "g", 0, *RETRY)
    assert [entry[0] for entry in rest] == ids[10_001:]
