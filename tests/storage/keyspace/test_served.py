"""Served time: one number shifts all deadlines, and it is in the log and in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from persistence.store import Store
from replication import formats
from resp.errors import CorruptError
from storage.keyspace import expiry
from storage.keyspace.groupmutators import Messages, Reader, deliver, set_group
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.model import records
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool
from tests.persistence.datakit import append, keyspace
from tests.persistence.test_store import reopened, save
from tests.storage.nodes.nodestore import MemoryStore

NOW = 1_700_000_000_000


def empty() -> Keyspace:
    return Keyspace(NodePool(MemoryStore(), NodeCache(1 << 16)))


@pytest.fixture
def ks() -> Keyspace:
    return empty()


def grouped(ks: Keyspace) -> None:
    """A stream with a message that is due 500 ms later, for a group that ends 1000 ms later."""
    append(ks, b"s", 1)
    stream = ks.stream(b"s", NOW)
    assert stream is not None
    served = ks.served(NOW)
    group = set_group(ks, b"s", stream, b"g", 0, 1000, served + 1000)
    reader = Reader(NOW, 500, 0, 0, b"", records.HAS_RETRY)
    deliver(ks, b"s", stream, group, stream.last_id, reader, Messages([stream.last_id.to_bytes(16, "big")], [], []))


def due(ks: Keyspace) -> int | None:
    stream = ks.stream(b"s", NOW)
    assert stream is not None
    return stream.groups[b"g"].pending.next_due()


@pytest.mark.parametrize("away", [5000, -5000])
def test_a_shift_moves_every_deadline_and_not_the_wall_clock(ks: Keyspace, away: int) -> None:
    grouped(ks)
    ks.set_string(b"k", b"v", NOW + 2000)
    ks.set_away(away)
    assert ks.served(NOW) == NOW - away
    expiry.run(ks, NOW + away + 999)
    stream = ks.keys[b"s"]
    assert b"g" in stream.groups  # type: ignore[union-attr]
    assert (b"k" in ks.keys) == (away < 0)
    expiry.run(ks, NOW + away + 1000)
    assert b"g" not in stream.groups  # type: ignore[union-attr]


def test_what_is_delivered_later_is_due_by_the_shifted_clock(ks: Keyspace) -> None:
    ks.set_away(5000)
    grouped(ks)
    assert due(ks) == NOW - 5000 + 500


def test_it_lies_within_its_bounds(ks: Keyspace) -> None:
    ks.served_from, ks.served_to = NOW - 50, NOW + 200
    assert [ks.served(NOW + ms) for ms in (-100, 0, 100, 5000)] == [NOW - 50, NOW, NOW + 100, NOW + 200]


def test_the_log_says_so() -> None:
    ks, twin = empty(), empty()
    ks.set_away(-5000)
    grouped(ks)
    ks.set_away(7000)
    batch = ks.take_batch()
    assert records.away(-5000) == b"\x1d\x00\x00\x00\x08" + (-5000).to_bytes(8, "big", signed=True)
    replay(twin, batch)
    assert (twin.take_batch(), twin.away, due(twin)) == (batch, 7000, due(ks))
    assert twin.digest() == ks.digest()


@pytest.mark.parametrize("record", [
    records.HEAD.pack(records.AWAY, 0), records.HEAD.pack(records.AWAY, 9) + bytes(9), records.away(1 << 62),
    records.away(-(1 << 63)),
])  # fmt: skip
def test_a_record_that_makes_no_sense_is_damage(record: bytes) -> None:
    with pytest.raises(CorruptError):
        replay(empty(), record)


def test_replicas_must_know_it() -> None:
    assert formats.needed(records.away(1)) == formats.needed(records.set_last_id(b"s", 1, 1, 0) + records.away(1)) == 4
    assert formats.unknown(records.away(1)) == 0


def test_the_store_has_it(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ks = keyspace(store)
    append(ks, b"s", 1)
    save(store, ks, 1)
    assert store.format == 1
    ks.set_away(-5000)
    append(ks, b"s", 1)
    save(store, ks, 2)
    assert (store.format, store.copy().format) == (4, 4)
    store.close()
    again, restored = reopened(tmp_path)
    assert (again.format, restored.away) == (4, -5000)
    restored.set_away(0)
    append(restored, b"s", 1)
    save(again, restored, 3)
    again.close()
    last, restored = reopened(tmp_path)
    assert restored.away == 0
    last.close()
