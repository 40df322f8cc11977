"""The log as a whole: what was acknowledged comes back, whatever happened."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from persistence import log as logfile
from persistence.journal import Journal
from persistence.log import REST_SECONDS, Log
from persistence.store import Store
from persistence.wal import BLOCK, Frame
from resp.errors import CorruptError
from tests.persistence.datakit import (
    RING,
    append,
    checkpoint,
    commit,
    crashed,
    crashed_while_writing,
    full,
    group,
    opened,
    options,
    until,
)  # fmt: skip
from tests.storage.streams.captures import all_stored, whole_capture


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


# -- what comes back -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_each_batch_is_there_after_a_crash(path: Path, fsync: str) -> None:
    with opened(path, appendfsync=fsync) as (log, ks, _):
        for turn in range(60):
            append(ks, b"a", 1, pad=turn * 40)
            ks.set_string(b"n", b"%d" % turn)
            if turn == 20:
                checkpoint(log, ks)
            commit(log, ks)
            if turn % 7 == 0:
                with opened(crashed(path)) as (_, again, found):
                    assert again.digest() == ks.digest()
                    assert not found.torn_bytes
        digest = ks.digest()
    with opened(path) as (log, again, found):
        assert again.digest() == digest
        assert (found.streams, found.nodes, found.strings) == (1, 3, 1)
        assert found.journal_batches == 39  # all but the first 21 ticks, which the store has
        assert found.wal_batches == 0  # a proper end leaves nothing there
        assert log.offset == log.journal.end


def test_a_start_reports_what_it_found(path: Path) -> None:
    with opened(path, journal_flush_ms=100_000) as (log, ks, found):
        seconds = f"{found.store_seconds:.3f}"
        assert found.lines() == [f"Recovered from the store: streams=0 nodes=0 strings=0 seconds={seconds}"]
        append(ks, b"a", 3)
        commit(log, ks)
        size = log.offset
        append(ks, b"a", 1, pad=50)
        torn = log.wal.end
        commit(log, ks)
        copy = crashed(path)
    with (copy / "tail").open("r+b") as file:
        file.seek(BLOCK + torn + 60)
        file.write(b"?")
    with opened(copy) as (_, _, found):
        assert (found.wal_batches, found.replayed_bytes) == (1, size)
        assert "batches=0 and from the WAL: batches=1" in found.lines()[1]
        assert "Dropped the torn end of the WAL" in found.lines()[2]


def test_damage_before_the_end_of_the_wal_is_refused(path: Path) -> None:
    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        for _ in range(3):
            append(ks, b"a", 1)
            commit(log, ks)
        copy = crashed(path)
    with (copy / "tail").open("r+b") as file:
        file.seek(2 * BLOCK + 40)
        file.write(b"?")
    with pytest.raises(CorruptError, match=f"{copy / 'tail'}.*backup"), opened(copy):
        pass


def test_everysec_may_lose_only_what_was_not_synced(path: Path) -> None:
    with opened(path, appendfsync="everysec", journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        assert log.pending_sync
        log.sync()
        assert not log.pending_sync
        for _ in range(3):
            append(ks, b"a", 1)
            commit(log, ks)
        copy = crashed(path)

    def damage(frame: int) -> Path:
        other = crashed(copy)
        with (other / "tail").open("r+b") as file:
            file.seek(BLOCK + frame * BLOCK + 40)
            file.write(b"?")
        return other

    with opened(damage(2)) as (_, again, found):  # its block did not reach the disk, the one after it did
        assert append(again, b"a", 0).length == 2
        assert found.torn_bytes
    with pytest.raises(CorruptError), opened(damage(0)):  # that one had been synced
        pass


def test_appendfsync_no_leaves_syncing_to_the_system(path: Path) -> None:
    with opened(path, appendfsync="no") as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        assert not log.pending_sync
        assert log.syncs == 0
        log.configure("everysec", 1 << 20)  # CONFIG SET: what came before is synced too
        assert log.pending_sync
        log.configure("always", 1 << 20)
        append(ks, b"a", 1)
        commit(log, ks)
        assert log.syncs == 1
        log.configure("no", 1 << 20)
        append(ks, b"a", 1)
        commit(log, ks)
        assert log.syncs == 1


@pytest.mark.interpreted
@pytest.mark.parametrize("appendfsync", ["always", "everysec"])
def test_the_duration_of_a_sync(path: Path, monkeypatch: pytest.MonkeyPatch, appendfsync: str) -> None:
    with opened(path, appendfsync=appendfsync) as (log, ks, _):
        assert log.last_sync_us == 0
        monkeypatch.setattr(log.wal, "sync", lambda: time.sleep(0.003))
        append(ks, b"a", 1)
        commit(log, ks)
        if appendfsync == "everysec":
            log.sync()
        assert 3000 <= log.last_sync_us < 60_000_000


def test_the_store_never_runs_ahead_of_the_journal(path: Path) -> None:
    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 5)
        checkpoint(log, ks)
        assert log.store.offset == log.journal.end == log.offset > 0
        assert log.journal.first() == log.offset  # and the journal is cut there


# -- the ring ------------------------------------------------------------------------------------------------
def test_a_ring_that_wraps_many_times(path: Path) -> None:
    rng = random.Random(3)
    with opened(path, journal_flush_ms=1, journal_flush_bytes=9000) as (log, ks, _):
        for turn in range(400):
            append(ks, b"a", 1, pad=rng.choice((0, 10, 4000, 9000)))
            commit(log, ks)
            if turn % 80 == 79:
                with opened(crashed_while_writing(path, log)) as (_, again, _):
                    assert again.digest() == ks.digest()
        assert log.offset > 10 * RING
        digest = ks.digest()
    with opened(path) as (_, again, _):
        assert again.digest() == digest


def test_a_full_ring_waits_for_the_journal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    write = Journal.write

    def slowly(self: Journal, batches: list[Frame]) -> None:
        assert gate.wait(20)
        write(self, batches)

    monkeypatch.setattr(Journal, "write", slowly)
    with opened(path, journal_flush_ms=1) as (log, ks, _):
        threading.Timer(0.2, gate.set).start()
        for _ in range(20):
            append(ks, b"a", 1, pad=8000)
            commit(log, ks)
        assert gate.is_set(), "the ring took more than it holds"
        assert append(ks, b"a", 0).length == 20
        digest = ks.digest()
    with opened(path) as (_, again, _):
        assert again.digest() == digest


@pytest.mark.parametrize("size", [RING // 2 - 100, RING // 2 + 1, RING - 64, RING, 10 * RING])
def test_batches_as_large_as_the_ring_and_larger(path: Path, size: int) -> None:
    with opened(path, journal_flush_ms=1) as (log, ks, _):
        for number in range(4):
            append(ks, b"a", 1)
            commit(log, ks)
            ks.set_string(b"s%d" % number, b"x" * size)
            commit(log, ks)
            with opened(crashed_while_writing(path, log)) as (_, again, _):
                assert again.digest() == ks.digest()
        digest = ks.digest()
    with opened(path) as (_, again, _):
        assert again.digest() == digest


@pytest.mark.interpreted
def test_a_batch_that_no_file_can_hold_is_an_oserror(path: Path) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with opened(path) as (log, _, _), pytest.raises(OSError, match="more than can be stored") as refusal:
        log.append(Huge())
    assert refusal.value.errno == errno.EFBIG


@pytest.mark.parametrize("size", [RING * 2, RING // 4, RING + 1])
def test_the_ring_may_change_its_size(path: Path, size: int) -> None:
    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        append(ks, b"a", 5)
        commit(log, ks)
        digest = ks.digest()
        copy = crashed(path)
    with opened(copy, ring_bytes=size) as (log, again, found):
        assert found.wal_batches == 1
        assert log.wal.size == -(-size // BLOCK) * BLOCK
        assert again.digest() == digest
        append(again, b"a", 1)
        commit(log, again)
        second = crashed_while_writing(copy, log)
    with opened(second, ring_bytes=size) as (_, third, found):
        assert third.digest() == again.digest()
        assert not found.resize_problem


@pytest.mark.interpreted
def test_no_room_for_another_ring_keeps_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(path) as (log, ks, _):
        append(ks, b"a", 5)
        commit(log, ks)
    monkeypatch.setattr(logfile, "create", full)
    with opened(path, ring_bytes=2 * RING) as (log, ks, found):
        assert "no space left" in found.lines()[-1]
        assert log.wal.size == RING
        append(ks, b"a", 5)
        commit(log, ks)
        copy = crashed_while_writing(path, log)
    with opened(copy) as (_, again, _):
        assert append(again, b"a", 0).length == 10


# -- checkpoints that do not end -----------------------------------------------------------------------------
POINTS = ["before the journal", "before the store", "after the store", "between two cuts", "after all"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.interpreted
def test_a_crash_anywhere_in_a_checkpoint(path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    monkeypatch.setattr("persistence.journal.TRUNCATE_AT_ONCE", 2)
    copies: list[Path] = []

    def copying(function: Callable[..., object], name: str, after: bool) -> Callable[..., object]:
        def wrapped(*args: object) -> object:
            if not after and name == point and not copies:
                copies.append(crashed(path))
            result = function(*args)
            if after and name == point and not copies:
                copies.append(crashed(path))
            return result

        return wrapped

    with opened(path, journal_flush_ms=100_000) as (log, ks, _):
        for turn in range(9):
            append(ks, b"a", 5)
            group(ks, b"b", b"g", turn + 1)
            ks.log.clear()  # its record is made up
            ks.set_string(b"s%d" % turn, b"x" * 500)
            commit(log, ks)
        checkpoint(log, ks)
        append(ks, b"a", 5)
        ks.evict(b"a", append(ks, b"a", 0), 12, 12 << 64)
        ks.remove(b"s1")
        for _ in range(6):
            append(ks, b"a", 3)
            commit(log, ks)
        digest = ks.digest()
        monkeypatch.setattr(Log, "_flush", copying(Log._flush, "before the journal", False))
        write = copying(Store.write, "after the store", True)
        monkeypatch.setattr(Store, "write", copying(write, "before the store", False))
        monkeypatch.setattr(Journal, "truncate", copying(Journal.truncate, "between two cuts", True))
        checkpoint(log, ks)
        if point == "after all":
            copies.append(crashed(path))
        monkeypatch.undo()
        assert ks.digest() == digest
    with opened(copies[0]) as (log, again, _):
        assert again.digest() == digest
        append(again, b"a", 30)
        checkpoint(log, again)
        after = again.digest()
    with opened(copies[0]) as (_, third, _):
        assert third.digest() == after


# -- threads -------------------------------------------------------------------------------------------------
def test_a_hurry_that_comes_too_late_does_not_keep_the_journals_thread_busy(path: Path) -> None:
    """The ring was full while its last batches were on their way: then nothing waits, and nothing is to be done."""
    with opened(path) as (log, ks, _):
        append(ks, b"a", 1)
        commit(log, ks)
        with log._lock:
            log._hurry = True
            log._lock.notify_all()
        deadline = time.monotonic() + 10
        while log._hurry or log._waiting:
            assert time.monotonic() < deadline, "it runs on and on"
            time.sleep(0.001)
        with log._lock:
            log._hurry = True  # nothing waits now
            log._lock.notify_all()
        while log._hurry:
            assert time.monotonic() < deadline, "it runs on and on"
            time.sleep(0.001)


def test_appends_checkpoints_syncs_and_reads_at_once(path: Path) -> None:
    """The server's four threads on a small ring; a deadlock is a timeout."""
    with opened(path, ring_bytes=RING, journal_flush_ms=1, appendfsync="everysec") as (log, ks, _):
        stop, problems = threading.Event(), []

        def syncing() -> None:
            try:
                while not stop.is_set():
                    log.sync()
                    log.stats()
            except Exception as error:  # noqa: BLE001
                problems.append(error)

        thread = threading.Thread(target=syncing)
        thread.start()
        rng = random.Random(1)
        running: threading.Thread | None = None
        capture = None
        checkpoints = 0
        deadline = time.monotonic() + 60
        while checkpoints < 6 or log.offset < 40 * RING:
            assert time.monotonic() < deadline, "checkpoints don't come to an end"
            append(ks, b"a", rng.choice((1, 5)), pad=rng.choice((10, 3000)))
            if rng.random() < 0.02:
                ks.set_string(b"big", b"x" * 2 * RING)
            commit(log, ks)
            stream = append(ks, b"a", 0)
            if stream.length > 300:
                ks.evict(b"a", stream, stream.first_ord + 100, stream.id_at(stream.first_ord + 99))
            assert stream.read(stream.first_ord, min(stream.first_ord + 20, stream.next_ord))
            if running is None:
                commit(log, ks)  # a capture belongs to a log offset
                capture = whole_capture(ks)
                running = threading.Thread(target=log.checkpoint, args=(capture, log.offset))
                running.start()
            elif not running.is_alive():
                assert capture is not None
                log.renew_view()
                all_stored(ks, capture)
                running, checkpoints = None, checkpoints + 1
        stop.set()
        thread.join()
        if running is not None and capture is not None:
            running.join()
            log.renew_view()
            all_stored(ks, capture)
        commit(log, ks)
        assert not problems
        assert log.writable() is None
        digest = ks.digest()
    with opened(path) as (_, again, _):
        assert again.digest() == digest


