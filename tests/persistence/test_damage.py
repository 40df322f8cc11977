"""Damage that no checksum covers, met by the log alone. A start refuses it, or has exactly what was there before and
keeps what is written next. tests/crash/test_damaged_directory.py does the same with a server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from persistence.journal import DATABASES as OF_JOURNAL
from persistence.log import Log
from persistence.storecopy import DATABASES as OF_STORE
from persistence.wal import BLOCK, CRC, NOTE, NOTES
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.stagemutators import gathered, publish
from tests.persistence.datakit import (
    RING,
    append,
    checkpoint,
    commit,
    crashed,
    crashed_while_writing,
    delete,
    group,
    opened,
    options,
)
from tests.persistence.lmdbdamage import LmdbFile
from tests.persistence.test_store_stages import put

LARGE = b"x" * (RING * 3)  # goes to the journal directly


def fill(ks: Keyspace) -> None:
    """Enough for branch pages in every database."""
    for number in range(150):
        key = b"%03d" % number * 30
        append(ks, key, 2)
        group(ks, key, b"group" * 10, 3)
        ks.log.clear()  # the group's record is made up
        ks.set_string(b"string" + key, b"value" * 10)
        put(ks, b"stage" + key, key, 1)
        put(ks, b"used" + key, key, 1)
        name = b"used" + key
        check = b"check" if number % 2 else b""
        publish(ks, b"fence" + key, number, check, [name], gathered(ks, [name]), [(key, 5, 0)])
        delete(ks, key, [1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory, all of whose content is in the store, and its digest."""
    path = tmp_path_factory.mktemp("whole") / "data"
    with opened(path, ring_bytes=1 << 20) as (log, ks, _):
        fill(ks)
        ks.set_string(b"large", bytes(600_000))  # so that the journal has the database of segments
        commit(log, ks)
        ks.remove(b"large")
        checkpoint(log, ks)
        digest = ks.digest()
    return path, digest


@pytest.fixture
def path(whole: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "data"))


def refused(path: Path, match: str) -> None:
    with pytest.raises(CorruptError, match=match) as refusal, opened(path):
        pass
    assert str(path) in str(refusal.value)
    assert "backup" in str(refusal.value)


def unharmed(path: Path, digest: str) -> bool:
    """True if the directory is as it was, and keeps what is changed; False if it is refused."""
    try:
        with opened(path) as (log, ks, _):
            assert ks.digest() == digest, "damage was accepted"
            for key in list(ks.keys):
                if key.startswith(b"string"):
                    ks.set_string(key, b"another value")
            for number in range(0, 150, 7):
                ks.remove(b"%03d" % number * 30)
            checkpoint(log, ks)
            digest = ks.digest()
    except CorruptError as error:
        assert str(path) in str(error)  # noqa: PT017
        return False
    with opened(path) as (_, ks, _):
        assert ks.digest() == digest, "what was written is undone by a restart"
    return True


# -- names and separators ------------------------------------------------------------------------------------
@pytest.mark.parametrize(("part", "names"), [("store", OF_STORE), ("journal", OF_JOURNAL)])
def test_a_changed_name_of_a_database_is_refused(path: Path, part: str, names: tuple[bytes, ...]) -> None:
    file = LmdbFile(path / part / "data.mdb")
    found = file.names()
    assert set(found) == set(names)
    for name, start in found.items():
        for at in range(len(name)):
            for bit in range(8):
                file.flip(start + at, bit)
                file.write()
                with pytest.raises(CorruptError, match="which this tidelog does not know") as refusal:
                    Log.open(path, options())
                assert f"{path / part}/data.mdb: its database '{name.decode()}' is missing" in str(refusal.value)
                file.flip(start + at, bit)


