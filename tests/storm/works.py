"""What clients do. Each work checks the replies and records them in the ledger."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from tests.simulation.checker import Fact, Ledger, number
from tests.simulation.clients import LostError, RefusedError, Word
from tests.storm.clients import Connection

RETRY = 500  # ms until a message comes again
STREAMS = ("a0", "a1", "a2")


class Record(Ledger):
    """The ledger of a round. ``ids``: the IDs that clients received; ``replaced``: how often data was replaced."""

    def __init__(self, prefix: str, replaced: Callable[[str], int]) -> None:
        super().__init__(lossless=True)
        self.prefix = prefix
        self.replaced = replaced
        self.ids: dict[Fact, tuple[int, int]] = {}

    def key(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    @property
    def keys(self) -> list[str]:
        """The streams whose entries the ledger knows."""
        return [self.key(name) for name in (*STREAMS, "x", "g", "h")]

    def check_ids(self, key: str, rows: Sequence[Sequence[bytes]]) -> None:
        """Check that each entry has the ID that its writer received."""
        for row in rows:
            known = self.ids.get((key, row[2]))
            assert known in (None, number(row[0])), f"{key}: {row[2]!r} has the ID {row[0]!r}, and not {known}"


class Work:
    """One client's work."""

    def __init__(self, client: int, record: Record, chance: random.Random) -> None:
        self.record = record
        self.random = chance
        self._client = client
        self._sent = 0

    def pad(self) -> str:
        """Return text that can't be compressed much: small nodes do not leave the store for an object store."""
        return self.random.randbytes(self.random.choice((0, 5, 50, 1000))).hex()

    def values(self, key: str, count: int) -> list[bytes]:
        """Return new values that will be sent."""
        first, self._sent = self._sent, self._sent + count
        values = [b"c%d.%d" % (self._client, at) for at in range(first, self._sent)]
        self.record.sent |= {(key, value) for value in values}
        return values

    def confirm(self, key: str, value: bytes, entry_id: Any) -> None:
        self.record.said.add((key, value))
        self.record.ids[key, value] = number(entry_id)

    def confirm_all(self, key: str, values: Sequence[bytes]) -> None:
        self.record.said |= {(key, value) for value in values}

    async def step(self, member: str, server: Connection) -> None:
        raise NotImplementedError


class Appends(Work):
    """Appends to shared streams, one by one, many at once, pipelined, and in transactions; deletes some entries."""

    async def step(self, member: str, server: Connection) -> None:
        key = self.record.key(self.random.choice(STREAMS))
        what = self.random.randrange(6)
        if what < 2:
            (value,) = self.values(key, 1)
            self.confirm(key, value, await server("TAPPEND", key, "v", value, "pad", self.pad()))
        elif what == 2:
            values = self.values(key, self.random.randint(2, 40))
            await server("TMAPPEND", key, "FIELDS", 1, "v", "VALUES", *values)
            self.confirm_all(key, values)
        elif what == 3:
            await self.pipeline(server, "TAPPEND", key)
        elif what == 4:
            other = self.record.key(self.random.choice(STREAMS))
            (one,), (two,) = self.values(key, 1), self.values(other, 1)
            replies = await server.ask(("MULTI",), ("TAPPEND", key, "v", one), ("TAPPEND", other, "v", two), ("EXEC",))
            ids = raised(replies)[-1]
            self.confirm(key, one, ids[0])
            self.confirm(other, two, ids[1])
        else:
            (value,) = self.values(key, 1)
            entry_id = await server("TAPPEND", key, "v", value)
            self.confirm(key, value, entry_id)
            self.record.removed.add((key, value))
            if await server("XDEL", key, entry_id) == 1:
                self.record.deleted.add((key, value))

    async def pipeline(self, server: Connection, command: str, key: str, *words: str) -> None:
        values = self.values(key, self.random.randint(2, 30))
        pad = self.pad()
        commands: list[tuple[Word, ...]] = [(command, key, *words, "v", value, "pad", pad) for value in values]
        replies = await server.collect(*commands)
        for value, reply in zip(values, replies, strict=True):
            if isinstance(reply, bytes):
                self.confirm(key, value, reply)
        raised(replies)


class XAppends(Appends):
    """XADD, alone or pipelined."""

    async def step(self, member: str, server: Connection) -> None:
        await self.pipeline(server, "XADD", self.record.key("x"), "*")


class Reads(Work):
    """Reads whole streams, of any member."""

    def __init__(self, client: int, record: Record, chance: random.Random) -> None:
        super().__init__(client, record, chance)
        self._shown: dict[tuple[str, int, str], set[bytes]] = {}  # by member, with the number of its directory, and key

    async def step(self, member: str, server: Connection) -> None:
        key = self.record.key(self.random.choice((*STREAMS, "x", "g")))
        expected = self.record.expected(key)
        place = member, self.record.replaced(member), key
        replies = await server.ask(("MULTI",), ("ROLE",), ("TRANGE", key, "-", "+"), ("EXEC",))
        role, rows = raised(raised(replies)[-1])
        rows = rows or []
        if role[0] != b"master":  # it may be behind the leader, but not behind itself
            expected = self._shown.get(place, set())
        try:
            self.record.check_read(key, rows, expected)
            self.record.check_ids(key, rows)
        except AssertionError as error:
            raise AssertionError(f"{error}; a read at {member}, {role[0].decode()}") from error
        self._shown[place] = {row[2] for row in rows}
        if self.random.random() < 0.2:
            raise LostError("it turns to another member")


