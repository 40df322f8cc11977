"""Blocking reads of replicas (READONLY) while slots move.

Rule 1: an entry that was delivered is in the stream at the end, and a reply skips no entry.
Rule 2: like other reads of replicas, a call for a slot of another group is replied to with MOVED or CLUSTERDOWN.
Rule 3: a reader that waits when the slot leaves the group is redirected, and does not wait until its timeout. The reply
        is withheld while a leader has no valid lease, or a replica does not know what is confirmed.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any, Final

import hiredis

from tests.simulation.checker import check_rows, number
from tests.simulation.clients import LostError, RefusedError, Word
from tests.storm.clients import Connection
from tests.storm.delayworks import DELAYED, DelayRecord, owner_of
from tests.storm.routing import Routed
from tests.storm.works import Work

IDLE: Final = "q"  # a key without entries, whose slot moves
BLOCK_MS: Final = 500
LONG_MS: Final = 6000
POLL: Final = 0.1  # seconds
REDIRECTED: Final = 1.5  # seconds in which a reader is redirected once its member uses the map
LEAST: Final = 5  # inspections in this time: a member that is stopped and continues has no time for either
ELSEWHERE: Final = ("MOVED ", "CLUSTERDOWN ")


class TailRecord(DelayRecord):
    """The part of the ledger about blocking reads."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        # key, position, last ID of the reply, number of its entries
        self.tailed: set[tuple[str, tuple[int, int], tuple[int, int], int]] = set()

    def check_tailed(self, key: str, rows: Sequence[Sequence[bytes]]) -> None:
        """Check at the end that no reply has skipped an entry."""
        ids = [number(row[0]) for row in rows]
        for its_key, after, last, count in self.tailed:
            if its_key == key:
                there = sum(after < each <= last for each in ids)
                assert there == count, f"{key}: a reply had {count} entries after {after} to {last}, of {there}"


def read(key: str, after: tuple[int, int], block: int, old: bool) -> tuple[Word, ...]:
    """Return a blocking read of the entries after an ID: XREAD if ``old``, else TREAD."""
    if old:
        return ("XREAD", "COUNT", 50, "BLOCK", block, "STREAMS", key, "{}-{}".format(*after))
    return ("TREAD", key, "{}.{}".format(*after), 50, "BLOCK", block)


def check_redirected(key: str, at: str, maps: tuple[Any, Any], reply: Any) -> None:
    """Check Rule 2. ``maps``: those of the member before the read and after it. Raises LostError without them."""
    if not all(isinstance(each, bytes) for each in maps):
        raise LostError("no map")
    before, after = (owner_of(each, key) for each in maps)
    if before == after and before[1] != at[:-1]:
        assert isinstance(reply, hiredis.ReplyError), f"{key}: {at} serves a slot of group {before[1]}"
        assert str(reply).startswith(ELSEWHERE), f"{key} at {at}: {reply}"


class ReplicaTails(Work):
    """Follows streams at any member. Positions are those of all members together."""

    record: TailRecord
    streams: tuple[str, ...] = ("x", *DELAYED)  # entries are never deleted

    def __init__(self, client: int, record: TailRecord, chance: random.Random) -> None:
        super().__init__(client, record, chance)
        self._after: dict[str, tuple[int, int]] = {}

    async def step(self, member: str, server: Any) -> None:
        assert isinstance(server, Routed)
        at = self.random.choice(server.members)
        key = self.record.key(self.random.choice(self.streams))
        after, old = self._after.get(key, (0, 0)), self.random.random() < 0.5
        _, before, reply, now = await server.at(
            at, ("READONLY",), ("TCLUSTER", "MAP"), read(key, after, BLOCK_MS, old), ("TCLUSTER", "MAP")
        )
        check_redirected(key, at, (before, now), reply)
        if isinstance(reply, hiredis.ReplyError):
            if not str(reply).startswith(ELSEWHERE):
                raise RefusedError(str(reply))
            return
        rows = _xread_rows(reply) if old else reply or []
        if rows:
            self._check(at, key, after, rows)

    def _check(self, at: str, key: str, after: tuple[int, int], rows: Sequence[Sequence[bytes]]) -> None:
        values = check_rows(key, rows)
        self.record.reads += 1
        self.record.check_ids(key, rows)
        unknown = {value for value in values if (key, value) not in self.record.sent}
        assert not unknown, f"{key} at {at}: entries that nobody has sent: {sorted(unknown)[:3]}"
        assert number(rows[0][0]) > after, f"{key} at {at}: {rows[0][0]!r} is not after {after}"
        self._after[key] = number(rows[-1][0])
        self.record.seen.setdefault(key, set()).update(values)
        self.record.tailed.add((key, after, self._after[key], len(rows)))


