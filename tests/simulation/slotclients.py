"""The clients of a simulated cluster, which follow MOVED, and what they check.

Rule 1: each key has one writer, which appends numbers, and deletes the key now and then, so that its slot can leave.
Rule 2: a read that begins after an append was acknowledged, or after another read has shown it, shows it until a
deletion is sent. A read that begins after a deletion was acknowledged shows nothing that was acknowledged or seen
before the deletion was sent.
Rule 3: no number is there twice, and none that was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

import hiredis

from commands.slots import slot_of
from tests.simulation.checker import check_rows
from tests.simulation.clients import LostError, RefusedError, SimConnection, Word
from tests.simulation.network import NetworkLoop
from tests.simulation.slotmembers import SlotMember

HOPS: Final = 6  # redirections that a client follows
NAMES: Final = 10  # that a deletion deletes: appends without a reply may have taken effect after earlier deletions


class Key:
    """What clients know of a key. A deletion without a reply may take effect later, so the writer then uses another
    name with the same hash tag."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.names = [f"{{{tag}}}1"]
        self.slot = slot_of(tag.encode())
        self.present: set[int] = set()  # numbers that were acknowledged or seen since the last deletion was sent
        self.gone: set[int] = set()  # numbers that an acknowledged deletion has deleted
        self.refused: set[int] = set()
        self.deletions = 0  # that were sent, and that were acknowledged: odd while one is in progress
        self.appended = 0  # acknowledged appends

    @property
    def name(self) -> str:
        """The name that the writer uses now."""
        return self.names[-1]

    def check(self, numbers: list[int], present: set[int], gone: set[int], deletions: int) -> None:
        """Check what a read shows. The other arguments: as they were when it began. Raises AssertionError."""
        found = set(numbers)
        assert len(found) == len(numbers), f"{self.tag}: a number is there twice: {numbers[-5:]}"
        assert not found & gone, f"{self.tag}: {sorted(found & gone)[:3]} are there, and were deleted"
        assert not found & self.refused, f"{self.tag}: {sorted(found & self.refused)[:3]} are there, and were refused"
        if deletions == self.deletions and deletions % 2 == 0:
            assert not present - found, f"{self.tag}: {sorted(present - found)[:3]} were acknowledged or seen, and lost"
            self.present |= found


class SlotClients:
    """The clients. ``stopping``: they end after the current step. ``with_keys``: slots also move with their keys."""

    def __init__(
        self, loop: NetworkLoop, members: Sequence[SlotMember], keys: Sequence[Key], chance: Random, pauses: float
    ) -> None:
        """``pauses``: seconds for which a writer leaves its key deleted, at most."""
        self._loop, self._members, self._keys, self._random, self._pauses = loop, members, keys, chance, pauses
        self._hosts = {each.host: each for each in members}
        self._guess: dict[int, SlotMember] = {}  # by slot: the member that answered last, for all clients
        self.acknowledged: dict[int, int] = {}  # as GroupRecord has them, for the faults
        self.assigned = 0
        self.stopping = self.with_keys = False
        self._number = 0

    async def ask(self, connections: dict[str, SimConnection], slot: int, *words: Word) -> Any:
        """Return the reply of the owner. Raises LostError, RefusedError."""
        member = self._guess.get(slot) if self._random.random() < 0.8 else None
        member = member or self._random.choice(self._members)
        for _ in range(HOPS):
            connection = connections.get(member.name)
            if connection is None:
                connection = connections[member.name] = await SimConnection.open(self._loop, member)
            try:
                (reply,) = await connection.ask(words)
            except LostError:
                connections.pop(member.name).close()
                self._guess.pop(slot, None)
                raise
            if not isinstance(reply, hiredis.ReplyError):
                self._guess[slot] = member
                return reply
            text = str(reply)
            if not text.startswith("MOVED "):
                self._guess.pop(slot, None)
                raise RefusedError(text)
            member = self._hosts[text.split()[2].rpartition(":")[0]]
        raise RefusedError("too many redirections")

    async def _run(self, step: Callable[[dict[str, SimConnection]], Awaitable[None]]) -> None:
        connections: dict[str, SimConnection] = {}
        while not self.stopping:
            try:
                await step(connections)
                await asyncio.sleep(self._random.choice((0.001, 0.02, 0.1)))
            except (LostError, RefusedError):
                await asyncio.sleep(self._random.uniform(0.001, 0.05))
            except Exception as error:  # noqa: BLE001 - a client that ends unnoticed would end its checks, too
                self._loop.trouble.append(str(error) if isinstance(error, AssertionError) else repr(error))
                return
        for connection in connections.values():
            connection.close()

    # -- what each client does -----------------------------------------------------------------------------------
    async def write(self, key: Key) -> None:
        """Append numbers to a key, and delete it now and then."""
        left = 0

        async def step(connections: dict[str, SimConnection]) -> None:
            nonlocal left
            if left:
                left -= 1
                await self._append(connections, key)
                return
            await self._delete(connections, key)
            await asyncio.sleep(self._random.random() * self._pauses)
            left = self._random.randint(1, 6)

        await self._run(step)

    async def _append(self, connections: dict[str, SimConnection], key: Key) -> None:
        self._number += 1
        sent = self._number
        try:
            await self.ask(connections, key.slot, "TAPPEND", key.name, "n", sent)
        except RefusedError:
            key.refused.add(sent)
            raise
        key.present.add(sent)
        key.appended += 1
        self.acknowledged[sent] = key.slot

    async def _delete(self, connections: dict[str, SimConnection], key: Key) -> None:
        """Delete the key. Sends it again until it is acknowledged."""
        doomed = set(key.present)
        key.deletions += 1
        key.present.clear()
        lost = False
        while True:
            try:
                await self.ask(connections, key.slot, "DEL", *key.names[-NAMES:])
                break
            except (LostError, RefusedError) as error:
                if self.stopping:
                    return
                lost = lost or isinstance(error, LostError)
                await asyncio.sleep(self._random.uniform(0.001, 0.05))
        if lost:
            key.names.append(f"{{{key.tag}}}{len(key.names) + 1}")
        key.gone |= doomed
        key.deletions += 1

    async def read(self) -> None:
        async def step(connections: dict[str, SimConnection]) -> None:
            key = self._random.choice(self._keys)
            await self.look(connections, key)

        await self._run(step)

    async def look(self, connections: dict[str, SimConnection], key: Key) -> None:
        """Read a key, and check what is there. Raises LostError, RefusedError, AssertionError."""
        before = set(key.present), set(key.gone), key.deletions
        rows = await self.ask(connections, key.slot, "TRANGE", key.name, "-", "+")
        key.check([int(value) for value in check_rows(key.name, rows or [])], *before)

    async def move(self) -> None:
        """Move slots to other groups, with their keys or without."""
        groups = sorted({each.group for each in self._members})

        async def step(_: dict[str, SimConnection]) -> None:
            key = self._random.choice(self._keys)
            member = self._guess.get(key.slot) or self._random.choice(self._members)
            connection = await SimConnection.open(self._loop, member)
            try:
                if self.with_keys and self._random.random() < 0.1:
                    await connection("TCLUSTER", "ABORT")
                else:
                    action = self._random.choice(("MOVE", "MOVE", "MOVE", "ASSIGN")) if self.with_keys else "ASSIGN"
                    await connection("TCLUSTER", action, key.slot, "TO", self._random.choice(groups))
                self.assigned += 1
            finally:
                connection.close()
            await asyncio.sleep(self._random.choice((0.0, 0.1, 0.5)) * self._random.random())

        await self._run(step)
