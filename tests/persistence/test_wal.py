"""The WAL: its bytes, how it wraps, and what a reader makes of every kind of end."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from persistence import wal as walfile
from persistence.wal import BLOCK, FRAME, Wal, create
from resp.errors import CorruptError

RING = 8 * BLOCK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    create(tmp_path / "tail", RING)
    return tmp_path / "tail"


def put(wal: Wal, offset: int, batch: bytes, synced: int | None = None) -> int:
    """Append a frame as Log does; returns the next log offset."""
    at = wal.find_room(len(batch))
    assert at is not None
    wal.write(at, offset, offset if synced is None else synced, batch)
    wal.add(at, len(batch))
    return offset + len(batch)


def reread(path: Path, offset: int) -> tuple[list[bytes], int]:
    wal = Wal(path)
    try:
        frames, dropped = wal.read(offset)
        return [batch for _, batch, _, _ in frames], dropped
    finally:
        wal.close()


def flip(path: Path, at: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


# -- small frames, which C writes where it was compiled ---------------------------------------------------------------
needs_c = pytest.mark.skipif(walfile.write_small is None, reason="persistence._frame is not built here")


@needs_c
@pytest.mark.interpreted
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(min_size=1, max_size=walfile.SMALL), st.integers(0, 1 << 63), st.integers(0, 1 << 63))
def test_c_writes_what_python_writes(path: Path, batch: bytes, offset: int, synced: int) -> None:
    wal = Wal(path)
    try:
        crc = wal.write(0, offset, synced, batch)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(walfile, "write_small", None)
            assert wal.write(BLOCK, offset, synced, batch) == crc == crc32(batch)
        size = FRAME.size + len(batch)
        assert os.pread(wal.fd, size, BLOCK) == os.pread(wal.fd, size, 2 * BLOCK)
    finally:
        wal.close()


def test_a_small_frame_that_cannot_be_written_is_an_error(path: Path) -> None:
    wal = Wal(path)
    wal.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        wal.write(0, 0, 0, b"abc")


@needs_c
def test_c_refuses_what_is_not_small(path: Path) -> None:
    wal = Wal(path)
    try:
        assert walfile.write_small is not None
        with pytest.raises(ValueError, match="not small"):
            walfile.write_small(wal.fd, BLOCK, 0, 0, 0, bytes(walfile.SMALL + 1))
    finally:
        wal.close()


# -- the bytes -----------------------------------------------------------------------------------------------
HEADER = bytes.fromhex("5449444554 41494c 01000000 ea8821c4 0080000000000000 04030201")
FRAME_HEAD = bytes.fromhex("54460000 212e21c2 0700000000000000 0500000000000000 03000000 c2412435")


def test_golden_bytes_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "urandom", lambda n: bytes(range(4, 4 - n, -1)))
    create(tmp_path / "tail", RING - 1)  # whole blocks
    wal = Wal(tmp_path / "tail")
    put(wal, 7, b"abc", synced=5)
    wal.close()
    raw = (tmp_path / "tail").read_bytes()
    assert len(raw) == BLOCK + RING
    assert raw[: len(HEADER)] == HEADER
    assert not any(raw[len(HEADER) : BLOCK])
    assert raw[BLOCK : BLOCK + FRAME.size] == FRAME_HEAD
    assert raw[BLOCK + FRAME.size : BLOCK + FRAME.size + 3] == b"abc"
    assert not any(raw[BLOCK + FRAME.size + 3 :])


def test_golden_bytes_read(tmp_path: Path) -> None:
    raw = HEADER.ljust(BLOCK, b"\0") + (FRAME_HEAD + b"abc").ljust(RING, b"\0")
    (tmp_path / "tail").write_bytes(raw)
    assert reread(tmp_path / "tail", 7) == ([b"abc"], 0)


LARGE_FRAME = "5458000009e8ba200610000000000000050000000000000000100000d52a95ec"


def test_golden_bytes_of_a_large_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is another one, and the file says that it is of another version."""
    monkeypatch.setattr(os, "urandom", lambda n: bytes(range(4, 4 - n, -1)))
    create(tmp_path / "tail", RING)
    batch = b"abcd" * 1024
    wal = Wal(tmp_path / "tail")
    offset = put(wal, 7, batch[:-1], synced=5)
    assert (tmp_path / "tail").read_bytes()[: len(HEADER)] == HEADER
    put(wal, offset, batch, synced=5)
    wal.close()
    raw = (tmp_path / "tail").read_bytes()
    assert raw[: len(HEADER)] == HEADER[:8] + b"\2" + HEADER[9:]
    head = raw[3 * BLOCK : 3 * BLOCK + FRAME.size]
    assert head == bytes.fromhex(LARGE_FRAME)
    assert raw[3 * BLOCK + FRAME.size :].startswith(batch)
    assert reread(tmp_path / "tail", 7) == ([batch[:-1], batch], 0)


