"""The checks of blocking reads of replicas, with replies that break the rules."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import hiredis
import pytest

from tests.simulation.clients import RefusedError
from tests.storm import replicatails
from tests.storm.replicatails import ReplicaTails, TailRecord, WaitingReads, replies
from tests.storm.routing import Routed

KEY = "r0:x"
MOVED = hiredis.ReplyError("MOVED 1 127.0.0.1:2")
BLOCKED, READS = b"id=1 flags=rb cmd=xread", b"id=1 flags=r cmd=xread"


def entry(ms: int) -> list[bytes]:
    return [b"%d.0" % ms, b"v", b"c0.%d" % ms]


def map_of(owner: str) -> bytes:
    return json.dumps({"version": 5, "slots": [[0, 16383, owner]]}).encode()


class Members(Routed):
    """One replica of group 1, which replies once to each read."""

    def __init__(self, owner: str, *replies: Any) -> None:
        super().__init__({"1b": 1}, {}, random.Random(1))
        self.map = map_of(owner)
        self.replies = list(replies)

    async def at(self, member: str, *commands: Any, **_: Any) -> list[Any]:
        reply = self.replies.pop(0)
        if commands[2][0] == "XREAD" and isinstance(reply, list):
            reply = [[KEY.encode(), [[row[0].replace(b".", b"-"), row[1:]] for row in reply]]]
        return [b"OK", self.map, reply, self.map]


def tail(owner: str, *replies: Any) -> TailRecord:
    """Let a tail read so often; return what it has recorded."""
    record = TailRecord("r0")
    record.sent = {(KEY, b"c0.%d" % ms) for ms in range(1, 9)}
    work = ReplicaTails(0, record, random.Random(1))
    work.streams = ("x",)
    members = Members(owner, *replies)
    for _ in replies:
        asyncio.run(work.step("", members))
    return record


def test_replies_that_follow_each_other() -> None:
    record = tail("1", [entry(1), entry(2)], None, [entry(4)])
    assert record.seen == {KEY: {b"c0.1", b"c0.2", b"c0.4"}}
    record.check_tailed(KEY, [entry(1), entry(2), entry(4), entry(5)])
    for rows in ([entry(1), entry(2), entry(3), entry(4)], [entry(1), entry(4)]):  # it was skipped, or is gone
        with pytest.raises(AssertionError, match=r"a reply had \d entries after"):
            record.check_tailed(KEY, rows)


def test_a_reply_that_goes_back_or_that_nobody_has_sent() -> None:
    with pytest.raises(AssertionError, match="is not after"):
        tail("1", [entry(2)], [entry(2)])
    with pytest.raises(AssertionError, match="entries that nobody has sent"):
        tail("1", [entry(9)])


def test_a_slot_of_another_group() -> None:
    tail("2", MOVED, hiredis.ReplyError("CLUSTERDOWN x"))
    for reply in (None, [entry(1)]):
        with pytest.raises(AssertionError, match="serves a slot of group 2"):
            tail("2", reply)
    with pytest.raises(AssertionError, match="1b: LOADING"):
        tail("2", hiredis.ReplyError("LOADING"))
    with pytest.raises(RefusedError, match="LOADING"):
        tail("1", hiredis.ReplyError("LOADING"))


class Inspected:
    """The connection that inspects a reader, which gets its reply at the tenth inspection."""

    def __init__(self, owner: str, shown: bytes, withheld: int = 0) -> None:
        self.waiting: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.inspections = 0
        self._replies = [
            map_of(owner), shown, b'{"leads": false}', b'{"withheld_clients": %d, "lease_left_ms": 1}' % withheld,
            [b"slave", b"h", 1, b"connected", 5],
        ]  # fmt: skip

    async def ask(self, *_: Any) -> list[Any]:
        self.inspections += 1
        if self.inspections == 10:
            self.waiting.set_result([])
        return self._replies


@pytest.mark.parametrize(
    ("owner", "shown", "withheld", "wrong"),
    [("2", BLOCKED, 0, True), ("1", BLOCKED, 0, False), ("2", READS, 0, False), ("2", BLOCKED, 1, False)],
)
def test_a_reader_that_waits_after_its_slot_has_left(
    owner: str, shown: bytes, withheld: int, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicatails, "POLL", 0.0)
    monkeypatch.setattr(replicatails, "REDIRECTED", 0.0)

    async def story() -> int:
        inspected: Any = Inspected(owner, shown, withheld)
        work = WaitingReads(0, TailRecord("r0"), random.Random(1))
        await work._watch("1b", "r0:q", 1, inspected.waiting, inspected)
        return int(inspected.inspections)

    if wrong:
        with pytest.raises(AssertionError, match="a reader still waits at 1b"):
            asyncio.run(story())
    else:
        assert asyncio.run(story()) == 10


def test_members_that_withhold_replies() -> None:
    leads, none = b'{"leads": true}', b'{"leads": false}'
    valid, lapsed = (b'{"withheld_clients": 3, "lease_left_ms": %d}' % left for left in (1, 0))
    assert replies(leads, valid, [b"master"])
    assert not replies(leads, lapsed, [b"master"])
    assert not replies(none, valid, [b"master"])
    assert not replies(none, valid, [b"slave", b"h", 1, b"connected", 5])
    assert not replies(none, b'{"withheld_clients": 0, "lease_left_ms": 1}', [b"slave", b"h", 1, b"connect", 5])
    assert not replies(hiredis.ReplyError("ERR"), valid, [b"master"])
