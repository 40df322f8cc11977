"""What producers added under IDs of their own: remembered, forgotten, stored, logged and replayed."""

from __future__ import annotations

import pytest

from resp.errors import CorruptError
from storage.keyspace import expiry
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.model import records
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from storage.streams.producers import ONE, Producers, StreamProducer
from storage.streams.stream import Stream
from tests.storage.nodes.nodestore import MemoryStore

SECOND = 1000


def keyspace() -> Keyspace:
    return Keyspace(NodePool(MemoryStore(), NodeCache(1 << 20)))


def add(ks: Keyspace, name: bytes, now: int, producer: bytes = b"p") -> int:
    """As XADD IDMP does it; returns the entry's ID."""
    stream = ks.stream(b"s", now) or ks.create_stream(b"s")
    found = stream.producers.find(producer, name, now) if stream.producers is not None else 0
    if found:
        return found
    ms, seq = ks.next_id(stream, now)
    ks.append(b"s", stream, ms, seq, b"*1\r\n")
    ks.add_produced(b"s", stream, producer, name, ms << 64 | seq, now, *stream.idmp())
    assert ks.pool.bytes == stream.memory_bytes()
    return ms << 64 | seq


def stream_of(ks: Keyspace) -> Stream:
    stream = ks.keys[b"s"]
    assert isinstance(stream, Stream)
    return stream


def tracked(ks: Keyspace) -> list[tuple[bytes, list[bytes]]]:
    producers = stream_of(ks).producers
    assert producers is not None
    return [(name, list(producers.by_name[name].ids)) for name in sorted(producers.by_name)]


def test_an_id_that_comes_again_is_found() -> None:
    ks = keyspace()
    first = add(ks, b"1", 5)
    assert add(ks, b"2", 5) != first
    assert add(ks, b"1", 6) == first
    assert add(ks, b"1", 6, b"other") != first
    assert stream_of(ks).length == 3


def test_an_id_is_forgotten_after_its_time() -> None:
    ks = keyspace()
    stream = ks.create_stream(b"s")
    ks.set_idmp(b"s", stream, 2 * SECOND, 10)
    first = add(ks, b"1", 10)
    assert add(ks, b"1", 10 + 2 * SECOND - 1) == first
    assert add(ks, b"1", 10 + 2 * SECOND) != first
    assert tracked(ks) == [(b"p", [b"1"])]


def test_the_oldest_ids_go_where_there_are_too_many() -> None:
    ks = keyspace()
    ks.set_idmp(b"s", ks.create_stream(b"s"), 60 * SECOND, 3)
    for number in range(5):
        add(ks, b"%d" % number, 1)
        add(ks, b"%d" % number, 1, b"q")
    assert tracked(ks) == [(b"p", [b"2", b"3", b"4"]), (b"q", [b"2", b"3", b"4"])]


def test_other_settings_forget_everything() -> None:
    ks = keyspace()
    add(ks, b"1", 1)
    ks.set_idmp(b"s", stream_of(ks), SECOND, 3)
    assert tracked(ks) == []
    assert ks.pool.bytes == stream_of(ks).memory_bytes()
    producers = stream_of(ks).producers
    assert producers is not None
    assert producers.added == 1


def test_a_timer_forgets_what_nobody_adds_to() -> None:
    ks = keyspace()
    keep = ks.pool.idmp_ms
    add(ks, b"1", 1)
    add(ks, b"2", 50, b"q")
    assert ks.timers.next() == 1 + keep
    expiry.run(ks, 1 + keep)
    assert tracked(ks) == [(b"q", [b"2"])]
    expiry.run(ks, 1 + 2 * keep)
    assert tracked(ks) == []
    assert ks.timers.next() is None
    assert ks.pool.bytes == stream_of(ks).memory_bytes()


