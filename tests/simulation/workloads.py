"""The workloads of clients. Each one checks its replies and records them in the ledger."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tests.simulation.checker import Ledger, check_rows
from tests.simulation.clients import RefusedError, SimConnection, Word

STREAMS = ("a0", "a1", "a2")
RETRY = 300  # ms until a message of the group comes again
READ_GROUP: tuple[Word, ...] = ("TREAD", "g", "0", 8, "GROUP", "readers", 0, "RETRY", RETRY, 0)


class Work:
    """One client's work. ``guard``: the words that wait for all replicas, and the counts that they must return."""

    def __init__(
        self, ledger: Ledger, number: int, chance: random.Random, guard: Sequence[Word], counts: list[int]
    ) -> None:
        self.ledger = ledger
        self.random = chance
        self._number = number
        self._sent = 0
        self._guard = tuple(guard)
        self._counts = counts
        self._doubtful: list[tuple[str, Any]] = []  # confirmed on this connection, not promised yet

    def connected(self) -> None:
        self._doubtful.clear()

    def value(self) -> bytes:
        self._sent += 1
        return b"c%d.%d" % (self._number, self._sent)

    def send(self, key: str, count: int = 1) -> list[bytes]:
        """Return new values that will be sent."""
        values = [self.value() for _ in range(count)]
        self.ledger.sent |= {(key, value) for value in values}
        return values

    def told(self, key: str, values: Sequence[bytes]) -> None:
        """Record that entries were confirmed."""
        self.ledger.said |= {(key, value) for value in values}
        self._doubtful += [(key, value) for value in values]

    def told_acked(self, values: Sequence[bytes]) -> None:
        self.ledger.acked |= set(values)
        self._doubtful += [("", value) for value in values]

    async def promise(self, server: SimConnection) -> None:
        """Ask whether all replicas have this connection's writes."""
        facts = list(self._doubtful)
        reply = await server(*self._guard, patience=3.0)
        counts = reply if isinstance(reply, list) else [reply]
        if all(count >= least for count, least in zip(counts, self._counts, strict=True)):
            self.promised(facts)
            del self._doubtful[: len(facts)]

    def promised(self, facts: Sequence[tuple[str, Any]]) -> None:
        """Record that all replicas have facts."""
        self.ledger.promised |= {fact for fact in facts if fact[0]}
        self.ledger.acked_for_good |= {value for key, value in facts if not key}

    async def step(self, server: SimConnection) -> None:
        await self.work(server)
        if self._doubtful and self.random.random() < 0.3:
            await self.promise(server)

    async def work(self, server: SimConnection) -> None:
        raise NotImplementedError


class Appends(Work):
    """Appends to shared streams, reads them, and deletes some of its own entries."""

    async def work(self, server: SimConnection) -> None:
        key = self.random.choice(STREAMS)
        what = self.random.randrange(8)
        if what < 2:
            (value,) = values = self.send(key)
            await server("TAPPEND", key, "v", value, "pad", "x" * self.random.choice((0, 10, 2000)))
            self.told(key, values)
        elif what == 2:
            values = self.send(key, self.random.randint(2, 40))
            await server("TMAPPEND", key, "FIELDS", 1, "v", "VALUES", *values)
            self.told(key, values)
        elif what == 3:
            values = self.send(key, self.random.randint(2, 8))
            replies = await server.ask(*[("TAPPEND", key, "v", value) for value in values])
            _raise_error(replies)
            self.told(key, values)
            ids = [bytes(reply) for reply in replies]
            assert len(set(ids)) == len(ids), f"{key}: an ID was given twice: {ids}"
        elif what == 4:
            other = self.random.choice(STREAMS)
            one, two = self.send(key), self.send(other)
            replies = await server.ask(
                ("MULTI",), ("TAPPEND", key, "v", *one), ("TAPPEND", other, "v", *two), ("EXEC",)
            )
            _raise_error(replies)
            self.told(key, one)
            self.told(other, two)
        elif what == 5:
            await self._delete(server, key)
        else:
            expected = self.ledger.expected(key)
            self.ledger.check_read(key, await server("TRANGE", key, "-", "+"), expected)

    async def _delete(self, server: SimConnection, key: str) -> None:
        value = self.send(key)
        entry_id = await server("TAPPEND", key, "v", *value)
        self.told(key, value)
        fact = key, value[0]
        self.ledger.removed.add(fact)
        if await server("XDEL", key, entry_id) == 1:
            self.ledger.deleted.add(fact)


class Groups(Work):
    """A consumer group that acknowledges half of what it gets."""

    async def work(self, server: SimConnection) -> None:
        if self.random.random() < 0.5:
            values = self.send("g", self.random.randint(1, 5))
            await server("TMAPPEND", "g", "FIELDS", 1, "v", "VALUES", *values)
            self.told("g", values)
        done = set(self.ledger.done)
        rows = await server(*READ_GROUP) or []
        self.check(rows, done)
        some = [row for row in rows if self.random.random() < 0.5]
        if some:
            await self.acknowledge(server, some)

    def check(self, rows: Sequence[Sequence[bytes]], done: set[bytes]) -> None:
        self.ledger.delivered += len(rows)
        again = done & {row[2] for row in rows}
        assert not again, f"acknowledged messages come again, such as {min(again)!r}"

    async def acknowledge(self, server: SimConnection, rows: Sequence[Sequence[bytes]]) -> None:
        values = [row[2] for row in rows]
        self.ledger.acking |= set(values)
        if await server("TACK", "g", "readers", *[row[0] for row in rows]) == len(rows):
            self.told_acked(values)


