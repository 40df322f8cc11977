"""Routing without a network: members that divide the slots, redirect, refuse, and lose connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, ClusterDownError, ExecAbortError, MovedError, TryAgainError

from commands.slots import slot_of as server_slot_of
from tidelog.client import calls
from tidelog.testing import Server
from tidelog.transport.call import Call, Value, plain
from tidelog.transport.errors import CrossGroupError
from tidelog.transport.keyspecs import CommandTable, FoundKeys
from tidelog.transport.routing import ATTEMPTS, Delay, Reload, Routes, Send, routed
from tidelog.transport.slots import SLOTS, MemberAddress, SlotOwners, hash_tag, slot_of, tag_of_slot

A, B = MemberAddress("a", 1), MemberAddress("b", 2)
HALF = SLOTS // 2
KEYS_A = [f"k{n}" for n in range(200) if slot_of(f"k{n}") < HALF]
KEYS_B = [f"k{n}" for n in range(200) if slot_of(f"k{n}") >= HALF]


@pytest.fixture(scope="module")
def commands(tidelog_process: Server) -> Any:
    with redis.Redis.from_url(tidelog_process.url, protocol=2) as client:
        client.response_callbacks.clear()
        return client.execute_command("COMMAND")


class Members:
    """Two members, and the driver of a request. ``refuse`` returns an error in place of a reply."""

    def __init__(self, commands: Any) -> None:
        self.routes = Routes()
        self.commands = commands
        self.owners = [A] * HALF + [B] * HALF
        self.executed: list[tuple[MemberAddress, tuple[Value, ...]]] = []
        self.refuse: Callable[[MemberAddress, tuple[Value, ...]], Exception | None] = lambda member, args: None
        self.reply: Callable[[MemberAddress, tuple[Value, ...]], Any] = lambda member, args: member.host
        self.reloads = 0
        self.slept = 0.0
        self.asking = 0

    def slots(self) -> list[Any]:
        found: list[Any] = []
        for slot, owner in enumerate(self.owners):
            if found and found[-1][2][0] == owner.host.encode() and found[-1][1] == slot - 1:
                found[-1][1] = slot
            else:
                found.append([slot, slot, [owner.host.encode(), owner.port, b"id"]])
        return found

    def send(self, *calls: Call[Any], answered: Any = None) -> list[Any]:
        steps = routed(self.routes, calls, answered)
        try:
            step = next(steps)
            while True:
                step = steps.send(self._do(step))
        except StopIteration as end:
            replies: list[Any] = end.value
            return replies

    def _do(self, step: Any) -> Any:
        if isinstance(step, Reload):
            self.reloads += 1
            self.routes.learn(self.slots(), self.commands, A)
        elif isinstance(step, Delay):
            self.slept += step.seconds
        else:
            return [self._batch(step, batch) for batch in step.batches]
        return None

    def _batch(self, step: Send, batch: Any) -> list[Any]:
        replies: list[Any] = []
        queue: list[Any] | None = None
        self.asking += batch.asking
        for call in batch.calls:
            failed = self.refuse(batch.member, call.args)
            if isinstance(failed, redis.ConnectionError):
                return [failed] * len(batch.calls)
            if call.args[0] == "MULTI":
                queue = []
                replies.append(b"OK")
            elif call.args[0] == "EXEC":
                replies.append(ExecAbortError("aborted") if queue is None else queue)
            elif failed is not None:
                queue = None
                replies.append(failed)
            else:
                self.executed.append((batch.member, call.args))
                reply = self.reply(batch.member, call.args)
                if queue is not None:
                    queue.append(reply)
                replies.append(reply if queue is None else b"QUEUED")
        return replies

    def redirecting(self, member: MemberAddress, args: tuple[Value, ...]) -> Exception | None:
        """Refuse keys of the other member."""
        for key in self.routes.keys_of(args):
            owner = self.owners[slot_of(key)]
            if owner != member:
                return MovedError(f"{slot_of(key)} {owner.host}:{owner.port}")
        return None


@pytest.fixture
def members(commands: Any) -> Members:
    return Members(commands)


@pytest.mark.parametrize("key", [b"", b"a", b"{a}b", b"b{a}", b"{}a", b"{a", b"a}{b}", b"{{a}}", "ümlaut".encode()])
def test_slots_are_those_of_the_server(key: bytes) -> None:
    assert slot_of(key) == server_slot_of(key)


def test_the_map_names_the_member_that_was_asked_if_there_is_no_host() -> None:
    made = SlotOwners([[0, 5, [b"", 7, b"id"]], [6, 7, [None, 8, b"id"]], [8, 9, [b"?", 9, b"id"]]], A)
    assert [made.owner(slot) for slot in (0, 6, 8, 10)] == [("a", 7), ("a", 8), ("a", 9), None]
    with pytest.raises(ValueError):
        SlotOwners([[5, 16384, [b"h", 7]]], A)


@pytest.mark.parametrize(
    ("call", "keys"),
    [
        (calls.tappend("s", {"a": 1}), ["s"]),
        (calls.tmappend("s", ["a"], [[1]]), ["s"]),
        (calls.tstage("g", 1, "s", ["a"], [[1]]), ["g", "s"]),
        (calls.tpublish("f", 1, "g", "h"), ["f", "g", "h"]),
        (calls.tpublish("f", 1, "g", check="c"), ["f", "g"]),
        (calls.tdrop("g", "h"), ["g", "h"]),
        (calls.tread("s", group="g", retry=1, deadletter="d"), ["s", "d"]),
        (calls.twait({"GROUP": "0", "s": "0"}), ["s", "GROUP"]),
        (calls.twait_group("g", ["s", "t"]), ["s", "t"]),
        (calls.tgroup_list("s"), ["s"]),
        (calls.tdelay_count("s"), ["s"]),
        (plain("XREAD", "COUNT", 2, "STREAMS", "s", "t", "0", "0"), ["s", "t"]),
        (plain("MSETEX", 2, "a", 1, "b", 2), ["a", "b"]),
        (plain("PUBLISH", "c", "m"), ["c"]),
        (plain("PING"), []),
        (plain("UNKNOWN", "x"), []),
    ],
)
def test_keys_of_calls(commands: Any, call: Call[Any], keys: list[str]) -> None:
    routes = Routes()
    routes.learn([[0, 1, [b"a", 1]]], commands, A)
    assert routes.keys_of(call.args) == keys


def test_each_declared_command_has_keys_that_can_be_read(commands: Any) -> None:
    table = CommandTable(commands)
    for row in commands:
        found = table.of([row[0], b"x"])
        if found is not None and not found.partial:
            assert isinstance(found.keys([row[0], *[b"1"] * 8]), FoundKeys)


def test_calls_are_divided_and_their_replies_are_in_order(members: Members) -> None:
    members.reply = lambda member, args: (member.host, args[1])
    keys = [KEYS_A[0], KEYS_B[0], KEYS_B[1], KEYS_A[1]]
    replies = members.send(*[plain("SET", key, 1) for key in keys])
    assert replies == [("a", keys[0]), ("b", keys[1]), ("b", keys[2]), ("a", keys[3])]
    assert [args[1] for member, args in members.executed if member == B] == [KEYS_B[0], KEYS_B[1]]
    assert members.reloads == 1


def test_a_call_without_keys_follows_the_call_before_it(members: Members) -> None:
    members.send(plain("SET", KEYS_B[0], 1), plain("TIME"), plain("SET", KEYS_A[0], 1), plain("TIME"))
    assert [member for member, args in members.executed if args == ("TIME",)] in ([B, A], [A, B])
    members.executed.clear()
    members.send(plain("TIME"), plain("SET", KEYS_B[0], 1))
    assert members.executed[0] == (B, ("TIME",))


def test_wait_covers_the_members_before_it(members: Members) -> None:
    members.reply = lambda member, args: 2 if member == A else 1
    assert members.send(plain("SET", KEYS_A[0], 1), calls.wait(1), plain("SET", KEYS_B[0], 1), calls.wait(1)) == [
        2, 2, 1, 1,
    ]  # fmt: skip
    assert members.send(calls.waitaof(1, 1)) == [1]  # all of them


def test_wait_is_repeated_with_the_calls_that_it_covers(members: Members) -> None:
    members.send(plain("PING"))
    members.executed.clear()
    members.owners[slot_of(KEYS_A[0])] = B
    members.refuse = members.redirecting
    members.reply = lambda member, args: 2 if member == A else 1
    assert members.send(plain("SET", KEYS_A[0], 1), calls.wait(1)) == [1, 1]
    assert members.executed[-2:] == [(B, ("SET", KEYS_A[0], 1)), (B, ("WAIT", 1, 0))]


@pytest.mark.parametrize("first", [True, False])
def test_wait_covers_each_member_that_has_executed_calls(first: bool, members: Members) -> None:
    """Also the one to which all calls were sent before it was known that there are several groups."""
    members.send(plain("PING"))
    members.executed.clear()
    members.owners[slot_of(KEYS_A[1])] = B
    members.refuse = members.redirecting
    members.reply = lambda member, args: 0 if member == A else 1
    sent = [plain("SET", key, 1) for key in KEYS_A[:2]] + [calls.wait(1)]
    answered = None
    if first:
        moved = MovedError(f"{slot_of(KEYS_A[1])} {B.host}:{B.port}")
        answered = A, ["OK", moved, 0]
    assert members.send(*sent, answered=answered)[2] == 0
    assert [words for member, words in members.executed if member == B] == [("SET", KEYS_A[1], 1), ("WAIT", 1, 0)]
    waits = [words for member, words in members.executed if member == A and words[0] == "WAIT"]
    assert len(waits) == (0 if first else 1), "the first one covers what was written before it, over its connection"


def test_moved_calls_are_executed_once_and_the_map_is_read_again(members: Members) -> None:
    members.send(plain("PING"))
    members.executed.clear()
    for key in KEYS_A[:3]:
        members.owners[slot_of(key)] = B
    members.refuse = members.redirecting
    replies = members.send(*[plain("SET", key, 1) for key in (*KEYS_A[:4], *KEYS_B[:2])])
    assert replies == ["b", "b", "b", "a", "b", "b"]
    assert len(members.executed) == 6
    assert members.reloads == 2
    assert not members.slept


def test_replies_of_the_first_member_are_kept(members: Members) -> None:
    members.refuse = members.redirecting
    moved = MovedError(f"{slot_of(KEYS_B[0])} b:2")
    sent = [plain("SET", KEYS_A[0], 1), plain("SET", KEYS_B[0], 1)]
    assert members.send(*sent, answered=(A, ["kept", moved])) == ["kept", "b"]
    assert members.executed == [(B, ("SET", KEYS_B[0], 1))]


def test_a_slot_that_always_moves_is_given_up(members: Members) -> None:
    members.refuse = lambda member, args: MovedError(f"{slot_of(args[1])} {'b:2' if member == A else 'a:1'}")
    (reply,) = members.send(plain("GET", KEYS_A[0]))
    assert isinstance(reply, MovedError)
    assert members.reloads == ATTEMPTS + 1


def test_tryagain_and_clusterdown_are_retried_with_delays(members: Members) -> None:
    errors: list[Exception] = [TryAgainError("x"), ClusterDownError("x"), TryAgainError("x")]
    members.refuse = lambda member, args: errors.pop() if errors else None
    assert members.send(plain("GET", KEYS_A[0])) == ["a"]
    assert members.slept > 0
    errors = [TryAgainError("x")] * 100
    (reply,) = members.send(plain("GET", KEYS_A[0]))
    assert isinstance(reply, TryAgainError)
    assert len(errors) == 100 - ATTEMPTS - 1


def test_an_unassigned_slot_is_retried_and_then_an_error(members: Members) -> None:
    members.owners = [A] * HALF + [A] * HALF
    slots = members.slots
    members.slots = lambda: [[0, HALF - 1, [b"a", 1]]]  # type: ignore[method-assign]
    good, bad = members.send(plain("GET", KEYS_A[0]), plain("GET", KEYS_B[0]))
    assert good == "a"
    assert isinstance(bad, ClusterDownError)
    calls_ = iter(range(3))
    members.slots = lambda: slots() if next(calls_, None) is None else [[0, HALF - 1, [b"a", 1]]]  # type: ignore[method-assign]
    assert members.send(plain("GET", KEYS_B[0])) == ["a"]


def test_ask_is_followed_once(members: Members) -> None:
    members.refuse = lambda member, args: AskError(f"{slot_of(args[1])} b:2") if member == A else None
    assert members.send(plain("GET", KEYS_A[0])) == ["b"]
    assert members.asking == 1
    assert members.reloads == 1


def test_a_command_that_is_not_in_the_table_follows_its_redirection(members: Members) -> None:
    members.refuse = lambda member, args: MovedError(f"{HALF} b:2") if member == A else None
    assert members.send(plain("NEWCOMMAND", "x")) == ["b"]


def test_a_lost_connection_is_an_error_of_its_calls_only(members: Members) -> None:
    members.refuse = lambda member, args: redis.ConnectionError("lost") if member == B else None
    good, bad, worse = members.send(*[plain("SET", key, 1) for key in (KEYS_A[0], KEYS_B[0], KEYS_B[1])])
    assert good == "a"
    assert isinstance(bad, redis.ConnectionError)
    assert isinstance(worse, redis.ConnectionError)


def test_a_transaction_is_sent_to_one_member_and_repeated_as_a_whole(members: Members) -> None:
    block = [plain("MULTI"), plain("SET", KEYS_A[0], 1), plain("GET", KEYS_A[1]), plain("EXEC")]
    assert members.send(*block)[-1] == ["a", "a"]
    for key in KEYS_A[:2]:
        members.owners[slot_of(key)] = B
    members.refuse = members.redirecting
    members.executed.clear()
    assert members.send(*block)[-1] == ["b", "b"]
    assert [member for member, _ in members.executed] == [B, B]


def test_a_transaction_over_groups_is_refused(members: Members) -> None:
    replies = members.send(
        plain("MULTI"), plain("SET", KEYS_A[0], 1), plain("SET", KEYS_B[0], 1), plain("EXEC"), plain("GET", KEYS_A[0])
    )
    assert replies[-1] == "a"
    assert all(isinstance(reply, CrossGroupError) for reply in replies[:-1])
    assert "Give them one hash tag" in str(replies[0])
    assert len(members.executed) == 1


def test_keys_that_were_joined_since_the_map_was_read_are_not_refused(members: Members) -> None:
    members.send(plain("PING"))
    members.owners[slot_of(KEYS_B[0])] = A
    assert members.send(calls.tpublish(KEYS_A[0], 1, KEYS_B[0])) == ["a"]
    (reply,) = members.send(calls.tpublish(KEYS_A[0], 1, KEYS_B[1]))
    assert isinstance(reply, CrossGroupError)


def test_commands_are_divided_by_keys(members: Members) -> None:
    members.reply = lambda member, args: list(args[1:]) if args[0] == "MGET" else len(args) - 1
    keys = [KEYS_A[0], KEYS_B[0], KEYS_B[1], KEYS_A[1], KEYS_B[0]]
    assert members.send(plain("MGET", *keys), plain("DEL", *keys)) == [keys, 5]
    members.owners[slot_of(KEYS_A[0])] = B  # and divided again after a move
    members.owners[slot_of(KEYS_B[1])] = A
    members.refuse = members.redirecting
    assert members.send(plain("MGET", *keys)) == [keys]
    members.reply = lambda member, args: [args.count(key) for key in (KEYS_A[2], KEYS_B[2], "1", "2")]
    assert members.send(plain("MSET", KEYS_A[2], "1", KEYS_B[2], "2")) == [[1, 0, 1, 0]]


def test_commands_for_all_members(members: Members) -> None:
    members.reply = lambda member, args: {"DBSIZE": 3, "KEYS": [member.host], "FLUSHALL": b"OK"}.get(str(args[0]))
    assert members.send(plain("DBSIZE"), plain("KEYS", "*"), plain("FLUSHALL")) == [6, ["a", "b"], b"OK"]
    errors: list[Exception] = [TryAgainError("x")] * 2
    members.refuse = lambda member, args: errors.pop() if errors else None
    assert members.send(plain("DBSIZE")) == [6]
    (reply,) = members.send(plain("SCAN", 0))
    assert "scan_iter" in str(reply)


def test_reads_of_streams(members: Members) -> None:
    sent: list[Send] = []

    def reply(member: MemberAddress, args: tuple[Value, ...]) -> Any:
        return [[args[-1], []]] if args[0] == "XREAD" else args[2:3]

    members.reply = reply
    do = members._do

    def noted(step: Any) -> Any:
        if isinstance(step, Send):
            sent.append(step)
        return do(step)

    members._do = noted  # type: ignore[method-assign]
    read = plain("XREAD", "COUNT", 1, "STREAMS", KEYS_A[0], KEYS_B[0], KEYS_A[1], "1", "2", "3")
    assert members.send(read) == [[["3", []], ["2", []]]]
    assert [args for _, args in members.executed] == [
        ("XREAD", "COUNT", 1, "STREAMS", KEYS_A[0], KEYS_A[1], "1", "3"),
        ("XREAD", "COUNT", 1, "STREAMS", KEYS_B[0], "2"),
    ]
    assert not sent[-1].race
    wait = calls.twait({KEYS_A[0]: "0", KEYS_B[0]: "0"}, block=10)
    assert sorted(members.send(wait)[0]) == sorted([KEYS_A[0], KEYS_B[0]])
    assert sent[-1].race
    assert members.executed[-1][1] == ("TWAIT", 10, KEYS_B[0], "0")
    members.send(calls.twait_group("g", [KEYS_A[0], KEYS_B[0]], block=10))
    assert members.executed[-1][1] == ("TWAIT", 10, "GROUP", "g", KEYS_B[0])
    refused = members.send(wait, plain("PING"))
    assert isinstance(refused[0], CrossGroupError)
    assert "send it alone" in str(refused[0])


@pytest.mark.parametrize("reply", [[[0]], [[0, 1]], [[0, 1, []]], [["x", 1, [b"a", 1]]], 5])
def test_a_map_of_another_form(reply: Sequence[Any]) -> None:
    with pytest.raises((TypeError, ValueError, IndexError)):
        SlotOwners(reply, A)


@pytest.mark.parametrize("key", ["orders:3", "a{b}c:3", "a}b", "{}x:1", "{", "", "x{y", "é{ü}", "{a{b}c}", "a{}{b}"])
def test_the_hash_tag_of_a_key(key: str) -> None:
    assert slot_of(f"claim:{hash_tag(key)}:x") == slot_of(key)


def test_the_hash_tag_of_a_slot() -> None:
    for slot in (0, 8191, 16383):
        assert slot_of(tag_of_slot(slot)) == slot
    with pytest.raises(ValueError, match="slot 16384"):
        tag_of_slot(16384)
