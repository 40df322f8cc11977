"""Frames of the link: golden vectors both ways, in three feeds; everything that is not a frame is refused."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication import frames
from replication.frames import FrameDecoder, LinkError, ReplicationFrame, encode

pytestmark = pytest.mark.quick

# kind, log offset, payload, bytes on the wire (drawn in replication/frames.py)
VECTORS = [
    (frames.BATCH, 4711, b"\x04\0\0\0\x01k", "42 0000000000001267 00000006 e9286a24 eab43280 04000000016b"),
    (frames.ALIVE, 1, frames.ALIVE_BODY.pack(frames.ACKNOWLEDGE), "41 0000000000000001 00000001 a505df1b c9af5919 01"),
    (
        frames.COPY, 1 << 40, frames.COPY_BODY.pack(2, 3),
        "43 0000010000000000 00000010 5b443269 885d990b 00000000000000020000000000000003",
    ),
    (frames.PIECE, 7, b"piece", "50 0000000000000007 00000005 44ca0b23 e6a49bc8 7069656365"),
    (frames.DONE, 7, frames.DONE_BODY.pack(2), "44 0000000000000007 00000008 8b2cbe45 c44f2d19 0000000000000002"),
    (frames.CONFIRM, 4711, b"", "4f 0000000000001267 00000000 00000000 49721a24"),
    (frames.MESSAGE, 0, b"\0\0\0\x01ctext", "4d 0000000000000000 00000009 e908b24d f0fdfb37 000000016374657874"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "offset", "payload", "wire"), VECTORS)
def test_golden(kind: int, offset: int, payload: bytes, wire: str) -> None:
    raw = bytes.fromhex(wire)
    assert encode(kind, offset, payload) == raw
    wanted = [ReplicationFrame(kind, offset, payload)]
    assert FrameDecoder().feed(raw) == wanted
    bytewise = FrameDecoder()
    assert [frame for byte in raw for frame in bytewise.feed(bytes([byte]))] == wanted
    assert FrameDecoder().feed(raw + raw + raw[:-1]) == wanted * 2


def whole_frames(kind: int) -> st.SearchStrategy[tuple[int, int, bytes]]:
    shortest, longest = frames.LENGTHS[kind]
    payloads = st.binary(min_size=shortest, max_size=min(longest, 300))
    return st.tuples(st.just(kind), st.integers(0, (1 << 64) - 1), payloads)


@pytest.mark.parametrize("kind", b"BACPDMWG")
def test_a_length_that_no_frame_has_is_refused_at_once(kind: int) -> None:
    """From the head alone: nothing of it is awaited, and no room is made for it."""
    for length in {0, (1 << 32) - 1, 1 << 31 | 1, frames.LENGTHS[kind][0] - 1} - {-1}:
        first = frames.FIRST.pack(kind, 5, length, 0)
        with pytest.raises(LinkError, match=f"{length} bytes"):
            FrameDecoder().feed(first + frames.CRC.pack(crc32(first)))


@given(
    st.lists(st.sampled_from(b"BACPDM").flatmap(whole_frames)),
    st.lists(st.integers(1, 200), min_size=1),
)
def test_any_cut_gives_the_same_frames(sent: list[tuple[int, int, bytes]], sizes: list[int]) -> None:
    wire = b"".join(encode(*frame) for frame in sent)
    decoder, got, at = FrameDecoder(), list[ReplicationFrame](), 0
    while at < len(wire):
        size = sizes[at % len(sizes)]
        got += decoder.feed(wire[at : at + size])
        at += size
    assert got == [ReplicationFrame(*frame) for frame in sent]


@given(st.integers(0, 25), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_awaited_never_taken(at: int, flip: int) -> None:
    raw = bytearray(encode(frames.BATCH, 5, b"12345"))
    raw[at] ^= flip
    decoder = FrameDecoder()
    with pytest.raises(LinkError):
        decoder.feed(bytes(raw))


def test_a_length_without_a_right_crc_is_not_believed() -> None:
    head = frames.FIRST.pack(frames.BATCH, 0, (1 << 32) - 1, 0)
    with pytest.raises(LinkError, match="not a frame"):
        FrameDecoder().feed(head + b"\0\0\0\0")


def test_other_protocols_are_refused_at_once() -> None:
    with pytest.raises(LinkError, match="not a frame"):
        FrameDecoder().feed(b"$89\r\nREDIS0009\xfa\tredis-ver\x057.0.15")


def test_a_kind_of_a_newer_leader_is_named() -> None:
    with pytest.raises(LinkError, match="unknown kind 90"):
        FrameDecoder().feed(encode(ord("Z"), 0))


@pytest.mark.parametrize("payload", [b"", b"\0\0\0", b"\0\0\0\x05abcd"])
def test_messages_that_are_too_short(payload: bytes) -> None:
    with pytest.raises(LinkError):
        frames.read_message(payload)


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_messages_both_ways(channel: bytes, text: bytes) -> None:
    (frame,) = FrameDecoder().feed(frames.message(channel, text))
    assert frames.read_message(frame.payload) == (channel, text)


def test_numbers_of_another_size_are_refused() -> None:
    with pytest.raises(LinkError):
        frames.read_numbers(frames.COPY_BODY, b"123")
