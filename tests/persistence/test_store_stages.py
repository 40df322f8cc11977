"""Stages and fences in the store: their bytes, what a checkpoint adds, damage that is refused, and their way to a
replica."""

from __future__ import annotations

from array import array
from pathlib import Path
from zlib import crc32

import lmdb
import pytest

from persistence.store import Store
from resp.errors import CorruptError
from storage.capture import Capture, StageCapture
from storage.keyspace import Keyspace
from storage.nodes.bare import Piece
from storage.stages.publish import gathered, publish, stage, unstage
from tests.persistence.datakit import append, checkpoint, commit, keyspace, opened
from tests.persistence.test_pieces import transfer
from tests.persistence.test_store import change, reopened, save
from tests.storage.captures import whole_capture

BARE = b"*3\r\n\r\n$1\r\nf\r\n$1\r\nv\r\n"
OLD = (b"meta", b"nodes", b"streams", b"groups", b"strings")


def raw(path: Path, *names: bytes) -> dict[bytes, dict[bytes, bytes]]:
    with lmdb.open(str(path), max_dbs=7, readonly=True) as env:
        found = {}
        for name in names or (b"stages", b"fences"):
            with env.begin(db=env.open_db(name, create=False)) as txn:
                found[name] = {bytes(key): bytes(value) for key, value in txn.cursor()}
        return found


def put(ks: Keyspace, name: bytes, key: bytes, count: int) -> None:
    stage(ks, name, key, 500, 1500, array("I", [len(BARE)] * count), BARE * count)


def filled(path: Path) -> str:
    store = Store(path)
    ks = keyspace(store)
    append(ks, b"a", 15)
    put(ks, b"one", b"a", 25)
    put(ks, b"two" * 200, b"b", 3)
    put(ks, b"gone", b"b", 30)
    put(ks, b"used", b"b", 3)
    save(store, ks, 1)
    put(ks, b"one", b"a", 4)
    put(ks, b"one", b"c", 1)
    unstage(ks, [b"gone"])
    publish(ks, b"fence" * 200, 1 << 62, [b"used"], gathered(ks, [b"used"]), [(b"b", 5, 0)])
    save(store, ks, 2)
    digest = ks.digest()
    store.close()
    return digest


def test_golden_entries_written(tmp_path: Path) -> None:
    def signed(key: bytes, text: str, tail: bytes) -> bytes:
        value = bytes.fromhex(text) + tail
        return crc32(key + value).to_bytes(4, "big") + value

    sizes = array("I", [3, 4])
    taken = StageCapture(9, b"name", 7, 77, 4, [(3, Piece(b"key"), b"onefour", sizes)])
    store = Store(tmp_path / "store")
    store.write(Capture(stages=[taken], fences=[(b"q", 6)]), 0x123)
    store.close()
    head, piece = bytes.fromhex("0000000000000009 00000000"), bytes.fromhex("0000000000000009 00000004")
    assert raw(tmp_path / "store") == {
        b"stages": {
            head: signed(head, "0000000000000007 000000000000004d 00000004", b"name"),
            piece: signed(piece, "00000003 00000002", b"key" + bytes.fromhex("00000003 00000004") + b"onefour"),
        },
        b"fences": {b"\0q": signed(b"\0q", "0000000000000006", b"q")},
    }


def test_everything_comes_back(tmp_path: Path) -> None:
    digest = filled(tmp_path / "store")
    store, ks = reopened(tmp_path / "store")
    assert ks.digest() == digest
    found = ks.stages.by_name[b"one"]
    assert (found.ttl, found.deadline, found.entries) == (500, 1500, 30)
    assert found.bytes == sum(s.bytes for s in ks.stages.by_name.values()) - ks.stages.by_name[b"two" * 200].bytes
    assert ks.stages.bytes == sum(s.bytes for s in ks.stages.by_name.values())
    assert ks.stages.fences == {b"fence" * 200: 1 << 62}
    put(ks, b"new", b"a", 1)
    assert len({s.sid for s in ks.stages.by_name.values()} | {ks.keys[b"a"].sid}) == 4  # type: ignore[union-attr]
    store.close()


def test_a_checkpoint_writes_what_is_new(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    put(ks, b"one", b"a", 25)
    first = whole_capture(ks)
    assert [number for number, _, _, _ in first.stages[0].pieces] == [0, 1, 2]
    assert whole_capture(ks).empty
    put(ks, b"one", b"a", 6)
    ((again,), count) = whole_capture(ks).stages, 4
    assert [(number, len(sizes)) for number, _, _, sizes in again.pieces] == [(2, 10), (3, 1)]
    assert again.count == count
    put(ks, b"short-lived", b"a", 6)
    unstage(ks, [b"short-lived"])
    assert whole_capture(ks).empty
    store.close()


def test_a_directory_from_before_there_were_stages(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = Store(path)
    ks = keyspace(store)
    append(ks, b"a", 15)
    save(store, ks, 1)
    digest = ks.digest()
    store.close()
    old = raw(path, *OLD)
    (path / "data.mdb").unlink()
    with lmdb.open(str(path), max_dbs=5) as env:
        for name, entries in old.items():
            with env.begin(db=env.open_db(name), write=True) as txn:
                for key, value in entries.items():
                    txn.put(key, value)
    store, ks = reopened(path)
    assert ks.digest() == digest
    put(ks, b"one", b"a", 1)
    save(store, ks, 2)
    digest = ks.digest()
    store.close()
    store, ks = reopened(path)
    assert ks.digest() == digest
    store.close()


def test_a_lost_piece_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    stages = raw(path)[b"stages"]
    assert len(stages) == 7
    for key, value in stages.items():
        change(path, b"stages", key, None)
        with pytest.raises(CorruptError, match=str(path)):
            reopened(path)
        change(path, b"stages", key, value)


@pytest.mark.parametrize("db", [b"stages", b"fences"])
def test_every_flip_of_a_value_is_refused(tmp_path: Path, db: bytes) -> None:
    path = tmp_path / "store"
    filled(path)
    for key, value in raw(path)[db].items():
        for at in [*range(min(len(value), 40)), *range(40, len(value), 53)]:
            change(path, db, key, value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
            with pytest.raises(CorruptError, match=str(path)):
                reopened(path)
        change(path, db, key, value)
    store, _ = reopened(path)
    store.close()


def test_a_full_copy_carries_them(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as (log, ks, _), opened(tmp_path / "b") as (old, old_ks, _):
        put(old_ks, b"old", b"a", 5)
        publish(old_ks, b"old", 1, [b"old"], gathered(old_ks, [b"old"]), [(b"a", 5, 0)])
        commit(old, old_ks)
        put(ks, b"one", b"a", 35)
        put(ks, b"two", b"b", 3)
        publish(ks, b"q", 4, [b"two"], gathered(ks, [b"two"]), [(b"b", 5, 0)])
        checkpoint(log, ks)
        digest, offset = ks.digest(), log.offset
        assert transfer(log.store, tmp_path / "b", 100) == offset
    with opened(tmp_path / "b") as (log, ks, _):
        assert ks.digest() == digest
        assert (set(ks.stages.by_name), ks.stages.fences) == ({b"one"}, {b"q": 4})
        publish(ks, b"q", 5, [b"one"], gathered(ks, [b"one"]), [(b"a", 6, 0)])
        assert ks.keys[b"a"].length == 35  # type: ignore[union-attr]
        commit(log, ks)
