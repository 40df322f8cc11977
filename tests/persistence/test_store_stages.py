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
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.stagemutators import gathered, publish, stage, unstage
from storage.nodes.stagedentries import StagedChunk
from storage.streams.capture import Capture, StageCapture
from tests.persistence.datakit import append, checkpoint, commit, keyspace, opened
from tests.persistence.test_store import change, reopened, save
from tests.persistence.test_storecopy import transfer
from tests.storage.streams.captures import whole_capture

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
    publish(ks, b"fence" * 200, 1 << 62, b"", [b"used"], gathered(ks, [b"used"]), [(b"b", 5, 0)])
    save(store, ks, 2)
    digest = ks.digest()
    store.close()
    return digest


def test_golden_entries_written(tmp_path: Path) -> None:
    def signed(key: bytes, text: str, tail: bytes) -> bytes:
        value = bytes.fromhex(text) + tail
        return crc32(key + value).to_bytes(4, "big") + value

    sizes = array("I", [3, 4])
    taken = StageCapture(9, b"name", 7, 77, 4, [(3, StagedChunk(b"key"), b"onefour", sizes)])
    store = Store(tmp_path / "store")
    store.write(Capture(stages=[taken], fences=[(b"q", 6, b""), (b"r", 6, b"ten")]), 0x123)
    store.close()
    head, piece = bytes.fromhex("0000000000000009 00000000"), bytes.fromhex("0000000000000009 00000004")
    assert raw(tmp_path / "store") == {
        b"stages": {
            head: signed(head, "0000000000000007 000000000000004d 00000004", b"name"),
            piece: signed(piece, "00000003 00000002", b"key" + bytes.fromhex("00000003 00000004") + b"onefour"),
        },
        b"fences": {
            b"\0q": signed(b"\0q", "0000000000000006", b"q"),
            b"\0r": signed(b"\0r", "8000000000000006 03", b"tenr"),
        },
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


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("taken", [0, 2])
def test_stages_that_change_while_they_are_captured(tmp_path: Path, taken: int, flushed: bool) -> None:
    """The capture has them as they were when it began, however many of them it had taken already."""
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    for name in (b"grown", b"dropped", b"published", b"kept", b"made again"):
        put(ks, name, b"a", 25)
    capture, digest = ks.begin_capture(), ks.digest()
    assert ks.changes.more(taken) is False
    put(ks, b"grown", b"a", 3)
    unstage(ks, [b"dropped", b"made again"])
    put(ks, b"made again", b"b", 1)
    publish(ks, b"q", 1, b"", [b"published"], gathered(ks, [b"published"]), [(b"a", 5, 0)])
    if flushed:
        ks.flush()
    while not ks.changes.more(1):
        pass
    store.write(capture, 1)
    ks.changes.stored(capture, 1000)
    store.close()
    again, restored = reopened(tmp_path / "store")
    assert restored.digest() == digest
    again.close()
    store = Store(tmp_path / "store")
    ks.pool.store = store
    save(store, ks, 2)
    digest = ks.digest()
    store.close()
    again, restored = reopened(tmp_path / "store")
    assert restored.digest() == digest
    assert len(restored.stages.by_name) == len(ks.stages.by_name)
    again.close()


def test_a_failed_capture_gives_its_stages_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    ks = keyspace(store)
    for name in (b"one", b"two", b"dropped"):
        put(ks, name, b"a", 25)
    capture = ks.begin_capture()
    ks.changes.more(1)
    unstage(ks, [b"dropped"])
    ks.changes.failed(capture)
    save(store, ks, 1)
    digest = ks.digest()
    store.close()
    store, ks = reopened(tmp_path / "store")
    assert ks.digest() == digest
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


def test_a_lost_piece_or_fence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path)
    found = raw(path)
    assert len(found[b"stages"]) == 7
    assert len(found[b"fences"]) == 1
    for db, entries in found.items():
        for key, value in entries.items():
            change(path, db, key, None)
            with pytest.raises(CorruptError, match=str(path)):
                reopened(path)
            change(path, db, key, value)


def test_a_lost_stage_is_refused(tmp_path: Path) -> None:
    """All of its pieces, so that nothing of it is left over."""
    path = tmp_path / "store"
    filled(path)
    stages = raw(path)[b"stages"]
    lost = [key for key in stages if key[:8] == next(iter(stages))[:8]]
    for key in lost:
        change(path, b"stages", key, None)
    with pytest.raises(CorruptError, match=f"{path}.*has {len(stages) - len(lost)} stages instead of {len(stages)}"):
        reopened(path)


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
        publish(old_ks, b"old", 1, b"", [b"old"], gathered(old_ks, [b"old"]), [(b"a", 5, 0)])
        commit(old, old_ks)
        put(ks, b"one", b"a", 35)
        put(ks, b"two", b"b", 3)
        publish(ks, b"q", 4, b"two", [b"two"], gathered(ks, [b"two"]), [(b"b", 5, 0)])
        checkpoint(log, ks)
        digest, offset = ks.digest(), log.offset
        assert transfer(log.store, tmp_path / "b", 100) == offset
    with opened(tmp_path / "b") as (log, ks, _):
        assert ks.digest() == digest
        assert (set(ks.stages.by_name), ks.stages.fences) == ({b"one"}, {b"q": 4})
        publish(ks, b"q", 5, b"", [b"one"], gathered(ks, [b"one"]), [(b"a", 6, 0)])
        assert ks.keys[b"a"].length == 35  # type: ignore[union-attr]
        commit(log, ks)
