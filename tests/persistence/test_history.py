"""Replication IDs: which replicas may go on, and the file that holds the IDs."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from persistence.history import History, boot_id
from persistence.log import Log
from persistence.wal import BLOCK, NOTES
from resp.errors import CorruptError
from tests.persistence.datakit import append, commit, opened, options

A, B, C = "a" * 40, "b" * 40, "c" * 40

GOLDEN = f"""\
tidelog replication, format 1
id {A}
previous {B} 4711
previous {C} 0
boot {{boot}}
"""


def golden(boot: str = "1d009446-23f1-4142-b9a9-7cac7d34517c", text: str = GOLDEN) -> bytes:
    raw = text.format(boot=boot).encode()
    return raw + b"crc %08x\n" % crc32(raw)


# -- IDs -----------------------------------------------------------------------------------------------------
def test_who_may_go_on() -> None:
    history = History(A, [(B, 100), (C, 50)])
    assert history.covers(A, 0, 200)
    assert history.covers(A, 200, 200)
    assert not history.covers(A, 201, 200), "it has what this log has not"
    assert not history.covers(A, -1, 200)
    assert history.covers(B, 100, 200)
    assert not history.covers(B, 101, 200)
    assert not history.covers(B, 100, 99)
    assert not history.covers(C, 51, 200)
    assert not history.covers("d" * 40, 0, 200)


def test_a_shift_keeps_the_old_ids_up_to_their_ends() -> None:
    history = History(A)
    seen = [A]
    for offset in range(10, 120, 10):
        history.shift(offset)
        assert len(history.id) == 40
        int(history.id, 16)
        assert history.id not in seen
        assert history.previous[0] == (seen[-1], offset)
        seen.append(history.id)
    assert history.previous == [(seen[-2 - n], 110 - 10 * n) for n in range(8)]


def test_following_takes_the_leaders_id() -> None:
    history = History(A)
    history.follow(A, 10)
    assert history == History(A)
    history.follow(B, 20)
    assert history == History(B, [(A, 20)])
    history.follow(A, 30)
    assert history == History(A, [(B, 30)]), "an ID has one end"


def test_following_takes_the_previous_ids_of_the_leader() -> None:
    history = History(A)
    history.follow(C, 20, {C: 900, B: 700, A: 500})
    assert history == History(C, [(A, 500), (B, 700)])
    assert history.covers(A, 400, 450)
    assert not history.covers(A, 400, 300), "its own log does not reach so far yet"
    other = "d" * 40
    history.follow(other, 600, {other: 600, C: 600})
    assert history == History(other, [(C, 600), (B, 600), (A, 500)]), "the log went on differently from there on"
    for number in range(12):
        history.follow(f"{number:040x}", 600 + number, {f"{number:040x}": 600, A: 500})
    assert len(history.previous) == 8


def test_which_id_to_ask_with() -> None:
    history = History(A)
    assert history.ask(0) == A
    history.shift(10)
    assert history.ask(10) == A
    assert history.ask(11) == history.id != A


# -- the file ------------------------------------------------------------------------------------------------
def test_golden_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "replication").write_bytes(golden())
    assert History.load(tmp_path, C) == History(A, [(B, 4711), (C, 0)], "1d009446-23f1-4142-b9a9-7cac7d34517c")
    (tmp_path / "replication").write_bytes(golden("-"))
    assert History.load(tmp_path, C).boot == ""


def test_golden_file_is_written(tmp_path: Path) -> None:
    history = History(A, [(B, 4711), (C, 0)])
    history.save(tmp_path)
    assert (tmp_path / "replication").read_bytes() == golden(boot_id() or "-")
    assert history.boot == boot_id()
    history.shift(5000)
    history.save(tmp_path)
    assert History.load(tmp_path, C) == history
    assert [path.name for path in tmp_path.iterdir()] == ["replication"]


def test_golden_file_of_incomplete_data(tmp_path: Path) -> None:
    raw = golden("-", f"{GOLDEN}incomplete\n")
    (tmp_path / "replication").write_bytes(raw)
    history = History.load(tmp_path, C)
    assert history == History(A, [(B, 4711), (C, 0)], complete=False)
    (tmp_path / "replication").unlink()
    history.save(tmp_path, leads=False)
    assert (tmp_path / "replication").read_bytes() == raw


def test_no_boot_id_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.history.BOOT_ID", tmp_path / "nothing")
    assert boot_id() == ""
    History(A).save(tmp_path)
    assert History.load(tmp_path, C) == History(A)


def test_no_file_is_the_directorys_own_id(tmp_path: Path) -> None:
    assert History.load(tmp_path, C) == History(C)


def damaged() -> list[bytes]:
    whole = golden()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    cut = [whole[:at] for at in range(len(whole))]
    lines = [f"previous {B} {n}\n" for n in range(9)]
    return [
        *flipped, *cut, whole + b"x", b"\xff" * 100,
        golden(text=f"tidelog replication, format 1\nid {A}\n{''.join(lines)}boot -\n"),
        golden(text=f"tidelog replication, format 1\nid {A}\nprevious {B} -1\nboot -\n"),
        golden(text=f"tidelog replication, format 1\nid {A[1:]}\nboot -\n"),
    ]  # fmt: skip


def test_damage_is_refused(tmp_path: Path) -> None:
    for raw in damaged():
        (tmp_path / "replication").write_bytes(raw)
        with pytest.raises(CorruptError, match=f"{tmp_path}/replication: (damaged: restore|says .* start the newer)"):
            History.load(tmp_path, C)


def test_a_newer_format_is_refused_as_such(tmp_path: Path) -> None:
    (tmp_path / "replication").write_bytes(golden().replace(b"format 1", b"format 2"))
    with pytest.raises(CorruptError, match="start the newer one"):
        History.load(tmp_path, C)


# -- in a log ------------------------------------------------------------------------------------------------
@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as (log, ks, _):
        assert not log.rebooted
        append(ks, b"a", 3)
        commit(log, ks)
    return tmp_path / "data"


def test_a_restart_keeps_ids_and_writes_nothing(path: Path) -> None:
    before = (path / "replication").stat()
    with opened(path) as (log, _, _):
        assert not log.rebooted
        own = log.history.id
        log.history.shift(log.offset)
        assert log.history.id != own
    assert (path / "replication").stat().st_mtime_ns == before.st_mtime_ns
    with opened(path) as (log, _, _):
        assert log.history.id == own
        log.history.shift(log.offset)
        log.save_history()
        history = log.history
    with opened(path) as (log, _, _):
        assert log.history == history
        assert log.history.previous == [(own, log.offset)]


def test_a_reboot_is_noticed_until_it_is_written_down(path: Path) -> None:
    (path / "replication").write_bytes(golden("00000000-0000-0000-0000-000000000000"))
    for _ in range(2):
        with opened(path) as (log, _, _):
            assert log.rebooted
            assert log.history.id == A
    with opened(path) as (log, _, _):
        log.save_history()
    with opened(path) as (log, _, _):
        assert not log.rebooted


def test_where_boots_can_not_be_told_apart_each_counts_as_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistence.history.BOOT_ID", path / "nothing")
    for _ in range(2):
        with opened(path) as (log, _, _):
            assert log.rebooted
            log.save_history()


def test_a_directory_from_before_there_was_such_a_file(path: Path) -> None:
    (path / "replication").unlink()
    with (path / "tail").open("r+b") as file:  # nor were there notes in the WAL
        file.seek(NOTES[0])
        file.write(bytes(BLOCK - NOTES[0]))
    with opened(path) as (log, ks, _):
        assert log.rebooted, "nobody knows"
        assert (path / "replication").exists()
        assert (path / "tidelog.format").read_text().splitlines()[1] == f"id {log.history.id}"
        assert log.history.previous == []
        assert append(ks, b"a", 0).length == 3


def test_a_lost_file_refuses_the_start(path: Path) -> None:
    """Or else the log would go by the ID that it had at first, and replicas would take it for what they lack."""
    with opened(path) as (log, _, _):
        log.history.shift(log.offset)
        log.save_history()
    (path / "replication").rename(path.parent / "elsewhere")
    for _ in range(2):
        with pytest.raises(CorruptError, match=r"replication missing.*backup"):
            Log.open(path, options())
    (path.parent / "elsewhere").rename(path / "replication")
    with opened(path):
        pass


def test_a_damaged_file_refuses_the_start(path: Path) -> None:
    (path / "replication").write_bytes(golden()[:-1])
    with pytest.raises(CorruptError, match="replication"):
        Log.open(path, options())
    (path / "replication").write_bytes(golden())
    with opened(path):  # and the lock was let go
        pass


def test_an_earlier_id_is_valid_up_to_the_end_of_the_log_at_most() -> None:
    """The machine went down and the end of the log was lost: what is logged there now is another history."""
    history = History("a" * 40)
    history.shift(1000)
    history.shift(900)
    assert history.covers("a" * 40, 900, 2000)
    assert not history.covers("a" * 40, 950, 2000)