@pytest.mark.interpreted
def test_a_large_frame_with_a_crc32_as_servers_of_before_wrote_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [b"one" * 3000, b"two", b"three" * 3000]
    with monkeypatch.context() as patch:
        patch.setattr(walfile, "LARGE", 1 << 30)
        wal = Wal(path)
        offset = put(wal, 0, batches[0])
        wal.close()
    assert path.read_bytes()[8] == 1
    wal = Wal(path)
    frames, _ = wal.read(0)
    assert [frame[3] for frame in frames] == [crc32(batches[0])]
    for batch in batches[1:]:
        offset = put(wal, offset, batch)
    wal.close()
    assert reread(path, 0) == (batches, 0)


# -- writing and reading back --------------------------------------------------------------------------------
def test_frames_follow_each_other(path: Path) -> None:
    wal = Wal(path)
    offset = put(wal, 100, b"one")
    offset = put(wal, offset, b"two" * 2000)
    put(wal, offset, b"three")
    wal.close()
    assert reread(path, 100) == ([b"one", b"two" * 2000, b"three"], 0)
    assert reread(path, 103)[0] == [b"two" * 2000, b"three"]  # the journal has the first


def test_the_ring_wraps_and_a_frame_lies_in_one_piece(path: Path) -> None:
    wal = Wal(path)
    offset = first = 0
    for turn in range(20):
        batch = bytes([turn]) * 6000  # two blocks
        first, offset = offset, put(wal, offset, batch)
        if wal.used > 1:  # the journal takes all but the last
            wal.free(wal.used - 1, wal.end - 2 * BLOCK)
    wal.close()
    batches, dropped = reread(path, first)
    assert (batches, dropped) == ([bytes([19]) * 6000], 0)


def test_a_full_ring_says_so_and_takes_no_live_frame(path: Path) -> None:
    wal = Wal(path)
    offset = 0
    while wal.find_room(5000) is not None:
        offset = put(wal, offset, b"x" * 5000)
    assert offset == 4 * 5000
    assert wal.find_room(1) is None
    assert wal.find_room(RING) is None
    wal.free(1, 2 * BLOCK)
    assert wal.find_room(1) == 0
    assert wal.find_room(BLOCK) is None  # it would end where the first live frame begins: full would look like empty
    wal.free(3, 8 * BLOCK)
    assert wal.find_room(RING - FRAME.size) == 0
    wal.close()


class Model:
    """What the ring must hold: the frames that the journal lacks."""

    def __init__(self) -> None:
        self.live: list[tuple[int, int, bytes, int]] = []  # position, log offset, records, position after
        self.offset = 0


