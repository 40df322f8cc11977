"""Clients that delay entries: they add, repeat and cancel them, wait for them, and set retention policies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tests.simulation.checker import Ledger
from tests.simulation.clients import RefusedError, SimConnection, Word, answer, asked
from tests.simulation.delayed import ALL, FAR, DelayedEntry, DelayedStream, wall
from tests.simulation.members import Member
from tests.simulation.network import NetworkLoop
from tests.simulation.workloads import Work

SETTLED: Final = 60.0  # seconds in which all entries that are due have joined, and policies have evicted the rest
POLICIES: Final[tuple[tuple[Word, ...], ...]] = (
    ("COUNT", 8, "EXACT"), ("COUNT", 12, "~"), ("AGE", 800, "EXACT"), ("COUNT", 20, "AGE", 3_000_000, "~"),
)  # fmt: skip


class Delays(Work):
    """Two streams of its own: one with a retention policy, and one without."""

    def __init__(
        self, ledger: Ledger, number: int, chance: random.Random, guard: Sequence[Word], counts: list[int]
    ) -> None:
        super().__init__(ledger, number, chance, guard, counts)
        self.plain = DelayedStream(ledger, f"d{number}", ())
        self.retained = DelayedStream(ledger, f"k{number}", chance.choice(POLICIES))
        self._policy_set = False
        self._read_from: Word = "0"

    def promised(self, facts: Sequence[tuple[str, Any]]) -> None:
        for what, entry in facts:
            if what == "added":
                entry.promised = True
            else:
                entry.cancelled_for_good = True

    async def work(self, server: SimConnection) -> None:
        stream = self.plain if self.random.random() < 0.7 else self.retained
        if stream.policy and (not self._policy_set or self.random.random() < 0.05):
            await server("TCFG", stream.key, "RETAIN", *stream.policy)
            self._policy_set = True
        what = self.random.random()
        if what < 0.35:
            count = self.random.choice((1, 1, 1, 2, 30))
            await self._add(server, stream, [self._new() for _ in range(count)])
        elif what < 0.5:
            await self._repeat(server, stream)
        elif what < 0.65:
            await self._cancel(server, stream)
        elif what < 0.75:
            rows = await server("TREAD", self.plain.key, self._read_from, 50, "BLOCK", 200)
            if rows:
                self.plain.see(rows)
                self._read_from = rows[-1][0] if self.ledger.lossless else "0"
        else:
            await stream.ask(server)

    def _new(self, name: bytes | None = None) -> DelayedEntry:
        chance = self.random
        if name is None:
            name = b"" if chance.random() < 0.15 else b"t" + self.value()
        ms = chance.choice((0, 5, 50, 50, 300, 1500, FAR if chance.random() < 0.3 else 20))
        return DelayedEntry(name, ms, round(wall()) + ms if chance.random() < 0.5 else 0)

    async def _add(self, server: SimConnection, stream: DelayedStream, entries: Sequence[DelayedEntry]) -> None:
        values = [self.value() for _ in entries]
        replies = await server.ask(*[stream.send(*pair) for pair in zip(entries, values, strict=True)])
        refused = None
        for entry, value, reply in zip(entries, values, replies, strict=True):
            entry.unanswered -= 1
            if isinstance(reply, Exception):
                refused = reply
                entry.sent.pop(value, None)
                stream.by_value.pop(value, None)
                continue
            assert not entry.name or reply == entry.name, f"the token {entry.name!r} becomes {reply!r}"
            entry.name = bytes(reply)
            entry.acked = entry.acked or wall()
            self._doubtful.append(("added", entry))
        if refused is not None:
            raise RefusedError(str(refused))

    async def _repeat(self, server: SimConnection, stream: DelayedStream) -> None:
        """Send tokens again: those without a reply, or any."""
        entries = [each for each in stream.entries if each.chosen and not each.cancels and not each.far]
        unanswered = [each for each in entries if not each.acked]
        entries = unanswered or entries
        if entries:
            entry = entries[-1] if self.random.random() < 0.5 else self.random.choice(entries)
            self.ledger.repeated += 1
            await self._add(server, stream, [entry] * self.random.choice((1, 2)))

    async def _cancel(self, server: SimConnection, stream: DelayedStream) -> None:
        entries = [each for each in stream.entries[-12:] if each.name and not each.cancelled]
        if not entries:
            return
        entry = self.random.choice(entries)
        before = stream.must_hold(entry) and not entry.cancels
        entry.cancels += 1
        reply = await server("TDELAY", stream.key, "CANCEL", entry.name)
        if reply == 1:
            assert not (entry.joined and self.ledger.lossless), f"{entry.name!r} has joined, and was cancelled"
            if entry.unanswered or entry.cancels > 1:
                return
            entry.cancelled = True
            self._doubtful.append(("cancelled", entry))
            self.ledger.cancelled += 1
            if self.random.random() < 0.3 and not entry.far:
                await self._add(server, stream, [self._new(entry.name)])
        elif before and self.ledger.lossless:
            assert not entry.far, f"{entry.name!r} is lost: it can't be cancelled"
            entry.joined = True

    async def end(self, server: SimConnection) -> None:
        """Check the leader at the end: nothing exceeds the policy, and what is still delayed can be cancelled."""
        for stream in (self.plain, self.retained):
            for entry in [each for each in stream.expected()[0] if each.far]:
                reply = await server("TDELAY", stream.key, "CANCEL", entry.name)
                assert reply == 1, f"{stream.key}: {entry.name!r} is lost: it can't be cancelled"
        if self._policy_set and self.ledger.lossless:
            words: tuple[Word, ...] = ("TCFG", self.retained.key, "RETAIN", *self.retained.policy, "DRY")
            reply = await server("TCFG", self.retained.key)
            assert reply is not None, f"{self.retained.key} has no policy any more"
            for _ in range(round(SETTLED)):
                excess = await server(*words)
                if not excess:
                    break
                await asyncio.sleep(1.0)
            else:
                raise AssertionError(f"{self.retained.key} exceeds its policy by {excess} entries")


async def settled(
    loop: NetworkLoop, members: Sequence[Member], works: Iterable[Work], ledger: Ledger, trouble: Callable[[], None]
) -> None:
    """Wait until all members show that what was due has joined."""
    streams = [stream for work in works if isinstance(work, Delays) for stream in (work.plain, work.retained)]
    until = loop.virtual + SETTLED + 2 * ledger.skew / 1000
    for stream in streams:
        for member in members:
            while True:
                page = await asked(loop, member, "TDELAY", stream.key, "LIST", 0, "COUNT", ALL)
                entries = [stream.by_value.get(row[3]) for row in page[1]] if page is not None else [None]
                if all(entry is not None and entry.far for entry in entries):
                    break
                trouble()
                assert loop.virtual < until, f"{stream.key}: {member.name} delivers {len(entries)} entries too late"
                await asyncio.sleep(0.2)


async def checked(loop: NetworkLoop, members: Sequence[Member], leader: Member, works: Iterable[Work]) -> None:
    """Check at the end, when all members are equal."""
    for work in works:
        if not isinstance(work, Delays):
            continue
        for member in members:
            for stream in (work.plain, work.retained):
                rows = await answer(loop, member, "TRANGE", stream.key, "-", "+")
                page = await answer(loop, member, "TDELAY", stream.key, "LIST", 0, "COUNT", ALL)
                stream.check(rows, page)
                stream.check_missing(rows, page, *stream.expected())
        connection = await SimConnection.open(loop, leader)
        await work.end(connection)
        connection.close()
