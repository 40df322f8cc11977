"""Delayed entries (TDELAY), and reads of replicas (READONLY), while slots move.

Rule 1: an entry whose TDELAY was acknowledged joins its stream once, and not before it is due. A TDELAY is repeated
        with its token until there is a reply, and also later.
Rule 2: if CANCEL returned 1, the entry never joins. If it returned 0, the entry has joined.
Rule 3: after READONLY, a member replies to a call for a slot of another group with MOVED or CLUSTERDOWN.
Rule 4: what a replica shows is a state that the stream had. While the map does not change, it does not go back, unless
the replica has lost data that it had not synced.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import hiredis

from commands.slots import slot_of
from tests.simulation.checker import check_rows, number
from tests.simulation.clients import LostError
from tests.storm.routing import Routed
from tests.storm.works import Record, Work

DELAYED: Final = ("d0", "d1", "d2")  # streams whose entries are all delayed
DELAYS: Final = (0, 30, 300, 2000)  # ms
ROUNDING: Final = 60  # ms by which served time may deviate (servedtime.DRIFT_MS), and times are rounded
PATIENT: Final = 60.0  # seconds until all entries have joined once no more faults happen


def now() -> float:
    return time.time() * 1000


@dataclass
class Later:
    """An entry that is to join a stream. ``due``: ms since the epoch, at the earliest."""

    key: str
    value: bytes
    when: tuple[str, int]  # IN or AT, and the time
    due: float
    attempts: int = 0
    acked: bool = False
    cancels: int = 0

    @property
    def words(self) -> tuple[str | bytes | int, ...]:
        return ("TDELAY", self.key, *self.when, "ID", self.value, "v", self.value)


class DelayRecord(Record):
    """The part of the ledger about delayed entries and reads of replicas."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix, lambda _: 0)
        self.later: dict[tuple[str, bytes], Later] = {}
        self.gone: set[tuple[str, bytes]] = set()  # entries that must never be there
        self.shown: set[tuple[str, tuple[int, int], int]] = set()  # by replicas: key, last ID, number of entries

    @property
    def delayed_keys(self) -> list[str]:
        return [self.key(name) for name in DELAYED]

    def check_ids(self, key: str, rows: Sequence[Sequence[bytes]]) -> None:
        super().check_ids(key, rows)
        there = next((row[2] for row in rows if (key, row[2]) in self.gone), None)
        assert there is None, f"{key}: {there!r} is there, and was refused or cancelled"
        for row in rows:
            later = self.later.get((key, row[2]))
            early = later.due - number(row[0])[0] if later is not None else 0
            assert early <= ROUNDING, f"{key}: {row[2]!r} has joined {early:.0f} ms early: {later}"

    def check_shown(self, key: str, rows: Sequence[Sequence[bytes]]) -> None:
        """Check at the end that each state that a replica showed was one of the stream."""
        counts = {number(row[0]): at for at, row in enumerate(rows, 1)}
        for its_key, last, count in self.shown:
            if its_key == key:
                assert counts.get(last) == count, (
                    f"{key}: a replica showed {count} entries up to {last}, and there are {counts.get(last)}"
                )


