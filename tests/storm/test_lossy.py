"""The file system that loses what was not synced."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from tests.storm.lossy import BLOCK, LossyDirectory

NOTHING, EVERYTHING = (
    next(seed for seed in range(100) if random.Random(seed).choice((0.0, 1.0, 0.2, 0.5, 0.8)) == part)
    for part in (0.0, 1.0)
)


@pytest.fixture
def lossy(tmp_path: Path) -> Iterator[LossyDirectory]:
    try:
        made = LossyDirectory(tmp_path / "lossy")
    except OSError as error:
        pytest.skip(f"no file system that loses unsynced data: {error}")
    yield made
    made.close()


def written(path: Path, *parts: tuple[int, bytes], sync: bool = False) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    for at, content in parts:
        os.pwrite(fd, content, at)
    if sync:
        os.fsync(fd)
    os.close(fd)


def sync_names(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)


def test_synced_data_remains_and_other_data_is_lost(lossy: LossyDirectory) -> None:
    file = lossy.place / "file"
    written(file, (0, b"synced"), sync=True)
    sync_names(lossy.place)
    written(file, (2, b"CHANGED"), (3 * BLOCK, b"more"))
    assert file.read_bytes()[:9] == b"syCHANGED"
    lossy.lose_power(NOTHING)
    assert file.read_bytes() == b"synced"


def test_a_disk_may_have_written_everything(lossy: LossyDirectory) -> None:
    file = lossy.place / "file"
    written(file, (5 * BLOCK, b"not synced"))
    lossy.lose_power(EVERYTHING)
    assert file.read_bytes() == bytes(5 * BLOCK) + b"not synced"


def test_a_disk_may_have_written_some_blocks(lossy: LossyDirectory) -> None:
    file = lossy.place / "file"
    blocks = [b"%d" % (at % 10) * BLOCK for at in range(50)]
    found = set()
    for seed in range(20):
        written(file, (0, bytes(50 * BLOCK)), sync=True)
        sync_names(lossy.place)
        written(file, *[(at * BLOCK, block) for at, block in enumerate(blocks)])
        lossy.lose_power(seed)
        content = file.read_bytes()
        left = [content[at * BLOCK :][:BLOCK] for at in range(50)]
        assert all(block in (bytes(BLOCK), wanted) for block, wanted in zip(left, blocks, strict=True))
        found.add(sum(block != bytes(BLOCK) for block in left))
    assert {0, 50} < found


def test_names_remain_once_their_directory_was_synced(lossy: LossyDirectory) -> None:
    written(lossy.place / "old", (0, b"old"), sync=True)
    sync_names(lossy.place)
    written(lossy.place / "new", (0, b"new"), sync=True)
    os.rename(lossy.place / "new", lossy.place / "old")
    lossy.lose_power(NOTHING)
    assert (lossy.place / "old").read_bytes() == b"old"
    assert os.listdir(lossy.place) == ["old"]
    written(lossy.place / "new", (0, b"new"), sync=True)
    os.rename(lossy.place / "new", lossy.place / "old")
    (lossy.place / "folder").mkdir()
    sync_names(lossy.place)
    lossy.lose_power(NOTHING)
    assert (lossy.place / "old").read_bytes() == b"new"
    assert sorted(os.listdir(lossy.place)) == ["folder", "old"]


def test_a_file_that_shrank(lossy: LossyDirectory) -> None:
    file = lossy.place / "file"
    written(file, (0, b"0123456789"), sync=True)
    sync_names(lossy.place)
    os.truncate(file, 4)
    lossy.lose_power(NOTHING)
    assert file.read_bytes() == b"0123456789"
    fd = os.open(file, os.O_RDWR)
    os.ftruncate(fd, 4)
    os.fsync(fd)
    os.close(fd)
    lossy.lose_power(NOTHING)
    assert file.read_bytes() == b"0123"


def test_a_time_is_set(lossy: LossyDirectory) -> None:
    """The scrub begins a day after the time of a file, so a storm sets it."""
    file = lossy.place / "file"
    written(file, (0, b"content"))
    os.utime(file, (1, 1))
    assert file.stat().st_mtime == 1
    written(file, (0, b"new"))
    assert file.stat().st_mtime > 1


def test_removed_files_and_directories(lossy: LossyDirectory) -> None:
    (lossy.place / "folder").mkdir()
    written(lossy.place / "folder" / "file", (0, b"file"), sync=True)
    sync_names(lossy.place)
    os.link(lossy.place / "folder" / "file", lossy.place / "link")
    (lossy.place / "folder" / "file").unlink()
    (lossy.place / "folder").rmdir()
    assert os.listdir(lossy.place) == ["link"]
    assert (lossy.place / "link").read_bytes() == b"file"
    lossy.lose_power(NOTHING)
    assert (lossy.place / "folder" / "file").read_bytes() == b"file"
    assert os.listdir(lossy.place) == ["folder"]


def test_lmdb_survives(lossy: LossyDirectory) -> None:
    """It writes its meta pages with O_DSYNC, and maps its files."""
    committed = 0
    for seed in range(10):
        env = lmdb.open(str(lossy.place / "lmdb"), map_size=1 << 24)
        with env.begin() as transaction:
            assert transaction.stat()["entries"] == committed
        for _ in range(20):
            with env.begin(write=True) as transaction:
                transaction.put(b"%d" % committed, b"value" * 400)
            committed += 1
        sync_names(lossy.place / "lmdb")
        sync_names(lossy.place)
        env.close()
        lossy.lose_power(seed)
