"""The journal: its bytes, contiguity, cutting, and damage that is refused."""

from __future__ import annotations

import errno
from pathlib import Path
from zlib import crc32

import lmdb
import pytest

from persistence.journal import Journal
from persistence.wal import Frame
from resp.errors import CorruptError


def frames(offset: int, *batches: bytes) -> list[Frame]:
    found = []
    for batch in batches:
        found.append((offset, batch, 0, crc32(batch)))
        offset += len(batch)
    return found


def read(journal: Journal, offset: int) -> list[bytes]:
    return [batch for _, batch in journal.read(offset)]


def change(path: Path, db: bytes, key: bytes, value: bytes | None) -> None:
    with lmdb.open(str(path), max_dbs=2) as env, env.begin(db=env.open_db(db), write=True) as txn:
        if value is None:
            assert txn.delete(key)
        else:
            txn.put(key, value)


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal")
    journal.write(frames(0, b"one", b"two"))
    journal.write(frames(6, b"three" * 2000))
    journal.write(frames(10_006, b"four"))
    journal.close()
    return tmp_path / "journal"


END = (10_010).to_bytes(8, "little") + crc32((10_010).to_bytes(8, "little")).to_bytes(4, "little")


def test_golden_entries(path: Path) -> None:
    with lmdb.open(str(path), max_dbs=2, readonly=True) as env:
        with env.begin(db=env.open_db(b"log", create=False)) as txn:
            found = {bytes(key): bytes(value) for key, value in txn.cursor()}
        with env.begin(db=env.open_db(b"meta", create=False)) as txn:
            meta = {bytes(key): bytes(value) for key, value in txn.cursor()}
    batches = {0: b"one", 3: b"two", 6: b"three" * 2000, 10_006: b"four"}
    assert found == {u64(at): crc32(batch).to_bytes(4, "little") + batch for at, batch in batches.items()}
    assert meta == {b"end": END}


def test_read_from_any_batch(path: Path) -> None:
    journal = Journal(path)
    assert journal.end == 10_010
    assert read(journal, 0) == [b"one", b"two", b"three" * 2000, b"four"]
    assert read(journal, 10_006) == [b"four"]
    assert read(journal, 10_010) == []
    journal.close()


def test_cut_keeps_what_comes_behind(path: Path) -> None:
    journal = Journal(path)
    assert not journal.cut(6)
    assert journal.first() == 6
    assert read(journal, 6) == [b"three" * 2000, b"four"]
    assert not journal.cut(10_010)
    assert journal.first() == journal.end == 10_010
    journal.close()
    journal = Journal(path)
    assert journal.end == 10_010
    journal.write(frames(10_010, b"five"))
    assert read(journal, 10_010) == [b"five"]
    journal.close()


def test_cut_takes_some_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.journal.CUT_AT_ONCE", 2)
    journal = Journal(path)
    assert journal.cut(10_006)
    assert journal.first() == 6
    assert not journal.cut(10_006)
    assert journal.first() == 10_006
    journal.close()


def test_a_write_that_failed_and_happened_is_not_written_twice(path: Path) -> None:
    """A commit may be on disk although it was reported as failed. The caller then retries it."""
    journal = Journal(path)
    journal.write(frames(10_010, b"five"))
    journal.end = 10_010  # as if it had raised
    journal.write(frames(10_010, b"five", b"six"))
    assert journal.end == 10_017
    assert read(journal, 10_006) == [b"four", b"five", b"six"]
    journal.close()


def test_a_gap_in_what_is_written_is_refused(path: Path) -> None:
    journal = Journal(path)
    with pytest.raises(CorruptError, match="next batch is at 10011"):
        journal.write(frames(10_011, b"x"))
    assert read(journal, 10_006) == [b"four"]
    journal.close()


@pytest.mark.parametrize("lost", [0, 3, 6, 10_006])
def test_a_lost_batch_is_refused(path: Path, lost: int) -> None:
    change(path, b"log", u64(lost), None)
    journal = Journal(path)
    with pytest.raises(CorruptError, match=f"{path}.*log offset {lost}.*backup"):
        read(journal, 0)
    journal.close()


def test_a_batch_behind_the_end_is_refused(path: Path) -> None:
    change(path, b"log", u64(10_010), crc32(b"x").to_bytes(4, "little") + b"x")
    journal = Journal(path)
    with pytest.raises(CorruptError, match="instead of 10010"):
        read(journal, 0)
    journal.close()