class Delays(Work):
    """Adds delayed entries, repeats tokens, and cancels some."""

    record: DelayRecord

    def __init__(self, client: int, record: Record, chance: random.Random) -> None:
        super().__init__(client, record, chance)
        self._own: list[Later] = []
        self._pending: Later | None = None  # there was no reply yet

    async def step(self, member: str, server: Any) -> None:
        known = self._own[-50:]
        what = self.random.random()
        if self._pending is None and known and what < 0.15:
            await self._cancel(self.random.choice(known), server)
        elif self._pending is None and known and what < 0.3:
            again = self.random.choice(known)
            if not again.cancels:  # a token can be used again after its cancellation
                again.attempts += 1
                assert await server(*again.words) == again.value
        else:
            if self._pending is None:
                self._pending = self._new()
            later = self._pending
            later.attempts += 1
            assert await server(*later.words) == later.value
            later.acked = True
            self._pending = None

    def _new(self) -> Later:
        key, ms = self.record.key(self.random.choice(DELAYED)), self.random.choice(DELAYS)
        (value,) = self.values(key, 1)
        due = now() + ms
        later = Later(key, value, self.random.choice((("IN", ms), ("AT", int(due)))), int(due))
        self.record.later[key, value] = later
        self._own.append(later)
        return later

    async def _cancel(self, later: Later, server: Any) -> None:
        if not later.acked or later.attempts > 1:
            return  # a TDELAY whose reply was lost may be executed after the cancellation
        later.cancels += 1
        if await server("TDELAY", later.key, "CANCEL", later.value):
            self.record.gone.add((later.key, later.value))
        elif later.cancels == 1:
            self.record.said.add((later.key, later.value))

    async def joined(self, server: Any) -> None:
        """Wait until all entries that must join have joined, and none is left."""
        wanted = {fact for fact, later in self.record.later.items() if later.acked and not later.cancels}
        end = time.monotonic() + PATIENT
        while True:
            missing, left = set(wanted), 0
            for key in self.record.delayed_keys:
                rows = await server("TRANGE", key, "-", "+") or []
                missing -= {(key, row[2]) for row in rows}
                left += await server("TDELAY", key, "COUNT")
            if not missing and not left:
                break
            assert time.monotonic() < end, f"{len(missing)} entries have not joined: {sorted(missing)[:3]}; {left} left"
            await asyncio.sleep(0.1)
        self.record.said |= wanted


class ReplicaReads(Work):
    """Reads of any member after READONLY."""

    record: DelayRecord
    streams: tuple[str, ...] = ("x", *DELAYED)  # entries are never deleted

    def __init__(self, client: int, record: Record, chance: random.Random) -> None:
        super().__init__(client, record, chance)
        # by member and key: the version of the map and the losses of data, the values
        self._last: dict[tuple[str, str], tuple[tuple[int, int], set[bytes]]] = {}

    async def step(self, member: str, server: Any) -> None:
        assert isinstance(server, Routed)
        at = self.random.choice(server.members)
        key = self.record.key(self.random.choice(self.streams))
        replies = await server.at(
            at, ("READONLY",), ("TCLUSTER", "MAP"), ("ROLE",), ("TRANGE", key, "-", "+"), ("TCLUSTER", "MAP")
        )
        _, before, role, rows, after = replies
        if not isinstance(before, bytes) or not isinstance(after, bytes) or isinstance(role, Exception):
            raise LostError("no map")
        version, owner = owner_of(before, key)
        same = (version, owner) == owner_of(after, key)
        if same and owner != at[:-1]:
            assert isinstance(rows, hiredis.ReplyError), f"{key}: {at} serves a slot of group {owner}"
            assert str(rows).startswith(("MOVED ", "CLUSTERDOWN ")), f"{key} at {at}: {rows}"
        if isinstance(rows, hiredis.ReplyError) or role[0] != b"slave":
            self._last.pop((at, key), None)
            return
        self._check(at, key, rows or [], (version if same else 0, server.losses(at)))

    def _check(self, at: str, key: str, rows: Sequence[Sequence[bytes]], state: tuple[int, int]) -> None:
        """Check what a replica shows. ``state``: the version of its map, 0 if the map has changed meanwhile, and how
        often it has lost data."""
        values = set(check_rows(key, rows))
        self.record.reads += 1
        self.record.check_ids(key, rows)
        unknown = {value for value in values if (key, value) not in self.record.sent}
        assert not unknown, f"{key} at {at}: entries that nobody has sent: {sorted(unknown)[:3]}"
        earlier, shown = self._last.get((at, key), ((0, 0), set[bytes]()))
        if state[0] and state == earlier:
            gone = shown - values
            assert not gone, f"{key}: the replica {at} goes back: {len(gone)} entries are gone, such as {min(gone)!r}"
        self._last[at, key] = state, values
        if rows:
            self.record.shown.add((key, number(rows[-1][0]), len(rows)))


def owner_of(document: bytes, key: str) -> tuple[int, str | None]:
    """Return the version of a map, and the group that has a key."""
    found = json.loads(document)
    slot = slot_of(key.encode())
    return found["version"], next((group for first, last, group in found["slots"] if first <= slot <= last), None)
