"""The journal: its bytes, contiguity, cutting, and damage that is refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import lmdb
import pytest

from persistence.journal import Journal
from persistence.wal import Frame
from resp.errors import CorruptError


def frames(offset: int, *batches: bytes) -> list[Frame]:
    found: list[Frame] = []
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
    assert not journal.truncate(6)
    assert journal.first() == 6
    assert read(journal, 6) == [b"three" * 2000, b"four"]
    assert not journal.truncate(10_010)
    assert journal.first() == journal.end == 10_010
    journal.close()
    journal = Journal(path)
    assert journal.end == 10_010
    journal.write(frames(10_010, b"five"))
    assert read(journal, 10_010) == [b"five"]
    journal.close()


def test_cut_takes_some_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.journal.TRUNCATE_AT_ONCE", 2)
    journal = Journal(path)
    assert journal.truncate(10_006)
    assert journal.first() == 6
    assert not journal.truncate(10_006)
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
    with pytest.raises(CorruptError, match="not their end"):
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
    with pytest.raises(CorruptError, match="its meta pages do not match"):
        Journal(path)


# -- giving room back ----------------------------------------------------------------------------------------
def large(path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """A journal that once held 20 MB, of which the last batch is left: all in LMDB, as by servers of before."""
    monkeypatch.setattr("persistence.journal.MUCH", 1 << 30)
    journal = Journal(path)
    for number in range(20):
        journal.write(frames(10_010 + number * 1_000_000, bytes([number]) * 1_000_000))
    assert not journal.truncate(journal.end - 1_000_000)
    return journal


def test_shrink_gives_room_back_and_keeps_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = large(path, monkeypatch)
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

    journal = large(path, monkeypatch)
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

    journal = large(path, monkeypatch)
    end = journal.end
    monkeypatch.setattr(Journal, "_open", no_map)
    with pytest.raises(OSError, match="not enough memory"):
        journal.shrink()
    with pytest.raises(OSError, match="not enough memory"):
        journal.write(frames(end, b"more"))
    monkeypatch.undo()
    journal.write(frames(end, b"more"))
    assert not journal.truncate(end)
    assert read(journal, end) == [b"more"]
    journal.close()


# -- segments ------------------------------------------------------------------------------------------------
BIG = [bytes([number]) * 100_000 for number in range(1, 11)]


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir() if file.name not in ("data.mdb", "lock.mdb"))


def much(journal: Journal) -> int:
    """Write BIG at once, with small ones between; returns the log offset of the first."""
    first = journal.end
    journal.write(frames(first, *(batch for big in BIG for batch in (big, b"small"))))
    return first


BOTH = [batch for big in BIG for batch in (big, b"small")]


def test_much_at_once_goes_to_a_segment(path: Path) -> None:
    journal = Journal(path)
    first = much(journal)
    assert (path / "segment.1").read_bytes() == b"".join(BIG)
    assert journal.used < 200_000
    assert read(journal, 0) == [b"one", b"two", b"three" * 2000, b"four", *BOTH]
    assert [batch for _, batch in journal.read_some(first + 100_000, 100_006)] == [b"small", BIG[1]]
    assert [batch for _, batch in journal.read_some(first + 50_000, 1)] == [BIG[0]]
    journal.write(frames(journal.end, BIG[0]))  # not much
    assert journal.last() == (journal.end - 100_000, crc32(BIG[0]))
    journal.write(frames(journal.end, *BIG))
    assert journal.last() == (journal.end - 100_000, crc32(BIG[9]))
    end = journal.end
    journal.close()
    journal = Journal(path)
    assert journal.end == end
    assert journal.last() == (journal.end - 100_000, crc32(BIG[9]))
    assert read(journal, first) == [*BOTH, BIG[0], *BIG]
    journal.close()
    assert names(path) == ["segment.1"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_segment_goes_when_all_its_batches_are_cut(path: Path, keep: bool) -> None:
    journal = Journal(path)
    first = much(journal)
    journal.truncate(journal.end - 1, keep)  # the last one, which is small, stays, and what is before it in its segment
    assert read(journal, journal.end - 5) == [b"small"]
    assert names(path) == ["segment.1"]
    assert not journal.spare
    journal.truncate(journal.end, keep)
    assert journal.spare == keep
    assert names(path) == (["segment.1"] if keep else [])
    journal.write(frames(journal.end, *BIG))
    assert read(journal, first + 1_000_050) == BIG
    assert names(path) == ["segment.1" if keep else "segment.2"]
    assert not journal.spare
    journal.close()
    journal = Journal(path)
    assert read(journal, first + 1_000_050) == BIG
    much(journal)
    assert read(journal, first + 1_000_050) == [*BIG, *BOTH]
    assert len(names(path)) == 2, "what another run wrote is not written on"
    journal.close()


def test_spare_segments_are_let_go(path: Path) -> None:
    for ending in (Journal.remove_spare, Journal.close, lambda journal: journal.truncate(journal.end)):
        journal = Journal(path)
        much(journal)
        journal.truncate(journal.end, keep=True)
        assert journal.bytes_used() > 1_000_000
        ending(journal)
        assert names(path) == []
        if ending is not Journal.close:
            assert journal.bytes_used() < 1_000_000
            journal.close()


def test_segments_are_full_at_some_size(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.largebatches.FULL", 1_500_000)
    monkeypatch.setattr("persistence.largebatches.AT_ONCE", 3)
    monkeypatch.setattr("persistence.largebatches.SPARE", 2_500_000)
    journal = Journal(path)
    first = journal.end
    for _ in range(6):
        journal.write(frames(journal.end, *BIG))
    assert names(path) == ["segment.1", "segment.2", "segment.3"]
    assert read(journal, first) == BIG * 6
    journal.truncate(first + 4_000_000, keep=True)
    assert read(journal, first + 4_000_000) == BIG * 2
    assert names(path) == ["segment.1", "segment.3"], "there is room for one spare one"
    for _ in range(2):
        journal.write(frames(journal.end, *BIG))
    assert names(path) == ["segment.1", "segment.3"]
    assert read(journal, first + 4_000_000) == BIG * 4
    journal.close()


@pytest.mark.parametrize("at", [0, 99_999, 100_000, 999_999])
def test_every_flip_of_a_segment_is_refused(path: Path, at: int) -> None:
    journal = Journal(path)
    first = much(journal)
    journal.close()
    raw = bytearray((path / "segment.1").read_bytes())
    raw[at] ^= 1
    (path / "segment.1").write_bytes(raw)
    journal = Journal(path)
    with pytest.raises(CorruptError, match=f"log offset {first + at // 100_000 * 100_005} is damaged"):
        read(journal, 0)
    with pytest.raises(CorruptError, match="is damaged"):
        journal.read_some(first + at // 100_000 * 100_005, 1)
    journal.close()


def test_every_flip_of_a_place_is_refused(path: Path) -> None:
    journal = Journal(path)
    first = much(journal)
    journal.close()
    with lmdb.open(str(path), max_dbs=3) as env, env.begin(db=env.open_db(b"log")) as txn:
        value = bytes(txn.get(u64(first)) or b"")
    for at in range(len(value)):
        change(path, b"log", u64(first), value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
        journal = Journal(path)
        with pytest.raises(CorruptError, match=f"log offset {first} is damaged"):
            read(journal, 0)
        journal.close()


def test_what_is_said_of_a_segment_is_checked(path: Path) -> None:
    journal = Journal(path)
    much(journal)
    journal.close()
    key = (1).to_bytes(4, "little")
    with lmdb.open(str(path), max_dbs=3) as env, env.begin(db=env.open_db(b"segments")) as txn:
        value = bytes(txn.get(key) or b"")
    for at in range(len(value)):
        change(path, b"segments", key, value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :])
        with pytest.raises(CorruptError, match="the entry of a segment is damaged"):
            Journal(path)


@pytest.mark.parametrize("length", [None, 0, 500_000])
def test_a_segment_that_is_missing_or_short_is_refused(path: Path, length: int | None) -> None:
    journal = Journal(path)
    much(journal)
    journal.close()
    if length is None:
        (path / "segment.1").unlink()
    else:
        os.truncate(path / "segment.1", length)
    journal = Journal(path)
    with pytest.raises(CorruptError, match="is damaged"):
        read(journal, 0)
    journal.close()


def test_what_nothing_names_is_removed_at_the_start(path: Path) -> None:
    """Left by a kill between the write of a segment and that of LMDB, or between a cut and the removal."""
    journal = Journal(path)
    first = much(journal)
    journal.close()
    for name in ("segment.2", "segment.77", "segment.x"):
        (path / name).write_bytes(b"left")
    journal = Journal(path)
    assert names(path) == ["segment.1"]
    assert read(journal, first) == BOTH
    journal.close()


@pytest.mark.parametrize("what", ["os.pwritev", "os.fdatasync"])
def test_a_segment_that_can_not_be_written(path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    journal = Journal(path)
    first = journal.end
    for _ in range(2):
        monkeypatch.setattr(what, full)
        with pytest.raises(OSError, match="no space left"):
            much(journal)
        monkeypatch.undo()
        much(journal)
    assert read(journal, first) == BOTH * 2
    journal.close()
    journal = Journal(path)
    assert read(journal, first) == BOTH * 2
    journal.close()


def test_a_write_that_the_system_cuts_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev, pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: pwritev(fd, [b"".join(parts)[:150_000]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, raw, at: pwrite(fd, raw[:150_000], at))
    journal = Journal(path)
    first = much(journal)
    assert read(journal, first) == BOTH
    journal.close()


def segment_bytes(path: Path) -> int:
    return sum(segment.stat().st_size for segment in path.glob("segment.*"))


def test_a_segment_does_not_grow_while_lmdb_refuses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's thread tries again four times a second."""
    journal = Journal(path)
    first = much(journal)
    journal.write(frames(journal.end, b"rest"))
    size = segment_bytes(path)

    def refuse(*args: object) -> None:
        raise lmdb.DiskError("no space left")

    for where in ("_put_end", "_put_segment"):
        monkeypatch.setattr(journal, where, refuse)
        for _ in range(20):
            with pytest.raises(OSError, match="no space left"):
                much(journal)
        monkeypatch.undo()
    assert segment_bytes(path) == size + 1_000_000
    assert names(path) == ["segment.1"]
    much(journal)
    assert read(journal, first) == [*BOTH, b"rest", *BOTH]
    assert segment_bytes(path) == size + 1_000_000
    journal.close()
    journal = Journal(path)
    assert read(journal, first) == [*BOTH, b"rest", *BOTH]
    journal.close()