def test_every_flip_of_a_batch_is_refused(path: Path) -> None:
    value = crc32(b"two").to_bytes(4, "little") + b"two"
    for at in range(len(value)):
        change(path, b"log", u64(3), value[:at] + bytes([value[at] ^ 1 << at]) + value[at + 1 :])
        journal = Journal(path)
        with pytest.raises(CorruptError, match="log offset 3 is damaged"):
            read(journal, 0)
        journal.close()
    for value in (b"", b"abc", bytes(4)):
        change(path, b"log", u64(3), value)
        journal = Journal(path)
        with pytest.raises(CorruptError, match=str(path)):
            read(journal, 0)
        journal.close()


def test_every_flip_of_the_end_is_refused(path: Path) -> None:
    for at in range(len(END)):
        change(path, b"meta", b"end", END[:at] + bytes([END[at] ^ 1 << at % 8]) + END[at + 1 :])
        with pytest.raises(CorruptError, match="its end is damaged"):
            Journal(path)
    change(path, b"meta", b"end", None)
    with pytest.raises(CorruptError, match="not where they end"):
        Journal(path)


def test_a_file_of_an_older_time_under_newer_batches_is_refused(path: Path) -> None:
    """One meta page from a copy made earlier."""
    data = path / "data.mdb"
    old = data.read_bytes()[:4096]
    journal = Journal(path)
    for number in range(6):
        journal.write(frames(10_010 + number, b"x"))
    journal.close()
    data.write_bytes(old + data.read_bytes()[4096:])
    with pytest.raises(CorruptError, match="do not belong together"):
        Journal(path)


# -- giving room back ----------------------------------------------------------------------------------------
def large(path: Path) -> Journal:
    """A journal that once held 20 MB, of which the last batch is left."""
    journal = Journal(path)
    for number in range(20):
        journal.write(frames(10_010 + number * 1_000_000, bytes([number]) * 1_000_000))
    assert not journal.cut(journal.end - 1_000_000)
    return journal


def test_shrink_gives_room_back_and_keeps_what_is_there(path: Path) -> None:
    journal = large(path)
    end, size = journal.end, journal.bytes_used()
    assert journal.shrink()
    assert journal.bytes_used() < size // 4
    assert not journal.shrink()  # small enough now
    assert journal.end == end
    journal.write(frames(end, b"more"))
    assert read(journal, end - 1_000_000) == [bytes([19]) * 1_000_000, b"more"]
    journal.close()
    journal = Journal(path)
    assert read(journal, end - 1_000_000) == [bytes([19]) * 1_000_000, b"more"]
    journal.close()


def test_what_a_killed_shrink_leaves_is_removed(path: Path) -> None:
    (path / "data.mdb.new").write_bytes(b"half of a copy")
    (path / "shrunk").mkdir()  # by an earlier version
    (path / "shrunk" / "data.mdb").write_bytes(b"half of a copy")
    journal = Journal(path)
    assert sorted(file.name for file in path.iterdir()) == ["data.mdb", "lock.mdb"]
    assert read(journal, 0) == [b"one", b"two", b"three" * 2000, b"four"]
    journal.close()


def test_a_shrink_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    journal = large(path)
    end = journal.end
    for what in ("os.fsync", "pathlib.Path.replace"):
        monkeypatch.setattr(what, full)
        with pytest.raises(OSError, match="no space left"):
            journal.shrink()
        monkeypatch.undo()
        journal.write(frames(journal.end, b"more"))
    journal.close()
    journal = Journal(path)
    assert read(journal, end) == [b"more", b"more"]
    assert [file.name for file in path.iterdir() if file.name not in ("data.mdb", "lock.mdb")] == []
    journal.close()


def test_a_shrink_that_can_not_open_the_file_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no address space for the map at that moment. The next write opens it."""

    def no_map(self: Journal) -> None:
        raise OSError(errno.ENOMEM, "not enough memory")

    journal = large(path)
    end = journal.end
    monkeypatch.setattr(Journal, "_open", no_map)
    with pytest.raises(OSError, match="not enough memory"):
        journal.shrink()
    with pytest.raises(OSError, match="not enough memory"):
        journal.write(frames(end, b"more"))
    monkeypatch.undo()
    journal.write(frames(end, b"more"))
    assert not journal.cut(end)
    assert read(journal, end) == [b"more"]
    journal.close()
