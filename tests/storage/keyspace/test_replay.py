"""What is logged replays to the same state and logs the same bytes again; damaged records are refused."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands import registry  # noqa: F401  (fills the command table)
from resp.errors import CorruptError
from storage.keyspace import delaymutators, groupmutators, stagemutators
from storage.keyspace.groupmutators import GroupDeadLetter, Messages, Ownership, Reader
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.model import records
from storage.model.entries import entry_wire, id_bulk
from storage.streams.delayed import OWN, WALL, split, stored_head
from storage.streams.retention import RetentionPolicy
from storage.streams.tierafter import TierAfter
from tests.storage.keyspace.replaykit import ALL, NOW, append_record, as_string, call, counters, empty, wire


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
    group = groupmutators.set_group(live, b"s", stream, b"g", 0, 500, NOW + 500)
    yield logged("GROUP")
    raws = stream.raw_ids(stream.seek(0), 7)
    ids = [int.from_bytes(raw, "big") for raw in raws]
    reader = Reader(NOW, 10, NOW + 100, 3, b"dead", ALL)
    groupmutators.deliver(live, b"s", stream, group, ids[-1], reader, Messages(raws, [], []))
    yield logged("DELIVER")
    groupmutators.deliver(
        live, b"s", stream, group, ids[-1], Reader(NOW + 10, 0, 0, 0, b"", 0), Messages([], raws[:2], [raws[2]])
    )
    yield logged("DELIVER")
    groupmutators.ack(live, b"s", stream, group, [i.to_bytes(16, "big") for i in (ids[0], 77, ids[0])])
    yield logged("ACK")
    groupmutators.set_due(live, b"s", stream, group, NOW + 50, [raws[1], raws[3]])
    yield logged("DUE")
    groupmutators.drop(live, b"s", stream, group, ids[1], "expired", GroupDeadLetter(b"dead", NOW, 0, wire(NOW, 0)))
    yield logged("DROP")
    groupmutators.drop(live, b"s", stream, group, ids[3], "maxdeliveries", None)
    yield logged("DROP")
    groupmutators.destroy_group(live, b"s", stream, b"g")
    yield logged("DESTROY")
    groupmutators.create_group(live, b"lone", live.create_stream(b"lone"), b"g", 0, 0, lone=True)
    yield logged("XGROUP")
    group = groupmutators.create_group(live, b"s", stream, b"x", ids[0], -1)
    yield logged("XGROUP")
    groupmutators.move_group(live, b"s", stream, group, 0, 0)
    yield logged("XGROUP")
    one, _ = groupmutators.consumer(live, b"s", stream, group, b"one", NOW)
    yield logged("CONSUMER")
    two, _ = groupmutators.consumer(live, b"s", stream, group, b"two", NOW)
    yield logged("CONSUMER")
    groupmutators.own(live, b"s", stream, group, one, NOW, Messages(raws[:5], [], []), position=(ids[4], 6))
    yield logged("OWN")
    groupmutators.own(
        live, b"s", stream, group, two, NOW + 9, Messages([raws[5]], raws[2:4], raws[:1]),
        Ownership(count=7, last=NOW - 5), position=(ids[4], -1),
    )  # fmt: skip
    yield logged("OWN")
    for increment in (True, False):
        groupmutators.own(
            live, b"s", stream, group, two, NOW + 9, Messages([], raws[2:4], []),
            Ownership(step=int(increment), quiet=True), position=(ids[4], -1),
        )  # fmt: skip
        yield logged("OWN")
    groupmutators.own(
        live, b"s", stream, group, None, NOW + 9, Messages([], raws[3:5], []), Ownership(step=-1),
        position=(ids[4], -1),
    )  # fmt: skip
    yield logged("OWN")
    groupmutators.own(
        live, b"s", stream, group, two, NOW + 10, Messages([], raws[2:3], []), Ownership(quiet=True),
        position=(ids[4], -1),
    )  # fmt: skip
    yield logged("OWN")
    groupmutators.forget_consumer(live, b"s", stream, group, two)
    yield logged("FORGET")
    live.set_retention(b"s", stream, RetentionPolicy(5, 6, 7, True, 8, True))
    yield logged("RETAIN")
    live.set_retention(b"s", stream, None)
    yield logged("RETAIN")
    live.set_retention(b"kept", live.create_stream(b"kept"), RetentionPolicy(5, 0, 0, False, 0, False))
    yield logged("RETAIN")
    live.set_tier_after(b"s", stream, TierAfter(True, 5))
    yield logged("TIER")
    live.set_tier_after(b"s", stream, None)
    yield logged("TIER")
    live.set_tier_after(b"local", live.create_stream(b"local"), TierAfter(False, 0))
    yield logged("TIER")
    delayed = delaymutators.companion(live, b"s")
    for number, (token, flags) in enumerate(((b"one", 0), (b"two", OWN), (b"three", OWN | WALL), (b"four", 0))):
        stored = entry_wire(id_bulk(NOW, number), [*stored_head(token, NOW + 9 - number, flags), b"f", b"v"])
        delaymutators.delay(live, b"s", stream, delayed, NOW, number, stored, split(stored))
        yield logged("DELAY")
    wires = [delayed.read(ordinal) for ordinal in range(4)]
    delaymutators.cancel(live, b"s", delayed, 0, wires[0], split(wires[0]))
    yield logged("CANCEL")
    found = [split(wires[2]), split(wires[1])]
    delaymutators.join(
        live, b"s", stream, delayed, (NOW, 100), NOW + 9, 5000, 7, [2, 1], [wires[2], wires[1]], found
    )
    yield logged("JOIN")
    stored = entry_wire(id_bulk(NOW, 0), [*stored_head(b"first", NOW, WALL), b"f", b"v"])
    alone = live.create_stream(b"alone")
    delaymutators.delay(live, b"alone", alone, delaymutators.companion(live, b"alone"), NOW, 0, stored, split(stored))
    yield logged("DELAY")
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
        stagemutators.stage(live, name, key, 500, NOW + 500, array("I", [len(bare)] * count), bare * count)
        yield logged("STAGE")
    names = [b"two", b"one"]
    stagemutators.publish(
        live, b"fence", 7, b"", names, stagemutators.gathered(live, names), [(b"s", NOW, 5), (b"new", NOW, 0)]
    )
    yield logged("PUBLISH")
    stagemutators.stage(live, b"four", b"s", 500, NOW + 500, array("I", [len(bare)]), bare)
    yield logged("STAGE")
    stagemutators.publish(
        live, b"fence", 8, b"check", [b"four"], stagemutators.gathered(live, [b"four"]), [(b"s", NOW, 19)]
    )
    yield logged("CHECKED")
    stagemutators.unstage(live, [b"three"])
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
    kinds = {*range(records.APPEND, records.RENAME + 1), *range(records.XGROUP, records.FORGET + 1)}
    kinds |= {*range(records.DELAY, records.CANCEL + 1), records.TIER}
    assert seen == kinds


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
        append_record(b"s", ms, 0, wire(ms, 0)),
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


def test_golden_records_of_consumers() -> None:
    ks = empty()
    stream = ks.create_stream(b"key")
    group = groupmutators.create_group(ks, b"key", stream, b"g", 5, -1, lone=True)
    groupmutators.move_group(ks, b"key", stream, group, 7, 3)
    consumer, _ = groupmutators.consumer(ks, b"key", stream, group, b"one", NOW)
    raws = [n.to_bytes(16, "big") for n in (8, 9, 10)]
    groupmutators.own(ks, b"key", stream, group, consumer, NOW + 1, Messages(raws[:2], [], []), position=(9, 5))
    groupmutators.own(
        ks, b"key", stream, group, consumer, NOW + 2, Messages([raws[2]], [raws[1]], [raws[0]]),
        Ownership(count=4, last=NOW), position=(9, 5),
    )  # fmt: skip
    groupmutators.forget_consumer(ks, b"key", stream, group, consumer)
    golden = bytes.fromhex(
        f"18 00000025 00000003 00000001 {5:032x} ffffffffffffffff 01 {b'keyg'.hex()}"
        f"18 00000025 00000003 00000001 {7:032x} {3:016x} 00 {b'keyg'.hex()}"
        f"19 0000001b 00000003 00000001 00000001 {NOW:016x} {b'keygone'.hex()}"
        f"1a 0000006d 00000003 00000001 00000001 02 {9:032x} {5:016x} {NOW + 1:016x} {NOW + 1:016x} {0:016x}"
        f"00000002 00000000 00000000 {b'keyg'.hex()} {8:032x} {9:032x}"
        f"1a 0000007d 00000003 00000001 00000001 01 {9:032x} {5:016x} {NOW:016x} {NOW + 2:016x} {4:016x}"
        f"00000001 00000001 00000001 {b'keyg'.hex()} {10:032x} {9:032x} {8:032x}"
        f"1b 00000010 00000003 00000001 00000001 {b'keyg'.hex()}"
    )
    assert ks.take_batch() == golden
    again = empty()
    replay(again, golden)
    assert again.digest() == ks.digest()
    assert again.take_batch() == golden


RAWS = [n.to_bytes(16, "big") for n in range(4)]
TIME = 1 << 63


@pytest.mark.parametrize(
    "batch",
    [
        records.xgroup(b"none", b"g", 0, -1, 0),  # no stream, and it is not made
        records.xgroup(b"s", b"g", 0, -1, records.LONE),  # moved, but made
        records.xgroup(b"s", b"new", 0, -1, 2),
        records.xgroup(b"s", b"g", 0, TIME, 0),
        records.xgroup(b"text", b"g", 0, -1, records.LONE),
        records.xgroup(b"s", b"g", 0, -1, 0)[:4] + b"\x24" + records.xgroup(b"s", b"g", 0, -1, 0)[5:] + b"x",
        records.consumer(b"s", b"g", 3, NOW, b"one"),  # a name that is taken
        records.consumer(b"s", b"g", 1, NOW, b"new"),  # numbers that are
        records.consumer(b"s", b"g", 2, NOW, b"new"),
        records.consumer(b"s", b"g", 4, NOW, b"new"),  # one that is not the next
        records.consumer(b"s", b"g", 3, TIME, b"new"),
        records.consumer(b"s", b"none", 1, NOW, b"new"),
        records.own(b"s", b"g", 2, 0, 0, -1, NOW, NOW, 0, RAWS[2:3], [], []),  # no such consumer
        records.own(b"s", b"none", 1, 0, 0, -1, NOW, NOW, 0, RAWS[2:3], [], []),
        records.own(b"s", b"g", 1, 0, 0, -1, NOW, NOW, 0, [], RAWS[2:3], []),  # not pending
        records.own(b"s", b"g", 1, 0, 0, -1, NOW, NOW, 0, RAWS[2:3], RAWS[2:3], []),
        records.own(b"s", b"g", 1, 3, 0, -1, NOW, NOW, 0, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 16, 0, -1, NOW, NOW, 0, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 0, 0, -1, NOW, NOW, 1, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 1, 0, -1, NOW, NOW, TIME, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 0, 0, -1, TIME, NOW, 0, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 0, 0, -1, NOW, TIME, 0, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 0, 0, TIME, NOW, NOW, 0, [], RAWS[1:2], []),
        records.own(b"s", b"g", 1, 0, 0, -1, NOW, NOW, 0, [], [b"short"], []),
        records.own(b"s", b"g", 1, 0, 0, -1, NOW, NOW, 0, [], [], []),  # nothing changed
        records.forget(b"s", b"g", 2),
        records.forget(b"s", b"none", 1),
        # the server delivers what a consumer owns again
        records.deliver(b"s", b"g", 0, NOW, 5, 0, 0, b"", records.HAS_RETRY, [], RAWS[1:2], []),
    ],
)
def test_records_of_consumers_that_do_not_fit_are_damage(batch: bytes) -> None:
    ks = empty()
    call(ks, NOW, "SET", "text", "v")
    stream = ks.create_stream(b"s")
    group = groupmutators.create_group(ks, b"s", stream, b"g", 0, -1, lone=True)
    one, _ = groupmutators.consumer(ks, b"s", stream, group, b"one", NOW)
    two, _ = groupmutators.consumer(ks, b"s", stream, group, b"two", NOW)
    groupmutators.own(ks, b"s", stream, group, one, NOW, Messages(RAWS[1:2], [], []), position=(0, -1))
    groupmutators.forget_consumer(ks, b"s", stream, group, two)
    ks.take_batch()
    before = ks.digest()
    with pytest.raises(CorruptError):
        replay(ks, batch)
    assert ks.digest() == before


def test_golden_records_of_stages() -> None:
    ks = empty()
    bare = b"*3\r\n\r\n$1\r\nf\r\n$0\r\n\r\n"
    stagemutators.stage(ks, b"st", b"key", 7, NOW + 7, array("I", [len(bare)]), bare)
    stagemutators.publish(ks, b"q", 5, b"", [b"st"], stagemutators.gathered(ks, [b"st"]), [(b"key", NOW, 3)])
    stagemutators.stage(ks, b"su", b"key", 0, 0, array("I", [len(bare)]), bare)
    stagemutators.unstage(ks, [b"su", b"none"])
    stagemutators.stage(ks, b"st", b"key", 0, 0, array("I", [len(bare)]), bare)
    stagemutators.publish(ks, b"q", 6, b"ten", [b"st"], stagemutators.gathered(ks, [b"st"]), [(b"key", NOW, 4)])
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
        b"".join(records.stage(b"st", b"", 5, 0, array("I"), b"")),
        b"".join(records.stage(b"st", b"", 0, 5, array("I"), b"")),
        b"".join(records.stage(b"none", b"", 0, 0, array("I"), b"")),
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


def test_a_deliver_record_does_not_depend_on_the_one_before() -> None:
    """What is packed for one is used again for the next that wants the same."""
    chance = random.Random(9)
    for _ in range(2000):
        key, name = chance.choice([b"s", b"stream", b"t"]), chance.choice([b"g", b"group", b"h"])
        offset, now, retry = chance.randrange(3) << 64, NOW + chance.randrange(2), chance.choice([0, 5])
        expire, most, flags = chance.choice([0, NOW + 9]), chance.choice([0, 3]), chance.choice([0, 1, 3])
        new = RAWS[: chance.randrange(4)]
        dead, again, gone = chance.choice([(b"", [], []), (b"", [], []), (b"dead", RAWS[2:], []), (b"", [], RAWS[1:2])])
        head = records.DELIVER_HEAD.pack(
            records.DELIVER, records.DELIVER_HEAD.size - 5 + len(key) + len(name) + len(dead)
            + 16 * (len(new) + len(again) + len(gone)),
            len(key), len(name), len(dead), offset.to_bytes(16, "big"), now, retry, expire, most, flags,
            len(new), len(again), len(gone),
        )  # fmt: skip
        expected = b"".join((head, key, name, dead, *new, *again, *gone))
        assert records.deliver(key, name, offset, now, retry, expire, most, dead, flags, new, again, gone) == expected
