"""Copies of the store: the bytes of pieces, one moment for all of them, the same content at the other end."""

from __future__ import annotations

import errno
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence.fullcopy import Incoming
from persistence.history import History
from persistence.store import Store
from persistence.storecopy import UnknownDatabaseError, entries
from resp.errors import CorruptError
from storage.keyspace.keyspace import Keyspace
from storage.streams.stream import Stream
from tests.persistence.datakit import RING, append, checkpoint, commit, delete, group, keyspace, opened, wire

HISTORY = "a" * 40


def pieces(store: Store, size: int = 1 << 18) -> list[bytes]:
    copy = store.copy()
    try:
        return list(copy.pieces(size))
    finally:
        copy.close()


def transfer(store: Store, directory: Path, size: int = 1 << 18) -> int:
    """Send a copy of the store to a directory, which uses it from its next start. Returns the copy's log offset."""
    copy = store.copy()
    place = Incoming(directory, RING)
    try:
        for piece in copy.pieces(size):
            place.add(piece)
        assert place.entries == copy.entries
        place.finish(copy.offset, copy.entries, History(HISTORY))
    except BaseException:
        place.abandon()
        raise
    finally:
        copy.close()
    return copy.offset


# -- the bytes -----------------------------------------------------------------------------------------------
U64 = "00000000000000"
META = f"00 0008 0000000c {b'next_sid'.hex()} 55ef4e7b {U64}0100 0006 0000000c {b'offset'.hex()} fba14fac {U64}19"
GOLDEN = bytes.fromhex(f"{META} 04 0004 00000018 00{b'key'.hex()} d3f50330 {U64}00 00000003 {b'keyvalue'.hex()}")


def test_golden_piece(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, ks, _):
        ks.set_string(b"key", b"value", 0)
        checkpoint(log, ks)
        assert pieces(log.store) == [GOLDEN]
    assert [(db, key) for db, key, _ in entries(GOLDEN)] == [(0, b"next_sid"), (0, b"offset"), (4, b"\0key")]


def test_golden_piece_is_read(tmp_path: Path) -> None:
    with opened(tmp_path):
        place = Incoming(tmp_path, RING)
        place.add(GOLDEN)
        place.finish(25, 3, History(HISTORY))
    with opened(tmp_path) as (log, ks, _):
        expected = keyspace(log.store)
        expected.set_string(b"key", b"value", 0)
        assert ks.digest() == expected.digest()
        assert log.offset == 25


def test_pieces_are_whole_entries_of_about_the_size(tmp_path: Path) -> None:
    with opened(tmp_path) as (log, ks, _):
        for number in range(50):
            ks.set_string(b"s%d" % number, b"x" * number * 10, 0)
        ks.set_string(b"big", b"x" * 100_000, 0)
        append(ks, b"a", 55)
        checkpoint(log, ks)
        copy = log.store.copy()
        whole = b"".join(pieces(log.store, 1 << 30))
        listed = list(entries(whole))
        assert len(listed) == copy.entries
        assert [(db, key) for db, key, _ in listed] == sorted((db, key) for db, key, _ in listed)
        assert {db for db, _, _ in listed} == {0, 1, 2, 4}
        assert len(whole) < copy.bytes < 4 * len(whole)
        for size in (1, 100, 5000):
            found = pieces(log.store, size)
            assert b"".join(found) == whole
            for piece in found:
                *most, last = entries(piece)
                assert sum(7 + len(key) + len(value) for _, key, value in most) < size
                assert last
        copy.close()


def test_bytes_that_are_not_a_piece_are_refused() -> None:
    borders = [0, 27, 52, len(GOLDEN)]
    for at in range(len(GOLDEN)):
        if at in borders:
            assert len(list(entries(GOLDEN[:at]))) == borders.index(at)
        else:
            with pytest.raises(CorruptError, match="piece of a copy"):
                list(entries(GOLDEN[:at]))
    with pytest.raises(UnknownDatabaseError, match="a database 9, which this tidelog does not know"):
        list(entries(b"\x09" + GOLDEN[1:]))


