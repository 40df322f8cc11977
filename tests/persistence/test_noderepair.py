"""Replacing damaged nodes of the store: what is replaced, by what, and what is refused."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from persistence.layout import NODE_KEY
from persistence.lmdbpages import HEAD, verify
from persistence.log import Log
from persistence.noderepair import NodeRange, RepairError, replace, wanted
from persistence.storecopy import DATABASES
from storage.keyspace.keyspace import Keyspace
from storage.nodes.node import Node, seal
from storage.nodes.packed import open_packed
from storage.streams.stream import Stream
from tests.persistence.datakit import append, checkpoint, delete, opened, range_copy
from tests.persistence.lmdbdamage import PAGE
from tests.persistence.test_scrub import damage_node, fill, flip, noise, passed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as (log, ks, _):
        fill(ks)
        checkpoint(log, ks)
    return tmp_path / "data"


@pytest.fixture
def twin(path: Path, tmp_path: Path) -> Iterator[Stream]:
    """The stream "s" of another server, which is sound."""
    with opened(tmp_path / "twin") as (log, ks, _):
        fill(ks)
        checkpoint(log, ks)
        yield stream(ks)


def stream(ks: Keyspace) -> Stream:
    found = ks.keys[b"s"]
    assert isinstance(found, Stream)
    return found


def scrubbed(log: Log) -> list[bytes]:
    """Run a pass, and return the keys of the damaged nodes."""
    list(passed(log.scrub))
    return [damage.key for damage in log.scrub.damage]


def node_for(asked: NodeRange | None, twin: Stream) -> bytes:
    assert asked is not None
    node = range_copy(twin, asked.first_ord, asked.first_id, asked.size)
    assert node is not None
    return seal(node)


def everything(found: Stream) -> bytes:
    return found.read(found.first_ord, found.next_ord)


def assert_sound(path: Path, twin: Stream) -> None:
    """After a restart, the store has the data of the twin, and all of its pages are valid."""
    data = path / "store" / "data.mdb"
    nodes = len(verify(data, b"nodes", 32, DATABASES, DATABASES)) // 32
    with opened(path) as (log, ks, found):
        assert everything(stream(ks)) == everything(twin)
        assert found.nodes == nodes
        log.scrub.recheck()  # what was known before the restart
        assert scrubbed(log) == []


def first_page(path: Path, number: int = 55) -> int:
    """Return the position of the first page of the node of an entry of the stream "s"."""
    raw = (path / "store" / "data.mdb").read_bytes()
    at = raw.index(noise(number)[:32]) // PAGE * PAGE
    while HEAD.unpack_from(raw, at)[:3] != (at // PAGE, 0, 4):
        at -= PAGE
    return at


def test_a_damaged_node_is_replaced(path: Path, twin: Stream) -> None:
    with opened(path) as (log, ks, _):
        damage_node(path)
        (key,) = scrubbed(log)
        asked = wanted(log.store, key)
        assert asked == (1, 50, 51 << 64, 10, b"s")
        assert replace(log.store, key, node_for(asked, twin))
        log.renew_view()
        assert everything(stream(ks)) == everything(twin)
        log.scrub.check_again()
        assert log.scrub.needs_recheck()
        log.scrub.recheck()
        assert (log.scrub.damaged, log.scrub.repaired) == (0, 1)
        assert wanted(log.store, key) is None
        assert not replace(log.store, key, b"not even looked at")
        append(ks, b"other", 1)
        checkpoint(log, ks)
    assert_sound(path, twin)


@pytest.mark.parametrize("at", [0, 10, 12, 14], ids=["number", "flags", "fewer", "more"])
def test_the_damaged_header_of_a_page_is_written_again(path: Path, twin: Stream, at: int) -> None:
    """LMDB frees as many pages as the header says."""
    with opened(path) as (log, ks, _):
        flip(path / "store" / "data.mdb", first_page(path) + at)
        damage_node(path)
        (key,) = scrubbed(log)
        assert replace(log.store, key, node_for(wanted(log.store, key), twin))
        for _ in range(3):  # LMDB uses the pages again
            append(ks, b"other", 3, pad=40_000)
            checkpoint(log, ks)
        log.renew_view()
        assert everything(stream(ks)) == everything(twin)
    assert_sound(path, twin)


def test_pages_that_do_not_name_the_node_are_not_freed(path: Path, twin: Stream) -> None:
    """The reference to the pages may be what is damaged."""
    with opened(path) as (log, _, _):
        flip(path / "store" / "data.mdb", first_page(path) + HEAD.size + 12)  # the ID in the blob
        (key,) = scrubbed(log)
        with pytest.raises(RepairError, match="pages of another node"):
            replace(log.store, key, node_for(wanted(log.store, key), twin))


def test_pages_that_the_disk_can_not_read_are_replaced(
    path: Path, twin: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as (log, ks, _):
        start, pread = first_page(path), os.pread

        def read(fd: int, size: int, at: int) -> bytes:
            if at == start:
                raise OSError(5, "Input/output error")
            return pread(fd, size, at)

        monkeypatch.setattr(os, "pread", read)
        (key,) = scrubbed(log)
        assert replace(log.store, key, node_for(wanted(log.store, key), twin))
        monkeypatch.undo()
        append(ks, b"other", 3, pad=40_000)
        checkpoint(log, ks)
    assert_sound(path, twin)


def test_only_a_copy_that_fits_is_accepted(path: Path, twin: Stream) -> None:
    with opened(path) as (log, _, _):
        damage_node(path)
        (key,) = scrubbed(log)
        asked = wanted(log.store, key)
        good = node_for(asked, twin)
        for blob, why in (
            (b"", "the copy is damaged: a node is truncated"),
            (good[:-1], "the copy is damaged"),
            (node_for(NodeRange(1, 60, 61 << 64, 10, b"s"), twin), "other IDs"),
            (node_for(NodeRange(1, 49, 50 << 64, 10, b"s"), twin), "other IDs"),
            (node_for(NodeRange(1, 50, 51 << 64, 9, b"s"), twin), "another number of entries"),
            (node_for(NodeRange(1, 50, 51 << 64, 11, b"s"), twin), "other IDs"),  # reaches into the next node
        ):
            with pytest.raises(RepairError, match=why):
                replace(log.store, key, blob)
        node = range_copy(twin, 50, 51 << 64, 10)
        assert isinstance(node, Node)
        node.ms[3], node.ms[4] = node.ms[4], node.ms[3]
        with pytest.raises(RepairError, match="other IDs"):
            replace(log.store, key, seal(node))
        seq = array("Q", [0, 2, 1, *range(3, 10)])
        wrong = Node(51, array("Q", bytes(80)), seq, node.ends, node.wire)
        with pytest.raises(RepairError, match="other IDs"):
            replace(log.store, key, seal(wrong))
        twin.delete([53], 54 << 64)
        with pytest.raises(RepairError, match="lacks entries that were deleted later"):
            replace(log.store, key, node_for(asked, twin))
        assert replace(log.store, key, good)


def test_the_blob_of_another_node_is_damage(path: Path, twin: Stream) -> None:
    with opened(path) as (log, _, _):
        key = NODE_KEY.pack(1, 50, (51 << 64).to_bytes(16, "big"))
        assert log.store.replace_node(key, node_for(NodeRange(1, 60, 61 << 64, 10, b"s"), twin), lambda _: True)
        assert scrubbed(log) == [key]
        asked = wanted(log.store, key)
        with pytest.raises(RepairError, match="the store may refer to the pages of another node"):
            replace(log.store, key, node_for(asked, twin))


def test_deleted_and_evicted_entries_are_not_needed(path: Path, tmp_path: Path) -> None:
    def change(ks: Keyspace) -> None:
        ks.evict_before(b"s", stream(ks), 52)
        delete(ks, b"s", [53, 58, 59])

    with opened(tmp_path / "twin") as (_, theirs, _):
        fill(theirs)
        change(theirs)
        twin = stream(theirs)
        with opened(path) as (log, ks, _):
            change(ks)
            damage_node(path)
            (key,) = scrubbed(log)
            blob = node_for(wanted(log.store, key), twin)
            with pytest.raises(RepairError, match="another number of entries"):
                replace(log.store, key, blob)  # as of the store, they are alive
            checkpoint(log, ks)
            assert len(open_packed(blob)) == 8
            assert replace(log.store, key, blob)
            log.renew_view()
            assert everything(stream(ks)) == everything(twin)
        assert_sound(path, twin)


def test_the_entries_of_nodes_with_other_limits(path: Path, tmp_path: Path) -> None:
    """The boundaries of nodes differ between servers."""
    with opened(tmp_path / "wide") as (other, wide, _), opened(path) as (log, ks, _):
        wide.pool.max_entries, wide.pool.max_bytes = 7, 1 << 20
        fill(wide)
        checkpoint(other, wide)
        damage_node(path)
        (key,) = scrubbed(log)
        assert replace(log.store, key, node_for(wanted(log.store, key), stream(wide)))
        log.renew_view()
        assert everything(stream(ks)) == everything(stream(wide))


def test_a_node_that_was_removed_is_not_wanted(path: Path) -> None:
    with opened(path) as (log, ks, _):
        damage_node(path)
        (key,) = scrubbed(log)
        ks.remove(b"s")
        checkpoint(log, ks)
        assert wanted(log.store, key) is None
        assert not replace(log.store, key, b"")


def test_a_node_of_a_range(twin: Stream) -> None:
    node = range_copy(twin, 45, 46 << 64, 10)
    assert isinstance(node, Node)
    assert node.ids(0, 10) == [number << 64 for number in range(46, 56)]
    assert node.slice(0, 10) == twin.read(45, 55)
    assert range_copy(twin, 45, 47 << 64, 10) is None  # another ID
    assert range_copy(twin, 195, 196 << 64, 10) is None  # beyond the end
    twin.delete([45, 47, 48, 54], 0)
    node = range_copy(twin, 45, 46 << 64, 10)
    assert isinstance(node, Node)
    assert node.ids(0, 9) == [46 << 64, 47 << 64, (47 << 64) + 1, (47 << 64) + 2, *[n << 64 for n in range(50, 55)]]
    assert [len(wire) > 0 for wire in node.each(0, 9)] == [False, True, False, False, *[True] * 5]
    twin.evict_before(50)
    node = range_copy(twin, 45, 46 << 64, 10)
    assert isinstance(node, Node)
    assert node.ids(0, 6)[:5] == [(46 << 64) + n for n in range(5)]
    assert range_copy(twin, 30, 31 << 64, 10) is None


def test_the_key_of_a_stream(path: Path) -> None:
    with opened(path) as (log, _, _):
        assert (log.store.key_of(1), log.store.key_of(999)) == (b"s", None)
        log.store.view.end()  # LMDB refuses a read
        assert log.store.key_of(1) is None
