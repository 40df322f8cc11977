"""Redis's stream commands of many messages are done in slices: each counts once, whatever happens in between."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from respserver.execution import slices
from respserver.testing import RunningServer
from storage.groups.group import Group
from storage.streams.stream import Stream
from tests.wire.rawclient import Raw
from tests.wire.turns import Steps

Connect = Callable[..., Raw]
NEW = 22_000  # slices have 5000 new entries
MANY = 4500  # and 1000 messages that were delivered before
READ = ("XREADGROUP", "GROUP", "g", "ann")


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn does one slice only."""
    monkeypatch.setattr(slices, "TURN_NS", 1)


def fill(c: Raw, count: int, key: str = "s") -> list[bytes]:
    """A stream with a group that has read nothing; the IDs of its entries, in one millisecond."""
    first, _ = c("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *range(count))
    c("XGROUP", "CREATE", key, "g", 0)
    ms, seq = first.split(b".")
    return [b"%b-%d" % (ms, int(seq) + number) for number in range(count)]


def delivered(c: Raw, count: int = MANY) -> list[bytes]:
    """The same, all of it ann's."""
    ids = fill(c, count)
    c(*READ, "COUNT", count, "STREAMS", "s", ">")
    assert c("XPENDING", "s", "g")[0] == count
    return ids


def ids_of(reply: Any, key: int = 0) -> list[bytes]:
    return [entry[0] for entry in reply[key][1]]


def group_of(hand: RunningServer) -> Group:
    stream = hand.server.data.ks.keys[b"s"]
    assert isinstance(stream, Stream)
    return stream.groups[b"g"]


def seen_by(hand: RunningServer, monkeypatch: pytest.MonkeyPatch, look: Callable[[], int]) -> set[int]:
    """What others see between the turns of what follows."""
    seen = set[int]()
    Steps(hand, monkeypatch, lambda _: seen.add(look()))
    return seen


def pins(hand: RunningServer) -> int:
    """Long replies that hold a view of the store."""
    return hand.call(lambda: hand.server.data.disk.store.view.pins)


# -- XREADGROUP --------------------------------------------------------------------------------------------------------
@pytest.mark.interpreted
@pytest.mark.parametrize("words", [(), ("COUNT", NEW), ("NOACK",), ("CLAIM", 1000)])
def test_new_entries(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, words: tuple[str | int, ...]
) -> None:
    ids = fill(c, NEW)
    seen = seen_by(hand, monkeypatch, lambda: group_of(hand).offset)
    reply = c(*READ, *words, "STREAMS", "s", ">")
    assert ids_of(reply) == ids
    assert reply[0][1][7][1] == [b"f", b"7"]
    assert len(seen) >= 4
    assert c("XPENDING", "s", "g")[0] == (0 if words == ("NOACK",) else NEW)
    assert c(*READ, *words, "STREAMS", "s", ">") is None
    assert c("XINFO", "GROUPS", "s")[0][-4:] == [b"entries-read", NEW, b"lag", 0]
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("XPENDING", "s", "g")[0] == (0 if words == ("NOACK",) else NEW)
    assert pins(hand) == 0


@pytest.mark.interpreted
def test_a_history(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was when the read came to it, without what is acknowledged before its slice."""
    ids = delivered(c)
    hand.advance(50)
    c("XDEL", "s", ids[7])

    def change(turn: int) -> None:
        if turn == 1:
            group_of(hand).pending.remove([_raw(ids[-1]), _raw(ids[0])])

    steps = Steps(hand, monkeypatch, change)
    entries = c(*READ, "STREAMS", "s", 0)[0][1]
    assert steps.turns >= 4
    assert [entry[0] for entry in entries] == ids[:-1]
    assert entries[7][1] is None
    assert {row[3] for row in c("XPENDING", "s", "g", "-", "+", MANY)} == {1, 2}
    assert [row[0] for row in c("XPENDING", "s", "g", "IDLE", 50, "-", "+", MANY)] == [ids[7]]
    assert ids_of(c(*READ, "COUNT", 2000, "STREAMS", "s", ids[99])) == ids[100:2100]


def _raw(entry_id: bytes) -> bytes:
    ms, seq = entry_id.split(b"-")
    return int(ms).to_bytes(8, "big") + int(seq).to_bytes(8, "big")


@pytest.mark.interpreted
@pytest.mark.parametrize("idle", [0, 100])
@pytest.mark.parametrize("count", [0, MANY - 3, MANY + 2])
def test_idle_messages_and_then_new_entries(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, idle: int, count: int
) -> None:
    """Each once, even if all are idle for long enough again at once."""
    old = delivered(c)
    c("XDEL", "s", old[5])
    hand.advance(100)
    new = fill_more(c, 2500)
    steps = Steps(hand, monkeypatch, lambda _: None)
    reply = c("XREADGROUP", "GROUP", "g", "bob", "COUNT", count, "CLAIM", idle, "STREAMS", "s", ">")
    assert ids_of(reply) == [*old[:5], *old[6:], *new][: count or None]
    assert [entry[2:] for entry in reply[0][1][:6]] == [[100, 1]] * 6
    assert steps.turns >= 4
    claimed = min(count or MANY, MANY - 1)
    assert c("XPENDING", "s", "g")[3] == [[b"ann", b"%d" % (MANY - claimed)], [b"bob", b"%d" % len(reply[0][1])]]


def fill_more(c: Raw, count: int) -> list[bytes]:
    first, last = c("TMAPPEND", "s", "FIELDS", 1, "f", "VALUES", *range(count))
    return [entry[0] for entry in c("XRANGE", "s", first, last)]


@pytest.mark.interpreted
def test_many_keys_are_read_one_after_another(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """New entries of one, nothing of another, what is pending of a third."""
    for key in ("s", "t", "u"):
        fill(c, 0 if key == "t" else NEW, key) if key != "t" else c("XGROUP", "CREATE", "t", "g", 0, "MKSTREAM")
    c(*READ, "COUNT", 3000, "STREAMS", "u", ">")
    steps = Steps(hand, monkeypatch, lambda _: None)
    reply = c(*READ, "STREAMS", "t", "s", "u", ">", ">", 0)
    assert [(name, len(entries)) for name, entries in reply] == [(b"s", NEW), (b"u", 3000)]
    assert steps.turns >= 7


def test_who_finds_nothing_waits(c: Raw, connect: Connect) -> None:
    """Also where it could have been a long read; and who has waited gets no more than a slice."""
    ids, waiting = delivered(c), connect()
    waiting.send("XREADGROUP", "GROUP", "g", "bob", "CLAIM", 1000, "BLOCK", 0, "STREAMS", "s", ">")
    assert waiting.nothing_yet()
    c("XNACK", "s", "g", "FAIL", "IDS", 1500, *ids[:1500])
    assert ids_of(waiting.read()) == ids[:1000]
    waiting.send(*READ, "BLOCK", 0, "STREAMS", "s", ">")
    assert waiting.nothing_yet()
    more = fill_more(c, NEW)
    assert ids_of(waiting.read()) == more[:5000]


@pytest.mark.interpreted
@pytest.mark.parametrize("how", [("XGROUP", "DESTROY", "s", "g"), ("DEL", "s"), ("FLUSHALL",)])
@pytest.mark.parametrize("after", [">", "0"])
def test_a_group_that_ends_meanwhile(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], after: str
) -> None:
    other = connect()
    if after == ">":
        fill(c, NEW)
    else:
        delivered(c)
    c("SAVE")
    Steps(hand, monkeypatch, lambda turn: other.send(*how) if turn == 1 else None)
    assert c(*READ, "STREAMS", "s", after).startswith("NOGROUP")
    assert other.read() in (1, b"OK")
    assert pins(hand) == 0


@pytest.mark.interpreted
def test_others_read_meanwhile(c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both share the entries, and no entry is nobody's."""
    ids, other = fill(c, NEW), connect()
    Steps(hand, monkeypatch, lambda turn: other.send(
        "XREADGROUP", "GROUP", "g", "bob", "COUNT", 10, "STREAMS", "s", ">") if turn == 1 else None)  # fmt: skip
    mine = ids_of(c(*READ, "STREAMS", "s", ">"))
    others = ids_of(other.read())
    assert len(others) == 10
    assert 10_000 <= len(mine) < NEW
    rest = ids_of(c(*READ, "STREAMS", "s", ">"))
    assert sorted([*mine, *others, *rest], key=_raw) == ids


@pytest.mark.interpreted
def test_a_leader_that_becomes_a_replica_ends_it(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was delivered so far is in the consumer's history."""
    ids = fill(c, NEW)

    def demote(turn: int) -> None:
        if turn == 1:
            hand.server.roles.follow("127.0.0.1", 1)

    Steps(hand, monkeypatch, demote)
    assert c(*READ, "STREAMS", "s", ">").startswith("UNBLOCKED force unblock")
    assert pins(hand) == 0
    assert c("REPLICAOF", "NO", "ONE") == b"OK"
    assert ids_of(c(*READ, "STREAMS", "s", 0)) == ids[:10_000]
    assert ids_of(c(*READ, "STREAMS", "s", ">")) == ids[10_000:]


def test_a_history_after_new_entries_of_the_same_call(c: Raw) -> None:
    """The history was empty when the call began, and has more messages than a slice when the call reaches it."""
    ids = fill(c, 1500)
    new, history = c(*READ, "STREAMS", "s", "s", ">", 0)
    assert ids_of([new]) == ids_of([history]) == ids


def test_inside_exec_it_is_one_step(c: Raw) -> None:
    ids = fill(c, NEW)
    c.pipeline(("MULTI",), (*READ, "STREAMS", "s", ">"), ("XPENDING", "s", "g"), (*READ, "STREAMS", "s", 0))
    new, pending, history = c("EXEC")
    assert ids_of(new) == ids_of(history) == ids
    assert pending[0] == NEW


def test_a_map_in_resp3(connect: Connect) -> None:
    c = connect(proto=3)
    ids = fill(c, NEW)
    assert [entry[0] for entry in c(*READ, "STREAMS", "s", ">")[b"s"]] == ids
    assert [entry[0] for entry in c(*READ, "STREAMS", "s", 0)[b"s"]] == ids


# -- IDs ---------------------------------------------------------------------------------------------------------------
@pytest.mark.interpreted
@pytest.mark.parametrize("command", ["XDELEX", "XACKDEL"])
def test_ids_are_deleted_in_slices(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Each is answered as if it were alone: one that comes again is gone, or still needed."""
    ids = delivered(c)
    c("XACK", "s", "g", ids[0])
    group = ("g",) if command == "XACKDEL" else ()
    seen = seen_by(hand, monkeypatch, lambda: group_of(hand).pending.owned(1))
    twice = [*ids, *ids]
    gone, needed = ([], ids) if command == "XDELEX" else (ids[1:], [])
    expected = [-1 if command == "XACKDEL" else 1] + [1 if gone else 2] * (MANY - 1)
    expected += [-1] + [-1 if gone else 2] * (MANY - 1)
    assert c(command, "s", *group, "ACKED", "IDS", 2 * MANY, *twice) == expected
    assert c("XLEN", "s") == (1 if gone else MANY - 1)
    assert needed or len(seen) >= 4
    assert c("XDELEX", "s", "DELREF", "IDS", MANY, *ids) == [1 if command == "XACKDEL" else -1, *[
        -1 if gone else 1 for _ in ids[1:]]]  # fmt: skip
    assert (c("XLEN", "s"), c("XPENDING", "s", "g")[0]) == (0, 0)


@pytest.mark.parametrize("words", [
    ("XDELEX", "s", "IDS"), ("XACKDEL", "s", "g", "IDS"), ("XNACK", "s", "g", "FAIL", "IDS"),
])  # fmt: skip
def test_a_malformed_id_changes_nothing(c: Raw, words: tuple[str, ...]) -> None:
    """And it is what the error tells; XNACK tells it also before something else that is wrong."""
    ids = delivered(c)
    invalid = "ERR Invalid stream ID specified as stream command argument"
    assert c(*words, MANY + 1, *ids, "x") == invalid
    assert c(*words, MANY + 1, *ids, "x", "WHAT") == (invalid if words[0] == "XNACK" else "ERR syntax error")
    assert c(*words, MANY, *ids, "WHAT").startswith("ERR")
    assert (c("XLEN", "s"), c("XPENDING", "s", "g")[3]) == (MANY, [[b"ann", b"%d" % MANY]])


def test_claims_whose_options_are_wrong_claim_nothing(c: Raw) -> None:
    ids = delivered(c)
    assert c("XCLAIM", "s", "g", "bob", 0, *ids, "WHAT") == "ERR Unrecognized XCLAIM option 'WHAT'"
    assert c("XCLAIM", "s", "g", "bob", 0, *ids, "IDLE", "x").startswith("ERR Invalid IDLE option")
    assert c("XPENDING", "s", "g")[3] == [[b"ann", b"%d" % MANY]]
    assert c("XCLAIM", "s", "g", "bob", 0, *ids, "JUSTID", "RETRYCOUNT", 9, "LASTID", "9-9") == ids
    assert {row[3] for row in c("XPENDING", "s", "g", "-", "+", MANY)} == {9}


# -- trimming ----------------------------------------------------------------------------------------------------------
@pytest.mark.interpreted
@pytest.mark.parametrize("command", ["XTRIM", "XADD"])
@pytest.mark.parametrize("references", ["ACKED", "DELREF"])
def test_trimming_that_asks_groups(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, command: str, references: str
) -> None:
    ids = delivered(c)
    needed = ids[1::3]
    c("XACK", "s", "g", *[entry_id for entry_id in ids if entry_id not in set(needed)])
    seen = seen_by(hand, monkeypatch, lambda: hand.server.data.ks.keys[b"s"].length)  # type: ignore[union-attr]
    if command == "XTRIM":
        kept = len(needed) if references == "ACKED" else 100
        assert c("XTRIM", "s", references, "MAXLEN", 100) == MANY - kept
    else:
        ids.append(c("XADD", "s", references, "MAXLEN", 100, "*", "f", "v"))
    left = [entry[0] for entry in c("XRANGE", "s", "-", "+")]
    pending = [row[0] for row in c("XPENDING", "s", "g", "-", "+", MANY)]
    assert len(seen) >= 3
    if references == "ACKED":
        assert left == (needed if command == "XTRIM" else [*needed, ids[-1]])
        assert pending == needed
    else:
        assert left == ids[-100:]
        assert pending == [entry_id for entry_id in needed if entry_id in set(left)]


@pytest.mark.interpreted
@pytest.mark.parametrize(("words", "left", "pending"), [
    (("XDELEX", "s", "DELREF"), 0, 0),
    (("XDELEX", "s", "ACKED"), 200, 200),
    (("XACKDEL", "s", "g0", "DELREF"), 200, 0),  # what was acknowledged before is not pending in g0: it stays
    (("XACKDEL", "s", "g0", "ACKED"), 400, 200),
    (("XTRIM", "s", "MAXLEN", 0, "DELREF"), 0, 0),
    (("XTRIM", "s", "MAXLEN", 0, "ACKED"), 200, 200),
])  # fmt: skip
def test_few_ids_have_slices_if_many_groups_are_asked(
    c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, words: tuple[str | int, ...], left: int, pending: int
) -> None:
    ids = fill(c, 400)
    groups = [f"g{number}" for number in range(50)]
    for name in groups:
        c("XGROUP", "CREATE", "s", name, 0)
        c("XREADGROUP", "GROUP", name, "ann", "STREAMS", "s", ">")
        c("XACK", "s", name, *ids[1::2])
    c("XGROUP", "DESTROY", "s", "g")
    steps = Steps(hand, monkeypatch, lambda _: None)
    if words[0] == "XTRIM":
        c(*words)
    else:
        c(*words, "IDS", 400, *ids)
    assert steps.turns >= 2
    assert c("XLEN", "s") == left
    assert {c("XPENDING", "s", name)[0] for name in groups[1:]} == {pending}


@pytest.mark.interpreted
def test_what_becomes_needed_meanwhile_stays(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that is moved back reads what is left."""
    ids, other = delivered(c), connect()
    c("XACK", "s", "g", *ids)
    Steps(hand, monkeypatch, lambda turn: other.send("XGROUP", "SETID", "s", "g", 0) if turn == 1 else None)
    trimmed = c("XTRIM", "s", "ACKED", "MAXLEN", 0)
    assert other.read() == b"OK"
    assert 1000 <= trimmed < MANY
    assert ids_of(c(*READ, "STREAMS", "s", ">")) == ids[trimmed:]


@pytest.mark.interpreted
@pytest.mark.parametrize("how", [("DEL", "s"), ("XTRIM", "s", "MAXLEN", 10)])
def test_a_stream_that_is_trimmed_or_deleted_meanwhile(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, how: tuple[str | int, ...]
) -> None:
    _, other = delivered(c), connect()
    Steps(hand, monkeypatch, lambda turn: other.send(*how) if turn == 1 else None)
    trimmed = c("XTRIM", "s", "DELREF", "MAXLEN", 0)
    gone = other.read()
    assert 1000 <= trimmed < MANY
    assert how[0] == "DEL" or trimmed + gone == MANY
    assert c("XLEN", "s") == 0


# -- the others --------------------------------------------------------------------------------------------------------
@pytest.mark.interpreted
def test_a_consumer_is_removed_in_slices(c: Raw, hand: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = delivered(c)
    c("XCLAIM", "s", "g", "bob", 0, *ids[::3])
    left = MANY - len(ids[::3])
    seen = seen_by(hand, monkeypatch, lambda: group_of(hand).pending.owned(1))
    assert c("XGROUP", "DELCONSUMER", "s", "g", "ann") == left
    assert len(seen) >= 3
    assert c("XGROUP", "DELCONSUMER", "s", "g", "ann") == 0
    assert [row[0] for row in c("XPENDING", "s", "g", "-", "+", MANY)] == ids[::3]
    assert c("DEBUG", "RELOAD") == b"OK"
    assert [one[1] for one in c("XINFO", "CONSUMERS", "s", "g")] == [b"bob"]


@pytest.mark.interpreted
def test_a_consumer_that_somebody_else_removes_meanwhile(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered(c)
    other = connect()
    Steps(hand, monkeypatch, lambda turn: other.send("XGROUP", "DESTROY", "s", "g") if turn == 2 else None)
    assert c("XGROUP", "DELCONSUMER", "s", "g", "ann") in (2000, 3000)
    assert other.read() == 1


@pytest.mark.interpreted
@pytest.mark.parametrize("how", [("XGROUP", "SETID", "s", "g", 0), ("XGROUP", "DESTROY", "s", "g")])
def test_a_claim_does_not_move_a_group_on_that_somebody_moves_back(
    c: Raw, connect: Connect, hand: RunningServer, monkeypatch: pytest.MonkeyPatch, how: tuple[str | int, ...]
) -> None:
    """What the group would read anew is not skipped; also where it is another one of that name."""
    ids, other = delivered(c), connect()

    def between(turn: int) -> None:
        if turn == 6:  # the IDs are parsed, and some of them are claimed
            other.send(*how)
            other.send("XGROUP", "CREATE", "s", "g", 0)

    Steps(hand, monkeypatch, between)
    claimed = c("XCLAIM", "s", "g", "bob", 0, *ids, "JUSTID")
    other.read(), other.read()
    assert 1000 <= len(claimed) <= MANY
    assert ids_of(c(*READ, "COUNT", MANY, "STREAMS", "s", ">")) == ids


def test_xinfo_full_of_long_entries_and_few_messages(connect: Connect) -> None:
    """The entries make it a streamed reply; the group's part comes last and is of the same moment."""
    c, other = connect(), connect()
    for _ in range(10):
        c("XADD", "s", "*", "f", "x" * 1_000_000)
    c("XGROUP", "CREATE", "s", "g", 0)
    ids = ids_of(c(*READ, "STREAMS", "s", ">"))
    c.send("XINFO", "STREAM", "s", "FULL")
    c.sock.recv(1, socket.MSG_PEEK)  # it has begun
    assert other("XACK", "s", "g", *ids[2:]) == 8
    group = pairs(pairs(c.read())[b"groups"][0])
    assert [row[0] for row in group[b"pending"]] == ids
    assert [row[0] for row in pairs(group[b"consumers"][0])[b"pending"]] == ids
    assert c("PING") == b"PONG"


@pytest.mark.parametrize("proto", [2, 3])
def test_xinfo_full_of_many_messages(connect: Connect, proto: int) -> None:
    """It shows what there was when the command ran."""
    c = connect(proto=proto)
    ids = delivered(c)
    c("XCLAIM", "s", "g", "bob", 0, *ids[::3])
    c.send("XINFO", "STREAM", "s", "FULL", "COUNT", 0)
    c.send("XACK", "s", "g", *ids)
    full, acked = c.read(), c.read()
    assert acked == MANY
    facts = full if proto == 3 else pairs(full)
    assert [entry[0] for entry in facts[b"entries"]] == ids
    group = facts[b"groups"][0] if proto == 3 else pairs(facts[b"groups"][0])
    assert [row[0] for row in group[b"pending"]] == ids
    assert [row[1] for row in group[b"pending"][:4]] == [b"bob", b"ann", b"ann", b"bob"]
    consumers = [one if proto == 3 else pairs(one) for one in group[b"consumers"]]
    assert [row[0] for row in consumers[1][b"pending"]] == ids[::3]
    assert consumers[0][b"pel-count"] == len(consumers[0][b"pending"]) == MANY - len(ids[::3])


def pairs(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
