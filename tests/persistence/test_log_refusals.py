"""The log refuses writes while the disk does, loses nothing, and recovers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from persistence import journal as journalfile
from persistence import log as logfile
from persistence.backlog import NOTHING
from persistence.journal import Journal
from persistence.log import Log
from persistence.store import Store
from persistence.wal import BLOCK, FRAME, Wal
from resp.errors import CorruptError
from tests.persistence.datakit import (  # fmt: skip
    RING,
    append,
    checkpoint,
    commit,
    crashed,
    crashed_while_writing,
    flush,
    full,
    opened,
    until,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def fill(log: Log) -> None:
    """Append until the ring is full."""
    while True:
        log.append(b"x" * 8000)


# -- a disk that refuses -------------------------------------------------------------------------------------
def test_a_journal_that_can_not_be_written_refuses_and_heals(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logfile, "RETRY_SECONDS", 0.01)
    with opened(path) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        until(lambda: log.journal.end == log.offset)
        assert log.writable() is None
        write = Journal.write
        monkeypatch.setattr(Journal, "write", full)
        append(ks, b"a", 1)
        commit(log, ks)  # the ring has room: nothing is lost, and the server is told
        until(log.writable)
        assert "no space left" in str(log.writable())
        digest = ks.digest()
        with opened(crashed(path), journal_flush_ms=100_000) as (_, again, _):
            assert again.digest() == digest
        with pytest.raises(OSError, match="no space left"):
            fill(log)
        offset = log.offset
        with pytest.raises(OSError, match="no space left"):
            log.append(b"x" * 2 * RING)
        assert log.offset == offset
        monkeypatch.setattr(Journal, "write", write)
        until(lambda: log.writable() is None)
        log.append(b"")
        until(lambda: log.journal.end == log.offset)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a bug"), CorruptError("damaged")])
def test_the_journals_thread_survives_anything(path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(logfile, "RETRY_SECONDS", 0.01)
    write = Journal.write

    def broken(*args: object) -> None:
        raise error

    with opened(path) as (log, ks, _):
        monkeypatch.setattr(Journal, "write", broken)
        append(ks, b"a", 1)
        commit(log, ks)
        until(log.writable)
        monkeypatch.setattr(Journal, "write", write)
        until(lambda: log.writable() is None and log.journal.end == log.offset)


def test_a_close_with_a_full_disk_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as (log, ks, _):
        monkeypatch.setattr(Journal, "write", full)
        append(ks, b"a", 7)
        commit(log, ks)
    monkeypatch.undo()
    with opened(path) as (_, again, found):
        assert found.wal_batches == 1
        assert append(again, b"a", 0).length == 7


@pytest.mark.interpreted
def test_a_sync_that_works_after_one_that_failed_proves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames state what is on disk, and a later loss of that is damage: they must not claim too much."""
    with opened(path, appendfsync="everysec", journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        monkeypatch.setattr(Wal, "sync", full)
        with pytest.raises(OSError, match="no space left"):
            log.sync()
        monkeypatch.undo()
        log.sync()
        place = log.wal.end
        append(ks, b"a", 1)
        commit(log, ks)
        raw = os.pread(log.wal.fd, FRAME.size, BLOCK + place)
        assert FRAME.unpack(raw)[3] == 0  # nothing is known to be on disk


@pytest.mark.parametrize("what", ["write", "sync"])
@pytest.mark.interpreted
def test_an_append_that_failed_changed_nothing_and_may_be_tried_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with opened(path) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        append(ks, b"a", 1)
        batch, offset = ks.take_batch(), log.offset
        monkeypatch.setattr(Wal, what, full)
        for _ in range(3):
            with pytest.raises(OSError, match="no space left"):
                log.append(batch)
        assert log.offset == offset
        monkeypatch.undo()
        log.append(batch)
        digest = ks.digest()
        with opened(crashed_while_writing(path, log)) as (_, again, _):
            assert again.digest() == digest


@pytest.mark.interpreted
def test_after_a_failed_sync_of_everysec_the_journal_must_have_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have dropped what it could not write, so a later sync that succeeds proves nothing."""
    with opened(path, appendfsync="everysec", journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        monkeypatch.setattr(Wal, "sync", full)
        with pytest.raises(OSError, match="no space left"):
            log.sync()
        monkeypatch.undo()
        assert "can't be synced" in str(log.writable())
        log.sync()
        assert log.writable() is not None
        log.configure("always", 1 << 30)
        append(ks, b"a", 1)
        batch = ks.take_batch()
        with pytest.raises(OSError, match="can't be synced"):
            log.append(batch)  # what comes before it may be gone
        flush(log)
        assert log.writable() is None
        log.append(batch)


@pytest.mark.interpreted
def test_a_failed_sync_of_always_covers_what_everysec_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path, appendfsync="everysec", journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        log.configure("always", 1 << 30)
        append(ks, b"a", 1)
        batch = ks.take_batch()
        monkeypatch.setattr(Wal, "sync", full)
        with pytest.raises(OSError, match="no space left"):
            log.append(batch)
        monkeypatch.undo()
        with pytest.raises(OSError, match="can't be synced"):
            log.append(batch)
        flush(log)
        log.append(batch)
        digest = ks.digest()
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == digest


def test_a_checkpoint_that_failed_refuses_writes_until_one_succeeds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as (log, ks, _):
        append(ks, b"a", 25)
        commit(log, ks)
        monkeypatch.setattr(Store, "write", full)
        with pytest.raises(OSError, match="no space left"):
            checkpoint(log, ks)
        assert "the last checkpoint failed" in str(log.writable())
        assert log.wants_checkpoint()
        assert append(ks, b"a", 0).read(0, 25)  # reads live
        monkeypatch.undo()
        checkpoint(log, ks)
        assert log.writable() is None
        assert not log.wants_checkpoint()


def test_a_checkpoint_of_nothing_needs_no_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as (log, ks, _):
        append(ks, b"a", 25)
        checkpoint(log, ks)
        monkeypatch.setattr(Store, "write", full)
        checkpoint(log, ks)
        assert log.writable() is None


# -- a journal with little room ------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [1, 3])
@pytest.mark.parametrize("retain", [0, NOTHING])
def test_a_full_journal_refuses_until_a_checkpoint_which_always_finds_room(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, retain: int
) -> None:
    """Its map is as small as under a limit of address space; a replica may want all of it."""
    monkeypatch.setattr(journalfile, "MAP_SIZE", 4 << 20)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)  # of thousands of batches; nothing is killed here
    rng = random.Random(seed)
    with opened(path, ring_bytes=256 << 10) as (log, ks, _):
        log.retain = retain
        for _ in range(5):
            largest = rng.choice([300, 3000, 9000, 60_000])
            for _ in range(60_000):
                if log.writable() is not None:
                    break
                append(ks, b"a", 1, pad=rng.randrange(largest))
                commit(log, ks)
            assert "the journal is full until a checkpoint is done" in str(log.writable())
            assert log.wants_checkpoint()
            checkpoint(log, ks)
            assert log.writable() is None
        digest = ks.digest()
    with opened(path) as (_, again, _):
        assert again.digest() == digest


def test_many_changed_streams_let_the_journal_grow_longer(path: Path) -> None:
    with opened(path) as (log, ks, _):
        log.options.checkpoint_bytes = 1 << 20
        append(ks, b"a", 20, pad=60_000)
        commit(log, ks)
        assert log.wants_checkpoint()
        assert log.wants_checkpoint(1)
        assert not log.wants_checkpoint(1000)
        for _ in range(2):
            append(ks, b"a", 20, pad=60_000)
            commit(log, ks)
        assert not log.wants_checkpoint(1_000_000)
        append(ks, b"a", 20, pad=60_000)
        commit(log, ks)
        assert log.wants_checkpoint(1_000_000)
        checkpoint(log, ks)
        assert not log.wants_checkpoint()


def test_a_full_journal_whose_cut_fails_wants_another_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes are refused, so nothing else would ever ask for one."""
    monkeypatch.setattr(journalfile, "MAP_SIZE", 4 << 20)
    with opened(path, ring_bytes=256 << 10) as (log, ks, _):
        while log.writable() is None:
            append(ks, b"a", 1, pad=9000)
            commit(log, ks)
        with monkeypatch.context() as refused:
            refused.setattr(Journal, "truncate", full)
            checkpoint(log, ks)
        assert log.writable() is not None
        assert log.wants_checkpoint()
        checkpoint(log, ks)
        assert log.writable() is None
        assert not log.wants_checkpoint()


def test_a_batch_that_the_map_can_never_hold_is_a_memory_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An OSError would let it wait for a checkpoint, which waits for it."""
    monkeypatch.setattr(journalfile, "MAP_SIZE", 4 << 20)
    monkeypatch.setattr(journalfile, "MUCH", 1 << 40)  # segments need no room in the map
    with opened(path, ring_bytes=256 << 10) as (log, ks, _):
        log.retain = 0
        append(ks, b"a", 500, pad=4000)
        checkpoint(log, ks)
        append(ks, b"a", 1, pad=2_500_000)  # room is made of what only a replica would like to have
        commit(log, ks)
        digest, offset = ks.digest(), log.offset
        with pytest.raises(MemoryError, match="address space"):
            log.append(b"x" * (5 << 20))
        assert log.offset == offset
    with opened(path) as (_, again, _):
        assert again.digest() == digest