def test_what_a_commit_named_that_seemed_to_fail_is_not_written_over(path: Path) -> None:
    journal = Journal(path)
    first = journal.end

    class Late:
        """Lets the commit happen, and reports that it failed."""

        @contextmanager
        def begin(self, write: bool) -> Iterator[lmdb.Transaction]:
            with env.begin(write=write) as txn:
                yield txn
            raise lmdb.DiskError("no space left")

    env = journal._env
    much_end = first + 1_000_050
    journal._ends = env.open_db(b"segments")
    journal._env = Late()  # type: ignore[assignment]
    with pytest.raises(OSError, match="no space left"):
        much(journal)
    journal._env = env
    journal.write([*frames(first, *BOTH), *frames(much_end, *BIG)])
    assert read(journal, first) == [*BOTH, *BIG]
    journal.close()


def test_few_files_are_open_however_many_segments_there_are(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.largebatches.FULL", 1)
    journal = Journal(path)
    before = len(os.listdir("/proc/self/fd"))
    first = journal.end
    for _ in range(10):
        much(journal)
    assert len(names(path)) == 10
    assert read(journal, first) == BOTH * 10
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    journal.truncate(journal.end, keep=True)
    much(journal)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    journal.close()


def test_a_folder_that_can_not_be_synced_gets_no_more_segments(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise OSError(errno.EIO, "no sync")

    journal = Journal(path)
    first = journal.end
    monkeypatch.setattr("persistence.largebatches.sync_directory", refuse)
    for _ in range(5):
        with pytest.raises(OSError, match="no sync"):
            much(journal)
    monkeypatch.undo()
    much(journal)
    assert names(path) == ["segment.1"]
    assert read(journal, first) == BOTH
    journal.close()
