"""Nodes that are only in the object store: what the store replaces, keeps, refuses, and verifies."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from persistence.diskcache import DiskCache
from persistence.layout import NODE_KEY
from persistence.scrub import Scrub
from persistence.store import Store
from persistence.storecopy import DATABASES
from persistence.tiering.source import AGELESS, StoreView
from resp.errors import AbsentNodeError, CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.nodes.node import HEADER
from storage.nodes.reference import Reference
from storage.streams.stream import Stream
from tests.persistence.datakit import append, delete, wire
from tests.persistence.test_store import change, raw, reopened, save

KEY = b"s"
LARGE = 4 << 20  # bytes of an entry


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Store, Keyspace, Stream]]:
    """A store with a stream of ten nodes."""
    store, ks = reopened(tmp_path / "store")
    stream = append(ks, KEY, 105, 300)
    save(store, ks, 1)
    ks.pool.cache.max_bytes = 0
    yield store, ks, stream
    store.close()


def key_at(first: int) -> bytes:
    return NODE_KEY.pack(1, first, ((first + 1) << 64).to_bytes(16, "big"))


def blob_at(store: Store, first: int) -> bytes:
    with store.env.begin(db=store.nodes) as txn:
        return bytes(txn.get(key_at(first)) or b"")


def reference_for(blob: bytes, first: int) -> Reference:
    size = HEADER.unpack_from(blob)[4]
    return Reference(10, size, (first + 1) << 64, (first + 10) << 64, xxh3_128_digest(blob), 1, bytes(16), 0, 1, 2)


def free(store: Store, *firsts: int) -> dict[int, bytes]:
    """Replace nodes. Return their blobs."""
    blobs = {first: blob_at(store, first) for first in firsts}
    nodes = [
        (key_at(first), xxh3_128_digest(blob), reference_for(blob, first).pack()) for first, blob in blobs.items()
    ]
    assert store.free(nodes)[0] == len(firsts)
    store.renew_view()
    return blobs


def test_only_the_compared_node_is_replaced(opened: tuple[Store, Keyspace, Stream]) -> None:
    store, _, _ = opened
    blob = blob_at(store, 10)
    made = reference_for(blob, 10).pack()
    assert store.format < 8
    assert store.free([(key_at(10), bytes(16), made), (key_at(11), made[:16], made)]) == (0, 0)
    assert (blob_at(store, 10), store.format < 8, store.has_references) == (blob, True, False)
    assert store.free([(key_at(10), xxh3_128_digest(blob), made)]) == (1, len(blob) - len(made))
    assert blob_at(store, 10) == made
    assert store.free([(key_at(10), xxh3_128_digest(made), made)]) == (0, 0)
    assert (store.format, store.has_references) == (8, True)


def test_the_search_for_references_reads_no_blobs(tmp_path: Path) -> None:
    """They can be larger than the memory that is left, and take the event loop's time."""
    store, ks = reopened(tmp_path / "store")
    stream = append(ks, KEY, 60, 300)
    ks.append(KEY, stream, stream.last_ms + 1, 0, wire(os.urandom(LARGE).hex()))
    append(ks, KEY, 30, 300)
    save(store, ks, 1)
    free(store, 0, 10, 20, 30)
    snapshot = stream.snapshot(0, stream.next_ord)
    with store.env.begin() as txn:
        assert txn.stat(store.nodes)["overflow_pages"] * 4096 > LARGE
    tracemalloc.start()
    try:
        with store.env.begin(buffers=True) as txn:
            view = StoreView(store.path, txn, dict(zip(DATABASES, store._databases, strict=False)))
            found = view.stream(1)
            assert found is not None
            searches = [
                sum(map(bool, snapshot.references())), len(view.referenced(b"", 1000)[0]),
                view.after_references(found, 0, AGELESS), sum(its is not None for *_, its in view.nodes(found)),
            ]  # fmt: skip
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert searches == [4, 1, 40, 4]
    assert peak < LARGE / 4
    store.close()


