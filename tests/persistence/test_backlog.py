"""Reading the log from an offset while it is written, cut and shrunk; what is kept, and how its end is described."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import lmdb
import pytest

from persistence import backlog
from persistence import journal as journal_module
from persistence.backlog import MANY, NOTHING, SOME
from persistence.log import GoneError, Log
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replay import replay
from tests.persistence.datakit import RING, append, checkpoint, commit, crashed, flush, keyspace, opened, until

MUCH = 1 << 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


class Written:
    """A log and its model: everything that was logged."""

    def __init__(self, log: Log, ks: Keyspace) -> None:
        self.log, self.ks = log, ks
        self.bytes = b""
        self.borders = [0]  # of batches

    def batch(self, records: int = 1, pad: int = 0) -> None:
        for _ in range(records):
            append(self.ks, b"a", 1, pad)
        batch = self.ks.take_batch()
        self.log.append(batch)
        self.bytes += batch
        self.borders.append(len(self.bytes))


@contextmanager
def written(path: Path, journal_flush_ms: int = 5, appendfsync: str = "always") -> Iterator[Written]:
    with opened(path, journal_flush_ms=journal_flush_ms, appendfsync=appendfsync) as (log, ks, _):
        yield Written(log, ks)


def in_journal(log: Log) -> None:
    """Wait until the journal has everything that was logged."""
    flush(log)


def joined(batches: list[tuple[int, bytes]]) -> bytes:
    for (offset, batch), (following, _) in pairwise(batches):
        assert offset + len(batch) == following
    return b"".join(batch for _, batch in batches)


# -- from memory ---------------------------------------------------------------------------------------------
def test_recent_gives_what_the_journal_lacks(path: Path) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log = made.log
        assert log.recent(0, MUCH) == []
        for _ in range(5):
            made.batch(2)
        assert joined(log.recent(0, MUCH) or []) == made.bytes
        at = made.borders[2]
        assert joined(log.recent(at, MUCH) or []) == made.bytes[at:]
        assert log.recent(at, 1) == [(at, made.bytes[at : made.borders[3]])], "at least one"
        two = made.borders[4] - at
        assert joined(log.recent(at, two) or []) == made.bytes[at : at + two]
        assert joined(log.recent(at, two - 1) or []) == made.bytes[at : made.borders[3]]
        assert log.recent(log.offset, MUCH) == []
        assert log.recent(at + 1, MUCH) is None, "in the middle of a batch: read() copes with it"
        assert log.recent(log.offset + 1, MUCH) is None
        in_journal(log)
        assert log.recent(0, MUCH) is None
        assert log.recent(log.offset, MUCH) == []
        made.batch()
        assert log.recent(made.borders[-2], MUCH) == [(made.borders[-2], made.bytes[made.borders[-2] :])]
        assert log.recent(made.borders[-3], MUCH) is None


def test_what_is_being_written_into_the_journal_is_still_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log, write = made.log, log_write = made.log, made.log.journal.write
        made.batch()
        made.batch()
        seen = []

        def looking(*args: object) -> None:
            made.batch()
            for at in made.borders[:-1]:
                seen.append(joined(log.recent(at, MUCH) or []) == made.bytes[at:])
                seen.append(joined(log.read(at, MUCH)) == made.bytes[at:])
                seen.append(log.holds(at))
            log_write(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(log.journal, "write", looking)
        in_journal(log)
        assert seen
        assert all(seen)
        monkeypatch.setattr(log.journal, "write", write)


# -- what continuous backups will read ------------------------------------------------------------------------
def test_what_a_backup_lacks_stays_in_memory(path: Path) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log = made.log
        log.keep_flushed(0)
        for _ in range(3):
            made.batch(2)
            in_journal(log)
        made.batch()
        for at in made.borders[:-1]:
            assert joined(log.recent(at, MUCH) or []) == made.bytes[at:]
        log.keep_flushed(made.borders[2])
        assert log.recent(made.borders[1], MUCH) is None
        assert joined(log.recent(made.borders[2], MUCH) or []) == made.bytes[made.borders[2] :]
        log.keep_flushed(NOTHING)
        in_journal(log)
        assert log.recent(made.borders[2], MUCH) is None
        assert joined(log.read(0, MUCH)) == made.bytes


def test_a_batch_larger_than_the_ring_leaves_no_gap_in_memory(path: Path) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        made.log.keep_flushed(0)
        made.batch()
        made.batch(pad=2 * RING)
        made.batch()
        in_journal(made.log)
        made.batch()
        assert made.log.recent(0, MUCH) is None
        assert joined(made.log.read(0, MUCH)) == made.bytes[: made.borders[3]]
        assert joined(made.log.recent(made.borders[2], MUCH) or []) == made.bytes[made.borders[2] :]


@pytest.mark.parametrize("limit", ["KEPT_BYTES", "KEPT_LISTS"])
@pytest.mark.interpreted
def test_what_stays_in_memory_is_limited(path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(backlog, limit, 5 if limit == "KEPT_LISTS" else 5 * 300)
    with written(path, journal_flush_ms=100_000) as made:
        made.log.keep_flushed(0)
        for _ in range(50):
            made.batch()
            in_journal(made.log)
        assert made.log.recent(0, MUCH) is None
        kept = [at for at in made.borders[:-1] if made.log.recent(at, MUCH) is not None]
        assert 1 <= len(kept) <= 8
        assert kept == made.borders[-1 - len(kept) : -1]


# -- from everywhere -----------------------------------------------------------------------------------------
def test_read_goes_through_journal_and_memory(path: Path) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log = made.log
        for turn in range(12):
            made.batch(3)
            if turn == 7:
                in_journal(log)
        for limit in (1, 200, 1000, MUCH):
            for start in made.borders:
                at = start
                while batches := log.read(at, limit):
                    assert joined(batches) == made.bytes[at : at + len(joined(batches))]
                    assert len(batches) == 1 or len(joined(batches)) <= limit
                    at = batches[-1][0] + len(batches[-1][1])
                    assert at in made.borders
                assert at == log.offset
        assert log.first_offset() == 0


@pytest.mark.parametrize("where", ["journal", "memory"])
def test_an_offset_inside_a_batch(path: Path, where: str) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log = made.log
        made.batch()
        first = log.offset
        append(made.ks, b"a", 1)
        length = len(b"".join(made.ks.log))
        append(made.ks, b"a", 4)
        batch = made.ks.take_batch()
        log.append(batch)
        made.bytes += batch
        made.batch()
        if where == "journal":
            in_journal(log)
        border = first + length
        assert log.holds(border)
        assert log.read(border, 1) == [(border, batch[length:])]
        assert joined(log.read(border, MUCH)) == made.bytes[border:]
        for wrong in (border - 1, border + 1, first + 1):
            with pytest.raises(GoneError, match="no record"):
                log.read(wrong, MUCH)


def test_what_is_not_there(path: Path) -> None:
    with written(path) as made:
        log = made.log
        assert log.read(0, MUCH) == []
        made.batch()
        made.batch()
        for offset in (-1, log.offset + 1, 1 << 70):
            assert not log.holds(offset)
            with pytest.raises(GoneError):
                log.read(offset, MUCH)
        checkpoint(log, made.ks)
        assert log.first_offset() == log.offset
        for offset in made.borders[:-1]:
            assert not log.holds(offset)
            assert log.recent(offset, MUCH) is None
            with pytest.raises(GoneError, match=f"ranges from {log.offset} to {log.offset}"):
                log.read(offset, MUCH)
        assert log.holds(log.offset)
        assert log.read(log.offset, MUCH) == []


def test_a_damaged_batch_is_never_given(path: Path) -> None:
    with written(path) as made:
        made.batch(pad=3000)
        made.batch(pad=3000)
        where = made.borders[1]
    with lmdb.open(str(path / "journal"), max_dbs=2) as env, env.begin(db=env.open_db(b"log"), write=True) as txn:
        value = bytes(txn.get(where.to_bytes(8, "big")) or b"")
        with_store = value[:-1] + bytes([value[-1] ^ 1])
    with opened(path) as (log, _, _):
        with log.journal._env.begin(db=log.journal._batches, write=True) as txn:
            txn.put(where.to_bytes(8, "big"), with_store)
        assert len(log.read(0, 1)) == 1
        with pytest.raises(CorruptError, match=f"{path}/journal/data.mdb.*{where} is damaged"):
            log.read(0, MUCH)
        with pytest.raises(CorruptError):
            log.matches(0, log.offset, 0)


def test_batches_larger_than_the_ring_are_read_too(path: Path) -> None:
    with written(path) as made:
        made.batch()
        made.batch(pad=2 * RING)
        made.batch()
        for at in made.borders:
            assert joined(made.log.read(at, MUCH)) in (made.bytes[at:], made.bytes[at : made.borders[2]])
        assert made.log.synced == made.log.offset


def test_reading_beside_writes_checkpoints_cuts_and_shrinks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two readers follow the log from its start. What they need stays, though the rest is cut and the file replaced."""
    monkeypatch.setattr(journal_module, "SHRINK_ABOVE", 1 << 16)
    with opened(path, ring_bytes=RING, journal_flush_ms=1, appendfsync="everysec") as (log, ks, _):
        done, problems = threading.Event(), []
        positions = [0, 0]
        seen: list[bytes] = []

        def follow(number: int) -> None:
            rng = random.Random(number)
            try:
                while positions[number] < log.offset or not done.is_set():
                    for offset, batch in log.read(positions[number], rng.choice((1, 1000, 100_000))):
                        assert offset == positions[number]
                        if not number:
                            seen.append(batch)
                        positions[number] = offset + len(batch)
                    log.retain = min(positions)
                    log.first_offset()
            except Exception as error:  # noqa: BLE001
                problems.append(error)

        log.retain = 0
        shrunk = []
        shrink = log.journal.shrink
        monkeypatch.setattr(log.journal, "shrink", lambda small: shrunk.append(shrink(small)))
        threads = [threading.Thread(target=follow, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        rng = random.Random(3)
        begun = time.monotonic()
        while not problems:
            seconds, enough = time.monotonic() - begun, log.offset > 10 * RING and any(shrunk)
            if seconds > (2.5 if enough else 60):
                break
            stream = append(ks, b"a", rng.choice((1, 5)), pad=rng.choice((10, 3000)))
            if stream.length > 200:
                ks.evict(b"a", stream, stream.first_ord + 100, stream.id_at(stream.first_ord + 99))
            commit(log, ks)
            assert log.holds(min(positions))
            if rng.random() < 0.03:
                checkpoint(log, ks)
                assert log.holds(min(positions))
        done.set()
        for thread in threads:
            thread.join()
        assert not problems
        assert positions == [log.offset] * 2
        assert any(shrunk), "the file was never renewed: the test shows too little"
        monkeypatch.undo()
        checkpoint(log, ks)
        assert log.first_offset() == log.offset
        assert log.offset > 10 * RING
        follower = keyspace(log.store)
        for batch in seen:
            replay(follower, batch)
        assert follower.digest() == ks.digest()


def read_until_it_fails(log: Log, problems: list[Exception]) -> None:
    first = log.first_offset()
    try:
        while True:
            assert log.read(first, MUCH)
            if not problems:
                problems.append(Exception("none yet: it reads"))
    except Exception as error:  # noqa: BLE001
        problems.append(error)


def test_closing_under_a_reader_is_an_oserror(path: Path) -> None:
    for _ in range(5):
        with opened(path, journal_flush_ms=1) as (log, ks, _):
            for _ in range(50):
                append(ks, b"a", 3, pad=500)
                commit(log, ks)
            in_journal(log)
            problems: list[Exception] = []
            thread = threading.Thread(target=read_until_it_fails, args=(log, problems))
            thread.start()
            until(problems.__len__)
            log.close()
            thread.join()
            assert [type(error) for error in problems[1:]] == [OSError]
            log.truncate()  # of a closed log: nothing


# -- what is kept ----------------------------------------------------------------------------------------------
def test_retain_keeps_and_cut_lets_go(path: Path) -> None:
    with written(path) as made:
        log = made.log
        for _ in range(6):
            made.batch(2)
        log.retain = made.borders[2]
        checkpoint(log, made.ks)
        assert log.first_offset() == made.borders[2] == log.stats()["journal_first_offset"]
        assert joined(log.read(made.borders[2], MUCH)) == made.bytes[made.borders[2] :]
        assert not log.holds(made.borders[1])
        log.retain = made.borders[4] + 1  # inside of a batch, which therefore stays
        log.truncate()
        assert log.first_offset() == made.borders[4]
        assert log.holds(log.retain)
        made.batch()
        log.retain = NOTHING
        log.truncate()
        assert log.first_offset() == log.store.offset == made.borders[6]
        assert joined(log.read(log.store.offset, MUCH)) == made.bytes[made.borders[6] :]
        digest = made.ks.digest()
    with opened(path) as (_, ks, _):
        assert ks.digest() == digest


def test_a_journal_that_begins_before_the_store_recovers(path: Path) -> None:
    with written(path) as made:
        made.log.retain = 0
        for turn in range(6):
            made.batch(2)
            if turn in (1, 3):
                checkpoint(made.log, made.ks)
        digest = made.ks.digest()
        made.log.truncate()
        in_journal(made.log)
        copy = crashed(path)
    for place in (path, copy):
        with opened(place) as (log, ks, found):
            assert ks.digest() == digest
            assert found.journal_batches == 2, "from the store on, not from the journal's start"
            assert log.first_offset() == 0
            assert joined(log.read(0, MUCH)) == made.bytes


def test_what_is_being_cut_is_no_longer_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 3 of the backlog: retain is lowered after a cut has read it and before the cut commits."""
    with written(path) as made:
        log, cut = made.log, made.log.journal.truncate
        for _ in range(4):
            made.batch()
        at = made.borders[1]
        answers = []

        def late(offset: int, keep: bool) -> bool:
            log.retain = at
            answers.append(log.holds(at))
            return cut(offset, keep)

        monkeypatch.setattr(log.journal, "truncate", late)
        checkpoint(log, made.ks)
        assert answers == [False]
        assert not log.holds(at)
        made.batch()
        at = made.borders[-2]
        assert log.holds(at)
        checkpoint(log, made.ks)
        assert answers[1:] == [True]
        assert log.holds(at)


def test_a_large_live_journal_is_not_copied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SHRINK_ABOVE", 1 << 16)
    with written(path) as made:
        for _ in range(40):
            made.batch(pad=20_000)
        in_journal(made.log)
        made.log.retain = made.borders[-4]
        monkeypatch.setattr(journal_module, "SHRINK_LIVE_AT_MOST", 30_000)
        checkpoint(made.log, made.ks)
        size = (path / "journal" / "data.mdb").stat().st_size
        assert size > 800_000
        monkeypatch.undo()
        monkeypatch.setattr(journal_module, "SHRINK_ABOVE", 1 << 16)
        made.log.truncate()
        assert (path / "journal" / "data.mdb").stat().st_size < 200_000
        assert joined(made.log.read(made.borders[-4], MUCH)) == made.bytes[made.borders[-4] :]


def test_a_reader_waits_while_the_journals_file_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SHRINK_ABOVE", 1 << 16)
    with written(path) as made:
        log = made.log
        for _ in range(40):
            made.batch(pad=20_000)
        in_journal(log)
        log.retain = made.borders[-3]
        found: list[bytes] = []
        readers = [threading.Thread(target=lambda: found.append(joined(log.read(log.retain, MUCH)))) for _ in range(3)]

        def in_between(directory: Path) -> None:
            """The old file is closed, the new one not open yet."""
            for thread in readers:
                thread.start()
                thread.join(0.05)
            assert all(thread.is_alive() for thread in readers)

        monkeypatch.setattr(journal_module, "sync_directory", in_between)
        checkpoint(log, made.ks)
        for thread in readers:
            thread.join()
        assert found == [made.bytes[log.retain :]] * 3


# -- what is on disk -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_synced(path: Path, fsync: str) -> None:
    with written(path, journal_flush_ms=100_000, appendfsync=fsync) as made:
        log = made.log
        assert log.synced == 0
        made.batch()
        assert log.synced == (log.offset if fsync == "always" else 0)
        log.sync()
        assert log.synced == log.offset
        made.batch()
        in_journal(log)
        assert log.synced == log.offset, "the journal is always synced"
        made.batch(pad=2 * RING)
        assert log.synced == log.offset


# -- signatures ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("last", [5, 6000])  # the crc32 of a large one is only made when somebody wants it
def test_the_signature_is_that_of_the_last_batch(path: Path, last: int) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log = made.log
        assert log.signature() is None
        for pad in (0, 10, 2 * RING, last):
            made.batch(pad=pad)
            at = made.borders[-2]
            assert log.signature() == (at, crc32(made.bytes[at:]))
        copy = crashed(path)
    for place, frames in ((copy, 1), (path, 0)):  # from the WAL; from the journal
        with opened(place) as (log, ks, found):
            assert found.wal_batches == frames
            assert log.signature() == (at, crc32(made.bytes[at:]))
            checkpoint(log, ks)
            assert log.signature() == (at, crc32(made.bytes[at:]))
        with opened(place) as (log, _, _):
            assert log.signature() is None, "nothing is left to take it from"


def test_matches_any_range_that_is_held(path: Path) -> None:
    with written(path, journal_flush_ms=100_000) as made:
        log = made.log
        for turn in range(10):
            made.batch(2)
            if turn == 4:
                in_journal(log)
        rng = random.Random(5)
        for _ in range(300):
            start, end = sorted((rng.randrange(log.offset + 1), rng.randrange(log.offset + 1)))
            crc = crc32(made.bytes[start:end])
            assert log.matches(start, end, crc) is True
            assert log.matches(start, end, crc ^ 1) is False
        assert log.matches(0, log.offset + 1, 0) is None
        assert log.matches(-1, 5, 0) is None
        assert log.matches(5, 4, 0) is None
        log.retain = made.borders[3]
        checkpoint(log, made.ks)
        assert log.matches(made.borders[3], log.offset, crc32(made.bytes[made.borders[3] :])) is True
        assert log.matches(made.borders[2], log.offset, crc32(made.bytes[made.borders[2] :])) is None


def test_a_restored_backup_is_told_apart(path: Path) -> None:
    """Two logs go on from one copy under one ID, so the offset alone does not show that they differ."""
    with written(path) as made:
        made.batch()
        copy = crashed(path)
        made.batch(pad=100)
        with opened(copy) as (other, ks, _):
            ks.set_string(b"other", b"value", 0)
            commit(other, ks)
            signature = other.signature()
            assert signature is not None
            assert made.log.history.covers(other.history.id, other.offset, made.log.offset)
            assert made.log.matches(signature[0], other.offset, signature[1]) is False


def test_a_checksum_of_the_end_reads_a_limited_number_of_batches(path: Path) -> None:
    """The event loop waits for it: a megabyte of small batches took 90 ms."""
    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        for number in range(12_000):
            ks.set_string(b"k", b"%d" % (number % 10))
            commit(log, ks)
        end = log.offset
        found = log.checksum_of_end(1 << 20)
        assert found is not None
        start, crc = found
        assert SOME <= end - start < 4 * MANY * 25
        assert log.matches(start, end, crc)
        assert log.checksum_of_end(1000) == (end - 1000, crc32(contents(log, end - 1000)))


def test_a_checksum_of_the_end_covers_all_of_its_size_if_batches_are_large(path: Path) -> None:
    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        for _ in range(300):
            ks.set_string(b"k", b"x" * 5000)
            commit(log, ks)
        end = log.offset
        assert log.checksum_of_end(1 << 20) == (end - (1 << 20), crc32(contents(log, end - (1 << 20))))


def contents(log: Log, start: int) -> bytes:
    """The bytes of the log from ``start`` on."""
    offset, at, found = log.first_offset(), log.first_offset(), b""
    while at < log.offset:
        for begin, batch in log.read(at, 1 << 20):
            found += batch
            at = begin + len(batch)
    return found[start - offset :]