class Tail(Work):
    """Follows a stream with blocking reads, of any member."""

    def __init__(self, client: int, record: Record, chance: random.Random) -> None:
        super().__init__(client, record, chance)
        self.key = record.key(chance.choice(STREAMS))
        self.rows: list[tuple[bytes, bytes]] = []  # ID and value

    async def step(self, member: str, server: Connection) -> None:
        last = self.rows[-1][0] if self.rows else b"0-0"
        reply = await server("XREAD", "COUNT", 50, "BLOCK", 500, "STREAMS", self.key, last)
        for _, rows in reply or ():
            for entry_id, fields in rows:
                self.rows.append((entry_id, fields[1]))
                self.record.seen.setdefault(self.key, set()).add(fields[1])
        ids = [number(row[0]) for row in self.rows]
        assert all(one < other for one, other in pairwise(ids)), f"{self.key}: a tail goes back"
        if self.random.random() < 0.1:
            raise LostError("it turns to another member")

    def check(self, rows: Sequence[Sequence[bytes]]) -> None:
        """Check that nothing was skipped."""
        if self.rows:
            last = number(self.rows[-1][0])
            there = [row[2] for row in rows if number(row[0]) <= last]
            removed = self.record.removed
            shown = {value for _, value in self.rows}
            skipped = [value for value in there if value not in shown and (self.key, value) not in removed]
            assert not skipped, f"{self.key}: a tail has skipped {skipped[:3]}"


class Groups(Work):
    """A consumer group that acknowledges half of what it gets."""

    name = "g"

    async def step(self, member: str, server: Connection) -> None:
        key = self.record.key(self.name)
        if self.random.random() < 0.4:
            values = self.values(key, self.random.randint(1, 5))
            await server("TMAPPEND", key, "FIELDS", 1, "v", "VALUES", *values)
            self.confirm_all(key, values)
        done = self.done()
        rows = await self.read(server)
        self.check(rows, done)
        some = [row for row in rows if self.random.random() < 0.5]
        if some:
            await self.acknowledge(server, some)

    def done(self) -> set[bytes]:
        """The messages that must not come any more, if a read begins now."""
        return {value for value in self.record.acked if value.startswith(self.mark)}

    @property
    def mark(self) -> bytes:
        return self.name.encode() + b"|"

    def marked(self, row: Sequence[bytes]) -> bytes:
        return self.mark + row[2]

    async def read(self, server: Connection, count: int = 8) -> list[Sequence[bytes]]:
        """Return rows: ID, field, value."""
        key = self.record.key(self.name)
        rows = await server("TREAD", key, "0", count, "GROUP", "readers", 0, "RETRY", RETRY, 0)
        return [row for row in rows or () if row is not None]

    async def count_acknowledged(self, server: Connection, ids: Sequence[bytes]) -> Any:
        return await server("TACK", self.record.key(self.name), "readers", *ids)

    def check(self, rows: Sequence[Sequence[bytes]], done: set[bytes]) -> None:
        self.record.delivered += len(rows)
        key = self.record.key(self.name)
        self.record.seen.setdefault(key, set()).update(row[2] for row in rows)
        self.record.check_ids(key, rows)
        again = done & {self.marked(row) for row in rows}
        assert not again, f"{key}: acknowledged messages come again, such as {min(again)!r}"

    async def acknowledge(self, server: Connection, rows: Sequence[Sequence[bytes]]) -> None:
        values = {self.marked(row) for row in rows}
        self.record.acking |= values
        if await self.count_acknowledged(server, [row[0] for row in rows]) == len(rows):
            self.record.acked |= values

    async def drain(self, server: Connection) -> None:
        """Read and acknowledge all that is left. Every message without an acknowledgement must come."""
        key = self.record.key(self.name)
        wanted = {self.mark + value for its_key, value in self.record.said if its_key == key} - self.record.acking
        for _ in range(10_000):
            done = self.done()
            rows = await self.read(server, 1000)
            self.check(rows, done)
            wanted -= {self.marked(row) for row in rows}
            if not rows and not wanted:
                return
            if rows:
                await self.acknowledge(server, rows)
        raise AssertionError(f"{key}: {len(wanted)} messages do not come again, such as {min(wanted)!r}")


class XGroups(Groups):
    """The same with XREADGROUP and XACK; what was not acknowledged is claimed."""

    name = "h"

    async def read(self, server: Connection, count: int = 8) -> list[Sequence[bytes]]:
        key = self.record.key(self.name)
        reply = await server("XREADGROUP", "GROUP", "readers", "one", "COUNT", count, "STREAMS", key, ">")
        rows = list(reply[0][1]) if reply else []
        if not rows or self.random.random() < 0.3:
            rows += (await server("XAUTOCLAIM", key, "readers", "one", RETRY, "0-0", "COUNT", count))[1]
        return [(entry_id, *fields) for entry_id, fields in rows]

    async def count_acknowledged(self, server: Connection, ids: Sequence[bytes]) -> Any:
        return await server("XACK", self.record.key(self.name), "readers", *ids)


def raised(replies: list[Any]) -> list[Any]:
    """Return replies. Raises the first error among them."""
    for reply in replies:
        if isinstance(reply, LostError):
            raise reply
        if isinstance(reply, Exception):
            raise RefusedError(str(reply))
    return replies


WORKS: tuple[type[Work], ...] = (Appends, Appends, XAppends, Groups, XGroups, Reads, Reads, Tail, Tail)
