"""What Redis's documentation (8.6; XNACK: 8.8; MAXCOUNT and MAXSIZE: 8.10) says of streams, in dicts and lists: no
index, no log, no slices.

It answers the programs of ``newer.py``, in RESP2. What it is told is well formed; where a key or a group is missing it
says ERROR, whatever the text is. Of several messages in one XNACK, tidelog says in which order they are given back: by
their IDs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Id = tuple[int, int]
ERROR = "an error"
FATAL = 2**63 - 1  # deliveries; there are never more


@dataclass
class Pending:
    """A message of a group's pending list."""

    owner: str | None  # None: it was given back
    at: int  # of the last delivery; what was given back is numbered
    count: int

    def more(self) -> int:
        return min(self.count + 1, FATAL)


@dataclass
class Group:
    last: Id
    pending: dict[Id, Pending] = field(default_factory=dict)
    consumers: set[str] = field(default_factory=set)


@dataclass
class Stream:
    entries: dict[Id, list[bytes]] = field(default_factory=dict)
    last: Id = (0, 0)
    groups: dict[str, Group] = field(default_factory=dict)
    producers: dict[str, list[tuple[Any, Id, int]]] = field(default_factory=dict)
    duration: int = 100_000  # ms
    maxsize: int = 100


def shown(entry_id: Id) -> bytes:
    return b"%d-%d" % entry_id


def read(text: str) -> Id:
    ms, _, seq = text.partition("-")
    return int(ms), int(seq or 0)


class Words:
    """The words of a command, taken from the front."""

    def __init__(self, words: list[str]) -> None:
        self.left = words

    def next(self) -> str:
        return self.left.pop(0)

    def option(self, *names: str) -> str:
        """The next word if it is one of these."""
        return self.next() if self.left and self.left[0] in names else ""

    def counted(self) -> list[Id]:
        """IDS n id ..."""
        number = int(self.left[1])
        ids, self.left = self.left[2 : 2 + number], self.left[2 + number :]
        return [read(text) for text in ids]


def size_of(reply: Any) -> int:
    """The bytes of a reply in RESP2."""
    if isinstance(reply, bytes):
        return len(b"$%d\r\n" % len(reply)) + len(reply) + 2
    if isinstance(reply, int):
        return len(b":%d\r\n" % reply)
    if reply is None:
        return len(b"*-1\r\n")
    return len(b"*%d\r\n" % len(reply)) + sum(map(size_of, reply))


@dataclass
class Budget:
    """MAXCOUNT and MAXSIZE of one call."""

    maxcount: int = 0
    maxsize: int = 0
    entries: int = 0
    size: int = 0

    def spent(self) -> bool:
        if not self.entries:
            return False
        return 0 < self.maxcount <= self.entries or 0 < self.maxsize <= self.size

    def head(self, key: str) -> None:
        self.size += len(b"*2\r\n") + size_of(key.encode())

    def add(self, element: Any) -> None:
        self.entries += 1
        self.size += size_of(element)

    def tail(self, count: int) -> None:
        self.size += len(b"*%d\r\n" % count)