def _xread_rows(reply: Any) -> list[list[bytes]]:
    """Return the rows of a reply to XREAD of one stream, as those of TREAD."""
    return [[entry_id, *fields] for _, rows in reply or () for entry_id, fields in rows]


class WaitingReads(Work):
    """Waits at a member for entries of a key that gets none, and inspects the client meanwhile."""

    record: TailRecord

    async def step(self, member: str, server: Any) -> None:
        assert isinstance(server, Routed)
        at, key = self.random.choice(server.members), self.record.key(IDLE)
        words = read(key, (0, 0), LONG_MS, self.random.random() < 0.5)
        reader, watcher = await server.separate(at), await server.separate(at)
        try:
            await self._wait(at, key, words, reader, watcher)
        finally:
            reader.close()
            watcher.close()

    async def _wait(self, at: str, key: str, words: tuple[Word, ...], reader: Connection, watcher: Connection) -> None:
        client = await reader("CLIENT", "ID")
        commands = ("READONLY",), ("TCLUSTER", "MAP"), words, ("TCLUSTER", "MAP")
        waiting = asyncio.create_task(reader.ask(*commands, patience=LONG_MS / 1000 + 3.0))
        try:
            await self._watch(at, key, client, waiting, watcher)
            _, before, reply, after = await waiting
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        check_redirected(key, at, (before, after), reply)
        self.record.reads += 1
        if isinstance(reply, hiredis.ReplyError):
            if not str(reply).startswith(ELSEWHERE):
                raise RefusedError(str(reply))
            return
        assert not reply, f"{key} at {at}: entries that nobody has sent: {reply}"

    async def _watch(
        self, at: str, key: str, client: int, waiting: asyncio.Task[list[Any]], watcher: Connection
    ) -> None:  # fmt: skip
        """Check Rule 3 until there is a reply."""
        loop = asyncio.get_running_loop()
        since, seen = loop.time(), 0  # inspections since the slot left, and the reader still waits
        while not waiting.done():
            await asyncio.wait([waiting], timeout=POLL)
            known, shown, *states = await watcher.ask(
                ("TCLUSTER", "MAP"), ("CLIENT", "LIST", "ID", client), ("TCLUSTER", "STATUS"), ("TMEMBER", "STATUS"),
                ("ROLE",),
            )  # fmt: skip
            left = isinstance(known, bytes) and owner_of(known, key)[1] != at[:-1]
            if not (left and is_blocked(shown) and replies(*states)):
                since, seen = loop.time(), 0
                continue
            seen += 1
            assert seen < LEAST or loop.time() - since < REDIRECTED, (
                f"{key}: a reader still waits at {at}, {loop.time() - since:.1f} s after the slot has left: {shown!r}"
            )


def is_blocked(shown: Any) -> bool:
    """Return whether a line of CLIENT LIST shows a client that waits."""
    words = shown.split() if isinstance(shown, bytes) else []
    return any(word.startswith(b"flags=") and b"b" in word[6:] for word in words)


def replies(cluster: Any, member: Any, role: Any) -> bool:
    """Return whether a member does not withhold replies for long, by those to TCLUSTER STATUS, TMEMBER STATUS, ROLE."""
    if not isinstance(cluster, bytes) or not isinstance(member, bytes) or not isinstance(role, list):
        return False
    status = json.loads(member)
    if role[0] == b"slave":
        return bool(role[3] == b"connected" and not status["withheld_clients"])
    return bool(json.loads(cluster)["leads"] and status["lease_left_ms"])
