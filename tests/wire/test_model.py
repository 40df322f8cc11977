"""The RCP's commands against a model: a plain list, plain dicts, and a clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from respserver.testing import STEP_MS, HandClock, start_in_thread
from tests.wire.rawclient import Raw

Id = tuple[int, int]
GROUPS = st.sampled_from(["g", "h"])


def text(i: Id) -> bytes:
    return b"%d.%d" % i


@dataclass
class Message:
    """A pending message as the model knows it."""

    deliveries: int
    first: int
    due: int
    expire: int  # 0: never
    retry: int
    most: int  # 0: no limit

    def leaves(self) -> int:
        """When it is given up, 0 for never."""
        ends = [self.expire] if self.expire else []
        if self.most and self.deliveries >= self.most:
            ends.append(self.due)
        return min(ends, default=0)


@dataclass
class Group:
    """A group as the model knows it."""

    offset: Id
    ttl: int
    touched: int
    pending: dict[Id, Message] = field(default_factory=dict)


class Streams(RuleBasedStateMachine):
    """One stream ``s`` and up to two groups."""

    server: Any
    c: Raw

    @initialize()
    def empty(self) -> None:
        self.c = Streams.c
        assert self.c("FLUSHALL") == b"OK"
        self.now: int = Streams.server.server.clock.now()
        self.entries: list[tuple[Id, bytes]] = []
        self.exists = False
        self.last: Id = (0, 0)
        self.evicted_to: Id = (0, 0)
        self.groups: dict[str, Group] = {}
        self.number = 0
        self.dead = 0
        self.delayed: dict[bytes, tuple[int, int]] = {}  # token -> due time, number
        self.lone = False  # there was a delayed entry, so that the key remains

    # -- the model's own moves ---------------------------------------------------------------------------------
    def next_id(self) -> Id:
        self.last = max((self.now, 0), (self.last[0], self.last[1] + 1))
        return self.last

    def settle(self) -> None:
        """What time alone does: groups end, messages are given up."""
        for name, group in list(self.groups.items()):
            if group.ttl and group.touched + group.ttl <= self.now:
                del self.groups[name]
                continue
            for i, message in list(group.pending.items()):
                leaves = message.leaves()
                if leaves and leaves <= self.now:
                    del group.pending[i]
                    self.dead += 1
        for token, (due, number) in sorted(self.delayed.items(), key=lambda item: item[1]):
            if due <= self.now:
                del self.delayed[token]
                self.entries.append((self.next_id(), b"%d" % number))
        if not self.groups and self.last == (0, 0) and not self.lone:
            self.exists = False

    def evict(self, keep_from: int) -> int:
        if keep_from:
            self.evicted_to = self.entries[keep_from - 1][0]
            del self.entries[:keep_from]
        return keep_from

    def wire(self, i: Id) -> list[bytes] | None:
        for other, body in self.entries:
            if other == i:
                return [text(i), b"n", body]
        return None

    # -- rules -------------------------------------------------------------------------------------------------
    def append_one(self) -> bytes:
        self.number += 1
        self.exists = True
        self.entries.append((self.next_id(), b"%d" % self.number))
        return b"%d" % self.number

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        for _ in range(count):
            body = self.append_one()
            assert self.c("TAPPEND", "s", "n", body) == text(self.last)

    @rule(count=st.integers(1, 700))
    def append_many(self, count: int) -> None:
        bodies, first = [], None
        for _ in range(count):
            bodies.append(self.append_one())
            first = first or self.last
        assert first is not None
        assert self.c("TMAPPEND", "s", "FIELDS", 1, "n", "VALUES", *bodies) == [text(first), text(self.last)]

    @rule(ms=st.integers(0, 700), at=st.booleans(), own=st.booleans())
    def delay(self, ms: int, at: bool, own: bool) -> None:
        self.number += 1
        words: list[Any] = ["AT", self.now + ms] if at else ["IN", ms]
        token = b"t%d" % self.number
        words += ["ID", token] if own else []
        reply = self.c("TDELAY", "s", *words, "n", self.number)
        assert reply == token or not own
        assert reply not in self.delayed
        self.exists = self.lone = True
        self.delayed[reply] = self.now + ms, self.number

    @rule(which=st.integers(0, 20))
    def cancel(self, which: int) -> None:
        if self.delayed:
            token = sorted(self.delayed)[which % len(self.delayed)]
            assert self.c("TDELAY", "s", "CANCEL", token) == 1
            del self.delayed[token]
            assert self.c("TDELAY", "s", "CANCEL", token) == 0

    @rule(keep=st.integers(0, 900), add=st.booleans())
    def evict_count(self, keep: int, add: bool) -> None:
        words: list[Any] = ["n", self.append_one()] if add else []
        went = self.evict(max(0, len(self.entries) - keep))
        reply = self.c("TAPPEV", "s", "COUNT", keep, *words)
        assert reply == (text(self.last) if add else went)

    @rule(age=st.integers(0, 3000))
    def evict_time(self, age: int) -> None:
        went = self.evict(sum(self.now - i[0] >= age for i, _ in self.entries))
        assert self.c("TAPPEV", "s", "TIME", age) == went

    @rule(ms=st.sampled_from([1, 50, 99, 100, 101, 500, 1500]))
    def time_passes(self, ms: int) -> None:
        Streams.server.advance(ms)
        for step in range(0, ms, STEP_MS):  # in which delayed entries join the stream
            self.now += min(STEP_MS, ms - step)
            self.settle()

    @rule(ms=st.integers(1, 5000))
    def clock_set_back_and_forth(self, ms: int) -> None:
        Streams.server.advance(-ms)
        self.now -= ms
        self.append(1)
        Streams.server.call(Streams.server.server.on_time)
        Streams.server.call(lambda: Streams.server.server.clock.set(ms))
        self.now += ms
        self.settle()

    @rule(at=st.integers(0, 1000), count=st.integers(1, 900), from_before=st.integers(0, 2))
    def read(self, at: int, count: int, from_before: int) -> None:
        ids = [i for i, _ in self.entries]
        last = (0, 0) if from_before == 0 or not ids else ids[at % len(ids)]
        if from_before == 2 and ids:
            last = (max(0, last[0] - 1), 5)
        rows: list[Any] = [self.wire_row(e) for e in self.entries if e[0] > last][:count]
        if (0, 0) < last < self.evicted_to:
            rows.insert(0, None)
        assert self.c("TREAD", "s", text(last), count) == rows
        assert self.c("TCOUNT", "s", b"(" + text(last), "+") == sum(i > last for i in ids)

    @staticmethod
    def wire_row(entry: tuple[Id, bytes]) -> list[bytes]:
        return [text(entry[0]), b"n", entry[1]]

    @rule(a=st.integers(0, 1000), b=st.integers(0, 1000), count=st.integers(0, 50))
    def ranges(self, a: int, b: int, count: int) -> None:
        if not self.entries:
            assert self.c("TRANGE", "s", "-", "+") == []
            return
        start, end = (self.entries[i % len(self.entries)][0] for i in (a, b))
        rows = [self.wire_row(e) for e in self.entries if start <= e[0] <= end]
        assert self.c("TRANGE", "s", text(start), text(end), "COUNT", count) == rows[:count]
        assert self.c("TREVRANGE", "s", text(end), text(start), "COUNT", count) == rows[::-1][:count]
        beyond = [e for e in self.entries if e[0] > start]
        expected = text(beyond[min(count, len(beyond) - 1)][0]) if beyond else None
        assert self.c("TSEEK", "s", text(start), count + 1) == expected

    @rule(
        name=GROUPS, count=st.integers(0, 5), ttl=st.sampled_from([0, 0, 2000]), new_at=st.sampled_from(["", "0",
        "mid"]),
        retry=st.sampled_from([0, 100, 1000]), expire=st.sampled_from([0, 50, 3000]), most=st.sampled_from([0, 1, 2]),
    )  # fmt: skip
    def read_group(self, name: str, count: int, ttl: int, new_at: str, retry: int, expire: int, most: int) -> None:
        offset: Id = self.last if new_at == "" else (0, 0)
        if new_at == "mid" and self.entries:
            offset = self.entries[len(self.entries) // 2][0]
        asked = b"" if new_at == "" else text(offset)
        group = self.groups.get(name)
        if group is None:
            if asked == b"0.0":
                offset = self.evicted_to
            group = self.groups[name] = Group(offset, ttl, self.now)
            self.exists = True
        group.ttl, group.touched = ttl, self.now
        options: list[Any] = ["GROUP", name, ttl]
        if retry:
            options += ["RETRY", retry, expire] + (["MAXDELIVERIES", most] if most else [])
        rows: list[Any] = []
        if count:
            rows = self.model_group_read(group, count, retry, expire, most)
        assert self.c("TREAD", "s", asked, count, *options) == rows

    def model_group_read(self, group: Group, count: int, retry: int, expire: int, most: int) -> list[Any]:
        self.settle()
        rows: list[Any] = [None] if group.offset < self.evicted_to else []
        due = sorted((m.due, i) for i, m in group.pending.items() if m.due <= self.now)[:count]
        # after a rewind, what lies ahead of the offset comes as new
        due = [(when, i) for when, i in due if i <= max(group.offset, self.evicted_to)]
        for _, i in due:
            row = self.wire(i)
            rows.append(row)
            if row is None:
                del group.pending[i]
                continue
            message = group.pending[i]
            message.deliveries += 1
            message.retry = retry or message.retry
            message.most = (most or message.most) if retry else message.most
            message.due = self.now + message.retry
        fresh = [e for e in self.entries if e[0] > group.offset][: count - len(due)]
        for i, _ in fresh:
            rows.append(self.wire(i))
            if retry:
                ends = self.now + expire if expire else 0
                group.pending[i] = Message(1, self.now, self.now + retry, ends, retry, most)
        group.offset = fresh[-1][0] if fresh else max(group.offset, self.evicted_to)
        return rows

    @rule(name=GROUPS, which=st.sets(st.integers(0, 8), max_size=4))
    def ack(self, name: str, which: set[int]) -> None:
        group = self.groups.get(name)
        known = sorted(group.pending) if group else []
        ids = [known[i] for i in which if i < len(known)]
        if group is not None:
            group.touched = self.now
            for i in ids:
                del group.pending[i]
        assert self.c("TACK", "s", name, "1.1", *[text(i) for i in ids]) == len(ids)

    @rule(name=GROUPS, which=st.integers(0, 8), delay=st.sampled_from([0, 30, 5000]), touch=st.booleans())
    def nack(self, name: str, which: int, delay: int, touch: bool) -> None:
        group = self.groups.get(name)
        known = sorted(group.pending) if group else []
        ids = [known[which]] if which < len(known) else [(1, 1)]
        command: list[Any] = ["TTOUCH", "s", name, delay] if touch else ["TNACK", "s", name, "DELAY", delay]
        assert self.c(*command, *[text(i) for i in ids]) == (1 if which < len(known) else 0)
        if group is not None:
            group.touched = self.now
            if which < len(known):
                group.pending[ids[0]].due = self.now + delay

    @rule(name=GROUPS, at=st.integers(0, 500))
    def setid(self, name: str, at: int) -> None:
        if name in self.groups and self.entries:
            offset = self.entries[at % len(self.entries)][0]
            assert self.c("TGROUP", "SETID", "s", name, text(offset)) == b"OK"
            self.groups[name].offset, self.groups[name].touched = offset, self.now

    @rule(how=st.sampled_from(["RELOAD", "LOADAOF"]))
    def restart(self, how: str) -> None:
        assert self.c("DEBUG", how) == b"OK"
        for group in self.groups.values():
            group.touched = self.now  # downtime is not silence

    @rule()
    def checkpoint(self) -> None:
        assert self.c("SAVE") == b"OK"

    # -- what always holds -------------------------------------------------------------------------------------
    @invariant()
    def same(self) -> None:
        self.settle()
        Streams.server.call(Streams.server.server.on_time)
        assert self.c("EXISTS", "s") == int(self.exists)
        assert self.c("TLEN", "s") == len(self.entries)
        delayed = sorted((due, number) for due, number in self.delayed.values())
        rows = self.c("TDELAY", "s", "LIST", "COUNT", 1000)[1]
        assert [(row[1], int(row[3])) for row in rows] == delayed
        for name, group in self.groups.items():
            rows = [
                [text(i), m.deliveries, m.first, m.due, m.expire] for i, m in sorted(group.pending.items())
            ]
            assert self.c("TPENDING", "s", name, "-", "+", 10_000) == rows


def test_model() -> None:
    with start_in_thread(
        clock=HandClock(), enable_debug_command="yes", stream_node_max_entries="100", appendfsync="no"
    ) as server, Raw(server.port) as c:  # fmt: skip
        Streams.server, Streams.c = server, c
        Streams.TestCase.settings = settings(
            max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        )
        Streams.TestCase("runTest").runTest()
