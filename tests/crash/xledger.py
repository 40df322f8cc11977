"""Clients of X commands that know what the server must hold after a crash: all that it confirmed, and of what it did
not answer any more a part from the beginning.

Rule 1: a Ledger is the only writer of its stream; its model is exact, replies and content included.
Rule 2: the Crowd shares one stream; it keeps facts that must hold, and leaves out what is in doubt.
"""

from __future__ import annotations

import threading
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.wire.rawclient import Raw, pack

Words = tuple[bytes | str | int, ...]
CONSUMERS = (b"ann", b"bob", b"cat")
GROUPS = (b"g", b"h")
MANY = 10_000_000


def text(number: int) -> bytes:
    return b"%d-0" % number


def number_of(entry_id: bytes) -> int:
    return int(entry_id.split(b"-")[0])


class RefusedError(Exception):
    """The server must answer with an error."""


@dataclass
class GroupModel:
    """A group: pending is ID -> [consumer, deliveries]."""

    last: int
    pending: dict[int, list[Any]] = field(default_factory=dict)
    consumers: set[bytes] = field(default_factory=set)


@dataclass
class StreamModel:
    """A stream whose IDs are n-0. Each command's method changes it and returns what the server must answer."""

    entries: dict[int, bytes] = field(default_factory=dict)
    last: int = 0
    added: int = 0
    deleted: int = 0  # the highest ID deleted one by one
    groups: dict[bytes, GroupModel] = field(default_factory=dict)
    there: bool = False  # an empty stream stays

    def xadd(self, number: int, body: bytes, most: int | None = None) -> bytes:
        if number <= self.last:
            raise RefusedError
        self.there = True
        self.entries[number] = body
        self.last = number
        self.added += 1
        if most is not None:
            self.xtrim(most)
        return text(number)

    def xtrim(self, most: int) -> int:
        gone = sorted(self.entries)[: max(0, len(self.entries) - most)]
        for number in gone:
            del self.entries[number]
        return len(gone)

    def xtrim_before(self, number: int) -> int:
        gone = [each for each in self.entries if each < number]
        for each in gone:
            del self.entries[each]
        return len(gone)

    def xdel(self, numbers: list[int]) -> int:
        gone = {number for number in numbers if self.entries.pop(number, None) is not None}
        self.deleted = max(self.deleted, *gone) if gone else self.deleted
        return len(gone)

    def create(self, name: bytes, last: int) -> bytes:
        if name in self.groups:
            raise RefusedError
        self.there = True
        self.groups[name] = GroupModel(last)
        return b"OK"

    def destroy(self, name: bytes) -> int:
        if not self.there:
            raise RefusedError
        return int(self.groups.pop(name, None) is not None)

    def group(self, name: bytes) -> GroupModel:
        if name not in self.groups:
            raise RefusedError
        return self.groups[name]

    def move(self, name: bytes, last: int) -> bytes:
        self.group(name).last = last
        return b"OK"

    def createconsumer(self, name: bytes, consumer: bytes) -> int:
        group = self.group(name)
        new = consumer not in group.consumers
        group.consumers.add(consumer)
        return int(new)

    def delconsumer(self, name: bytes, consumer: bytes) -> int:
        group = self.group(name)
        group.consumers.discard(consumer)
        gone = [number for number, row in group.pending.items() if row[0] == consumer]
        for number in gone:
            del group.pending[number]
        return len(gone)

    def row(self, number: int) -> list[Any]:
        return [text(number), [b"n", self.entries[number]]]

    def readgroup(self, name: bytes, consumer: bytes, count: int, noack: bool) -> Any:
        group = self.group(name)
        group.consumers.add(consumer)
        news = sorted(number for number in self.entries if number > group.last)[:count]
        for number in news:
            group.last = number
            if not noack:
                group.pending[number] = [consumer, 1]
        return [[b"", [self.row(number) for number in news]]] if news else None

    def ack(self, name: bytes, numbers: list[int]) -> int:
        pending = self.groups[name].pending if name in self.groups else {}
        return sum(pending.pop(number, None) is not None for number in numbers)

    def claim(self, name: bytes, consumer: bytes, numbers: list[int]) -> Any:
        group = self.group(name)
        group.consumers.add(consumer)
        mine = [number for number in numbers if number in group.pending and self.owned(group, consumer, number)]
        return [self.row(number) for number in mine]

    def autoclaim(self, name: bytes, consumer: bytes, start: int, count: int) -> Any:
        group = self.group(name)
        group.consumers.add(consumer)
        rows = sorted(number for number in group.pending if number >= start)
        some, rest = rows[:count], rows[count:]
        claimed = [self.row(number) for number in some if self.owned(group, consumer, number)]
        gone = [text(number) for number in some if number not in group.pending]
        return [text(rest[0]) if rest else b"0-0", claimed, gone]

    def owned(self, group: GroupModel, consumer: bytes, number: int) -> bool:
        """Whether it is the consumer's from now on; a message whose entry was deleted is nobody's."""
        if number not in self.entries:
            del group.pending[number]
            return False
        group.pending[number] = [consumer, group.pending[number][1] + 1]
        return True

    def content(self) -> Any:
        """What ``read_content`` returns of a server that holds this."""
        groups = {}
        for name, group in self.groups.items():
            pending = [[text(number), *row] for number, row in sorted(group.pending.items())]
            owners = dict.fromkeys(group.consumers, 0)
            for owner, _ in group.pending.values():
                owners[owner] += 1
            groups[name] = [text(group.last), pending, owners]
        rows = [self.row(number) for number in sorted(self.entries)]
        return [self.there, rows, text(self.last), self.added, text(self.deleted), groups]