# -- one moment ----------------------------------------------------------------------------------------------
def test_a_store_that_never_had_a_checkpoint(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as (log, ks, _), opened(tmp_path / "b") as (old, old_ks, _):
        append(ks, b"a", 3)
        commit(log, ks)
        append(old_ks, b"old", 3)
        commit(old, old_ks)
        copy = log.store.copy()
        assert (copy.offset, copy.entries, list(copy.pieces(100))) == (0, 0, [])
        assert transfer(log.store, tmp_path / "b") == 0
    with opened(tmp_path / "b") as (log, ks, _):
        assert not ks.keys
        assert log.offset == 0
        append(ks, b"a", 3)
        commit(log, ks)


def test_a_copy_stays_as_it_began(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as (log, ks, _), opened(tmp_path / "b"):
        append(ks, b"a", 500)
        group(ks, b"a", b"g", 3)
        ks.set_string(b"s", b"1", 0)
        checkpoint(log, ks)
        then, offset = ks.digest(), log.offset
        copy = log.store.copy()
        source = copy.pieces(100)
        place = Incoming(tmp_path / "b", RING)
        place.add(next(source))
        for turn in range(20):
            ks.set_string(b"s%d" % turn, b"2", 0)
            found = append(ks, b"a", 50)
            ks.evict(b"a", found, found.first_ord + 20, found.id_at(found.first_ord + 19))
            checkpoint(log, ks)
            place.add(next(source))
        for piece in source:
            place.add(piece)
        assert copy.offset == offset < log.store.offset
        place.finish(offset, copy.entries, History(HISTORY))
        copy.close()
        assert ks.digest() != then
    with opened(tmp_path / "b") as (log, again, _):
        assert again.digest() == then
        assert log.offset == offset


def test_the_offset_is_that_of_the_copys_own_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in another thread has committed but not yet updated the store's offset."""
    with opened(tmp_path) as (log, ks, _):
        append(ks, b"a", 3)
        checkpoint(log, ks)
        monkeypatch.setattr(log.store, "offset", 0)
        copy = log.store.copy()
        assert copy.offset == log.offset > 0
        copy.close()


def test_closing_the_store_under_a_copy_is_an_oserror(tmp_path: Path) -> None:
    for _ in range(5):
        with opened(tmp_path) as (log, ks, _):
            append(ks, b"a", 500)
            checkpoint(log, ks)
            copy = log.store.copy()
            going, problems = threading.Event(), []

            def reading() -> None:
                try:
                    while True:
                        for _ in copy.pieces(1000):  # noqa: B023 - it ends before the next turn
                            going.set()  # noqa: B023
                except OSError as error:
                    problems.append(error.errno)  # noqa: B023

            thread = threading.Thread(target=reading)
            thread.start()
            assert going.wait(20)
            log.close()
            thread.join()
            copy.close()  # again: nothing
            assert problems == [errno.EBADF]


# -- there and here --------------------------------------------------------------------------------------------
names = st.binary(min_size=1, max_size=6) | st.binary(min_size=390, max_size=600)
few = st.sampled_from([b"a", b"b"]) | names
STEP = st.one_of(
    st.tuples(st.just("append"), few, st.integers(1, 40), st.integers(0, 300)),
    st.tuples(st.just("evict"), few, st.integers(1, 30)),
    st.tuples(st.just("delete"), few, st.integers(0, 60), st.integers(1, 40), st.integers(1, 3)),
    st.tuples(st.just("group"), names, names, st.integers(0, 20)),
    st.tuples(st.just("set"), names, st.binary(max_size=5000), st.sampled_from([0, 1 << 45])),
    st.tuples(st.just("expire"), names),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("flush")),
    st.tuples(st.just("checkpoint")),
)


def take(ks: Keyspace, step: tuple[object, ...]) -> None:
    match step:
        case ("append", bytes(key), int(count), int(pad)):
            made = stream(ks, b"t" + key) or ks.create_stream(b"t" + key)
            for _ in range(count):
                ks.append(b"t" + key, made, made.last_ms + 1, 0, wire("x" * pad))
        case ("evict", bytes(key), int(count)):
            found = stream(ks, b"t" + key)
            if found and found.length > count:
                ordinal = found.first_ord + count
                ks.evict(b"t" + key, found, ordinal, ordinal << 64)
        case ("delete", bytes(key), int(start), int(count), int(by)):
            if found := stream(ks, b"t" + key):
                start += found.first_ord
                delete(ks, b"t" + key, range(start, start + by * count, by))
        case ("group", bytes(key), bytes(name), int(pending)):
            if stream(ks, b"t" + key):
                group(ks, b"t" + key, name, pending)
        case ("set", bytes(key), bytes(value), int(expire)):
            ks.set_string(b"s" + key, value, expire)
        case ("expire", bytes(key)):
            if stream(ks, b"t" + key):
                ks.set_expire(b"t" + key, 1 << 44)
        case ("remove", bytes(key)):
            for name in (b"t" + key, b"s" + key):
                if name in ks.keys:
                    ks.remove(name)
        case ("flush",):
            ks.flush()


def stream(ks: Keyspace, key: bytes) -> Stream | None:
    found = ks.keys.get(key)
    assert found is None or isinstance(found, Stream)
    return found


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEP, min_size=1, max_size=25), st.sampled_from([1, 300, 1 << 18]))
def test_any_content_arrives(steps: list[tuple[object, ...]], size: int) -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place)
        with opened(path / "b") as (log, ks, _):
            append(ks, b"old", 5)
            checkpoint(log, ks)
        with opened(path / "a") as (log, ks, _):
            for step in steps:
                if step[0] == "checkpoint":
                    checkpoint(log, ks)
                else:
                    take(ks, step)
            checkpoint(log, ks)
            digest, offset, sid = ks.digest(), log.offset, ks.next_sid
            transfer(log.store, path / "b", size)
        with opened(path / "b") as (log, again, _):
            assert again.digest() == digest
            assert (log.offset, again.next_sid) == (offset, sid)
            assert log.history.id == HISTORY
            append(again, b"more", 30)
            checkpoint(log, again)
            digest = again.digest()
        with opened(path / "b") as (_, third, _):
            assert third.digest() == digest
