"""Checkpoints at any moment, failed or not, lose nothing: a model, and cases."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commands import registry  # noqa: F401  (fills the command table)
from persistence.store import Store
from resp.errors import DamagedNodeError
from storage.groups import pendingformat
from storage.groups.group import Group
from storage.keyspace import delivering, expiry, groupmutators, memory
from storage.keyspace.changes import EVERYTHING
from storage.keyspace.groupmutators import Messages, Ownership
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.keyspace.values import String
from storage.model.ids import MAX_ID
from storage.streams.capture import Capture
from storage.streams.delayed import DelayedEntries
from storage.streams.stream import Stream
from tests.storage.keyspace.replaykit import NOW, call, counters, empty

KEYS = st.sampled_from(["a", "dead", "k" * 600])
NAMES = st.sampled_from(["g", "h" * 500])
TTLS = st.sampled_from([0, 40])
STAGES = st.sampled_from(["s1", "s2", "s" * 600])


def stream_bytes(ks: Keyspace) -> int:
    """What the keyspace keeps as a sum, added up."""
    total = 0
    for key, value in ks.keys.items():
        if isinstance(value, Stream):
            groups = sum(group.memory_bytes() for group in value.groups.values())
            total += len(key) + value.memory_bytes() + groups
    for delayed in ks.delayed.values():
        total += delayed.memory_bytes()
    return total


def undamaged(error: DamagedNodeError) -> None:
    raise error


def index(delayed: DelayedEntries) -> tuple[int | None, int | None, bytes]:
    """The first due times, and the rows, joined."""
    return delayed.first_due(0), delayed.first_due(1), bytes(pendingformat.assemble(delayed.parts()))


class Checkpoints(RuleBasedStateMachine):
    """Random commands; checkpoints that are taken, and end well or badly, some commands later; crashes in between."""

    @initialize()
    def begin(self) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.store = Store(self.directory)
        self.ks = empty(self.store)
        self.log = b""  # all that was ever logged
        self.borders = [0]  # of its batches
        self.now = NOW
        self.capture: Capture | None = None
        self.captured_at = 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)

    def run(self, *words: bytes | str | int) -> Any:
        return call(self.ks, self.now, *words)

    def ids(self, key: str, group: str) -> list[str]:
        stream = self.ks.keys.get(key.encode())
        if not isinstance(stream, Stream) or group.encode() not in stream.groups:
            return ["1.0"]
        ids = [row.id for row in stream.groups[group.encode()].pending.rows(0, MAX_ID, 1000)]
        return [f"{i >> 64}.{i & (1 << 64) - 1}" for i in ids] or ["1.0"]

    # -- commands ------------------------------------------------------------------------------------------------
    @rule(key=KEYS, count=st.integers(1, 5))
    def append(self, key: str, count: int) -> None:
        self.run("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *range(count))

    @rule(key=KEYS, how=st.sampled_from(["COUNT", "TIME"]), n=st.integers(0, 6), add=st.booleans())
    def evict(self, key: str, how: str, n: int, add: bool) -> None:
        self.run("TAPPEV", key, how, n, *(["f", "v"] if add else []))

    @rule(
        key=KEYS, limit=st.sampled_from(["COUNT 3", "AGE 20", "BYTES 90", "COUNT 2 AGE 9"]),
        groups=st.sampled_from(["", "GROUPS", "GROUPS LIMIT 4"]), how=st.sampled_from(["~", "EXACT", "DRY"]),
    )  # fmt: skip
    def retain(self, key: str, limit: str, groups: str, how: str) -> None:
        self.run("TCFG", key, "RETAIN", *limit.split(), *groups.split(), how)

    @rule(key=KEYS, words=st.sampled_from(["AGE 0", "AGE 5", "BYTES 5", "DEFAULT"]))
    def keep_local(self, key: str, words: str) -> None:
        self.run("TCFG", key, "TIER", *words.split())

    @rule(key=KEYS)
    def retain_everything(self, key: str) -> None:
        self.run("TCFG", key, "RETAIN", "NONE")

    @rule(
        key=KEYS, group=NAMES, count=st.integers(0, 4), ttl=TTLS, retry=st.booleans(), expire=st.sampled_from([0, 15]),
        most=st.sampled_from([0, 1, 2]), dead=st.booleans(), last=st.sampled_from(["", "0"]),
    )  # fmt: skip
    def read(
        self, key: str, group: str, count: int, ttl: int, retry: bool, expire: int, most: int, dead: bool, last: str
    ) -> None:
        options: list[bytes | str | int] = []
        if retry:
            options += ["RETRY", 7, expire]
            options += ["MAXDELIVERIES", most] if most else []
            options += ["DEADLETTER", "dead"] if dead else []
        self.run("TREAD", key, last, count, "GROUP", group, ttl, *options)

    @rule(key=KEYS, group=NAMES, data=st.data(), what=st.sampled_from(["TACK", "TNACK", "TTOUCH"]))
    def settle(self, key: str, group: str, data: st.DataObject, what: str) -> None:
        ids = data.draw(st.lists(st.sampled_from(self.ids(key, group)), min_size=1, max_size=3))
        self.run(what, key, group, *([9] if what == "TTOUCH" else []), *ids)

    # -- consumers, as X commands do it
    def group_at(self, key: str, group: str) -> tuple[Stream, Group] | None:
        stream = self.ks.live(key.encode(), self.now)
        found = stream.groups.get(group.encode()) if isinstance(stream, Stream) else None
        return (stream, found) if isinstance(stream, Stream) and found is not None else None

    @rule(key=KEYS, group=NAMES, read=st.sampled_from([-1, 0]))
    def make_group(self, key: str, group: str, read: int) -> None:
        stream = self.ks.live(key.encode(), self.now)
        if isinstance(stream, String) or self.group_at(key, group) is not None:
            return
        lone = stream is None
        stream = stream or self.ks.create_stream(key.encode())
        groupmutators.create_group(self.ks, key.encode(), stream, group.encode(), 0, read, lone)

    @rule(
        key=KEYS, group=NAMES, name=st.sampled_from([b"one", b"two", b""]), count=st.integers(0, 4),
        data=st.data(), nobody=st.booleans(), given=st.none() | st.integers(0, 5), step=st.sampled_from([0, 1, -1]),
    )  # fmt: skip
    def own(
        self, key: str, group: str, name: bytes, count: int, data: st.DataObject, nobody: bool, given: int | None,
        step: int,
    ) -> None:  # fmt: skip
        found = self.group_at(key, group)
        if found is None:
            return
        stream, of = found
        consumer, _ = groupmutators.consumer(self.ks, key.encode(), stream, of, name, self.now)
        lo = stream.ord_from(of.offset + 1)
        ids = stream.ids(lo, stream.after(lo, count))
        offset = ids[-1] if ids else of.offset
        pending = [row.id for row in of.pending.rows(0, MAX_ID, 1000) if row.id not in ids]
        again = data.draw(st.lists(st.sampled_from(pending), max_size=3, unique=True)) if pending else []
        gone = [again.pop()] if len(again) == 3 else []
        new, old, lost = ([i.to_bytes(16, "big") for i in sorted(part)] for part in (ids, again, gone))
        read = stream.ord_from(offset + 1) + stream.shift if ids else of.entries_read
        groupmutators.own(
            self.ks, key.encode(), stream, of, None if nobody else consumer, self.now, Messages(new, old, lost),
            Ownership(count=given, step=step), position=(offset, read),
        )  # fmt: skip

    @rule(key=KEYS, group=NAMES, name=st.sampled_from([b"one", b"two", b""]))
    def forget(self, key: str, group: str, name: bytes) -> None:
        found = self.group_at(key, group)
        if found is not None and name in found[1].consumers:
            consumer = found[1].consumers[name]
            groupmutators.forget_consumer(self.ks, key.encode(), *found, consumer)

    @rule(key=KEYS, group=NAMES)
    def set_id(self, key: str, group: str) -> None:
        self.run("TGROUP", "SETID", key, group, 0)

    @rule(key=KEYS, group=NAMES)
    def destroy(self, key: str, group: str) -> None:
        self.run("TGROUP", "DESTROY", key, group)

    @rule(
        key=KEYS, ms=st.integers(0, 30), wall=st.booleans(), token=st.sampled_from(["", "one", "two"]),
        size=st.sampled_from([1, 300]),
    )  # fmt: skip
    def delay(self, key: str, ms: int, wall: bool, token: str, size: int) -> None:
        when: list[str | int] = ["AT", self.now + ms] if wall else ["IN", ms]
        self.run("TDELAY", key, *when, *(["ID", token] if token else []), "f", "v" * size)

    @rule(key=KEYS, token=st.sampled_from(["one", "two"]))
    def cancel(self, key: str, token: str) -> None:
        self.run("TDELAY", key, "CANCEL", token)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.run("DEL", key)

    @rule(key=KEYS, value=st.sampled_from(["", "x"]), ttl=st.sampled_from([[], ["PX", "30"], ["KEEPTTL"]]))
    def set_string(self, key: str, value: str, ttl: list[str]) -> None:
        self.run("SET", key, value, *ttl)

    @rule(key=KEYS, offset=st.integers(0, 9), part=st.sampled_from(["", "xyz"]))
    def set_range(self, key: str, offset: int, part: str) -> None:
        value = self.ks.live(key.encode(), self.now)
        if isinstance(value, String):  # as SETRANGE does
            gap = bytes(max(0, offset - len(value.value)))
            self.ks.patch_string(key.encode(), value, offset - len(gap), gap + part.encode())

    @rule(key=KEYS, new=KEYS, what=st.sampled_from(["RENAME", "RENAMENX", "COPY"]))
    def move(self, key: str, new: str, what: str) -> None:
        self.run(what, key, new)

    @rule(key=KEYS, what=st.sampled_from([["PEXPIRE", 25], ["PERSIST"]]))
    def expire(self, key: str, what: list[Any]) -> None:
        self.run(what[0], key, *what[1:])

    @rule(stage=STAGES, key=KEYS, ttl=TTLS, count=st.integers(1, 8))
    def stage(self, stage: str, key: str, ttl: int, count: int) -> None:
        self.run("TSTAGE", stage, ttl, key, "FIELDS", 1, "f", "VALUES", *range(count))

    @rule(stages=st.lists(STAGES, min_size=1, max_size=3), fence=NAMES, epoch=st.integers(0, 5))
    def publish(self, stages: list[str], fence: str, epoch: int) -> None:
        self.run("TPUBLISH", fence, epoch, *stages)

    @rule(stage=STAGES)
    def drop(self, stage: str) -> None:
        self.run("TDROP", stage)

    @rule()
    def flush(self) -> None:
        self.run("FLUSHALL")

    @rule(ms=st.sampled_from([1, 5, 20, -10]))
    def time(self, ms: int) -> None:
        self.now += ms
        expiry.run(self.ks, self.now)
        delivering.run(self.ks, self.now, 100, undamaged)

    @rule(limit=st.integers(1, 3), away=st.sampled_from([0, 7, -7]))
    def deliver(self, limit: int, away: int) -> None:
        if away:
            self.ks.set_away(self.ks.away + away)
        delivering.run(self.ks, self.now, limit, undamaged)

    # -- checkpoints and crashes -----------------------------------------------------------------------------------
    @precondition(lambda self: self.capture is None)
    @rule()
    def take(self) -> None:
        self.capture, self.captured_at = self.ks.begin_capture(), len(self.log)

    @precondition(lambda self: self.capture is not None)
    @rule(some=st.integers(1, 3))
    def go_on(self, some: int) -> None:
        """What is not taken yet must be taken as it was, whatever happens meanwhile."""
        self.ks.changes.more(some)

    @precondition(lambda self: self.capture is not None)
    @rule(well=st.booleans())
    def end(self, well: bool) -> None:
        assert self.capture is not None
        if well:
            self.ks.changes.more(EVERYTHING)
            self.store.write(self.capture, self.captured_at)
            self.store.renew_view()
            while not self.ks.changes.stored(self.capture, 1):
                pass
        else:
            self.ks.changes.failed(self.capture)  # complete or not
        self.capture = None

    @precondition(lambda self: self.capture is None)
    @rule(well=st.booleans())
    def whole(self, well: bool) -> None:
        self.take()
        self.end(well)

    @rule(after_commit=st.booleans())
    def crash(self, after_commit: bool) -> None:
        """The server goes on as what it finds on disk."""
        if self.capture is not None and after_commit:
            self.ks.changes.more(EVERYTHING)
            self.store.write(self.capture, self.captured_at)
        self.capture = None
        self.store.close()
        self.store = Store(self.directory)
        self.ks = self.recovered(self.store)
        self.ks.resume(self.now)

    def recovered(self, store: Store) -> Keyspace:
        ks = empty(store)
        store.restore(ks)
        for start, stop in zip(self.borders, self.borders[1:], strict=False):
            if start >= store.offset:
                replay(ks, self.log[start:stop])
                assert ks.take_batch() == self.log[start:stop], "replay logs what it replays"
        return ks

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "ks"):
            return
        batch = self.ks.take_batch()
        if batch:
            self.log += batch
            self.borders.append(len(self.log))
        found = self.recovered(self.store)
        assert found.digest() == self.ks.digest()
        assert found.delayed_count == self.ks.delayed_count == sum(map(len, self.ks.delayed.values()))
        assert {key: index(each) for key, each in found.delayed.items() if len(each)} == {
            key: index(each) for key, each in self.ks.delayed.items() if len(each)
        }
        assert counters(found) == counters(self.ks)
        assert len(found.index) == len(found.keys) == len(self.ks.index) == len(self.ks.keys)
        assert found.string_bytes == self.ks.string_bytes
        for ks in (found, self.ks):
            assert memory.stream_bytes(ks) == stream_bytes(ks)
            assert 0 <= ks.pool.unstored <= ks.pool.bytes
        assert len(found.stages.by_name) == len(self.ks.stages.by_name)
        assert (found.stages.bytes > 0) == bool(found.stages.by_name)
        assert (self.ks.stages.bytes > 0) == bool(self.ks.stages.by_name)


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

MEANWHILE: dict[str, list[tuple[Any, ...]]] = {
    "nothing": [],
    "flush": [("FLUSHALL",)],
    "delayed entries come and go": [
        ("TDELAY", "a", "CANCEL", "first"), ("TDELAY", "b", "AT", NOW + 99, "ID", "first", "f", "v"),
        ("RENAME", "c", "x"), ("TDELAY", "x", "IN", 7, "f", "v"), ("SET", "d", "v"),
    ],
    "everything goes": [("DEL", "a", "b", "c", "d", "text", "gone")],
    "everything is made anew": [
        ("TAPPEND", "b", "f", "anew"), ("TREAD", "b", 0, 1, "GROUP", "g", 0, "RETRY", 5, 0), ("SET", "gone", "back"),
        ("TREAD", "c", "", 0, "GROUP", "ends", 0), ("SET", "a", "a string"),
    ],
    "stages come and go": [
        ("TSTAGE", "kept", 0, "c", "FIELDS", 1, "f", "VALUES", 6), ("TPUBLISH", "q", 2, "new", "put"),
        ("TSTAGE", "left", 0, "c", "FIELDS", 1, "f", "VALUES", 6), ("TDROP", "left"), ("TPUBLISH", "q", 3, "new"),
        ("TAPPEND", "a", "f", "v"),
    ],
    "stages are published": [("TPUBLISH", "q", 4, "kept"), ("TPUBLISH", "r", 4, "new"), ("TAPPEND", "a", "f", "v")],
    "keys are renamed": [
        ("RENAME", "d", "e"), ("RENAME", "a", "c"), ("RENAME", "text", "b"), ("RENAME", "e", "f"),
        ("TAPPEND", "d", "f", "v"),
    ],
    "keys change their names": [
        ("RENAME", "a", "x"), ("RENAME", "d", "a"), ("RENAME", "x", "d"), ("RENAME", "text", "y"),
        ("RENAME", "c", "text"),
    ],
    "and goes again": [("SET", "gone", "back"), ("DEL", "gone", "text"), ("TGROUP", "DESTROY", "d", "g"), ("DEL", "d")],
}  # fmt: skip


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_what_a_failed_checkpoint_held_is_in_the_next(meanwhile: str, flush: bool, failures: int) -> None:
    world = Checkpoints()
    world.begin()
    try:
        for key in ("a", "b", "c", "d"):
            world.run("TMAPPEND", key, "FIELDS", 1, "f", "VALUES", *range(7))
            for number in range(5):
                world.run("TDELAY", key, "IN", number, "ID", ("first", "last")[number // 4], "f", "v" * number)
                world.run("TDELAY", key, "AT", NOW + number, "f", "v" * number)
            for group in ("g", "ends"):
                world.run("TREAD", key, 0, 2, "GROUP", group, 0, "RETRY", 5, 0)
        for key in ("text", "gone"):
            world.run("SET", key, "v")
        for stage in ("kept", "put", "left"):
            world.run("TSTAGE", stage, 0, "a", "FIELDS", 1, "f", "VALUES", *range(5))
        world.nothing_is_lost()
        world.whole(True)
        if flush:
            world.run("FLUSHALL")
            world.run("TAPPEND", "d", "f", "v")
            world.run("TREAD", "d", 0, 2, "GROUP", "g", 0, "RETRY", 5, 0)
        for words in (
            ("DEL", "b", "gone"), ("TGROUP", "DESTROY", "c", "ends"), ("SET", "text", "w"), ("PEXPIRE", "a", 50),
            ("TREAD", "d", "", 1, "GROUP", "g", 0, "RETRY", 5, 0), ("TAPPEV", "a", "COUNT", 2),
            ("TSTAGE", "kept", 0, "b", "FIELDS", 1, "f", "VALUES", *range(5)), ("TPUBLISH", "q", 1, "put"),
            ("TSTAGE", "new", 0, "a", "FIELDS", 1, "f", "VALUES", 1), ("TDROP", "left"),
        ):  # fmt: skip
            world.run(*words)
        world.nothing_is_lost()
        for _ in range(failures):
            world.take()
            for words in MEANWHILE[meanwhile]:
                world.run(*words)
            world.nothing_is_lost()
            world.end(False)
        world.take()
        for words in MEANWHILE[meanwhile]:
            world.run(*words)
        world.nothing_is_lost()
        world.end(True)
        world.nothing_is_lost()
        world.whole(True)
        world.nothing_is_lost()
        assert world.store.offset == len(world.log)  # so the store alone is what was compared
    finally:
        world.teardown()