def facts(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def read_content(client: Raw, key: bytes) -> Any:
    """All that is known of a stream, in the form of StreamModel.content()."""
    rows = client("XRANGE", key, "-", "+")
    info = client("XINFO", "STREAM", key)
    if isinstance(info, str):  # there is no such key
        return StreamModel().content()
    about = facts(info)
    groups = {}
    for each in map(facts, client("XINFO", "GROUPS", key)):
        name = each[b"name"]
        pending = [[i, owner, count] for i, owner, _, count in client("XPENDING", key, name, "-", "+", MANY)]
        owners = {one[b"name"]: one[b"pending"] for one in map(facts, client("XINFO", "CONSUMERS", key, name))}
        groups[name] = [each[b"last-delivered-id"], pending, owners]
    names = b"last-generated-id", b"entries-added", b"max-deleted-entry-id"
    return [True, rows, *(about[name] for name in names), groups]


@dataclass
class Step:
    """A command, and what it does to the model."""

    words: Words
    method: str
    arguments: tuple[Any, ...]

    def apply(self, model: StreamModel) -> Any:
        return getattr(model, self.method)(*self.arguments)


class Ledger:
    """One client with a stream of its own."""

    def __init__(self, name: str, chance: Random) -> None:
        self.key = name.encode()
        self.chance = chance
        self.model = StreamModel()
        self.doubtful: list[Step] = []  # sent, not answered
        self.next = 1
        self.steps = 0

    def work(self, port: int, over: threading.Event) -> None:
        """Send pipelines and compare replies, until the connection breaks or it is over."""
        with Raw(port) as client:
            while not over.is_set():
                batch = [self.step() for _ in range(self.chance.choice((1, 1, 1, 2, 5, 30)))]
                self.doubtful = list(batch)
                client.sock.sendall(b"".join([pack(*step.words) for step in batch]))
                for step in batch:
                    self.answered(step, client.read())

    def answered(self, step: Step, reply: Any) -> None:
        del self.doubtful[0]
        self.steps += 1
        try:
            wanted = step.apply(self.model)
        except RefusedError:
            assert isinstance(reply, str), (step.words, reply)
            return
        if step.method == "readgroup" and wanted:
            wanted[0][0] = self.key
        assert reply == wanted, (step.words, reply, wanted)

    def check(self, client: Raw) -> None:
        """The server holds what it confirmed, and a part from the beginning of what it did not answer."""
        found = read_content(client, self.key)
        tried = [self.model]
        for step in self.doubtful:
            tried.append(deepcopy(tried[-1]))
            try:
                step.apply(tried[-1])
            except RefusedError:
                continue
        for model in tried:
            if model.content() == found:
                self.model, self.doubtful = model, []
                return
        wanted = self.model.content()
        wrong = [(one, other) for one, other in zip(found, wanted, strict=True) if one != other]
        raise AssertionError(f"{self.key!r} is none of {len(tried)} possible states; {str(wrong)[:3000]}")

    # -- commands ----------------------------------------------------------------------------------------------
    def step(self) -> Step:
        makers = (
            self.add, self.read, self.acknowledge, self.claim, self.autoclaim, self.delete, self.trim, self.groups,
            self.consumers,
        )  # fmt: skip
        return self.chance.choices(makers, (40, 20, 14, 8, 5, 8, 2, 2, 2))[0]()

    def some(self) -> list[int]:
        """Recent IDs, different ones."""
        count = self.chance.choice((1, 1, 2, 5, 20))
        return sorted({max(1, self.next - self.chance.randint(1, 120)) for _ in range(count)})

    def who(self) -> tuple[bytes, bytes]:
        return self.chance.choice(GROUPS), self.chance.choice(CONSUMERS)

    def add(self) -> Step:
        number = self.next = self.next + self.chance.choice((1, 1, 1, 2, 7))
        body = b"%d" % number + b"x" * self.chance.choice((0, 0, 10, 1000))
        if self.chance.random() < 0.03:
            words = ("XADD", self.key, "MAXLEN", 300, text(number), "n", body)
            return Step(words, "xadd", (number, body, 300))
        return Step(("XADD", self.key, text(number), "n", body), "xadd", (number, body))

    def trim(self) -> Step:
        if self.chance.random() < 0.5:
            most = self.chance.choice((0, 10, 100, 400))
            return Step(("XTRIM", self.key, "MAXLEN", "=", most), "xtrim", (most,))
        number = max(1, self.next - self.chance.randint(0, 300))
        return Step(("XTRIM", self.key, "MINID", text(number)), "xtrim_before", (number,))

    def delete(self) -> Step:
        numbers = self.some()
        return Step(("XDEL", self.key, *map(text, numbers)), "xdel", (numbers,))

    def groups(self) -> Step:
        name, place = self.chance.choice(GROUPS), max(0, self.next - self.chance.randint(0, 60))
        what = self.chance.choices(("CREATE", "SETID", "DESTROY"), (6, 2, 1))[0]
        if what == "CREATE":
            return Step(("XGROUP", what, self.key, name, text(place), "MKSTREAM"), "create", (name, place))
        if what == "SETID":
            return Step(("XGROUP", what, self.key, name, text(place)), "move", (name, place))
        return Step(("XGROUP", what, self.key, name), "destroy", (name,))

    def consumers(self) -> Step:
        what, who = self.chance.choice(("CREATECONSUMER", "DELCONSUMER")), self.who()
        return Step(("XGROUP", what, self.key, *who), what.lower(), who)

    def read(self) -> Step:
        who, count, noack = self.who(), self.chance.choice((1, 5, 20)), self.chance.random() < 0.1
        options = ("NOACK",) if noack else ()
        words = ("XREADGROUP", "GROUP", *who, "COUNT", count, *options, "STREAMS", self.key, ">")
        return Step(words, "readgroup", (*who, count, noack))

    def acknowledge(self) -> Step:
        name, numbers = self.chance.choice(GROUPS), self.some()
        return Step(("XACK", self.key, name, *map(text, numbers)), "ack", (name, numbers))

    def claim(self) -> Step:
        who, numbers = self.who(), self.some()
        return Step(("XCLAIM", self.key, *who, 0, *map(text, numbers)), "claim", (*who, numbers))

    def autoclaim(self) -> Step:
        who, count = self.who(), self.chance.choice((1, 5, 20))
        start = max(0, self.next - self.chance.randint(1, 200))
        words = ("XAUTOCLAIM", self.key, *who, 0, text(start), "COUNT", count)
        return Step(words, "autoclaim", (*who, start, count))


class Crowd:
    """Producers and consumers of one stream ``crowd``, with one group. Facts are sets of IDs, each confirmed."""

    KEY = b"crowd"

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.added: set[bytes] = set()
        self.delivered: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.acking: set[bytes] = set()  # XACK was sent
        self.deleted: set[bytes] = set()
        self.deleting: set[bytes] = set()  # XDEL was sent

    def produce(self, port: int, over: threading.Event) -> None:
        with Raw(port) as client:
            while not over.is_set():
                count = self.chance.choice((1, 1, 5, 40))
                body = b"x" * self.chance.choice((1, 10, 2000))
                client.sock.sendall(pack("XADD", self.KEY, "*", "f", body) * count)
                for _ in range(count):
                    entry_id = client.read()
                    assert isinstance(entry_id, bytes), entry_id
                    assert entry_id not in self.added, "an ID was given twice"
                    self.added.add(entry_id)

    def consume(self, port: int, over: threading.Event, name: bytes) -> None:
        with Raw(port) as client:
            while not over.is_set():
                reply = client("XREADGROUP", "GROUP", "g", name, "COUNT", 20, "BLOCK", 5, "STREAMS", self.KEY, ">")
                if reply is None:
                    continue
                ids = [row[0] for row in reply[0][1]]
                assert not self.delivered.intersection(ids), "a message was delivered twice as new"
                self.delivered.update(ids)
                if self.chance.random() < 0.3:
                    client("XCLAIM", self.KEY, "g", self.chance.choice(CONSUMERS), 0, *ids)
                some = [i for i in ids if self.chance.random() < 0.6]
                if some:
                    self.acking.update(some)
                    assert client("XACK", self.KEY, "g", *some) == len(some)
                    self.acked.update(some)
                if len(some) > 2:
                    self.deleting.update(some[::3])
                    assert client("XDEL", self.KEY, *some[::3]) == len(some[::3])
                    self.deleted.update(some[::3])

    def check(self, client: Raw) -> None:
        there = {row[0] for row in client("XRANGE", self.KEY, "-", "+")}
        lost = self.added - self.deleting - there
        assert not lost, f"{len(lost)} confirmed entries are gone, one is {min(lost)!r}"
        assert not self.deleted & there, "deleted entries are back"
        assert client("XLEN", self.KEY) == len(there)
        rows = client("XPENDING", self.KEY, "g", "-", "+", MANY)
        pending = {row[0] for row in rows}
        assert not self.acked & pending, "acknowledged messages are pending again"
        assert self.delivered - self.acking <= pending, "delivered messages are not pending"
        assert {row[1] for row in rows} <= set(CONSUMERS)
        self.added = there  # what was in doubt is settled now
        self.delivered |= pending
        self.acked |= self.acking - pending
        self.deleted |= self.deleting - there
        self.acking, self.deleting = set(self.acked), set(self.deleted)
