"""Coded nodes in the store: it says that it has them, so that servers which don't know them refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

pytest.importorskip("storage.nodes._coded", reason="nothing is compiled here: no node is coded")

from persistence.fullcopy import Incoming
from persistence.history import History
from persistence.layout import TIERED, U64, signed
from persistence.store import Store
from persistence.storecopy import META, NODES, Entry, UnknownDatabaseError, entries
from resp.errors import CorruptError
from storage.nodes.coded import is_coded
from tests.persistence.datakit import RING, append, checkpoint, delete, keyspace, opened, readings
from tests.persistence.test_fullcopy import packed
from tests.storage.nodes.test_coded import forged

OURS = History("a" * 40, [("b" * 40, 17)])


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[tuple[list[Entry], int, str, bytes]]:
    """A leader's store with coded nodes: its entries, log offset, digest, and the bytes of the entries of s."""
    with opened(tmp_path / "leader", max_entries=64) as (log, ks, _):
        wire = readings(ks, b"s", 500)
        append(ks, b"t", 100)
        checkpoint(log, ks)
        copy = log.store.copy()
        assert copy.format == 3
        yield list(entries(b"".join(copy.pieces(1000)))), copy.offset, ks.digest(), wire


def test_a_store_says_that_it_has_them(tmp_path: Path) -> None:
    with opened(tmp_path, max_entries=64) as (log, ks, _):
        append(ks, b"t", 200)
        checkpoint(log, ks)
        assert log.store.format == 1
        before = log.store.copy()
        wire = readings(ks, b"s", 200)
        checkpoint(log, ks)
        assert (before.format, log.store.format, log.store.copy().format) == (1, 3, 3)
        delete(ks, b"s", [3])
        checkpoint(log, ks)
        assert (log.store.format, log.store.plain) == (3, False)
    for _ in range(2):
        with opened(tmp_path, max_entries=64) as (log, ks, _):
            assert log.store.format == 3
            stream = append(ks, b"s", 0)
            assert (stream.length, stream.pool.cache.misses) == (199, 0)
            assert stream.read(4, 200) == wire[-len(stream.read(4, 200)) :]
            assert stream.read(0, 200)[: len(stream.read(0, 2))] == wire[: len(stream.read(0, 2))]
            checkpoint(log, ks)


def test_a_store_with_nodes_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    keyspace(store)
    with store.env.begin(write=True, db=store.meta) as txn:
        txn.put(b"nodes", signed(b"nodes", U64.pack(TIERED + 1)))
    store.close()
    with pytest.raises(CorruptError, match=f"nodes of version {TIERED + 1}: start the newer tidelog"):
        Store(tmp_path / "store")


def test_a_name_that_is_not_known_is_refused(tmp_path: Path) -> None:
    """So do the versions before: they don't know b"nodes"."""
    store = Store(tmp_path / "store")
    with store.env.begin(write=True, db=store.meta) as txn:
        txn.put(b"nodex", signed(b"nodex", U64.pack(2)))
    store.close()
    with pytest.raises(CorruptError, match="newer tidelog"):
        Store(tmp_path / "store")


def test_a_copy_has_them(tmp_path: Path, copied: tuple[list[Entry], int, str, bytes]) -> None:
    listed, offset, digest, wire = copied
    assert sum(is_coded(value) for db, _, value in listed if db == NODES) == 8  # the tail, too
    with opened(tmp_path / "replica"):
        pass
    place = Incoming(tmp_path / "replica", RING)
    place.add(packed(listed))
    place.finish(offset, len(listed), OURS)
    with opened(tmp_path / "replica", max_entries=64) as (log, ks, _):
        assert (ks.digest(), log.store.format) == (digest, 3)
        assert append(ks, b"s", 0).read(0, 500) == wire


def changed(listed: list[Entry], change: str) -> list[Entry]:
    made = []
    for db, key, value in listed:
        new = value
        if (db, key) == (META, b"nodes"):
            if change == "unsaid":
                continue
            if change == "newer":
                new = signed(key, U64.pack(TIERED + 1))
        elif db == NODES and is_coded(value) and change == "bit":
            new = value[:50] + bytes((value[50] ^ 1,)) + value[51:]
        elif db == NODES and is_coded(value) and change == "forged":
            new = forged(value, len(value) - 9, "B", 255)
        made.append((db, key, new))
    return made


@pytest.mark.parametrize(
    ("change", "error"),
    [("unsaid", "without coded nodes"), ("bit", "checksum is wrong"), ("newer", "which this tidelog does not know"),
     ("forged", "coded node")],
)  # fmt: skip
def test_a_copy_that_can_not_be_is_refused(
    tmp_path: Path, copied: tuple[list[Entry], int, str, bytes], change: str, error: str
) -> None:
    with opened(tmp_path / "replica"):
        pass
    place = Incoming(tmp_path / "replica", RING)
    with pytest.raises(UnknownDatabaseError if change == "newer" else CorruptError, match=error):
        place.add(packed(changed(copied[0], change)))
    place.abandon()


def test_damage_is_told_by_who_reads(tmp_path: Path) -> None:
    with opened(tmp_path, max_entries=64) as (log, ks, _):
        readings(ks, b"s", 200)
        checkpoint(log, ks)
        stream = append(ks, b"s", 0)
        with log.store.env.begin(write=True, db=log.store.nodes) as txn:
            cursor: lmdb.Cursor = txn.cursor()
            assert cursor.first()
            value = bytes(cursor.value())
            txn.put(cursor.key(), value[:-20] + bytes((value[-20] ^ 4,)) + value[-19:])
        log.renew_view()
        with pytest.raises(CorruptError, match="the store is damaged at stream 1, entries 0 to 63: a node's checksum"):
            stream.read(0, 10)
        assert stream.read(64, 65)
