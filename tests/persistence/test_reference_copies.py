"""Copies of streams whose nodes are references: they are in the log, and not yet in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from persistence.log import Log
from persistence.store import Store
from replication import formats
from resp.errors import AbsentNodeError, CorruptError
from respserver.testing import start_in_thread
from storage.keyspace import copying
from storage.keyspace.importing import apply
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from storage.model import records
from storage.nodes import reference
from storage.streams.stream import Stream
from tests.persistence.datakit import append, checkpoint, commit, crashed, delete, opened
from tests.persistence.test_references import KEY, free
from tests.persistence.test_store import reopened, save
from tests.wire.rawclient import Raw

COUNT = 105
DEAD = [12, *range(31, 38)]  # the node of 30 is worth compacting


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[Keyspace, dict[int, bytes], bytes]]:
    """A stream of ten references and a rest, the blobs of the references, and its entries."""
    store, ks = reopened(tmp_path / "source")
    stream = append(ks, KEY, COUNT, 300)
    save(store, ks, 1)
    delete(ks, KEY, DEAD)
    ks.pool.cache.max_bytes = 0
    whole = stream.read(0, COUNT)
    blobs = free(store, *range(0, 100, 10))
    yield ks, blobs, whole
    store.close()


def copied(ks: Keyspace, sent: int = 100) -> list[bytes]:
    """The records that recreate the stream. ``sent``: the ordinal from which on entries are sent."""

    def refer(raw: bytes) -> bytes:
        return raw if reference.unpack(raw).first_id < (sent + 1) << 64 else b""

    return list(copying.copy_of(ks, KEY, refer))


def fill_cache(store: Store, blobs: dict[int, bytes]) -> None:
    store.tiered.path.mkdir(exist_ok=True)
    for blob in blobs.values():
        (store.tiered.path / xxh3_128_digest(blob).hex()).write_bytes(blob)


def stream_of(ks: Keyspace) -> Stream:
    found = ks.keys[KEY]
    assert isinstance(found, Stream)
    return found


def begun(log: Log, ks: Keyspace, batch: list[bytes]) -> Stream:
    """Apply the records, and log them."""
    apply(ks, b"".join(batch), 0)
    commit(log, ks)
    ks.pool.cache.max_bytes = 0
    return stream_of(ks)


def test_records_have_references_instead_of_entries(source: tuple[Keyspace, dict[int, bytes], bytes]) -> None:
    ks, blobs, _ = source
    found = copied(ks)
    assert [record[0] for record in found[1:11]] == [records.NODEREF] * 10
    assert sum(map(len, found[1:11])) < 10 * 170
    assert {formats.needed(record) for record in found[1:11]} == {10}
    assert formats.needed(found[11]) == 7
    fill_cache(ks.pool.store, blobs)  # type: ignore[arg-type]
    assert [record[0] for record in copied(ks, 50)[1:11]] == [records.NODEREF] * 5 + [records.NODE] * 5
    with pytest.raises(CorruptError, match="a NODEREF record without one"):
        replay(ks, records.node_reference(b"x", 0, 10, [], blobs[0]))


@pytest.mark.parametrize("stored", [False, True])
def test_a_copy_survives_a_kill_before_and_after_a_checkpoint(
    source: tuple[Keyspace, dict[int, bytes], bytes], tmp_path: Path, stored: bool
) -> None:
    ks, blobs, whole = source
    with opened(tmp_path / "target") as (log, target, _):
        begun(log, target, copied(ks))
        assert target.pool.tiered
        if stored:
            checkpoint(log, target)
            assert (log.store.format, log.store.has_references) == (8, True)
        killed = crashed(tmp_path / "target")
        assert not list(killed.glob("tier-cache/*"))
    with opened(killed) as (log, target, _):
        found = stream_of(target)
        target.pool.cache.max_bytes = 0
        assert found.length == COUNT - len(DEAD)
        with pytest.raises(AbsentNodeError) as met:
            found.read(0, COUNT)
        assert reference.unpack(met.value.raw).digest == xxh3_128_digest(blobs[0])
        fill_cache(log.store, blobs)
        assert found.read(0, COUNT) == whole


def test_a_copy_is_used_before_the_first_checkpoint(
    source: tuple[Keyspace, dict[int, bytes], bytes], tmp_path: Path
) -> None:
    """Long reads that wait, appends, deletions, evictions, and another copy."""
    ks, blobs, whole = source
    with opened(tmp_path / "target") as (log, target, _):
        found = begun(log, target, copied(ks))
        snapshot = found.snapshot(0, COUNT)
        snapshot.waits = True
        pieces = []
        for piece in snapshot.forward():
            absent = target.pool.take_absent()
            assert bool(piece) == (absent is None)
            pieces.append(piece)
            if absent is not None:
                fill_cache(log.store, {absent.first_ord: blobs[absent.first_ord]})
        assert b"".join(pieces) == whole
        assert len(pieces) == 10 + 11
        again = list(copying.copy_of(target, KEY, lambda raw: raw))
        assert again == copied(ks)
        append(target, KEY, 30, 300)
        delete(target, KEY, [25, 26])
        for path in log.store.tiered.path.iterdir():
            path.unlink()
        found.require_border(20)
        target.evict_before(KEY, found, 20)
        assert found.evicted_to == 20 << 64
        with pytest.raises(AbsentNodeError):
            found.require_border(45)
        checkpoint(log, target)
        fill_cache(log.store, blobs)
        assert found.count(20, 135) == 115 - 9
        assert len(found.read(20, 135)) > 0
        target.pool.cache.clear()
        bytes_before = found.read(20, 135)
    with opened(tmp_path / "target") as (log, target, _):
        assert stream_of(target).read(20, 135) == bytes_before


def test_a_replica_has_the_same_references(
    source: tuple[Keyspace, dict[int, bytes], bytes], tmp_path: Path
) -> None:
    ks, blobs, whole = source
    with opened(tmp_path / "target") as (log, target, _), opened(tmp_path / "replica") as (other, replica, _):
        apply(target, b"".join(copied(ks)), 0)
        batch = target.take_batch()
        log.append(batch)
        replay(replica, batch)
        assert replica.take_batch() == batch
        other.append(batch)
        checkpoint(other, replica)
        fill_cache(other.store, blobs)
        assert stream_of(replica).read(0, COUNT) == whole


def test_a_server_that_was_killed_before_a_checkpoint_adds_nothing_before_it_waits(
    source: tuple[Keyspace, dict[int, bytes], bytes], tmp_path: Path
) -> None:
    """Its log has references, and its store has none. A command that needs entries of the object store, which can't be
    read here, changes nothing."""
    ks, _, _ = source
    with opened(tmp_path / "target") as (log, target, _):
        begun(log, target, copied(ks))
        killed = crashed(tmp_path / "target")
    with start_in_thread(killed) as server, Raw(server.port) as client:
        assert client("XLEN", KEY) == COUNT - len(DEAD)
        reply = client("XADD", KEY, "MAXLEN", "=", "75", "*", "f", "v")
        assert str(reply).startswith("TRYAGAIN")
        assert client("XLEN", KEY) == COUNT - len(DEAD)
