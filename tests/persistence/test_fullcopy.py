"""A full copy that arrives: it is refused unless it is complete, and until then the old data stays."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from persistence import fullcopy as module
from persistence.fullcopy import READY, Incoming, install
from persistence.history import History
from persistence.layout import STAGE, STREAM, STRING, short, signed
from persistence.log import Log
from persistence.storecopy import ENTRY, Entry, entries
from resp.errors import CorruptError
from storage.nodes.node import BODY, HEADER
from storage.streams import metadata
from storage.streams.metadata import StreamMeta
from tests.persistence.datakit import RING, append, checkpoint, commit, group, opened, options

OURS = History("a" * 40, [("b" * 40, 17)])


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Entry], int, str]:
    """A leader's store: its entries, log offset, digest."""
    with opened(tmp_path_factory.mktemp("leader")) as (log, ks, _):
        append(ks, b"a", 45)
        append(ks, b"b", 25)
        group(ks, b"b", b"g", 4)
        ks.set_string(b"s", b"value", 0)
        ks.set_string(b"k" * 1000, b"value", 0)
        checkpoint(log, ks)
        copy = log.store.copy()
        return list(entries(b"".join(copy.pieces(1000)))), copy.offset, ks.digest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with opened(tmp_path / "data") as (log, ks, _):
        append(ks, b"old", 15)
        checkpoint(log, ks)
        append(ks, b"old", 15)
        commit(log, ks)
    return tmp_path / "data"


def packed(listed: list[Entry]) -> bytes:
    return b"".join(ENTRY.pack(db, len(key), len(value)) + key + value for db, key, value in listed)


def is_old(path: Path) -> None:
    """The old data is unchanged and nothing of the copy is left."""
    with opened(path) as (log, ks, _):
        assert list(ks.keys) == [b"old"]
        assert append(ks, b"old", 0).length == 30
        assert log.history.id != OURS.id
    assert not list(path.glob("incoming*"))