def test_spare_segments_are_kept_under_load_and_go_soon_after_it_although_small_batches_keep_coming(path: Path) -> None:
    def segments() -> int:
        return sum(file.name.startswith("segment.") for file in (path / "journal").iterdir())

    with opened(path, appendfsync="everysec", ring_bytes=8 << 20, journal_flush_ms=10) as (log, ks, _):
        append(ks, b"a", 1, pad=300_000)
        checkpoint(log, ks)
        assert segments() == 1, "it will be written again"
        log._much -= REST_SECONDS  # as if it had been that long ago

        def all_gone() -> bool:
            append(ks, b"a", 1)
            commit(log, ks)
            return not segments()

        until(all_gone)
        append(ks, b"a", 1, pad=300_000)
        commit(log, ks)
        until(lambda: log.journal.end == log.offset)
        assert segments() == 1
        digest = ks.digest()
        with opened(crashed(path)) as (_, again, _):
            assert again.digest() == digest


def test_a_journal_that_can_not_be_written_keeps_no_spare_segments(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Journal.write

    def refused(journal: Journal, batches: list[Frame]) -> None:
        if journal.spare:
            full()
        write(journal, batches)

    with opened(path, appendfsync="everysec", ring_bytes=8 << 20, journal_flush_ms=10) as (log, ks, _):
        append(ks, b"a", 1, pad=300_000)
        checkpoint(log, ks)
        assert log.journal.spare
        monkeypatch.setattr(Journal, "write", refused)
        append(ks, b"a", 1)
        commit(log, ks)
        until(lambda: log.journal.end == log.offset)
        assert log.writable() is None


def test_no_descriptor_or_thread_is_left(path: Path) -> None:
    with opened(path):
        pass
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(5):
        with opened(path) as (log, ks, _):
            append(ks, b"a", 1)
            commit(log, ks)
        log.close()  # again: nothing
    (path / "tail").write_bytes(b"")
    for _ in range(3):
        with pytest.raises(CorruptError):
            Log.open(path, options())
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