class Oracle:
    """``run`` answers a command; ``now`` is the clock."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.keys: dict[str, Stream] = {}
        self.given_back = 0

    def run(self, words: list[str]) -> Any:
        name, rest = words[0], Words(list(words[1:]))
        if name == "XGROUP":
            name += rest.next()
        answer: Callable[[Words], Any] = getattr(self, name.lower())
        return answer(rest)

    def group(self, words: Words) -> tuple[Stream, Group] | None:
        stream = self.keys.get(words.next())
        group = words.next()
        return (stream, stream.groups[group]) if stream is not None and group in stream.groups else None

    # -- entries -----------------------------------------------------------------------------------------------
    def xadd(self, words: Words) -> Any:
        key = words.next()
        make = not words.option("NOMKSTREAM")
        references = words.option("KEEPREF", "DELREF", "ACKED")
        how = words.option("IDMP", "IDMPAUTO")
        producer = words.next() if how else ""
        iid: Any = words.next() if how == "IDMP" else None
        limit = self.limit(words)
        text = words.next()
        data = [word.encode() for word in words.left]
        if how == "IDMPAUTO":
            iid = Counter(zip(data[::2], data[1::2], strict=True))
        stream = self.keys.get(key)
        if stream is None and not make:
            return None
        stream = stream or Stream()
        if how:
            for known, entry_id, at in stream.producers.get(producer, []):
                if known == iid and self.now - at < stream.duration:
                    return shown(entry_id)
        after = (stream.last[0], stream.last[1] + 1)
        new = max((self.now, 0), after) if text == "*" else read(text)
        if new <= stream.last:
            return ERROR
        self.keys[key] = stream
        stream.entries[new], stream.last = data, new
        if how:
            known_ids = [one for one in stream.producers.get(producer, []) if self.now - one[2] < stream.duration]
            stream.producers[producer] = [*known_ids, (iid, new, self.now)][-stream.maxsize :]
        self.trim(stream, references, limit)
        return shown(new)

    def limit(self, words: Words) -> tuple[str, str]:
        how = words.option("MAXLEN", "MINID")
        return (how, words.next()) if how else ("", "")

    def xtrim(self, words: Words) -> Any:
        stream = self.keys.get(words.next())
        limit = self.limit(words)
        return 0 if stream is None else self.trim(stream, words.option("KEEPREF", "DELREF", "ACKED"), limit)

    def trim(self, stream: Stream, references: str, limit: tuple[str, str]) -> int:
        gone = 0
        for entry_id in sorted(stream.entries):
            if not limit[0] or (limit[0] == "MAXLEN" and len(stream.entries) <= int(limit[1])) or (
                limit[0] == "MINID" and entry_id >= read(limit[1])
            ):  # fmt: skip
                break
            gone += self.delete(stream, entry_id, references) == 1
        if references == "DELREF" and (gone or limit[0] == "MINID"):
            stays = read(limit[1]) if limit[0] == "MINID" else min(stream.entries, default=(stream.last[0] + 1, 0))
            for group in stream.groups.values():
                group.pending = {entry_id: one for entry_id, one in group.pending.items() if entry_id >= stays}
        return gone

    def delete(self, stream: Stream, entry_id: Id, references: str) -> int:
        """As XDELEX tells it: -1 it isn't there, 1 it is deleted, 2 it is needed."""
        there = entry_id in stream.entries
        if references == "ACKED" and needed(stream, entry_id):
            return 2
        stream.entries.pop(entry_id, None)
        if references == "DELREF":
            for group in stream.groups.values():
                group.pending.pop(entry_id, None)
        return 1 if there else -1

    def xdel(self, words: Words) -> Any:
        stream = self.keys.get(words.next())
        return 0 if stream is None else sum(self.delete(stream, read(text), "") == 1 for text in words.left)

    def xdelex(self, words: Words) -> Any:
        stream = self.keys.get(words.next())
        references = words.option("KEEPREF", "DELREF", "ACKED")
        return [-1 if stream is None else self.delete(stream, one, references) for one in words.counted()]

    def xackdel(self, words: Words) -> Any:
        found = self.group(words)
        references = words.option("KEEPREF", "DELREF", "ACKED")
        results = []
        for entry_id in words.counted():
            if found is None or found[1].pending.pop(entry_id, None) is None:
                results.append(-1)
            elif references == "ACKED" and needed(found[0], entry_id):
                results.append(2)
            else:
                self.delete(found[0], entry_id, references)
                results.append(1)
        return results

    def xcfgset(self, words: Words) -> Any:
        stream = self.keys.get(words.next())
        if stream is None:
            return ERROR
        before = stream.duration, stream.maxsize
        while words.left:
            if words.next() == "IDMP-DURATION":
                stream.duration = int(words.next()) * 1000
            else:
                stream.maxsize = int(words.next())
        if before != (stream.duration, stream.maxsize):
            stream.producers.clear()
        return b"OK"

    def xrange(self, words: Words) -> Any:
        stream = self.keys.get(words.next(), Stream())
        return [[shown(entry_id), stream.entries[entry_id]] for entry_id in sorted(stream.entries)]

    # -- groups ------------------------------------------------------------------------------------------------
    def xgroupcreate(self, words: Words) -> Any:
        stream, name = self.keys.get(words.next()), words.next()
        if stream is None or name in stream.groups:
            return ERROR
        stream.groups[name] = Group(read(words.next()))
        return b"OK"

    def xgroupsetid(self, words: Words) -> Any:
        found = self.group(words)
        if found is None:
            return ERROR
        found[1].last = read(words.next())
        return b"OK"

    def xgroupdestroy(self, words: Words) -> Any:
        stream = self.keys.get(words.next())
        return ERROR if stream is None else int(stream.groups.pop(words.next(), None) is not None)

    def xgroupdelconsumer(self, words: Words) -> Any:
        found = self.group(words)
        if found is None:
            return ERROR
        name = words.next()
        owned = [entry_id for entry_id, one in found[1].pending.items() if one.owner == name]
        for entry_id in owned:
            del found[1].pending[entry_id]
        found[1].consumers.discard(name)
        return len(owned)

    def xack(self, words: Words) -> Any:
        found = self.group(words)
        return 0 if found is None else sum(
            found[1].pending.pop(read(text), None) is not None for text in words.left
        )  # fmt: skip

    def xread(self, words: Words) -> Any:
        count, budget = 0, Budget()
        while option := words.option("COUNT", "MAXCOUNT", "MAXSIZE"):
            if option == "COUNT":
                count = int(words.next())
            else:
                setattr(budget, option.lower(), int(words.next()))
        if budget.maxcount and budget.maxcount < count:
            return ERROR
        words.next()
        half = len(words.left) // 2
        reply = []
        for key, after in zip(words.left[:half], words.left[half:], strict=True):
            stream = self.keys.get(key, Stream())
            later = [entry_id for entry_id in sorted(stream.entries) if entry_id > read(after)]
            if budget.spent() or not later:
                continue
            budget.head(key)
            found: list[Any] = []
            for entry_id in later:
                if budget.spent() or (count and len(found) == count):
                    break
                found.append([shown(entry_id), stream.entries[entry_id]])
                budget.add(found[-1])
            budget.tail(len(found))
            reply.append([key.encode(), found])
        return reply or None

    def xreadgroup(self, words: Words) -> Any:
        words.next()
        name, consumer, count, claim, noack, budget = words.next(), words.next(), 0, -1, False, Budget()
        while option := words.option("COUNT", "CLAIM", "NOACK", "MAXCOUNT", "MAXSIZE"):
            if option.startswith("MAX"):
                setattr(budget, option.lower(), int(words.next()))
            elif option == "COUNT":
                count = int(words.next())
            elif option == "CLAIM":
                claim = int(words.next())
            else:
                noack = True
        words.next()
        half = len(words.left) // 2
        keys = words.left[:half]
        if budget.maxcount and budget.maxcount < count:
            return ERROR
        if any(key not in self.keys or name not in self.keys[key].groups for key in keys):
            return ERROR
        reply = []
        for key, after in zip(keys, words.left[half:], strict=True):
            if budget.spent():
                break
            stream = self.keys[key]
            group = stream.groups[name]
            group.consumers.add(consumer)
            if after != ">":
                found = self.history(stream, group, consumer, read(after), count, budget, key)
            else:
                claims = claim >= 0 and any(
                    one_id in stream.entries and self.is_idle(one, claim) for one_id, one in group.pending.items()
                )
                if not claims and not any(entry_id > group.last for entry_id in stream.entries):
                    continue
                budget.head(key)
                found = self.claim(stream, group, consumer, claim, count, budget) if claims else []
                if not count or len(found) < count:
                    most = count - len(found) if count else len(stream.entries)
                    found += self.new(stream, group, consumer, most, noack, budget, claim >= 0)
            budget.tail(len(found))
            reply.append([key.encode(), found])
        return reply or None

    def history(
        self, stream: Stream, group: Group, consumer: str, after: Id, count: int, budget: Budget, key: str
    ) -> list[Any]:
        found: list[Any] = []
        budget.head(key)
        for entry_id, one in sorted(group.pending.items()):
            if budget.spent():
                break
            if one.owner == consumer and entry_id > after and (not count or len(found) < count):
                found.append([shown(entry_id), stream.entries.get(entry_id)])
                budget.add(found[-1])
                if entry_id in stream.entries:
                    one.at, one.count = self.now, one.more()
        return found

    def claim(
        self, stream: Stream, group: Group, consumer: str, idle: int, count: int, budget: Budget
    ) -> list[Any]:
        found: list[Any] = []
        waiting = sorted(group.pending.items(), key=lambda item: (item[1].owner is not None, item[1].at, item[0]))
        for entry_id, one in waiting:
            if (count and len(found) == count) or not self.is_idle(one, idle) or budget.spent():
                break
            if entry_id not in stream.entries:
                continue
            found.append([shown(entry_id), stream.entries[entry_id], self.idle_of(one), one.count])
            budget.add(found[-1])
            group.pending[entry_id] = Pending(consumer, self.now, one.more())
        return found

    def new(
        self, stream: Stream, group: Group, consumer: str, most: int, noack: bool, budget: Budget, claims: bool
    ) -> list[Any]:
        found: list[Any] = []
        for entry_id in sorted(stream.entries):
            if entry_id > group.last and len(found) < most and not budget.spent():
                found.append([shown(entry_id), stream.entries[entry_id], *([0, 0] if claims else [])])
                budget.add(found[-1])
                group.last = entry_id
                if not noack:
                    group.pending[entry_id] = Pending(consumer, self.now, 1)
        return found

    def is_idle(self, one: Pending, least: int) -> bool:
        return one.owner is None or self.now - one.at >= least

    def idle_of(self, one: Pending) -> int:
        return -1 if one.owner is None else self.now - one.at

    def xclaim(self, words: Words) -> Any:
        found = self.group(words)
        if found is None:
            return ERROR
        stream, group = found
        consumer, least = words.next(), int(words.next())
        group.consumers.add(consumer)
        ids = []
        while words.left and words.left[0][0].isdigit():
            ids.append(read(words.next()))
        idle, count, force, just_id = 0, -1, False, False
        while words.left:
            option = words.next()
            if option == "IDLE":
                idle = int(words.next())
            elif option == "RETRYCOUNT":
                count = int(words.next())
            else:
                force, just_id = force or option == "FORCE", just_id or option == "JUSTID"
        reply: list[Any] = []
        for entry_id in ids:
            if entry_id not in stream.entries:
                group.pending.pop(entry_id, None)
                continue
            one = group.pending.get(entry_id)
            if one is None and force:
                one = Pending(None, self.now, 1)
            if one is None or not self.is_idle(one, least):
                continue
            deliveries = count if count >= 0 else one.count if just_id else one.more()
            group.pending[entry_id] = Pending(consumer, self.now - idle, deliveries)
            reply.append(shown(entry_id) if just_id else [shown(entry_id), stream.entries[entry_id]])
        return reply

    def xautoclaim(self, words: Words) -> Any:
        found = self.group(words)
        if found is None:
            return ERROR
        stream, group = found
        consumer, least, start = words.next(), int(words.next()), read(words.next())
        group.consumers.add(consumer)
        left = int(words.next()) if words.option("COUNT") else 100
        just_id = bool(words.option("JUSTID"))
        looks, claimed, gone = 10 * left, list[Any](), list[bytes]()
        ahead = sorted(entry_id for entry_id in group.pending if entry_id >= start)
        while ahead and left and looks:
            entry_id, looks = ahead.pop(0), looks - 1
            one = group.pending[entry_id]
            if entry_id not in stream.entries:
                del group.pending[entry_id]
                gone.append(shown(entry_id))
            elif not self.is_idle(one, least):
                continue
            else:
                group.pending[entry_id] = Pending(consumer, self.now, one.count if just_id else one.more())
                claimed.append(shown(entry_id) if just_id else [shown(entry_id), stream.entries[entry_id]])
            left -= 1
        return [shown(ahead[0]) if ahead else b"0-0", claimed, gone]

    def xnack(self, words: Words) -> Any:
        found = self.group(words)
        if found is None:
            return ERROR
        stream, group = found
        mode, ids = words.next(), words.counted()
        set_to = int(words.next()) if words.option("RETRYCOUNT") else FATAL if mode == "FATAL" else -1
        force = bool(words.option("FORCE"))
        released = 0
        for entry_id in sorted(ids):
            one = group.pending.get(entry_id)
            if one is None and not (force and entry_id in stream.entries):
                continue
            before = 0 if one is None else max(0, one.count - (mode == "SILENT"))
            self.given_back += 1
            group.pending[entry_id] = Pending(None, self.given_back, before if set_to < 0 else set_to)
            released += 1
        return released

    # -- what there is -----------------------------------------------------------------------------------------
    def xpending(self, words: Words) -> Any:
        found = self.group(words)
        if found is None:
            return ERROR
        pending = found[1].pending
        if not words.left:
            owned = Counter(one.owner for one in pending.values() if one.owner is not None)
            names = [[name.encode(), b"%d" % owned[name]] for name in sorted(owned)]
            return [len(pending), shown(min(pending)), shown(max(pending)), names] if pending else [0, None, None, None]
        idle = int(words.next()) if words.option("IDLE") else 0
        rows, count = [row for row in sorted(pending.items()) if self.is_idle(row[1], idle)], int(words.left[2])
        if len(words.left) > 3:
            rows = [row for row in rows if row[1].owner == words.left[3]]
        return [
            [shown(entry_id), (one.owner or "").encode(), self.idle_of(one), one.count]
            for entry_id, one in rows[:count]
        ]

    def groups(self) -> Iterator[tuple[str, str, Group]]:
        for key, stream in sorted(self.keys.items()):
            for name, group in sorted(stream.groups.items()):
                yield key, name, group


def needed(stream: Stream, entry_id: Id) -> bool:
    """Whether some group has not read it yet, or has it pending."""
    return any(entry_id > group.last or entry_id in group.pending for group in stream.groups.values())
