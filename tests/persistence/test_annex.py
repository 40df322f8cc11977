"""Annexes: large batches that the journal only names, and everything that may happen to them."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from persistence.annex import LEAST, READY
from persistence.log import PART, REST_SECONDS, Log
from persistence.segments import FULL
from persistence.wal import BLOCK, FRAME
from resp.errors import CorruptError
from storage.keyspace import Keyspace
from tests.persistence.datakit import append, checkpoint, commit, crashed, full, opened, until

LARGE = 40_000  # more than half of the ring: without annexes it would go to the journal at once


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@contextmanager
def lent(path: Path, fsync: str = "everysec") -> Iterator[tuple[Log, Keyspace]]:
    """A log that has annexes, and writes to the journal only when flush() is called."""
    with opened(path, appendfsync=fsync, journal_flush_ms=100_000, journal_flush_bytes=1 << 40) as (log, ks, _):
        with log._writing:
            log._exchange(much=True)
        assert len(log.journal.lent()) == READY
        yield log, ks


def flush(log: Log) -> None:
    with log._writing:
        log._flush([])


def rest(log: Log) -> None:
    """As if nothing large had come for a while."""
    log._much -= REST_SECONDS + 1
    log._rest()


def write(log: Log, ks: Keyspace, *sizes: int) -> None:
    """A batch of each size, roughly."""
    for size in sizes:
        append(ks, b"a", 1, pad=size)
        commit(log, ks)


def length(ks: Keyspace) -> int:
    return append(ks, b"a", 0).length


def named(path: Path) -> list[str]:
    return sorted(file.name for file in (path / "journal").iterdir() if file.name.startswith("segment."))


def damage(path: Path, number: int, at: int) -> Path:
    """A copy, with a byte of a segment changed."""
    copy = crashed(path)
    with (copy / "journal" / f"segment.{number}").open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    return copy


def frames(path: Path, number: int) -> int:
    """Heads of frames in a segment, stale ones too."""
    raw = (path / "journal" / f"segment.{number}").read_bytes()
    return sum(raw[at : at + 2] == b"TX" for at in range(0, len(raw), BLOCK))


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_large_batches_are_in_a_segment_and_come_back(path: Path, fsync: str) -> None:
    with lent(path, fsync) as (log, ks):
        write(log, ks, 10, LARGE, 20, LEAST, LEAST, 30)
        assert frames(path, 1) == 3
        with opened(crashed(path)) as (_, again, found):
            assert again.digest() == ks.digest()
            assert (found.wal_batches, found.torn_bytes) == (6, 0)
        flush(log)
        assert log.journal.end == log.offset == log.synced
        assert not list(log.journal.read(0))[1][1].startswith(b"TX")
        with opened(crashed(path)) as (_, again, found):
            assert again.digest() == ks.digest()
            assert (found.journal_batches, found.wal_batches) == (6, 0)
        write(log, ks, LARGE, 10)  # behind those that the journal has
        digest = ks.digest()
        copy = crashed(path)
    for directory in (copy, path):
        with opened(directory) as (_, again, _):
            assert again.digest() == digest


def test_batches_come_from_memory_until_the_journal_names_them(path: Path) -> None:
    with lent(path) as (log, ks):
        write(log, ks, 10, LARGE, 20)
        before = log.read(0, 1 << 30)
        flush(log)
        assert log.read(0, 1 << 30) == before
        assert log.piece(1 << 30) is not None


@pytest.mark.parametrize("number", [3, 60, 600, 3000])
def test_batches_in_parts(path: Path, number: int) -> None:
    with lent(path) as (log, ks):
        assert not log.append_parts([b"too", b"small"])
        assert not log.append_parts([b"x" * (PART - 1)] * 100)
        for _ in range(3):
            for _ in range(number // 3):
                append(ks, b"a", 1, pad=max(4 * PART, 3 * LEAST // number))
            parts = ks.take_parts()
            assert log.append_parts(parts)
        assert b"".join(batch for _, batch in log.read(0, 1 << 30))[-len(b"".join(parts)) :] == b"".join(parts)
        with opened(crashed(path)) as (_, again, found):
            assert (again.digest(), found.wal_batches) == (ks.digest(), 3)
        flush(log)
        with opened(crashed(path)) as (_, again, found):
            assert (again.digest(), found.journal_batches) == (ks.digest(), 3)
        log.configure("always", 1 << 20)
        assert not log.append_parts(parts)


def test_much_at_once_lends_segments(path: Path) -> None:
    with opened(path, appendfsync="everysec", ring_bytes=8 << 20) as (log, ks, _):
        write(log, ks, 300_000)
        until(log.journal.lent)
        write(log, ks, LARGE)
        until(lambda: log.journal.end == log.offset)
        digest = ks.digest()
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == digest


def test_always_writes_to_the_ring(path: Path) -> None:
    with lent(path) as (log, ks):
        write(log, ks, LEAST)
        log.configure("always", 1 << 30)
        assert log.synced < log.offset
        write(log, ks, LEAST)
        assert (frames(path, 1), log.synced) == (1, log.offset), "what was written before is synced, too"


def test_many_segments_one_after_another(path: Path) -> None:
    with lent(path) as (log, ks):
        for _ in range(3):
            for _ in range(READY + 1):
                write(log, ks, 3 << 20, 3 << 20, 3 << 20, 10)
            flush(log)
            with log._writing:
                log._exchange(much=True)
            checkpoint(log, ks)
        assert len(named(path)) < 3 * READY, "they are written again"
        assert sum(file.stat().st_size for file in (path / "journal").glob("segment.*")) < 12 * FULL
        write(log, ks, LARGE)
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == ks.digest()


def test_a_torn_batch_is_dropped_with_all_that_follow(path: Path) -> None:
    with lent(path) as (log, ks):
        write(log, ks, 10, LARGE)
        log.sync()
        write(log, ks, 20, LEAST, LARGE, 30)
        second = BLOCK * -(-(FRAME.size + LARGE) // BLOCK) + BLOCK
        at = next(at for at in range(BLOCK, second + BLOCK, BLOCK) if frame_at(path, at))
        copy = damage(path, 1, at + 100)
        with pytest.raises(CorruptError, match="is missing or damaged"), opened(damage(path, 1, 100)):
            pass  # that one was synced
    with opened(copy) as (log, again, found):
        assert (length(again), found.wal_batches) == (3, 3)
        assert found.torn_bytes
        assert frames(copy, 1) == 1, "nothing that was dropped can be found again"
        write(log, again, 10, LEAST)
        digest = again.digest()
    with opened(copy) as (_, again, _):
        assert again.digest() == digest


def frame_at(path: Path, at: int) -> bool:
    raw = (path / "journal" / "segment.1").read_bytes()
    return raw[at : at + 2] == b"TX"


def test_a_segment_whose_sync_fails_is_not_believed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lent(path) as (log, ks):
        write(log, ks, 10, LARGE, LEAST)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", full)
            with pytest.raises(OSError, match="can't be synced"):
                log.sync()
        assert log.writable()
        assert log.synced < log.offset
        write(log, ks, LARGE)  # to another one
        assert frames(path, 1) == 2
        flush(log)
        assert (log.writable(), log.synced) == (None, log.offset)
        (path / "journal" / "segment.1").write_bytes(b"")  # as if nothing of it had reached the disk
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == ks.digest()


def test_the_journals_sync_of_a_segment_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []
    sync = os.fdatasync
    with lent(path) as (log, ks):
        write(log, ks, LARGE, LEAST)
        fd = log._annexes._begun[0].fd

        def once(which: int) -> None:
            if which == fd and not failed:
                failed.append(which)
                full()
            sync(which)

        monkeypatch.setattr(os, "fdatasync", once)
        flush(log)
        assert failed
        (path / "journal" / "segment.1").write_bytes(b"")
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == ks.digest()


def test_a_segment_that_takes_no_more_leaves_it_to_the_ring(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev = os.pwritev

    def no_room(fd: int, parts: tuple[bytes, bytes], at: int) -> int:
        if fd != log.wal.fd:
            full()
        return pwritev(fd, parts, at)

    with lent(path) as (log, ks):
        write(log, ks, LEAST)
        monkeypatch.setattr(os, "pwritev", no_room)
        write(log, ks, LEAST)
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == ks.digest()


def test_a_clean_end_leaves_nothing_that_earlier_versions_do_not_know(path: Path) -> None:
    with lent(path) as (log, ks):
        write(log, ks, LARGE)
        copy = crashed(path)
        assert (path / "tail").read_bytes()[8] == 3
    assert (path / "tail").read_bytes()[8] == 2
    with opened(copy) as (log, ks, _):
        assert log.journal.lent()
        flush(log)
        assert not log.journal.lent(), "those of before are given back"
        digest = ks.digest()
    assert (copy / "tail").read_bytes()[8] == 2
    with opened(copy) as (log, ks, _):
        checkpoint(log, ks)
        assert named(copy) == []
        assert ks.digest() == digest


def test_what_was_lent_is_not_cut(path: Path) -> None:
    with lent(path) as (log, ks):
        write(log, ks, LARGE)
        checkpoint(log, ks)
        write(log, ks, LARGE)
        flush(log)
        log.cut()
        write(log, ks, LEAST)
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == ks.digest()


def test_unused_segments_go_when_a_checkpoint_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lent(path) as (log, ks):
        write(log, ks, LARGE)
        with monkeypatch.context() as broken:
            broken.setattr(log.store, "write", full)
            with pytest.raises(OSError, match="no space"):
                checkpoint(log, ks)
        assert named(path) == ["segment.1"]
        write(log, ks, LARGE)
        checkpoint(log, ks)
        rest(log)
        assert named(path) == []
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == ks.digest()


def test_what_was_lent_is_given_back_soon_although_small_batches_keep_coming(path: Path) -> None:
    with opened(path, appendfsync="everysec", ring_bytes=8 << 20, journal_flush_ms=10) as (log, ks, _):
        write(log, ks, 300_000)
        until(log.journal.lent)
        write(log, ks, LARGE, LARGE)
        until(lambda: log.journal.end == log.offset)
        checkpoint(log, ks)
        assert named(path)
        log._much -= REST_SECONDS  # as if it had been that long ago

        def all_gone() -> bool:
            write(log, ks, 10)
            return not named(path)

        until(all_gone)
        write(log, ks, 300_000, 10)
        until(log.journal.lent)
        digest = ks.digest()
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == digest


def test_after_a_crash_only_segments_with_batches_stay(path: Path) -> None:
    with lent(path) as (log, ks):
        write(log, ks, LARGE)
        flush(log)
        write(log, ks, LARGE)
        digest, copy = ks.digest(), crashed(path)
    assert len(named(copy)) == READY
    with opened(copy, appendfsync="everysec", journal_flush_ms=100_000) as (log, ks, _):
        rest(log)
        assert len(named(copy)) == READY, "the journal lacks a frame"
        flush(log)
        rest(log)
        assert named(copy) == ["segment.1"], "a batch that the journal had named lies there"
        checkpoint(log, ks)
        rest(log)
        assert named(copy) == []
        assert ks.digest() == digest


def test_no_descriptor_is_left(path: Path) -> None:
    with lent(path):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with lent(path) as (log, ks):
            write(log, ks, LARGE)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens(path: Path, seed: int) -> None:
    """Batches of all sizes, flushes, syncs, checkpoints, and crashes in between: all is there each time."""
    rng = random.Random(seed)
    for _ in range(4):
        with lent(path) as (log, ks):
            for _ in range(60):
                what = rng.random()
                if what < 0.75:
                    write(log, ks, rng.choice((10, 3000, LEAST, LARGE, 1 << 20)))
                elif what < 0.85:
                    flush(log)
                elif what < 0.9:
                    with log._writing:
                        log._exchange(much=rng.random() < 0.5, idle=rng.random() < 0.5)
                elif what < 0.95:
                    log.sync()
                else:
                    checkpoint(log, ks)
            digest = ks.digest()
            copy = crashed(path)
        with opened(copy) as (_, again, found):
            assert (again.digest(), found.torn_bytes) == (digest, 0)
        path = copy


def test_annexes_of_before_stay_lent_until_the_journal_has_their_frames(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lent(path) as (log, ks):
        write(log, ks, 10, LARGE, LARGE, 10)
        digest, copy = ks.digest(), crashed(path)
    with opened(copy, appendfsync="everysec", journal_flush_ms=100_000) as (log, again, _):
        assert again.digest() == digest
        with monkeypatch.context() as broken:
            broken.setattr(log.journal, "write", full)
            with pytest.raises(OSError):
                checkpoint(log, again)
            later = crashed(copy)
    with opened(later) as (_, again, _):
        assert again.digest() == digest


class FailingCommits:
    """An LMDB environment whose write transactions fail at their end."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    @contextmanager
    def begin(self, **options: Any) -> Iterator[lmdb.Transaction]:
        txn = self._env.begin(**options)
        try:
            yield txn
        finally:
            txn.abort()
        if options.get("write"):
            raise lmdb.DiskError("no space left")


