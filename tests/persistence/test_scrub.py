"""The scrub: what it reads, and the damage that it finds. The rate is in tests/respserver/maintenance."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import shake_256
from pathlib import Path
from typing import Any

import pytest

from persistence.lmdbreads import MissedError
from persistence.log import Log
from persistence.scrub import ATTEMPTS, DAY_MS, SMALLEST, Scrub
from persistence.storecopy import NODES, STREAMS
from persistence.verification import VerifyReport, verify
from storage.keyspace.keyspace import Keyspace
from tests.persistence.datakit import append, checkpoint, commit, opened
from tests.persistence.lmdbdamage import DEPTH, PAGE, LmdbFile


def noise(number: int) -> bytes:
    """What does not compress, so that the pages of a node hold it as it is."""
    return shake_256(b"%d" % number).digest(3000)


def fill(ks: Keyspace) -> None:
    stream = ks.create_stream(b"s")
    for number in range(200):
        body = noise(number)
        ks.append(b"s", stream, number + 1, 0, b"*1\r\n$%d\r\n%b\r\n" % (len(body), body))
    for number in range(100):
        append(ks, b"small%d" % number, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as (log, ks, _):
        fill(ks)
        checkpoint(log, ks)
        append(ks, b"later", 3)
        commit(log, ks)
    return tmp_path / "data"


def flip(path: Path, at: int) -> None:
    """Flip a bit of a file that may be in use."""
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes((os.pread(fd, 1, at)[0] ^ 1,)), at)
    os.close(fd)


def damage_node(path: Path, number: int = 55) -> None:
    """Damage the node of an entry of the stream "s"."""
    data = path / "store" / "data.mdb"
    flip(data, data.read_bytes().index(noise(number)[:32]) + 32)


def passed(scrub: Scrub, most: int = 1 << 20) -> Iterator[int]:
    """Run a pass. Yield the cost of each step."""
    scrub.begin(5)
    while scrub.running:
        yield scrub.step(most, 7)


def test_a_pass_reads_everything_in_small_steps(path: Path) -> None:
    with opened(path) as (log, _, _):
        scrub = log.scrub
        costs = list(passed(scrub, 64 << 10))
        assert len(costs) > 10
        assert max(costs) < (64 << 10) + 40_000  # one node more
        assert sum(costs) >= 200 * 3000 + 100 * SMALLEST
        assert scrub.read >= 200 * 3000
        assert scrub.read <= scrub.total
        assert (scrub.damage, scrub.passes, scrub.began, scrub.ended) == ([], 1, 5, 7)
        assert log.store.env.info()["num_readers"] <= 2  # none is left open
        assert not any(scrub.is_due(now) for now in (5, 4 + DAY_MS, 6 - DAY_MS))
        assert all(scrub.is_due(now) for now in (5 + DAY_MS, 5 - DAY_MS)), "also if the clock was set back by a day"


def test_damage_of_a_running_store_is_found_and_the_pass_continues(path: Path) -> None:
    with opened(path) as (log, ks, _):
        damage_node(path)
        damage_node(path, 125)
        assert len(list(passed(log.scrub))) > 0
        assert [each.node for each in log.scrub.damage] == [(1, 50, 51 << 64), (1, 120, 121 << 64)]
        assert "checksum" in str(log.scrub.damage[0])
        assert log.scrub.passes == 1
        append(ks, b"other", 1)  # the store continues to work
        checkpoint(log, ks)


def test_damage_is_known_until_it_is_repaired(path: Path) -> None:
    with opened(path) as (log, ks, _):
        damage_node(path)
        list(passed(log.scrub))
    with opened(path) as (log, ks, _):
        scrub = log.scrub
        assert scrub.damaged == 1  # after a restart
        assert scrub.needs_recheck()
        scrub.recheck()
        assert (scrub.damaged, scrub.needs_recheck()) == (1, False)
        damage_node(path)  # flips the bit back
        append(ks, b"other", 1)
        checkpoint(log, ks)
        assert scrub.needs_recheck()
        scrub.recheck()
        assert (scrub.damaged, scrub.repaired) == (0, 1)


def test_a_repair_during_a_check_is_checked_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, it would count as damaged until the next checkpoint."""
    with opened(path) as (log, _, _):
        damage_node(path)
        list(passed(log.scrub))
        read = log.scrub._read

        def slow(*place: Any) -> Any:
            found = read(*place)
            damage_node(path)  # flips the bit back
            log.scrub.check_again()
            return found

        monkeypatch.setattr(log.scrub, "_read", slow)
        log.scrub.recheck()
        monkeypatch.undo()
        assert log.scrub.damaged
        assert log.scrub.needs_recheck()
        log.scrub.recheck()
        assert not log.scrub.damaged


def test_damage_that_is_removed_is_no_repair(path: Path) -> None:
    with opened(path) as (log, ks, _):
        damage_node(path)
        list(passed(log.scrub))
        ks.remove(b"s")
        checkpoint(log, ks)
        log.scrub.recheck()
        assert (log.scrub.damaged, log.scrub.repaired) == (0, 0)


