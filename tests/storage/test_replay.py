"""What is logged replays to the same state and logs the same bytes again; checkpoints at any moment, failed or not,
lose nothing."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commands import registry  # noqa: F401  (fills the command table)
from commands.context import Block, Chunks, Context
from commands.declare import lookup
from commands.session import Session
from persistence.store import Store
from resp.errors import CommandError, CorruptError
from storage import expiry, records
from storage.capture import Capture
from storage.changes import EVERYTHING
from storage.entries import entry_wire, id_bulk
from storage.groups import effects
from storage.groups.effects import Reader
from storage.ids import MAX_ID
from storage.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool, NodeStore
from storage.replay import replay
from storage.stages import publish
from storage.stream import Stream
from storage.values import String
from tests.storage.nodes.nodestore import MemoryStore

NOW = 1_700_000_000_000
ALL = records.HAS_RETRY | records.HAS_MAX | records.HAS_DEADLETTER


def empty(store: NodeStore | None = None) -> Keyspace:
    nodes = NodePool(store or MemoryStore(), NodeCache(4096))
    nodes.max_entries = 3
    nodes.publish_written = 2
    return Keyspace(nodes)


def call(ks: Keyspace, now: int, *words: bytes | str | int) -> Any:
    """Run a command as a client's; its reply, or the error's text."""
    argv = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    ctx = Context(ks, cast(Any, None), Session(1, "", "", now), now)
    try:
        answer = lookup(argv).handler(ctx, argv)
    except CommandError as error:
        return error.text
    if isinstance(answer, Chunks):
        answer.close()
    return b"blocked" if isinstance(answer, Block) else answer


def counters(ks: Keyspace) -> dict[tuple[bytes, bytes], tuple[int, ...]]:
    """What digest() leaves out of groups."""
    return {
        (key, name): (group.redelivered, group.expired, group.deadlettered)
        for key, value in ks.keys.items()
        if isinstance(value, Stream)
        for name, group in value.groups.items()
    }


def as_string(value: object) -> String:
    assert isinstance(value, String)
    return value


def wire(ms: int, seq: int, value: bytes = b"v") -> bytes:
    return entry_wire(id_bulk(ms, seq), [b"f", value])


def every_kind() -> Iterator[tuple[str, Keyspace, Keyspace, bytes]]:
    """For each kind of record: its name, a keyspace that wrote it, one that is just before it, and its bytes."""
    live, behind = empty(), empty()

    def logged(kind: str) -> tuple[str, Keyspace, Keyspace, bytes]:
        return kind, live, behind, live.take_batch()

    stream = live.create_stream(b"s")
    live.append(b"s", stream, NOW, 0, wire(NOW, 0))
    yield logged("APPEND")
    wires = [wire(NOW, n) for n in range(1, 9)]
    live.append_packed(b"s", stream, NOW, 1, array("I", map(len, wires)), b"".join(wires))
    yield logged("RUN")
    live.evict(b"s", stream, 1, NOW << 64)
    yield logged("EVICT")
    group = effects.set_group(live, b"s", stream, b"g", 0, 500, NOW + 500)
    yield logged("GROUP")
    raws = stream.raw_ids(stream.seek(0), 7)
    ids = [int.from_bytes(raw, "big") for raw in raws]
    reader = Reader(NOW, 10, NOW + 100, 3, b"dead", ALL)
    effects.deliver(live, b"s", stream, group, ids[-1], reader, raws, [], [])
    yield logged("DELIVER")
    effects.deliver(live, b"s", stream, group, ids[-1], Reader(NOW + 10, 0, 0, 0, b"", 0), [], raws[:2], [raws[2]])
    yield logged("DELIVER")
    effects.ack(live, b"s", stream, group, [i.to_bytes(16, "big") for i in (ids[0], 77, ids[0])])
    yield logged("ACK")
    effects.set_due(live, b"s", stream, group, NOW + 50, [raws[1], raws[3]])
    yield logged("DUE")
    effects.drop(live, b"s", stream, group, ids[1], "expired", b"dead", NOW, 0, wire(NOW, 0))
    yield logged("DROP")
    effects.drop(live, b"s", stream, group, ids[3], "maxdeliveries", b"", 0, 0, b"")
    yield logged("DROP")
    effects.destroy_group(live, b"s", stream, b"g")
    yield logged("DESTROY")
    live.set_string(b"k", b"value", NOW + 5)
    yield logged("SET")
    live.patch_string(b"k", as_string(live.keys[b"k"]), 3, b"ular")
    yield logged("PATCH")
    live.rename(b"k", b"renamed")
    yield logged("RENAME")
    live.set_expire(b"s", NOW + 9)
    yield logged("EXPIRE")
    live.rename(b"s", b"renamed")
    yield logged("RENAME")
    live.rename(b"renamed", b"s")
    yield logged("RENAME")
    live.persist(b"s")
    yield logged("EXPIRE")
    live.set_string(b"dead", b"a string now")
    yield logged("SET")
    live.remove(b"s")
    yield logged("DELETE")
    bare = b"*3\r\n\r\n$1\r\nf\r\n$1\r\nv\r\n"
    for name, key, count in ((b"one", b"s", 2), (b"two", b"s", 5), (b"two", b"new", 2), (b"three", b"s", 1)):
        publish.stage(live, name, key, 500, NOW + 500, array("I", [len(bare)] * count), bare * count)
        yield logged("STAGE")
    names = [b"two", b"one"]
    publish.publish(live, b"fence", 7, b"", names, publish.gathered(live, names), [(b"s", NOW, 5), (b"new", NOW, 0)])
    yield logged("PUBLISH")
    publish.stage(live, b"four", b"s", 500, NOW + 500, array("I", [len(bare)]), bare)
    yield logged("STAGE")
    publish.publish(live, b"fence", 8, b"check", [b"four"], publish.gathered(live, [b"four"]), [(b"s", NOW, 19)])
    yield logged("CHECKED")
    publish.unstage(live, [b"three"])
    yield logged("UNSTAGE")
    live.flush()
    yield logged("FLUSH")


def test_every_kind_replays_and_logs_the_same_bytes() -> None:
    seen = set()
    for kind, live, behind, batch in every_kind():
        assert batch[0] == getattr(records, kind)
        replay(behind, batch)
        assert behind.take_batch() == batch, kind
        assert behind.digest() == live.digest(), kind
        assert counters(behind) == counters(live), kind
        seen.add(batch[0])
    assert seen == set(range(records.APPEND, records.RENAME + 1))


def log_of_everything() -> bytes:
    return b"".join(batch for _, _, _, batch in every_kind())


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_records_are_refused_or_apply(data: st.DataObject) -> None:
    """Invariant: whatever bytes are replayed, CorruptError is the only thing that is raised."""
    raw = bytearray(log_of_everything())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] = data.draw(st.integers(0, 255))
    else:
        del raw[at : at + data.draw(st.integers(1, 40))]
    try:
        replay(empty(), bytes(raw))
    except CorruptError:
        pass


@pytest.mark.parametrize("order", ["same", "lower"])
def test_ids_that_do_not_ascend_are_damage(order: str) -> None:
    ms = NOW if order == "same" else NOW - 1
    for batch in (
        records.append_head(b"s", ms, 0, len(wire(ms, 0))) + b"s" + wire(ms, 0),
        b"".join(records.run(b"s", ms, 0, array("I", [len(wire(ms, 0))]), wire(ms, 0))),
        records.drop(b"t", b"g", 1, "expired", b"s", ms, 0, wire(ms, 0)),
    ):
        ks = empty()
        call(ks, NOW, "TAPPEND", "s", "f", "v")
        call(ks, NOW, "TREAD", "t", "", 0, "GROUP", "g", 0)
        with pytest.raises(CorruptError):
            replay(ks, batch)


def test_a_dead_letter_over_a_string_is_damage() -> None:
    ks = empty()
    call(ks, NOW, "TREAD", "t", "", 0, "GROUP", "g", 0)
    ks.set_string(b"dead", b"x")
    with pytest.raises(CorruptError):
        replay(ks, records.drop(b"t", b"g", 1, "expired", b"dead", NOW, 0, wire(NOW, 0)))


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
    return total


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

    @rule(key=KEYS, group=NAMES)
    def set_id(self, key: str, group: str) -> None:
        self.run("TGROUP", "SETID", key, group, 0)

    @rule(key=KEYS, group=NAMES)
    def destroy(self, key: str, group: str) -> None:
        self.run("TGROUP", "DESTROY", key, group)

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
        assert counters(found) == counters(self.ks)
        assert len(found.index) == len(found.keys) == len(self.ks.index) == len(self.ks.keys)
        assert found.string_bytes == self.ks.string_bytes
        for ks in (found, self.ks):
            assert ks.stream_bytes() == stream_bytes(ks)
            assert 0 <= ks.pool.unstored <= ks.pool.bytes
        assert len(found.stages.by_name) == len(self.ks.stages.by_name)
        assert (found.stages.bytes > 0) == bool(found.stages.by_name)
        assert (self.ks.stages.bytes > 0) == bool(self.ks.stages.by_name)


TestCheckpoints = Checkpoints.TestCase
TestCheckpoints.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

MEANWHILE: dict[str, list[tuple[Any, ...]]] = {
    "nothing": [],
    "flush": [("FLUSHALL",)],
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


def test_golden_records_of_stages() -> None:
    ks = empty()
    bare = b"*3\r\n\r\n$1\r\nf\r\n$0\r\n\r\n"
    publish.stage(ks, b"st", b"key", 7, NOW + 7, array("I", [len(bare)]), bare)
    publish.publish(ks, b"q", 5, b"", [b"st"], publish.gathered(ks, [b"st"]), [(b"key", NOW, 3)])
    publish.stage(ks, b"su", b"key", 0, 0, array("I", [len(bare)]), bare)
    publish.unstage(ks, [b"su", b"none"])
    publish.stage(ks, b"st", b"key", 0, 0, array("I", [len(bare)]), bare)
    publish.publish(ks, b"q", 6, b"ten", [b"st"], publish.gathered(ks, [b"st"]), [(b"key", NOW, 4)])
    golden = bytes.fromhex(
        f"0e 00000038 00000002 00000003 0000000000000007 {NOW + 7:016x} 00000001 {b'stkey'.hex()} 00000013 {bare.hex()}"
        f"0f 00000032 00000001 0000000000000005 00000001 00000001 {b'q'.hex()} 00000002 {b'st'.hex()}"
        f"00000003 {NOW:016x} 0000000000000003 {b'key'.hex()}"
        f"0e 00000038 00000002 00000003 {0:016x} {0:016x} 00000001 {b'sukey'.hex()} 00000013 {bare.hex()}"
        f"10 00000006 00000002 {b'su'.hex()}"
        f"0e 00000038 00000002 00000003 {0:016x} {0:016x} 00000001 {b'stkey'.hex()} 00000013 {bare.hex()}"
        f"11 00000039 00000003 {b'ten'.hex()} 00000001 0000000000000006 00000001 00000001 {b'q'.hex()} 00000002"
        f"{b'st'.hex()} 00000003 {NOW:016x} 0000000000000004 {b'key'.hex()}"
    )
    assert ks.take_batch() == golden
    again = empty()
    replay(again, golden)
    assert again.digest() == ks.digest()
    assert again.stages.checks == {b"q": b"ten"}


def test_golden_records_of_strings_and_names() -> None:
    ks = empty()
    ks.set_string(b"key", b"value", NOW)
    ks.patch_string(b"key", as_string(ks.keys[b"key"]), 4, b"able")
    ks.rename(b"key", b"other")
    golden = bytes.fromhex(
        f"05 00000014 00000003 {NOW:016x} {b'keyvalue'.hex()} 12 00000013 00000003 {4:016x} {b'keyable'.hex()}"
        f"13 0000000c 00000003 {b'keyother'.hex()}"
    )
    assert ks.take_batch() == golden
    assert (set(ks.keys), as_string(ks.keys[b"other"]).value, ks.expires) == ({b"other"}, b"valuable", {b"other": NOW})
    again = empty()
    replay(again, golden)
    assert again.digest() == ks.digest()


@pytest.mark.parametrize(
    "batch",
    [
        records.patch(b"none", 0, b"x"), records.patch(b"s", 0, b"x"), records.patch(b"t", 2, b"x"),
        records.rename(b"none", b"t"), records.rename(b"t", b"t"),
    ],
)  # fmt: skip
def test_records_that_do_not_fit_a_key_are_damage(batch: bytes) -> None:
    ks = empty()
    call(ks, NOW, "TAPPEND", "s", "f", "v")
    call(ks, NOW, "SET", "t", "v")
    ks.take_batch()
    before = ks.digest()
    with pytest.raises(CorruptError):
        replay(ks, batch)
    assert ks.digest() == before


@pytest.mark.parametrize(
    "batch",
    [
        records.publish(b"q", 5, b"", [b"none"], []),
        records.publish(b"q", 5, b"check", [b"none"], []),
        records.HEAD.pack(records.CHECKED, 24) + bytes(24),
        records.publish(b"q", 5, b"x" * 256, [b"st"], [(b"s", NOW, 1)]),
        records.HEAD.pack(records.CHECKED, 2) + bytes(2),
        records.publish(b"q", 5, b"", [b"st"], []),
        records.publish(b"q", 5, b"", [b"st"], [(b"other", NOW, 0)]),
        records.publish(b"q", 5, b"", [b"st"], [(b"s", NOW, 1), (b"s", NOW, 1)]),
        records.publish(b"q", 5, b"", [b"st"], [(b"s", NOW, 0)]),
        records.publish(b"q", 4, b"", [b"st"], [(b"s", NOW, 1)]),
        records.unstage([b"none"]),
        b"".join(records.stage(b"st", b"s", 0, 0, array("I", [3]), b"four")),
        b"".join(records.stage(b"st", b"s", 0, 0, array("I"), b"")),
    ],
)
def test_records_of_stages_that_do_not_fit_are_damage(batch: bytes) -> None:
    ks = empty()
    call(ks, NOW, "TAPPEND", "s", "f", "v")
    for epoch in (3, 4):
        call(ks, NOW, "TSTAGE", "st", 0, "t" if epoch == 4 else "s", "FIELDS", 1, "f", "VALUES", 1)
        if epoch == 4:
            call(ks, NOW, "TPUBLISH", "q", 4, "st")
    call(ks, NOW, "TSTAGE", "st", 0, "s", "FIELDS", 1, "f", "VALUES", 1)
    ks.take_batch()
    before = ks.digest()
    with pytest.raises(CorruptError):
        replay(ks, batch)
    assert ks.digest() == before