def test_segments_that_could_not_be_given_back_are_not_cut(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with lent(path) as (log, ks):
        write(log, ks, *[3 << 20] * 3, LARGE)  # the first one is full
        exchange = log.journal.exchange

        def failing(*given: Any) -> list[int]:
            with monkeypatch.context() as broken:
                broken.setattr(log.journal, "_env", FailingCommits(log.journal._env))
                return exchange(*given)

        with monkeypatch.context() as broken:
            broken.setattr(log.journal, "exchange", failing)
            flush(log)
        cut = log.journal.cut
        monkeypatch.setattr(log.journal, "cut", lambda offset, keep: cut(offset, keep=True))  # to be written again
        checkpoint(log, ks)
        write(log, ks, 10)
        flush(log)
        write(log, ks, 10)
        checkpoint(log, ks)
        with log._writing:
            log._exchange(much=False, idle=True)
            log._exchange(much=True)
        write(log, ks, *[5 << 20] * 8)
        digest = ks.digest()
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == digest


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_a_segment_that_failed_is_no_trouble_once_the_journal_has_its_frames(
    path: Path, fsync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lent(path) as (log, ks):
        write(log, ks, LARGE)
        with monkeypatch.context() as broken:
            broken.setattr(os, "fdatasync", full)
            with pytest.raises(OSError):
                log.sync()
        flush(log)
        log.configure(fsync, 1 << 30)
        write(log, ks, 10, 10)
        log.sync()
        assert log.writable() is None
        digest = ks.digest()
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == digest