@given(st.lists(st.one_of(st.integers(1, RING), st.tuples(st.integers(0, 3))), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_appending_and_freeing(tmp_path_factory: pytest.TempPathFactory, steps: list[object]) -> None:
    path = tmp_path_factory.mktemp("ring") / "tail"
    create(path, RING)
    wal, model = Wal(path), Model()
    for step in steps:
        if isinstance(step, int):
            position = wal.find_room(step)
            if position is None:
                assert model.live or FRAME.size + step > RING, "an empty ring refused a frame that fits"
                continue
            end = position + walfile.blocks(FRAME.size + step)
            assert end <= RING
            assert all(end <= at or stop <= position for at, _, _, stop in model.live), "a live frame was overwritten"
            batch = bytes([model.offset % 251]) * step
            put(wal, model.offset, batch)
            model.live.append((position, model.offset, batch, end))
            model.offset += step
        else:
            assert isinstance(step, tuple)
            count = min(step[0], len(model.live))
            if count:
                wal.free(count, model.live[count - 1][3])
                del model.live[:count]
    wal.close()
    start = model.live[0][1] if model.live else model.offset
    assert reread(path, start) == ([batch for _, _, batch, _ in model.live], 0)


# -- ends ----------------------------------------------------------------------------------------------------
def three(path: Path) -> list[bytes]:
    """Three frames of two blocks, one and one, from log offset 50; each synced before the next."""
    batches = [b"first" * 1000, b"second", b"third" * 20]
    wal = Wal(path)
    offset = 50
    for batch in batches:
        offset = put(wal, offset, batch)
    wal.close()
    return batches


def places() -> list[tuple[int, int]]:
    """Where the three frames begin and end in the file."""
    return [(at * BLOCK, at * BLOCK + FRAME.size + size) for at, size in ((1, 5000), (3, 6), (4, 100))]


def test_the_last_frame_cut_at_every_byte_is_dropped(path: Path) -> None:
    batches = three(path)
    whole = path.read_bytes()
    start, stop = places()[2]
    for cut in range(start, stop):
        path.write_bytes(whole[:cut] + bytes(stop - cut) + whole[stop:])
        found, dropped = reread(path, 50)
        assert found == batches[:2]
        assert bool(dropped) == (cut >= start + 2), cut  # and said, if there is enough of it to know it by
        assert reread(path, 50) == (batches[:2], 0), "what was dropped must be gone"


def test_the_last_frame_flipped_at_every_byte_is_dropped_and_said(path: Path) -> None:
    batches = three(path)
    whole = path.read_bytes()
    for at in range(*places()[2]):
        path.write_bytes(whole)
        flip(path, at, at % 8)
        found, dropped = reread(path, 50)
        assert found == batches[:2]
        assert dropped, at


@pytest.mark.parametrize("frame", [0, 1])
def test_an_earlier_frame_flipped_at_any_byte_is_refused(path: Path, frame: int) -> None:
    three(path)
    whole = path.read_bytes()
    start, stop = places()[frame]
    for at in [*range(start, start + 60), *range(start + 60, stop, 97), stop - 1]:
        if at >= stop:
            continue
        path.write_bytes(whole)
        flip(path, at, at % 8)
        with pytest.raises(CorruptError, match="records that it was on disk") as refusal:
            reread(path, 50)
        assert str(path) in str(refusal.value)
        assert "backup" in str(refusal.value)


def test_frames_that_were_never_synced_may_be_missing(path: Path) -> None:
    """A power cut under everysec: the system had written the third block but not the second."""
    wal = Wal(path)
    offset = put(wal, 50, b"synced")
    second = put(wal, offset, b"lost", synced=offset)
    put(wal, second, b"later", synced=offset)
    wal.close()
    flip(path, 2 * BLOCK + FRAME.size)
    found, dropped = reread(path, 50)
    assert found == [b"synced"]
    assert dropped == 2 * FRAME.size + len(b"lost") + len(b"later")


def test_what_was_dropped_never_follows_what_is_written_next(path: Path) -> None:
    """Without the wipe, the old third frame would follow a new second one of the same length."""
    wal = Wal(path)
    offset = put(wal, 0, b"first", synced=0)
    second = put(wal, offset, b"AAAA", synced=0)
    put(wal, second, b"ghost", synced=0)
    wal.close()
    flip(path, 2 * BLOCK + FRAME.size)
    wal = Wal(path)
    frames, _ = wal.read(0)
    assert [batch for _, batch, _, _ in frames] == [b"first"]
    put(wal, offset, b"BBBB", synced=0)
    wal.close()
    assert reread(path, 0) == ([b"first", b"BBBB"], 0)


def test_wiping_spares_the_frames_of_a_wrapped_ring(path: Path) -> None:
    wal = Wal(path)
    offset = 0
    for _ in range(3):
        offset = put(wal, offset, b"x" * 8000)  # two blocks each
    wal.free(2, 4 * BLOCK)
    start = offset - 8000
    offset = put(wal, offset, b"y" * 8000)  # the last two blocks
    offset = put(wal, offset, b"z" * 3)  # the first
    put(wal, offset, b"torn")
    wal.close()
    flip(path, 2 * BLOCK + FRAME.size)
    found, dropped = reread(path, start)
    assert dropped
    assert found == [b"x" * 8000, b"y" * 8000, b"zzz"]
    assert reread(path, start) == (found, 0)


def test_stale_frames_of_an_earlier_lap_do_not_count(path: Path) -> None:
    wal = Wal(path)
    offset = 0
    for turn in range(8):
        offset = put(wal, offset, b"lap1%d" % turn)
    wal.free(8, 8 * BLOCK)
    put(wal, offset, b"lap2")
    wal.close()
    assert reread(path, offset) == ([b"lap2"], 0)
    assert reread(path, offset + 4) == ([], 0)


def test_what_a_client_stores_can_not_look_like_a_frame(path: Path) -> None:
    """A value that holds, at a block boundary, a frame with a future log offset. Only the salt is wrong."""
    body = b"evil"
    rest = walfile.SIGNED.pack(10_000, 9_999, len(body), crc32(body))
    forged = b"TF\0\0" + crc32(rest).to_bytes(4, "little") + rest + body
    batch = bytes(BLOCK - FRAME.size) + forged + bytes(100)
    wal = Wal(path)
    put(wal, 0, batch)
    wal.close()
    assert reread(path, 0) == ([batch], 0)


# -- the file itself -----------------------------------------------------------------------------------------
def test_every_flip_of_the_header_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for at in range(len(HEADER)):
        path.write_bytes(whole)
        flip(path, at, at % 8)
        with pytest.raises(CorruptError, match=str(path)):
            Wal(path)


@pytest.mark.parametrize("size", [0, 10, BLOCK, BLOCK + RING - 1, BLOCK + RING + 1])
def test_a_file_of_another_length_is_refused(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(CorruptError, match=str(path)):
        Wal(path)


def test_a_version_that_kept_frames_elsewhere_says_what_to_do(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write((3).to_bytes(4, "little"))
    with pytest.raises(CorruptError, match=r"version 3.*stop cleanly first"):
        Wal(path)


def test_a_newer_version_says_that_it_is_newer(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[8] = 4
    path.write_bytes(raw)
    with pytest.raises(CorruptError, match=r"version 4.*start the newer one"):
        Wal(path)
