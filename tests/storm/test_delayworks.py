"""The checks of delayed entries and of reads of replicas, with replies that break the rules."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import hiredis
import pytest

from tests.simulation.clients import LostError
from tests.storm.delayworks import DelayRecord, Delays, Later, ReplicaReads
from tests.storm.routing import Routed

KEY, TOKEN = "r0:d0", b"c0.0"
AT = 1_700_000_001_000


def record() -> DelayRecord:
    made = DelayRecord("r0")
    made.later[KEY, TOKEN] = Later(KEY, TOKEN, ("AT", AT), AT, acked=True)
    made.sent.add((KEY, TOKEN))
    return made


def row(ms: int, value: bytes = TOKEN) -> list[bytes]:
    return [b"%d.0" % ms, b"v", value]


def test_an_entry_that_is_early() -> None:
    record().check_ids(KEY, [row(AT - 50)])  # times are rounded
    with pytest.raises(AssertionError, match="has joined 200 ms early"):
        record().check_ids(KEY, [row(AT - 200)])


class Server:
    """Replies to each command with the same."""

    def __init__(self, **replies: Any) -> None:
        self.replies = replies

    async def __call__(self, *words: Any) -> Any:
        return self.replies["CANCEL" if "CANCEL" in words else "COUNT" if "COUNT" in words else str(words[0])]


@pytest.mark.parametrize(("reply", "wrong"), [(1, "is there, and was refused or cancelled"), (0, "entries are gone")])
def test_an_entry_that_was_cancelled(reply: int, wrong: str) -> None:
    """If CANCEL returned 1, it must not be there; if it returned 0, it must."""
    made = record()
    asyncio.run(Delays(0, made, random.Random(1))._cancel(made.later[KEY, TOKEN], Server(CANCEL=reply)))
    rows = [row(AT)] if reply else []
    with pytest.raises(AssertionError, match=wrong):
        look(made, rows)


def look(made: DelayRecord, rows: list[list[bytes]]) -> None:
    made.check_ids(KEY, rows)
    made.check_read(KEY, rows, made.expected(KEY))


def test_entries_that_do_not_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.storm.delayworks.PATIENT", 0.0)
    made = record()
    work = Delays(0, made, random.Random(1))
    asyncio.run(work.joined(Server(TRANGE=[row(AT)], COUNT=0)))
    for replies in ({"TRANGE": [], "COUNT": 0}, {"TRANGE": [row(AT)], "COUNT": 1}):
        with pytest.raises(AssertionError, match="entries have not joined"):
            asyncio.run(work.joined(Server(**replies)))


class Members(Routed):
    """One replica of group 1."""

    def __init__(self, owner: str, rows: Any, version: int = 5, losses: int = 0) -> None:
        super().__init__({"1b": 1}, {}, random.Random(1), losses=lambda _: losses)
        self.map = json.dumps({"version": version, "slots": [[0, 16383, owner]]}).encode()
        self.rows = rows

    async def at(self, member: str, *commands: Any, **_: Any) -> list[Any]:
        return [b"OK", self.map, [b"slave"], self.rows, self.map]


def read(work: ReplicaReads, *members: Members) -> None:
    for each in members:
        asyncio.run(work.step("", each))


def test_reads_of_a_replica() -> None:
    made = record()
    work = ReplicaReads(0, made, random.Random(1))
    work.streams = ("d0",)
    moved = hiredis.ReplyError("MOVED 1 127.0.0.1:2")
    read(work, Members("1", [row(AT)]), Members("2", moved), Members("1", []))  # it may be behind after it had the slot
    read(work, Members("1", [row(AT)]), Members("1", [], version=6))
    read(work, Members("1", [row(AT)]), Members("1", [], losses=1), Members("1", []))
    made.check_shown(KEY, [row(AT)])
    with pytest.raises(AssertionError, match="a replica showed 1 entries up to"):
        made.check_shown(KEY, [row(AT - 1, b"other"), row(AT)])
    with pytest.raises(AssertionError, match="serves a slot of group 2"):
        read(work, Members("2", [row(AT)]))
    with pytest.raises(AssertionError, match="goes back"):
        read(work, Members("1", [row(AT)]), Members("1", []))
    with pytest.raises(AssertionError, match="entries that nobody has sent"):
        read(work, Members("1", [row(AT, b"other")]))
    with pytest.raises(LostError):
        read(work, Unknown("1", []))


class Unknown(Members):
    """A member without a map."""

    async def at(self, member: str, *commands: Any, **_: Any) -> list[Any]:
        return [b"OK", hiredis.ReplyError("CLUSTERDOWN"), [b"slave"], self.rows, None]
