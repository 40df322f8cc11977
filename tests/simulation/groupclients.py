"""The clients of a simulated server group, which find the leader themselves, and what they check.

Rule 1: a client that was told that an entry was appended finds it in each later read of a leader, and so it finds what
any client has seen before: in a read, as the result of a blocked read, or by a message. The reads of one connection are
monotonic, also at a replica.
Rule 2: an entry that was acknowledged is on min-in-sync members.
Rule 3: a client that reads on from an ID skips no entry.
Rule 4: of a consumer group, no message comes again whose acknowledgement was confirmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

import hiredis

from storage.model.ids import parse_id
from tests.simulation.checker import Ledger, check_rows, number
from tests.simulation.clients import LostError, RefusedError, SimConnection
from tests.simulation.delays import Delays
from tests.simulation.groupchecks import Fact, GroupRecord
from tests.simulation.groupmembers import KEY, GroupMember
from tests.simulation.members import Member
from tests.simulation.network import NetworkLoop
from tests.simulation.workloads import Claims, Expiry, Groups, Redelivery

CHANNEL: Final = "told"  # of the messages
Step = Callable[[SimConnection], Awaitable[None]]


class GroupClients:
    """The clients. ``stopping``: they end after the current step."""

    def __init__(
        self, loop: NetworkLoop, members: list[GroupMember], record: GroupRecord, min_in_sync: int, chance: Random
    ) -> None:
        self._loop, self._members, self._record, self._random = loop, members, record, chance
        self._min_in_sync = min_in_sync
        self.ledger = Ledger(lossless=True)  # of the consumer group, and of delayed entries
        self.delays: list[Delays] = []
        self.unknown: set[int] = set()  # numbers that were sent, and not refused
        self.longest = 0.0  # seconds between two acknowledged appends
        self.stopping = False
        self._last = 0.0
        self._number = 0

    async def run(self, step: Step) -> None:
        """Run steps at any member until the run ends."""
        while not self.stopping:
            try:
                connection = await SimConnection.open(self._loop, self._loop.random.choice(self._members))
            except LostError:
                await asyncio.sleep(0.02)
                continue
            try:
                while not self.stopping:
                    await step(connection)
                    await asyncio.sleep(self._loop.random.choice((0.001, 0.02, 0.1)))
            except (LostError, RefusedError):
                await asyncio.sleep(self._loop.random.uniform(0.001, 0.05))
            except Exception as error:  # noqa: BLE001 - a client that ends unnoticed would end its checks, too
                self._loop.trouble.append(str(error) if isinstance(error, AssertionError) else repr(error))
                return
            finally:
                connection.close()

    def see(self, rows: Any) -> set[Fact]:
        """Record what a client sees of the stream of the writers, and return it."""
        facts = set(zip([row[0] for row in rows], check_rows(KEY, rows), strict=True))
        self._record.show(facts)
        return facts

    # -- what each client does -------------------------------------------------------------------------------------
    async def write(self) -> None:
        async def step(connection: SimConnection) -> None:
            self._number += 1
            sent = self._number
            self.unknown.add(sent)
            try:
                if self._random.random() < 0.8:
                    entry = await connection("TAPPEND", KEY, "n", sent)
                else:
                    replies = await connection.ask(
                        ("MULTI",), ("TAPPEND", KEY, "n", sent), ("PUBLISH", CHANNEL, sent), ("EXEC",)
                    )
                    if not isinstance(replies[3], list):
                        raise RefusedError(str(replies[3]))
                    entry = replies[3][0]
                    if isinstance(entry, hiredis.ReplyError):
                        raise RefusedError(str(entry))
            except RefusedError:
                self.unknown.discard(sent)
                raise
            holders = sum(each.holds(sent, parse_id(entry)) for each in self._members)
            assert holders >= self._min_in_sync, f"entry {sent} is acknowledged, and on {holders} members"
            now = self._loop.virtual
            self.longest = max(self.longest, now - self._last) if self._last else 0.0
            self._last = now
            self._record.tell(sent, entry)

        await self.run(step)

    async def read(self) -> None:
        last: tuple[SimConnection | None, set[Fact]] = None, set()
        leaves = self._random.choice((0.1, 0.005))  # the probability, after each read

        async def step(connection: SimConnection) -> None:
            nonlocal last
            before = set(self._record.facts)
            answers = await connection.ask(("MULTI",), ("ROLE",), ("TRANGE", KEY, "-", "+"), ("EXEC",))
            if not isinstance(answers[3], list):
                raise RefusedError(str(answers[3]))
            role, rows = answers[3]
            facts = self.see(rows)
            if role[0] == b"master":
                missing = before - facts
                assert not missing, f"a leader does not show {named(missing)}, which were acknowledged or seen before"
            missing = last[1] - facts if connection is last[0] else set()
            assert not missing, f"a client does not see {named(missing)} any more, on the same connection"
            last = connection, facts
            if self._loop.random.random() < leaves:
                raise LostError("it turns to another member")

        await self.run(step)

    async def block(self) -> None:
        """Wait for new entries, from the last one on."""
        last = b"0"

        async def step(connection: SimConnection) -> None:
            nonlocal last
            before = set(self._record.facts)
            rows = await connection("TREAD", KEY, last, 50, "BLOCK", 300)
            if not rows:
                return
            facts, end = self.see(rows), number(rows[-1][0])
            skipped = {fact for fact in before - facts if number(last) < number(fact[0]) <= end}
            assert not skipped, f"a client that reads on from {last!r} skips {named(skipped)}"
            last = rows[-1][0]

        await self.run(step)

    async def listen(self) -> None:
        """Receive messages of transactions that append an entry: it can be read then, and does not disappear."""

        async def step(connection: SimConnection) -> None:
            connection.on_message = lambda message: self._message(connection.member, message[2])
            await connection("SUBSCRIBE", CHANNEL)
            await asyncio.sleep(self._loop.random.uniform(0.5, 3.0))
            raise LostError("it turns to another member")

        await self.run(step)

    def _message(self, server: Member | None, value: bytes) -> None:
        assert isinstance(server, GroupMember)
        entry = server.entry_of(int(value))
        if entry is not None:
            self._record.show({(entry, value)})
        elif server.loaded:
            self._loop.trouble.append(f"a message of {server.name} is about entry {int(value)}, which it does not have")

    async def consume(self) -> None:
        await self.run(Groups(self.ledger, 9, self._random, (), []).work)

    async def delay(self) -> None:
        """Delay entries, cancel them, and let policies evict them."""
        work = Delays(self.ledger, 20 + len(self.delays), Random(self._random.random()), (), [])
        self.delays.append(work)
        await self.run(work.work)

    async def due(self) -> None:
        """Wait for delayed entries of other clients."""
        last: dict[str, bytes] = {}

        async def step(connection: SimConnection) -> None:
            if not self.delays:
                await asyncio.sleep(0.1)
                return
            stream = self._random.choice(self.delays).plain
            rows = await connection("TREAD", stream.key, last.get(stream.key, b"0"), 50, "BLOCK", 300)
            if rows:
                stream.see(rows)
                last[stream.key] = rows[-1][0]

        await self.run(step)

    async def churn(self) -> None:
        """Let messages fall due, be claimed, given back, and given up; let keys and groups expire."""
        works = [
            work(self.ledger, 8, Random(self._random.random()), (), []) for work in (Redelivery, Claims, Claims, Expiry)
        ]

        async def step(connection: SimConnection) -> None:
            await self._random.choice(works).work(connection)

        await self.run(step)


def named(facts: set[Fact]) -> list[int]:
    """Return the first numbers, for a message."""
    return sorted(int(value) for _, value in facts)[:5]