@pytest.mark.parametrize("name", [b"nodes", b"streams", b"groups", b"strings", b"stages", b"fences", b"marks"])
def test_a_changed_separator_is_refused_or_does_no_harm(path: Path, whole: tuple[Path, str], name: bytes) -> None:
    data = path / "store" / "data.mdb"
    raw = data.read_bytes()
    file = LmdbFile(data)
    outcomes = []
    for start, end in file.separators(name):
        for at, bit in {(start + (end - start) // 3, 0), (end - 1, 7), (start + 7 % (end - start), 2)}:
            file.flip(at, bit)
            file.write()
            outcomes.append(unharmed(path, whole[1]))
            file = LmdbFile(data)
            file.raw[:] = raw
    assert outcomes.count(False) > 0, "nothing was refused: the test shows too little"


def test_a_separator_was_moved_past_the_keys_behind_it(path: Path) -> None:
    """One bit, and LMDB looked for these keys on another page: what was set there came back with a restart."""
    file = LmdbFile(path / "store" / "data.mdb")
    start, _ = next(file.separators(b"strings"))
    file.flip(start + 8, 6)
    file.write()
    refused(path, "store.*out of order")


# -- meta pages ----------------------------------------------------------------------------------------------
def test_a_lost_meta_page_of_the_journal_does_not_lose_a_large_batch(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as (log, ks, _):
        append(ks, b"a", 5)
        checkpoint(log, ks)
        ks.set_string(b"large", LARGE)
        commit(log, ks)
        digest, copy = ks.digest(), crashed(tmp_path / "data")
    with opened(copy) as (_, ks, _):
        assert ks.digest() == digest
    data = LmdbFile(copy / "journal" / "data.mdb")
    data.forget_newest()
    data.write()
    before = (copy / "tail").read_bytes()
    for _ in range(3):
        refused(copy, "journal.*older copy")
    assert (copy / "tail").read_bytes() == before


@pytest.mark.parametrize("part", ["journal", "store"])
@pytest.mark.parametrize("ring", [RING, 4 * RING])  # the ring has most of the journal, or all of it
@pytest.mark.parametrize("damage", ["forget_newest", "wipe(0)", "wipe(1)"])
def test_a_damaged_meta_page_at_any_time(tmp_path: Path, part: str, ring: int, damage: str) -> None:
    """Directories as a SIGKILL leaves them after batches, large batches and checkpoints."""
    path = tmp_path / "data"
    copies: list[tuple[Path, str]] = []
    with opened(path, ring_bytes=ring) as (log, ks, _):
        for turn in range(12):
            append(ks, b"a", 3)
            ks.set_string(b"s%d" % turn, LARGE if turn % 4 == 1 else b"x" * 3000)
            commit(log, ks)
            if turn % 3 == 2:
                checkpoint(log, ks)
            copies.append((crashed_while_writing(path, log), ks.digest()))
    outcomes = []
    for copy, digest in copies:
        file = LmdbFile(copy / part / "data.mdb")
        file.forget_newest() if damage == "forget_newest" else file.wipe(int(damage[5]))
        file.write()
        outcomes.append(unharmed(copy, digest))
    assert outcomes.count(False) > 0, "nothing was refused: the test shows too little"


def test_a_last_page_that_can_not_be_is_called_damage(path: Path) -> None:
    """It was reported as a want of address space: 'raise ulimit -v'."""
    for part in ("store", "journal"):
        file = LmdbFile(path / part / "data.mdb")
        for bit in (12, 20, 30, 38, 46, 63):
            file.set_last_page(file.last_page ^ 1 << bit)
            file.write()
            refused(path, f"{part}/data.mdb.*(meta page|last page)")
            file.set_last_page(file.last_page ^ 1 << bit)
        file.write()
    with opened(path):
        pass


# -- what the WAL notes --------------------------------------------------------------------------------------
def notes(path: Path) -> list[bytes]:
    raw = (path / "tail").read_bytes()
    return [raw[at : at + CRC.size + NOTE.size] for at in NOTES]


def write_note(path: Path, number: int, raw: bytes) -> None:
    with (path / "tail").open("r+b") as file:
        file.seek(NOTES[number])
        file.write(raw)


def test_a_torn_note_spoils_nothing(path: Path, whole: tuple[Path, str]) -> None:
    for _ in range(4):
        with opened(path) as (log, ks, _):
            ks.set_string(b"s", b"value")
            checkpoint(log, ks)
    before = notes(path)
    assert all(map(any, before))
    assert before[0] != before[1]
    for number in range(2):
        write_note(path, number, before[number][:10] + bytes(10))
        with opened(path) as (log, ks, _):
            digest = ks.digest()
            assert log.wal.noted == (log.journal.end, log.store.offset)
        with opened(path) as (_, ks, _):
            assert ks.digest() == digest
        write_note(path, number, before[number])
    for number in range(2):
        write_note(path, number, b"\1" * 20)
    refused(path, "tail.*damaged")


def test_every_flip_of_a_note_is_refused_or_does_no_harm(path: Path, whole: tuple[Path, str]) -> None:
    for at in [place + byte for place in NOTES for byte in range(CRC.size + NOTE.size)]:
        raw = bytearray((path / "tail").read_bytes()[:BLOCK])
        raw[at] ^= 1 << at % 8
        with (path / "tail").open("r+b") as file:
            file.write(raw)
        with opened(path) as (_, ks, _):
            assert ks.digest() == whole[1]


def test_a_tail_of_the_first_version_gets_its_note(path: Path, whole: tuple[Path, str]) -> None:
    for number in range(2):
        write_note(path, number, bytes(CRC.size + NOTE.size))
    with opened(path) as (log, ks, _):
        assert ks.digest() == whole[1]
        assert log.wal.noted == (log.journal.end, log.store.offset) == (log.offset, log.offset)
    assert any(map(any, notes(path)))


def test_another_ring_keeps_the_note(path: Path) -> None:
    with opened(path, ring_bytes=2 << 20) as (log, _, _):
        noted = log.wal.noted
        assert noted == (log.journal.end, log.store.offset)
    with opened(path, ring_bytes=2 << 20) as (log, _, _):
        assert log.wal.noted == noted


def test_where_the_wal_is_refused_nothing_is_tidied_up(path: Path) -> None:
    """A WAL of another version may say of a file that it is needed, which the journal takes for a remainder."""
    with opened(path) as (log, ks, _):
        append(ks, b"a", 3)
        commit(log, ks)
    remainder, wal = path / "journal" / "segment.7", path / "tail"
    remainder.write_bytes(b"x")
    whole = wal.read_bytes()
    wal.write_bytes(whole[:8] + (3).to_bytes(4, "little") + whole[12:])
    with pytest.raises(CorruptError, match="version 3"), opened(path):
        pass
    assert remainder.exists()
    wal.write_bytes(whole)
    with opened(path):
        assert not remainder.exists()