@pytest.mark.parametrize("name", [b"nodes", b"streams"])
def test_a_damaged_tree_page_is_found_and_not_followed(path: Path, name: bytes) -> None:
    with opened(path) as (log, _, _):
        file = LmdbFile(path / "store" / "data.mdb")
        start = next(file.separators(name))[0]
        flip(path / "store" / "data.mdb", start // PAGE * PAGE)  # the page's own number
        list(passed(log.scrub))
        (damage,) = log.scrub.damage
        assert damage.db == {b"nodes": NODES, b"streams": STREAMS}[name]
        assert damage.node is None
        assert "is damaged" in str(damage)


def test_a_database_whose_depth_is_damaged(path: Path) -> None:
    with opened(path) as (log, _, _):
        data = path / "store" / "data.mdb"
        flip(data, LmdbFile(data).names()[b"meta"] + len(b"meta") + DEPTH)  # 0 instead of 1
        list(passed(log.scrub))
        (damage,) = log.scrub.damage
        assert str(damage).endswith("of meta: the depth of the database is invalid")


def test_a_pass_continues_after_a_restart(path: Path) -> None:
    with opened(path) as (log, _, _):
        log.scrub.begin(5)
        first = 0
        while first < 100_000:
            first += log.scrub.step(50_000, 6)
        log.scrub.save()
    with opened(path) as (log, _, _):
        assert log.scrub.running
        rest = 0
        while log.scrub.running:
            rest += log.scrub.step(1 << 20, 8)
        whole = sum(passed(log.scrub))
        assert first + rest == pytest.approx(whole, abs=40_000)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"db": 99, "key": ""}'])
def test_an_invalid_state_is_as_none(path: Path, text: str) -> None:
    (path / "scrub").write_text(text)
    with opened(path) as (log, _, _):
        assert (log.scrub.running, log.scrub.began, log.scrub.damaged) == (False, 0, 0)


def test_checkpoints_during_a_pass_are_no_damage(path: Path) -> None:
    with opened(path) as (log, ks, _):
        log.scrub.begin(5)
        while log.scrub.running:
            log.scrub.step(50_000, 7)
            append(ks, b"more", 20, pad=100)
            checkpoint(log, ks)
        assert log.scrub.damage == []


# -- verify ------------------------------------------------------------------------------------------------------
def verified(path: Path) -> VerifyReport:
    shown: list[tuple[int, int]] = []
    before = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file() and file.name != "lock.mdb"}
    report = verify(path, lambda done, total: shown.append((done, total)))
    after = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file() and file.name != "lock.mdb"}
    assert before == after
    if not report.problems:
        assert shown
        assert shown[-1][0] == report.bytes
    return report


def test_verify_reads_store_journal_and_wal(path: Path) -> None:
    report = verified(path)
    assert report.problems == []
    assert (report.streams, report.nodes) == (101, 20 + 100)
    assert report.journal_batches + report.wal_batches >= 1
    with opened(path) as (log, _, _):
        assert report.log_offset == log.offset


def test_verify_lists_all_damaged_nodes(path: Path) -> None:
    damage_node(path)
    damage_node(path, 125)
    report = verified(path)
    assert len(report.problems) == 2
    assert "node 50 of stream 1" in report.problems[0]
    assert "node 120 of stream 1" in report.problems[1]


def test_verify_finds_damage_of_the_journal(path: Path) -> None:
    data = path / "journal" / "data.mdb"
    flip(data, data.read_bytes().rindex(b"later") + 2)
    report = verified(path)
    assert len(report.problems) == 1
    assert "journal" in report.problems[0]


def test_verify_refuses_a_directory_in_use(path: Path) -> None:
    with opened(path), pytest.raises(OSError, match="in use by another tidelog-server"):
        verify(path, lambda _done, _total: None)


def test_a_log_that_is_closed_ends_a_step(path: Path) -> None:
    log: Log
    with opened(path) as (log, _, _):
        log.scrub.begin(5)
    with pytest.raises(OSError, match="closed"):
        log.scrub.step(1000, 7)


def test_what_is_missed_because_of_other_transactions_is_read_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is not verified is not damaged."""
    with opened(path) as (log, _, _):
        scrub, missed = log.scrub, list(range(2 * ATTEMPTS))
        damage_node(path)
        attempt = scrub._attempt

        def changing(db: int, start: bytes, most: int) -> Any:
            if missed:
                raise MissedError(missed.pop(), "its transaction has ended")
            return attempt(db, start, most)

        monkeypatch.setattr(scrub, "_attempt", changing)
        scrub.begin(5)
        for _ in range(2):
            assert scrub.step(1 << 20, 7) == SMALLEST
            assert (scrub.damaged, scrub.read, scrub.running) == (0, 0, True)
        while scrub.running:
            scrub.step(1 << 20, 7)
        assert [each.node for each in scrub.damage] == [(1, 50, 51 << 64)]
        damage_node(path)  # flips the bit back
        missed += range(ATTEMPTS)
        scrub.recheck()
        assert (scrub.damaged, scrub.needs_recheck()) == (1, True)
        scrub.recheck()
        assert (scrub.damaged, scrub.repaired, scrub.needs_recheck()) == (0, 1, False)


def test_damaged_meta_pages_are_damage(path: Path) -> None:
    with opened(path) as (log, _, _):
        flip(path / "store" / "data.mdb", PAGE + 16)
        log.scrub.begin(5)
        log.scrub.step(1 << 20, 7)
        (damage,) = log.scrub.damage
        assert "meta page 1 is damaged" in damage.why