def test_reads_name_the_range_and_the_disk_cache_serves_them(opened: tuple[Store, Keyspace, Stream]) -> None:
    store, _, stream = opened
    whole = stream.read(0, 105)
    blobs = free(store, 10, 20)
    with pytest.raises(AbsentNodeError, match=r"the entries 11\.0 to 20\.0 of stream 1 are only in the") as met:
        stream.read(5, 25)
    assert (met.value.first_ord, met.value.count, met.value.last_id) == (10, 10, 20 << 64)
    assert met.value.of_key(b"s").startswith("the entries 11.0 to 20.0 of stream 1 (key 's') are only in")
    store.tiered.path.mkdir()
    for first, blob in blobs.items():
        path = store.tiered.path / xxh3_128_digest(blob).hex()
        for wrong in (blob[:-1], blob[:50] + b"x" + blob[51:], blobs[30 - first], b"TN"):
            path.write_bytes(wrong)
            with pytest.raises(AbsentNodeError):
                stream.read(first, first + 1)
            assert not path.exists()
        path.write_bytes(blob)
    assert stream.read(0, 105) == whole
    assert stream.count(0, 105) == 105


def test_eviction_needs_only_nodes_that_it_divides(opened: tuple[Store, Keyspace, Stream]) -> None:
    store, ks, stream = opened
    delete(ks, KEY, [39])
    free(store, 0, 10, 20, 30)
    stream.require_border(20)
    ks.evict_before(KEY, stream, 20)
    assert stream.evicted_to == 20 << 64
    for call in (stream.require_border, lambda border: ks.evict_before(KEY, stream, border)):
        with pytest.raises(AbsentNodeError):
            call(25)
    assert stream.first_ord == 20
    with pytest.raises(AbsentNodeError):  # the last one that is alive is not the last one of the node
        ks.evict_before(KEY, stream, 40)
    assert stream.first_ord == 20


def test_a_checkpoint_keeps_references_and_a_start_reads_them(
    opened: tuple[Store, Keyspace, Stream], tmp_path: Path
) -> None:
    store, ks, stream = opened
    delete(ks, KEY, [*range(10, 18), *range(20, 30)])  # one is worth compacting, the other one is gone
    free(store, 10, 20, 30)
    append(ks, KEY, 20, 300)
    save(store, ks, 2)
    assert (blob_at(store, 10)[:3], blob_at(store, 20), blob_at(store, 30)[:3]) == (b"TN\3", b"", b"TN\3")
    store.close()
    again, read = reopened(tmp_path / "store")
    found = read.keys[KEY]
    assert isinstance(found, Stream)
    assert (found.length, again.format, again.has_references) == (stream.length, 8, True)
    again.close()
    meta = raw(tmp_path / "store")[b"meta"]
    assert int.from_bytes(meta[b"nodes"][4:], "big") == 3
    change(tmp_path / "store", b"meta", b"nodes", bytes(12))
    with pytest.raises(CorruptError, match="its nodes is damaged"):
        Store(tmp_path / "store")


def test_the_scrub_verifies_references(opened: tuple[Store, Keyspace, Stream], tmp_path: Path) -> None:
    store, _, stream = opened
    free(store, 10, 20)
    made = blob_at(store, 20)
    with store.env.begin(write=True) as txn:
        txn.put(key_at(20), made[:-1] + b"x", db=store.nodes)
    store.renew_view()
    scrub = Scrub(store, tmp_path, keeps=False)
    scrub.begin(0)
    while scrub.running:
        scrub.step(1 << 20, 0)
    assert [damage.node for damage in scrub.damage] == [(1, 20, 21 << 64)]
    with pytest.raises(CorruptError, match="the checksum of a reference to history is wrong"):
        stream.read(20, 21)


def test_references_near_a_node(opened: tuple[Store, Keyspace, Stream]) -> None:
    """Those of the same section, on both sides, and some that follow."""
    store, _, _ = opened
    free(store, 0, 10, 20, 30, 50)
    assert [first for first, _ in store.near(key_at(20), 5, ())] == [20, 30, 10, 0]
    known = {one.digest for first, one in store.near(key_at(20), 5, ()) if first == 30}
    assert [first for first, _ in store.near(key_at(20), 5, known)] == [20, 10, 0]
    assert store.near(key_at(21), 5, ()) == []
    with pytest.raises(CorruptError):
        store.near(key_at(40), 5, ())


def test_the_cache_counts(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path)
    blob = Reference(1, 1, 1, 1, bytes(16), 0, bytes(16), 0, 0, 0).pack()
    cache.failures[f"{0:016x}-{bytes(16).hex()}.tide"] = "it is gone"
    with pytest.raises(AbsentNodeError, match="which can't be read: it is gone") as met:
        cache.load(blob, 1, 0, 1)
    assert (met.value.failed, cache.hits, cache.misses) == ("it is gone", 0, 1)