def test_a_replay_forgets_what_the_leader_forgot() -> None:
    ks = keyspace()
    for number in range(300):
        add(ks, b"%d" % (number % 170), number * 997, b"p%d" % (number % 3))
        expiry.run(ks, number * 997)
    ks.set_idmp(b"s", stream_of(ks), 7 * SECOND, 2)
    for number in range(20):
        add(ks, b"%d" % number, 400_000 + number * 997)
    batch = ks.take_batch()
    other = keyspace()
    replay(other, batch)
    assert other.take_batch() == batch
    assert tracked(other) == tracked(ks)
    assert other.digest() == ks.digest()
    add(ks, b"another", 900_000)
    assert other.digest() != ks.digest()


def test_a_renamed_stream_keeps_its_producers() -> None:
    ks = keyspace()
    add(ks, b"1", 1)
    ks.rename(b"s", b"t")
    assert ks.timers.take(1 << 60) == (5, b"t", b"")
    ks.remove(b"t")
    assert ks.timers.next() is None


def test_what_is_captured_can_be_restored() -> None:
    ks = keyspace()
    for number in range(5):
        add(ks, b"%d" % number, number, b"p%d" % (number % 2))
    stream = stream_of(ks)
    capture = stream.capture()
    assert [name for name, _ in capture.producers] == [b"p0", b"p1"]
    other = Stream.restore(1, stream.meta(), NodePool(MemoryStore(), NodeCache(0)))
    for name, dump in capture.producers:
        other.own_producers().restore(name, dump)
    assert other.producers is not None
    assert stream.producers is not None
    assert other.producers.dumps() == stream.producers.dumps()
    assert other.producers.bytes == stream.producers.bytes
    assert other.producers.added == 5
    assert stream.capture().producers == []
    stream.uncaptured(capture)
    assert stream.capture().producers == capture.producers
    ks.forget_produced(b"s", stream, 1 << 40)
    assert stream.capture().producers == [(b"p0", b""), (b"p1", b"")]


DUMP = bytes.fromhex("01 00000001 00000002 00000000000000010000000000000002 0000000000000007") + b"id"


def test_the_dump_of_a_producer() -> None:
    producer = StreamProducer()
    producer.add(b"id", 1 << 64 | 2, 7)
    assert producer.dump() == DUMP
    assert StreamProducer.load(DUMP).ids == producer.ids


@pytest.mark.parametrize(
    "dump",
    [
        b"", b"\1", b"\2" + DUMP[1:], DUMP[:-1], DUMP + b"x", DUMP[:5], b"\1\0\0\0\2" + DUMP[5:] * 2,
        b"\1\0\0\0\1" + ONE.pack(2, bytes(16), 1 << 63) + b"id", b"\1\0\0\0\1" + ONE.pack(0, bytes(16), 1),
    ],
    ids=["empty", "cut", "newer", "short", "long", "none", "twice", "late", "no name"],
)  # fmt: skip
def test_damaged_dumps_are_refused(dump: bytes) -> None:
    with pytest.raises(CorruptError):
        StreamProducer.load(dump)


def test_a_producer_that_is_there_twice_is_refused() -> None:
    producers = Producers(NodePool(MemoryStore(), NodeCache(0)))
    producers.restore(b"p", DUMP)
    with pytest.raises(CorruptError):
        producers.restore(b"p", DUMP)


@pytest.mark.parametrize(
    "record",
    [
        records.idempotent(b"s", b"", b"1", 5 << 64, 5, 1, 1), records.idempotent(b"s", b"p", b"", 5 << 64, 5, 1, 1),
        records.idempotent(b"s", b"p", b"1", 6 << 64, 5, 1, 1), records.idempotent(b"s", b"p", b"1", 5 << 64, 5, 1, 0),
        records.idempotent(b"t", b"p", b"1", 5 << 64, 5, 1, 1),
        records.idempotent(b"s", b"p", b"1", 5 << 64, 1 << 63, 1, 1),
        records.idmp(b"s", 0, 1), records.idmp(b"s", 1, 0), records.idmp(b"s", 1 << 40, 1), records.idmp(b"t", 1, 1),
        records.produced(b"t", 1), records.produced(b"s", 1 << 63),
    ],
    ids=range(12),
)  # fmt: skip
def test_records_that_make_no_sense_are_refused(record: bytes) -> None:
    ks = keyspace()
    add(ks, b"0", 5)
    with pytest.raises(CorruptError):
        replay(ks, record)
