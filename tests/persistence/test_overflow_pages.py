"""Damaged headers of overflow pages: LMDB frees as many pages as a header says, from the page that it names."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from persistence import overflowpages
from persistence.lmdbpages import HEAD, verify
from persistence.log import Log
from persistence.storecopy import DATABASES
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from tests.persistence.datakit import append, checkpoint, dead_of, delete, group, opened
from tests.persistence.lmdbdamage import PAGE
from tests.persistence.test_noderepair import everything, first_page, scrubbed, stream
from tests.persistence.test_scrub import fill, noise

# field of the header, format, change of the number there
HEADERS = {
    "more pages": (12, "=H", 20), "fewer pages": (12, "=H", -2), "many pages": (14, "=H", 20),
    "page number": (0, "=Q", 20), "flags": (10, "=H", -4),
}  # fmt: skip


def remove(ks: Keyspace) -> None:
    ks.remove(b"s")


def evict(ks: Keyspace) -> None:
    ks.evict_before(b"s", stream(ks), 60)


def flush(ks: Keyspace) -> None:
    ks.flush()


def delete_all(ks: Keyspace) -> None:
    delete(ks, b"s", range(50, 60))


def compact(ks: Keyspace) -> None:
    delete(ks, b"s", range(50, 58))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as (log, ks, _):
        fill(ks)
        ks.set_string(b"string", noise(1) * 5, 0)
        group(ks, b"grouped", b"g", 1000)
        add_noise(ks, 1001)
        checkpoint(log, ks)
    return tmp_path / "data"


@pytest.fixture(params=["C", "Python"])
def written_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(overflowpages, "sound", overflowpages.sound_in_python)
    elif overflowpages.sound is overflowpages.sound_in_python:
        pytest.skip("persistence._overflow is not built here")


def data(path: Path) -> Path:
    return path / "store" / "data.mdb"


def damage(path: Path, at: int, kind: str) -> None:
    field, form, change = HEADERS[kind]
    fd = os.open(data(path), os.O_RDWR)
    size = struct.calcsize(form)
    (number,) = struct.unpack(form, os.pread(fd, size, at + field))
    os.pwrite(fd, struct.pack(form, number + change), at + field)
    os.close(fd)


def add_noise(ks: Keyspace, number: int) -> None:
    body = noise(number) * 3
    ks.append(b"last", append(ks, b"last", 0), number, 0, b"*1\r\n$%d\r\n%b\r\n" % (len(body), body))


def reuse_pages(log: Log, ks: Keyspace) -> None:
    for number in range(3):
        append(ks, b"new%d" % number, 5, pad=40_000)
        checkpoint(log, ks)


def assert_valid(path: Path) -> None:
    verify(data(path), b"nodes", 32, DATABASES, DATABASES)
    with opened(path) as (log, _, _):
        assert scrubbed(log) == []


@pytest.mark.usefixtures("written_in")
@pytest.mark.parametrize(
    ("change", "kind"),
    [*[(remove, kind) for kind in HEADERS], *[(each, "more pages") for each in (evict, flush, delete_all, compact)]],
)
def test_a_damaged_header_does_not_free_other_pages(path: Path, change: Callable[[Keyspace], None], kind: str) -> None:
    with opened(path) as (log, ks, _):
        damage(path, first_page(path), kind)
        change(ks)
        checkpoint(log, ks)
        reuse_pages(log, ks)
    assert_valid(path)


@pytest.mark.parametrize("kind", ["more pages", "page number"])
def test_a_damaged_header_of_a_node_that_is_written_again(path: Path, kind: str) -> None:
    """The active node of a stream is overwritten."""
    with opened(path) as (log, ks, _):
        damage(path, first_page(path, 1001), kind)
        add_noise(ks, 1002)
        checkpoint(log, ks)
        reuse_pages(log, ks)
        assert len(everything(append(ks, b"last", 0))) > 18_000
    assert_valid(path)


@pytest.mark.parametrize("kind", ["more pages", "page number"])
@pytest.mark.parametrize("value", ["string", "group"])
def test_a_damaged_header_of_another_value(path: Path, value: str, kind: str) -> None:
    """The crc of the value shows that the pages are its own."""
    with opened(path) as (log, ks, _):
        raw = data(path).read_bytes()
        content = noise(1) * 2 if value == "string" else (500 << 64).to_bytes(16, "big")
        at = raw.index(content) // PAGE * PAGE
        while HEAD.unpack_from(raw, at)[:3] != (at // PAGE, 0, 4):
            at -= PAGE
        damage(path, at, kind)
        ks.remove(b"string")
        ks.remove(b"grouped")
        checkpoint(log, ks)
        reuse_pages(log, ks)
    assert_valid(path)


def test_pages_that_are_not_the_values_own_stop_the_checkpoint(path: Path) -> None:
    with opened(path) as (log, ks, _):
        at = first_page(path)
        damage(path, at, "more pages")
        fd = os.open(data(path), os.O_RDWR)
        magic = os.pread(fd, 2, at + HEAD.size)
        os.pwrite(fd, b"??", at + HEAD.size)
        ks.remove(b"s")
        with pytest.raises(CorruptError, match="is damaged: the store may refer to the pages of another node"):
            checkpoint(log, ks)
        os.pwrite(fd, magic, at + HEAD.size)
        os.close(fd)
        checkpoint(log, ks)  # everything that failed is written again
        reuse_pages(log, ks)
        assert b"s" not in ks.keys
    assert_valid(path)


def test_sound_stores_are_not_written_elsewhere(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: object) -> None:
        raise AssertionError("a sound header was written again")

    monkeypatch.setattr(overflowpages, "own", unexpected)
    with opened(path) as (log, ks, _):
        for change in (compact, evict, remove, flush):
            change(ks)
            append(ks, b"last", 3, pad=30_000)
            checkpoint(log, ks)
        assert not dead_of(ks, b"last")
    assert_valid(path)
