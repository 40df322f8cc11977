"""Marks, producers and thinned nodes in the store: their bytes, when their databases are made, what damage to them
does, and checkpoints that fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from zlib import crc32

import lmdb
import pytest

from persistence.checksums import StoreContent
from persistence.fullcopy import Incoming
from persistence.layout import MARKS_KEY, U64, short, signed
from persistence.lmdbpages import DamageError, verify
from persistence.log import Log
from persistence.store import Store
from persistence.storecopy import DATABASES, ENTRY, LATE, MARKS, PRODUCERS, STREAMS, Entry, entries
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.nodes.packed import open_packed
from storage.streams.capture import Capture, StreamCapture
from tests.persistence.datakit import (
    RING,
    append,
    checkpoint,
    commit,
    crashed,
    dead_of,
    delete,
    full,
    group,
    keyspace,
    opened,
)
from tests.persistence.lmdbdamage import LmdbFile
from tests.persistence.test_fullcopy import OURS, packed
from tests.persistence.test_store import change, nodes_in, reopened, save

SID = (7).to_bytes(8, "big")


def names(path: Path) -> set[bytes]:
    return set(LmdbFile(path / "data.mdb").names())


def rows(store: Store, db: int) -> dict[bytes, bytes]:
    with store.env.begin(db=store._databases[db]) as txn:
        return {bytes(key): bytes(value) for key, value in txn.cursor()}


def alive(ks: Keyspace, key: bytes) -> bytes:
    stream = append(ks, key, 0)
    return stream.read(stream.first_ord, stream.next_ord)


# -- the bytes -----------------------------------------------------------------------------------------------
def capture(marks: list[tuple[int, bytes]], producers: list[tuple[bytes, bytes]]) -> Capture:
    stream = StreamCapture(7, b"META", 0, 3, [], (2, 6 << 64, b"TAIL"))
    stream.tombstones, stream.producers = marks, producers
    return Capture(next_sid=9, streams=[stream], stream_keys={7: (b"key", 0)})


def test_golden_entries(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    store.write(capture([(0, b"\0\1"), (3, b"\0\2\0\5")], [(b"p", b"DUMP"), (b"q" * 500, b"LONG")]), 1)
    marks = {SID + bytes(8): b"\0\1", SID + bytes(7) + b"\3": b"\0\2\0\5"}
    assert rows(store, MARKS) == {key: signed(key, value) for key, value in marks.items()}
    producers = {SID + b"\0p": b"\0\0\0\1pDUMP", SID + short(b"q" * 500): b"\0\0\1\xf4" + b"q" * 500 + b"LONG"}
    assert rows(store, PRODUCERS) == {key: signed(key, value) for key, value in producers.items()}
    store.write(capture([(0, b""), (4, b"")], [(b"p", b""), (b"r", b"")]), 2)
    assert list(rows(store, MARKS)) == [SID + bytes(7) + b"\3"]
    assert list(rows(store, PRODUCERS)) == [SID + short(b"q" * 500)]
    store.write(Capture(dead_streams=[7]), 3)
    assert not rows(store, MARKS)
    assert not rows(store, PRODUCERS)
    store.write(capture([(0, b"\0\1")], [(b"p", b"DUMP")]), 4)
    store.write(Capture(flushed=True), 5)
    assert not rows(store, MARKS)
    assert not rows(store, PRODUCERS)
    store.close()


def test_two_forms_of_content() -> None:
    content = StoreContent()
    content.add(STREAMS, 5)
    shorter = content.pack(1, 2)
    assert len(shorter) == 96, "what earlier versions read"
    assert StoreContent.unpack(shorter) == (content, 1, 2)
    content.add(MARKS, 6)
    content.add(PRODUCERS, 7)
    longer = content.pack(1, 2)
    assert len(longer) == 128
    assert longer[:96] == shorter
    assert StoreContent.unpack(longer) == (content, 1, 2)


# -- databases that are made when needed ---------------------------------------------------------------------
def test_a_store_that_uses_nothing_new_has_nothing_new(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 50)
    group(ks, b"a", b"g", 3)
    save(store, ks, 1)
    copy = store.copy()
    assert (store.plain, copy.plain) == (True, True)
    delete(ks, b"a", [7])
    save(store, ks, 2)
    late = store.copy()
    assert (store.plain, copy.plain, late.plain) == (False, True, False)
    assert {db for piece in copy.pieces(1 << 16) for db, _, _ in entries(piece)} == {0, 1, 2, 3}
    assert {db for piece in late.pieces(1 << 16) for db, _, _ in entries(piece)} == {0, 1, 2, 3, MARKS}
    digest = ks.digest()
    store.close()
    assert names(tmp_path / "store") == set(DATABASES)
    store, again = reopened(tmp_path / "store")
    assert (again.digest(), store.plain) == (digest, False)
    store.close()


def test_they_are_made_without_counting_all_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 50)
    save(store, ks, 1)
    monkeypatch.setattr(Store, "_counted", lambda *_: pytest.fail("the content holds"))
    store._make_late()
    with store.env.begin() as txn:
        assert store._content(txn) is not None
    delete(ks, b"a", [7])
    save(store, ks, 2)
    store.close()


@pytest.mark.parametrize("what", ["raised", "deleted"])
def test_an_earlier_version_refuses_them_by_name(tmp_path: Path, what: str) -> None:
    """It checks the names before it reads anything; these are the names that it knows."""
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream = append(ks, b"a", 5)
    save(store, ks, 1)
    data, known = tmp_path / "store" / "data.mdb", DATABASES[:-2]
    verify(data, known=known)
    if what == "raised":
        ks.set_last_id(b"a", stream, 99 << 64, 7, 0)
    else:
        delete(ks, b"a", [0])
    save(store, ks, 2)
    with pytest.raises(DamageError, match="it has a database 'marks', which this tidelog does not know"):
        verify(data, known=known)
    store.close()


def test_one_of_them_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store(path).close()
    with lmdb.open(str(path), max_dbs=9) as env:
        env.open_db(LATE[1])
    with pytest.raises(CorruptError, match="one of its databases is missing"):
        Store(path)


# -- nodes ---------------------------------------------------------------------------------------------------
def test_dead_nodes_leave_and_sparse_ones_are_thinned(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream = append(ks, b"a", 95, pad=200)
    save(store, ks, 1)
    assert nodes_in(store) == 10
    before = rows(store, 1)
    delete(ks, b"a", range(20, 50))  # three nodes
    delete(ks, b"a", [*range(60, 69), *range(70, 75)])  # nine of ten; five of ten
    save(store, ks, 2)
    after = rows(store, 1)
    assert len(after) == 7
    changed = [int.from_bytes(key[8:16], "big") for key in after if after[key] != before[key]]
    assert changed == [60, 70]
    sparse = next(blob for key, blob in after.items() if key[8:16] == (60).to_bytes(8, "big"))
    assert [len(open_packed(sparse).slice(at, at + 1)) > 0 for at in range(10)] == [False] * 9 + [True]
    delete(ks, b"a", [75])  # six of ten: that would not halve what is left
    save(store, ks, 3)
    assert rows(store, 1) == after
    digest, wires = ks.digest(), alive(ks, b"a")
    store.close()
    store, again = reopened(tmp_path / "store")
    assert (again.digest(), alive(again, b"a")) == (digest, wires)
    assert append(again, b"a", 0).length == stream.length == 95 - 30 - 9 - 6
    store.close()


def test_a_node_is_thinned_before_it_is_stored_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 30)
    delete(ks, b"a", range(9))
    delete(ks, b"a", range(11, 20))
    save(store, ks, 1)
    (blob,) = [blob for key, blob in rows(store, 1).items() if key[8:16] == (10).to_bytes(8, "big")]
    assert open_packed(blob).slice(1, 10) == b""
    assert alive(ks, b"a").count(b"*1\r\n") == 12
    store.close()


def test_a_long_reply_has_what_died_while_it_was_sent(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream = append(ks, b"a", 45, pad=50)
    save(store, ks, 1)
    whole = stream.read(0, 45)
    forward, backward = stream.snapshot(0, 45), stream.snapshot(0, 45)
    delete(ks, b"a", range(1, 8))
    ks.pool.cache.clear()
    save(store, ks, 2)
    assert len(stream.read(0, 45)) < len(whole)  # so the cache has the node as it is now
    assert b"".join(forward.forward()) == whole
    assert b"".join(reversed([wire for wires in backward.entries_reverse() for wire in wires])) == whole
    store.close()


@pytest.mark.parametrize("stored", [False, True])
def test_a_sparse_node_before_dead_ones(tmp_path: Path, stored: bool) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 45, pad=200)
    if stored:
        save(store, ks, 1)
    delete(ks, b"a", [*range(1, 8), 9, *range(10, 30)])  # eight of ten, and the next two nodes
    save(store, ks, 2)
    found = {key[15]: blob for key, blob in rows(store, 1).items()}
    assert list(found) == [0, 30, 40]
    sparse = open_packed(found[0])
    assert [len(sparse.slice(at, at + 1)) > 0 for at in range(10)] == [at in (0, 8) for at in range(10)]
    digest, wires = ks.digest(), alive(ks, b"a")
    store.close()
    store, again = reopened(tmp_path / "store")
    assert (again.digest(), alive(again, b"a")) == (digest, wires)
    store.close()


def test_entries_that_died_before_their_node_was_sealed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    append(ks, b"a", 15, pad=200)
    delete(ks, b"a", [*range(1, 9), 12])
    append(ks, b"a", 10, pad=200)
    save(store, ks, 1)
    delete(ks, b"a", [*range(20, 24)])  # of the tail
    append(ks, b"a", 1, pad=200)
    delete(ks, b"a", [*range(24, 26)])
    save(store, ks, 2)
    append(ks, b"a", 10, pad=200)
    save(store, ks, 3)
    sizes = {key[15]: len(open_packed(blob).slice(0, 10)) for key, blob in rows(store, 1).items()}
    assert sizes[10] > 9 * 200
    assert (sizes[0] < 3 * 200, sizes[20] < 5 * 220) == (True, True)
    store.close()


def test_a_damaged_node_does_not_stop_checkpoints(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    stream = append(ks, b"a", 40)
    save(store, ks, 1)
    with store.env.begin(write=True, db=store.nodes) as txn:
        key = next(key for key in map(bytes, txn.cursor().iternext(values=False)) if key[15] == 10)
        txn.put(key, b"damaged")
    store.renew_view()
    ks.delete_entries(b"a", stream, [*range(11, 20)], 20 << 64)
    save(store, ks, 2)
    assert rows(store, 1)[key] == b"damaged"
    with pytest.raises(CorruptError, match="entries 10 to 19"):
        alive(ks, b"a")
    store.close()


# -- damage --------------------------------------------------------------------------------------------------
def filled(path: Path) -> str:
    store = Store(path)
    ks = keyspace(store)
    append(ks, b"a", 20_000)
    append(ks, b"b", 30)
    delete(ks, b"a", [5, 900, 9000, *range(9_500, 12_000), 19_990])
    delete(ks, b"b", range(10, 20))
    for key in (b"a", b"b"):
        stream = append(ks, key, 1)
        for producer in (b"one", b"two" * 200):
            ks.add_produced(key, stream, producer, b"id", stream.last_id, 5, 1000, 3)
    save(store, ks, 1)
    digest = ks.digest()
    store.close()
    return digest


def tables(path: Path) -> dict[bytes, dict[bytes, bytes]]:
    store = Store(path)
    found = {DATABASES[db]: rows(store, db) for db in (MARKS, PRODUCERS)}
    store.close()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("whole") / "store"
    return path, filled(path)


@pytest.fixture
def path(whole: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "store"))


def refused(path: Path) -> None:
    with pytest.raises(CorruptError, match=str(path)):
        reopened(path)


def test_all_of_it_comes_back(path: Path, whole: tuple[Path, str]) -> None:
    store, ks = reopened(path)
    assert ks.digest() == whole[1]
    store.close()


@pytest.mark.interpreted
@pytest.mark.parametrize("db", LATE)
def test_what_is_lost_or_changed_is_refused(path: Path, db: bytes) -> None:
    for key, value in tables(path)[db].items():
        change(path, db, key, None)
        refused(path)
        for at in [*range(min(len(value), 12)), len(value) // 2, len(value) - 1]:
            change(path, db, key, value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
            refused(path)
        change(path, db, key, value)
    reopened(path)[0].close()


@pytest.mark.interpreted
@pytest.mark.parametrize("db", LATE)
def test_what_is_there_twice_is_refused(path: Path, db: bytes) -> None:
    """Under another key, with the checksum that is right for it."""
    found = tables(path)[db]
    key, value = next(iter(found.items()))
    for other in (U64.pack(99) + key[8:], key[:8] + b"\0" * 7 + b"\5", key[:8] + b"\0other", key + b"\0"):
        if other not in found:
            change(path, db, other, signed(other, value[4:]))
            refused(path)
            change(path, db, other, None)
    reopened(path)[0].close()


@pytest.mark.interpreted
def test_marks_that_can_not_be_are_refused_without_a_content(path: Path) -> None:
    """What a store says of its content is not all that there is against them."""
    change(path, b"meta", b"content", None)
    key = MARKS_KEY.pack(1, 0)
    for container in (b"", b"\0", b"\0\5", b"\0\5\0\5", b"\3\x84\0\6", b"\xff\xff" * 2, b"\xff" * 1024):
        change(path, b"marks", key, signed(key, container))
        refused(path)


# -- checkpoints that fail -----------------------------------------------------------------------------------
def test_what_a_failed_checkpoint_had_is_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    with opened(path) as (log, ks, _):
        append(ks, b"a", 60)
        checkpoint(log, ks)
        for dead in (range(10, 20), range(21, 30), range(50, 55)):
            delete(ks, b"a", dead)
            with monkeypatch.context() as patched:
                patched.setattr(Store, "write", full)
                with pytest.raises(OSError, match="no space"):
                    checkpoint(log, ks)
        checkpoint(log, ks)
        assert nodes_in(log.store) == 5
        digest = ks.digest()
    with opened(path) as (log, ks, found):
        assert (ks.digest(), found.journal_batches, found.wal_batches) == (digest, 0, 0)
        assert dead_of(ks, b"a") == {*range(10, 20), *range(21, 30), *range(50, 55)}


def test_one_that_failed_while_databases_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "data"
    with opened(path) as (log, ks, _):
        append(ks, b"a", 60)
        checkpoint(log, ks)
        delete(ks, b"a", range(10, 20))
        commit(log, ks)
        with monkeypatch.context() as patched:
            patched.setattr("persistence.checkpoint.Checkpoint.write", full)
            with pytest.raises(OSError, match="no space"):
                checkpoint(log, ks)
        digest, copy = ks.digest(), crashed(path)
        checkpoint(log, ks)
    for place in (path, copy):
        with opened(place) as (log, ks, _):
            assert ks.digest() == digest
            checkpoint(log, ks)
        with opened(place) as (_, ks, _):
            assert ks.digest() == digest


# -- copies --------------------------------------------------------------------------------------------------
def sent(log: Log) -> tuple[list[Entry], int]:
    copy = log.store.copy()
    try:
        return list(entries(b"".join(copy.pieces(1 << 16)))), copy.offset
    finally:
        copy.close()


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Entry], int, str]:
    with opened(tmp_path_factory.mktemp("leader")) as (log, ks, _):
        stream = append(ks, b"a", 95)
        ks.evict(b"a", stream, 13, 13 << 64)
        append(ks, b"b", 25)
        append(ks, b"c", 30)
        checkpoint(log, ks)
        delete(ks, b"a", [20, 21, *range(30, 50), *range(61, 70), *range(90, 95)])
        delete(ks, b"c", range(30))
        ks.set_string(b"s", b"value", 0)
        checkpoint(log, ks)
        return *sent(log), ks.digest()


def receive(path: Path, listed: list[Entry], offset: int) -> None:
    with opened(path):
        place = Incoming(path, RING)
        try:
            for entry in listed:
                place.add(packed([entry]))
            place.finish(offset, len(listed), OURS)
        except BaseException:
            place.abandon()
            raise


def test_a_copy_with_holes_and_marks(tmp_path: Path, leader: tuple[list[Entry], int, str]) -> None:
    listed, offset, digest = leader
    assert any(db == MARKS for db, _, _ in listed)
    receive(tmp_path, listed, offset)
    with opened(tmp_path) as (log, ks, _):
        assert ks.digest() == digest
        assert sent(log) == (listed, offset)
        append(ks, b"a", 20)
        delete(ks, b"a", [50, 51])
        checkpoint(log, ks)
        digest = ks.digest()
    with opened(tmp_path) as (_, ks, _):
        assert ks.digest() == digest


def test_a_copy_without_them_has_no_new_databases(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as (log, ks, _):
        append(ks, b"a", 50)
        group(ks, b"a", b"g", 3)
        checkpoint(log, ks)
        listed, offset = sent(log)
    receive(tmp_path / "b", listed, offset)
    with opened(tmp_path / "b") as (log, _, _):
        assert log.store.plain


def test_a_raised_stream_takes_its_databases_along(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as (log, ks, _):
        stream = append(ks, b"a", 50)
        ks.set_last_id(b"a", stream, 99 << 64, 60, 0)
        checkpoint(log, ks)
        listed, offset = sent(log)
        digest = ks.digest()
    assert MARKS not in {db for db, _, _ in listed}
    receive(tmp_path / "b", listed, offset)
    with opened(tmp_path / "b") as (log, ks, _):
        assert (ks.digest(), log.store.plain) == (digest, False)


def first(listed: list[Entry], db: int) -> int:
    return [number for number, _, _ in listed].index(db)


def damaged(listed: list[Entry], how: str) -> list[Entry]:
    """The same with something wrong; all checksums are right."""
    at = first(listed, MARKS)
    _, key, value = listed[at]
    node = next(n for n, (db, k, _) in enumerate(listed) if db == 1 and k[15] == 50)
    if how == "marks less":
        return [*listed[:at], *listed[at + 1 :]]
    if how == "a node less":
        return [*listed[:node], *listed[node + 1 :]]
    if how == "a mark less":
        value = signed(key, value[6:])
    elif how == "a mark more":
        value = signed(key, value[4:] + b"\0\x60")
    elif how == "marks out of order":
        value = signed(key, value[6:8] + value[4:6] + value[8:])
    elif how == "a mark elsewhere":
        value = signed(key, b"\0\x0d" + value[6:])
    elif how == "marks of nobody":
        key = U64.pack(99) + key[8:]
        value = signed(key, value[4:])
    return [*listed[:at], (MARKS, key, value), *listed[at + 1 :]]


HOW = ("marks less", "a node less", "a mark less", "a mark more", "marks out of order", "a mark elsewhere",
       "marks of nobody")  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_a_copy_that_can_not_be_is_refused(tmp_path: Path, leader: tuple[list[Entry], int, str], how: str) -> None:
    with pytest.raises(CorruptError, match="copy of the leader's store is damaged"):
        receive(tmp_path, damaged(leader[0], how), leader[1])
    assert not list(tmp_path.glob("incoming*"))


def test_a_node_may_promise_no_more_than_zstd_can_hold(tmp_path: Path, leader: tuple[list[Entry], int, str]) -> None:
    """A node of dead entries only has few bytes: but its columns have some for each."""
    listed, offset, _ = leader
    at = first(listed, 1)
    db, key, blob = listed[at]
    for count, size in (((1 << 28) + 1, 100), (1 << 27, 100), (10, 1 << 30)):
        head = blob[:4] + count.to_bytes(4, "little") + size.to_bytes(4, "little") + blob[12:28]
        other = head + crc32(blob[32:], crc32(head)).to_bytes(4, "little") + blob[32:]
        with pytest.raises(CorruptError, match="a node with an impossible size"):
            receive(tmp_path, [*listed[:at], (db, key, other), *listed[at + 1 :]], offset)


def test_a_database_that_nobody_knows(tmp_path: Path, leader: tuple[list[Entry], int, str]) -> None:
    with opened(tmp_path):
        place = Incoming(tmp_path, RING)
        with pytest.raises(CorruptError, match=r"a database 9, .*the leader is of a newer version"):
            place.add(ENTRY.pack(9, 1, 4) + b"kcrc!")
        place.abandon()