class Redelivery(Work):
    """Messages that fall due every few milliseconds, are given back, put off, given up. Their contents are compared."""

    async def work(self, server: SimConnection) -> None:
        await server("TMAPPEND", "r", "FIELDS", 1, "f", "VALUES", *range(self.random.randint(1, 5)))
        rows = await server(
            "TREAD", "r", "0", 10, "BLOCK", 5, "GROUP", "again", 0,
            "RETRY", 20, 500, "MAXDELIVERIES", 3, "DEADLETTER", "dead",
        )  # fmt: skip
        for row in rows or ():
            if row is None:
                continue
            what = self.random.randrange(4)
            if what == 0:
                await server("TACK", "r", "again", row[0])
            elif what == 1:
                await server("TNACK", "r", "again", "DELAY", self.random.choice((0, 10)), row[0])
            elif what == 2:
                await server("TTOUCH", "r", "again", 15, row[0])


class Claims(Work):
    """Consumers that claim each other's messages. Their contents are compared."""

    async def work(self, server: SimConnection) -> None:
        chance = self.random
        consumer, idle = f"c{chance.randrange(3)}", chance.choice((0, 50, 300))
        what = chance.randrange(8)
        await server.ask(("XGROUP", "CREATE", "x", "team", "0", "MKSTREAM"))  # it may exist
        if what < 2:
            await server("TMAPPEND", "x", "FIELDS", 1, "f", "VALUES", *range(chance.randint(1, 5)))
        elif what == 2:
            await server("XAUTOCLAIM", "x", "team", consumer, idle, "0", "COUNT", chance.randint(1, 10))
        elif what == 3 and chance.random() < 0.2:
            await server("XGROUP", "DELCONSUMER", "x", "team", consumer)
        elif what == 4 and chance.random() < 0.1:
            await server("XGROUP", "SETID", "x", "team", chance.choice(("0", "$")))
        else:
            streams = await server("XREADGROUP", "GROUP", "team", consumer, "COUNT", 5, "STREAMS", "x", ">")
            pending = await server("XPENDING", "x", "team", "-", "+", 10)
            ids = [row[0] for row in pending or ()] + [row[0] for _, rows in streams or () for row in rows]
            some = [each for each in dict.fromkeys(ids) if chance.random() < 0.4]
            if some and chance.random() < 0.5:
                words = chance.choice(((), ("RETRYCOUNT", 7), ("IDLE", 1000), ("FORCE", "JUSTID")))
                await server("XCLAIM", "x", "team", consumer, idle, *some, *words)
            elif some:
                await server(*chance.choice((("XACK",), ("TACK",), ("TNACK",))), "x", "team", *some)


class Expiry(Work):
    """Keys and groups with some milliseconds to live, and streams that keep their newest entries."""

    async def work(self, server: SimConnection) -> None:
        number = self.random.randrange(20)
        await server("SET", f"x{number}", "v", "PX", self.random.randint(1, 600))
        await server("TAPPEND", "xg", "f", "v")
        await server("TREAD", "xg", "0", 2, "GROUP", f"g{number % 5}", self.random.randint(1, 600), "RETRY", 10, 0)
        await server("TAPPEV", "e", "COUNT", 20, "f", "v")
        await server("TAPPEV", "t", "TIME", 40, "f", "v" * 50)


class Transactions(Work):
    """Several keys in one transaction."""

    QUESTION = (("MULTI",), ("TLEN", "ma"), ("GET", "mn"), ("TLEN", "mb"), ("EXEC",))

    async def work(self, server: SimConnection) -> None:
        if self.random.random() < 0.3:
            self.check(await server.ask(*self.QUESTION))
            return
        value = self.send("ma")
        replies = await server.ask(
            ("MULTI",), ("TAPPEND", "ma", "v", *value), ("INCR", "mn"),
            ("TMAPPEND", "mb", "FIELDS", 1, "f", "VALUES", 1, 2), ("EXEC",),
        )  # fmt: skip
        _raise_error(replies)
        self.told("ma", value)

    @staticmethod
    def check(replies: list[Any]) -> None:
        reply = replies[-1]
        if isinstance(reply, list):
            one, number, two = reply
            assert one == int(number or 0) == two / 2, f"a transaction was seen in part: {reply}"


def _raise_error(replies: Sequence[Any]) -> None:
    for reply in replies:
        if isinstance(reply, Exception):
            raise RefusedError(str(reply))


WORKS: dict[str, type[Work]] = {
    "appends": Appends,
    "groups": Groups,
    "redelivery": Redelivery,
    "claims": Claims,
    "expiry": Expiry,
    "transactions": Transactions,
}
KEYS = (*STREAMS, "g", "ma")  # streams whose entries the ledger knows

__all__ = [
    "KEYS", "READ_GROUP", "RETRY", "WORKS", "Claims", "Expiry", "Groups", "Redelivery", "Transactions", "Work",
    "check_rows",
]  # fmt: skip