def is_new(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    _, offset, digest = sent
    with opened(path) as (log, ks, _):
        assert ks.digest() == digest
        assert (log.offset, log.store.offset, log.first_offset()) == (offset, offset, offset)
        assert (log.history.id, log.history.previous) == (OURS.id, OURS.previous)
        assert log.rebooted, "no leader wrote the copy: a server that leads with it takes a new ID"
        assert log.signature() is None
    assert not list(path.glob("incoming*"))


def take(place: Incoming, listed: list[Entry], offset: int) -> None:
    for at in range(0, len(listed), 3):
        place.add(packed(listed[at : at + 3]))
    place.finish(offset, len(listed), OURS)


def received(path: Path, sent: tuple[list[Entry], int, str]) -> Incoming:
    place = Incoming(path, RING)
    take(place, sent[0], sent[1])
    return place


# -- the way it should go ------------------------------------------------------------------------------------
def test_old_data_serves_until_the_next_start(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    with opened(path) as (log, ks, _):
        place = Incoming(path, 2 * RING)
        for entry in sent[0]:
            place.add(packed([entry]))
        assert place.entries == len(sent[0])
        assert place.bytes == len(packed(sent[0]))
        append(ks, b"old", 5)
        checkpoint(log, ks)
        place.finish(sent[1], len(sent[0]), OURS)
        append(ks, b"old", 5)
        checkpoint(log, ks)
        own = (path / "tidelog.format").read_bytes()
    assert (path / "incoming.ready" / "tail").stat().st_size == 4096 + 2 * RING
    is_new(path, sent)
    assert (path / "tidelog.format").read_bytes() == own, "the directory's own ID stays"
    with opened(path) as (log, ks, _):
        append(ks, b"a", 20)
        checkpoint(log, ks)
        append(ks, b"a", 20)
        commit(log, ks)
        digest = ks.digest()
    with opened(path) as (_, ks, _):
        assert ks.digest() == digest


def test_install_says_whether_there_was_one(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    assert not install(path)
    received(path, sent)
    assert install(path)
    assert not install(path)
    is_new(path, sent)


def test_pieces_go_to_disk_as_they_come(
    path: Path, sent: tuple[list[Entry], int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_ABOVE", 500)
    place = Incoming(path, RING)
    sizes = []
    for entry in sent[0]:
        place.add(packed([entry]))
        sizes.append((path / "incoming" / "store" / "data.mdb").stat().st_size)
    assert sizes[0] < sizes[len(sizes) // 2] < sizes[-1]
    place.finish(sent[1], len(sent[0]), OURS)
    is_new(path, sent)


# -- what is refused -----------------------------------------------------------------------------------------
def without(*places: int) -> Callable[[list[Entry]], list[Entry]]:
    return lambda listed: [entry for at, entry in enumerate(listed) if at not in places]


def changed(at: int, where: int) -> Callable[[list[Entry]], list[Entry]]:
    """The entry with one bit of its value flipped."""

    def change(listed: list[Entry]) -> list[Entry]:
        db, key, value = listed[at]
        value = value[:where] + bytes([value[where] ^ 1]) + value[where + 1 :]
        return [*listed[:at], (db, key, value), *listed[at + 1 :]]

    return change


DAMAGE = {
    "an entry twice": lambda listed: [*listed[:3], listed[2], *listed[3:]],
    "out of order": lambda listed: [*listed[:3], listed[4], listed[3], *listed[5:]],
    "a node less": without(4),
    "all nodes less": lambda listed: [entry for entry in listed if entry[0] != 1],
    "a stream less": lambda listed: [entry for entry in listed if entry[:2] != (2, (1).to_bytes(8, "big"))],
    "the offset missing": without(1),
    "a damaged node": changed(3, 40),
    "a damaged head of a node": changed(3, 5),
    "a damaged stream": lambda listed: changed([db for db, _, _ in listed].index(2), 20)(listed),
    "a damaged group": lambda listed: changed([db for db, _, _ in listed].index(3), 20)(listed),
    "a damaged string": changed(-1, 8),
    "a short node": lambda listed: [*listed[:2], (1, listed[2][1], b"TN"), *listed[3:]],
    "a short key": lambda listed: [*listed[:2], (1, b"key", listed[2][2]), *listed[3:]],
    "an empty value": lambda listed: [(0, b"offset", b""), *listed[2:]],
    "no content": lambda listed: [],
}


def resigned(db: int, change: Callable[[bytes, bytes], tuple[bytes, bytes]]) -> Callable[[list[Entry]], list[Entry]]:
    """The first entry of database ``db`` with other content, and the crc that is right for it."""

    def apply(listed: list[Entry]) -> list[Entry]:
        at = [number for number, _, _ in listed].index(db)
        key, content = change(listed[at][1], listed[at][2][4:])
        return [*listed[:at], (db, key, signed(key, content)), *listed[at + 1 :]]

    return apply


def other_node(**fields: int) -> Callable[[list[Entry]], list[Entry]]:
    """The first node with other numbers in its head, and the crc that is right for it."""

    def change(listed: list[Entry]) -> list[Entry]:
        db, key, blob = listed[2]
        names = ("magic", "version", "how", "count", "size", "ms", "seq")
        head = HEADER.pack(*(dict(zip(names, HEADER.unpack_from(blob), strict=True)) | fields).values())
        crc = crc32(blob[BODY:], crc32(head)).to_bytes(4, "little")
        return [*listed[:2], (db, key, head + crc + blob[BODY:]), *listed[3:]]

    return change


def meta_of(change: Callable[[list[int]], list[int]]) -> Callable[[list[Entry]], list[Entry]]:
    """The first stream with other metadata, all of whose checksums are right."""

    def apply(key: bytes, content: bytes) -> tuple[bytes, bytes]:
        at = STREAM.size + STREAM.unpack_from(content)[3]
        found = metadata.unpack(1, content[at:])
        numbers: list[Any] = change([*found[:-2]])
        return key, content[:at] + metadata.pack(StreamMeta(*numbers))

    return resigned(2, apply)


def with_value(at: int, value: int) -> Callable[[list[Entry]], list[Entry]]:
    return meta_of(lambda fields: [*fields[:at], value, *fields[at + 1 :]])


def another_value(listed: list[Entry]) -> list[Entry]:
    """A string under the key of a stream."""
    key = short(b"a")
    string = (4, key, signed(key, STRING.pack(0, 1), b"a", b"value"))
    return sorted([*listed, string], key=lambda entry: entry[:2])


# The checksums are right, the content is not: a start would refuse it, or fail later.
NONSENSE = {
    "a node of another kind": other_node(version=9),
    "a node with more entries": other_node(count=1 << 31),
    "a node that is larger": other_node(size=1 << 32 - 1),
    "a node of another time": other_node(ms=5000),
    "metadata of another version": resigned(2, lambda key, content: (key, content[:-85] + b"\2" + content[-84:])),
    "metadata that is cut short": resigned(2, lambda key, content: (key, content[:-1])),
    "a stream without a head": resigned(2, lambda key, _: (key, b"")),
    "a key beyond its entry": resigned(2, lambda key, content: (key, content[:24] + b"\xff" * 4 + content[28:])),
    "entries beyond the last node": with_value(2, 1000),
    "more evicted than there were": with_value(3, 1 << 40),
    "a start that no number holds": with_value(2, (1 << 64) - 1),
    "evicted beyond the end": with_value(4, (1 << 128) - 1),
    "a last ID before the last node": with_value(0, 1),
    "totals that no number holds": with_value(5, (1 << 64) - 1),
    "an expiry that no number holds": resigned(2, lambda key, content: (key, b"\xff" * 8 + content[8:])),
    "a group that is nonsense": resigned(3, lambda key, content: (key, content[:8] + b"?" * (len(content) - 8))),
    "a group in another place": resigned(3, lambda key, content: (key[:8] + b"\0other", content)),
    "a group of nothing": resigned(3, lambda key, content: ((99).to_bytes(8, "big") + key[8:], content)),
    "a string in another place": resigned(4, lambda _, content: (b"\0other", content)),
    "a string whose key is too long": resigned(4, lambda key, content: (key, content[:8] + b"\xff" * 4 + content[12:])),
    "an empty string": resigned(4, lambda key, _: (key, b"")),
    "two values of a key": another_value,
    "a number that is too high": lambda listed: [(0, b"next_sid", signed(b"next_sid", b"\xff" * 8)), *listed[1:]],
    "a number that is none": lambda listed: [(0, b"next_sid", signed(b"next_sid", b"12345")), *listed[1:]],
    "half of a stage": lambda listed: [*listed, (5, b"\0" * 12, signed(b"\0" * 12, STAGE.pack(0, 0, 2), b"name"))],
    "a stage without pieces": lambda listed: [*listed, (5, b"\0" * 12, signed(b"\0" * 12, STAGE.pack(0, 0, 0), b"x"))],
    "a fence in another place": lambda listed: [*listed, (6, b"\0f", signed(b"\0f", b"\0" * 8, b"other"))],
    "a key that is too long": lambda listed: [*listed, (6, b"\0" * 600, signed(b"\0" * 600, b"\0" * 8, b"other"))],
    "an empty key": lambda listed: [(0, b"", signed(b"", b"")), *listed],
}


@pytest.mark.parametrize("how", NONSENSE)
def test_a_copy_that_no_start_could_read_changes_nothing(
    path: Path, sent: tuple[list[Entry], int, str], how: str
) -> None:
    listed = NONSENSE[how](sent[0])
    assert listed != sent[0]
    with opened(path):
        place = Incoming(path, RING)
        with pytest.raises(CorruptError, match="copy of the leader's store is damaged"):
            take(place, listed, sent[1])
        place.abandon()
        assert not list(path.glob("incoming*"))
    is_old(path)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_copy_changes_nothing(path: Path, sent: tuple[list[Entry], int, str], how: str) -> None:
    listed = DAMAGE[how](sent[0])
    with opened(path):
        place = Incoming(path, RING)
        with pytest.raises(CorruptError, match="copy of the leader's store is damaged"):
            take(place, listed, sent[1])
        place.abandon()
        assert not list(path.glob("incoming*"))
    is_old(path)


def test_other_numbers_than_were_announced(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    listed, offset, _ = sent
    for its_offset, count in ((offset + 1, len(listed)), (0, len(listed)), (offset, len(listed) - 1)):
        place = Incoming(path, RING)
        place.add(packed(listed))
        with pytest.raises(CorruptError, match="instead of"):
            place.finish(its_offset, count, OURS)
        place.abandon()
        is_old(path)
    place = Incoming(path, RING)
    with pytest.raises(CorruptError, match="piece of a copy"):
        place.add(packed(listed)[:-1])
    place.abandon()
    place = Incoming(path, RING)
    place.add(packed(listed[2:]))
    with pytest.raises(CorruptError, match="log offset is missing"):
        place.finish(0, len(listed) - 2, OURS)
    place.abandon()
    is_old(path)


# -- what is broken off --------------------------------------------------------------------------------------
def test_abandoned_at_any_time(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    with opened(path):
        place = Incoming(path, RING)
        place.abandon()
        assert not list(path.glob("incoming*"))
        place = Incoming(path, RING)
        place.add(packed(sent[0]))
        place.abandon()
        place.abandon()
        assert not list(path.glob("incoming*"))
        place = received(path, sent)
        assert (path / "incoming.ready").exists()
        place.abandon()  # the server is no replica any more
        assert not list(path.glob("incoming*"))
    is_old(path)
    place = received(path, sent)
    is_new(path, sent)
    place.abandon()  # too late
    is_new(path, sent)


def test_a_new_copy_supersedes_what_an_earlier_one_left(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    (path / "incoming").mkdir()
    (path / "incoming" / "rest").write_bytes(b"x")
    place = received(path, sent)
    again = Incoming(path, RING)
    assert not (path / "incoming.ready").exists()
    again.abandon()
    place.abandon()
    is_old(path)


# -- copies that lose parts before they are installed --------------------------------------------------------
@pytest.mark.parametrize("name", ["tail", "journal", "store", "journal/data.mdb", "store/data.mdb", "replication"])
@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_part_that_is_lost_is_refused_and_nothing_is_touched(
    path: Path, sent: tuple[list[Entry], int, str], name: str, how: str
) -> None:
    """The old part took its place, and the log of another history went on from there."""
    received(path, sent)
    lost = path / READY / name
    if how == "empty":
        if lost.is_dir():
            shutil.rmtree(lost)
            lost.mkdir()
        else:
            os.truncate(lost, 0)
    elif lost.is_dir():
        shutil.rmtree(lost)
    else:
        lost.unlink()
    before = sorted(str(at) for at in path.rglob("*"))
    with pytest.raises(CorruptError, match=rf"{path / READY}: .*{name}.* missing or empty.*backup.*remove incoming"):
        Log.open(path, options())
    assert sorted(str(at) for at in path.rglob("*")) == before
    shutil.rmtree(path / READY)
    is_old(path)


@pytest.mark.interpreted
@pytest.mark.parametrize("moved", range(4))
@pytest.mark.parametrize("name", ["tail", "journal", "store", "replication"])
def test_a_part_that_is_lost_while_parts_are_moved_is_refused(
    path: Path, sent: tuple[list[Entry], int, str], monkeypatch: pytest.MonkeyPatch, moved: int, name: str
) -> None:
    received(path, sent)
    rename, left = Path.rename, moved

    def some(self: Path, target: Path) -> Path:
        nonlocal left
        if not left:
            raise OSError("broken off")
        left -= 1
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", some)
    with pytest.raises(OSError, match="broken off"):
        install(path)
    monkeypatch.undo()
    lost = path / READY / name if (path / READY / name).exists() else path / name
    if lost.is_dir():
        shutil.rmtree(lost)
    else:
        lost.unlink()
    with pytest.raises(CorruptError, match=f"{path}.*{name}.*missing.*backup"):
        Log.open(path, options())


def test_a_copy_that_an_earlier_version_had_begun_to_install(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    """It put one part after another into its place, and had no mark for what is whole."""
    received(path, sent)
    (path / READY / "whole").unlink()
    (path / "tail").unlink()
    (path / READY / "tail").rename(path / "tail")
    is_new(path, sent)


def test_a_start_removes_a_half_copy(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    place = Incoming(path, RING)
    place.add(packed(sent[0]))
    is_old(path)
    place.abandon()


@pytest.mark.parametrize("content", [None, "tidelog data directory, format 2\nid " + "0" * 40 + "\n", "something\n"])
def test_nothing_is_installed_into_what_is_no_directory_of_ours(
    path: Path, sent: tuple[list[Entry], int, str], content: str | None
) -> None:
    received(path, sent)
    (path / "tidelog.format").unlink()
    if content is not None:
        (path / "tidelog.format").write_text(content)
    before = sorted(str(at) for at in path.rglob("*"))
    with pytest.raises(CorruptError):
        Log.open(path, options())
    assert sorted(str(at) for at in path.rglob("*")) == before
    for name in ("tail", "journal", "store"):
        if content is None:
            shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink()
    with pytest.raises(CorruptError):
        Log.open(path, options())


# -- a disk that is full ---------------------------------------------------------------------------------------
@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    """A limit on the size of files stands in for a full disk: writes beyond it fail."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def broken_off(path: Path, sent: tuple[list[Entry], int, str]) -> Exception | None:
    """The error that stopped a copy, which was then abandoned."""
    place: Incoming | None = None
    try:
        place = Incoming(path, 8 * RING)
        take(place, sent[0], sent[1])
    except (OSError, CorruptError) as error:
        if place is not None:
            place.abandon()
        return error
    return None


@pytest.mark.parametrize("size", [0, 10_000, 40_000, 100_000])
def test_a_full_disk_is_an_oserror_and_changes_nothing(
    path: Path, sent: tuple[list[Entry], int, str], limited: Callable[[int], None], size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "WRITE_ABOVE", 500)
    with opened(path):
        limited(size)
        try:
            problem = broken_off(path, sent)
        finally:
            limited(resource.RLIM_INFINITY)
        assert isinstance(problem, OSError)
        assert str(path) in str(problem) or problem.errno == errno.EFBIG
        assert not list(path.glob("incoming*"))
    is_old(path)


def test_no_descriptor_is_left(path: Path, sent: tuple[list[Entry], int, str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        Incoming(path, RING).abandon()
        received(path, sent).abandon()
    assert len(os.listdir("/proc/self/fd")) == before
