"""Sections: entries are preserved byte for byte, and each damaged byte is detected."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from resp.errors import CorruptError
from storage.history import section
from storage.model.ids import MASK64
from tests.storage.history.kit import EXTREME, ORDERS, Made, array, encoded, made_of, wire

WORDS = st.lists(st.binary(max_size=20), min_size=2, max_size=6).map(lambda words: tuple(words[: len(words) // 2 * 2]))


@st.composite
def entries(draw: st.DrawFn) -> list[Made]:
    """Entries with increasing ordinals and IDs."""
    ordinal, ms, seq = draw(st.integers(0, 2**62)), draw(st.integers(0, 2**48)), draw(st.integers(1, 2**48))
    made = []
    for words in draw(st.lists(WORDS, min_size=1, max_size=20)):
        made.append(Made(ordinal, ms << 64 | seq, words))
        ordinal += draw(st.sampled_from((1, 1, 1, 2, 300)))
        step = draw(st.sampled_from((0, 0, 1, 1000)))
        ms, seq = ms + step, draw(st.integers(0, 5)) if step else seq + draw(st.integers(1, 200))
    return made


@given(entries(), st.binary(max_size=30))
def test_entries_are_preserved(made: list[Made], stream: bytes) -> None:
    found = section.decode(encoded(stream, made))
    section.check_fields(found)
    assert made_of(found) == made
    assert [found.wire(at) for at in range(len(found))] == [wire(each) for each in made]
    assert found.head.stream == stream
    assert (found.head.first_id, found.head.last_id) == (made[0].id, made[-1].id)


@given(entries())
def test_the_fields_are_those_in_the_wire_form(made: list[Made]) -> None:
    assert [section.fields_of(wire(each)) for each in made] == [array(each.words) for each in made]


def test_an_entry_of_thousands_of_fields() -> None:
    words = tuple(b"%d" % number for number in range(4000))
    made = [Made(7, 1 << 64, words)]
    assert section.fields_of(wire(made[0])) == array(words)
    assert made_of(section.decode(encoded(b"s", made))) == made


def test_the_covered_ordinals_include_deleted_entries() -> None:
    head = section.decode(encoded(b"s", ORDERS, first_ord=0, end_ord=9)).head
    assert (head.first_ord, head.end_ord, head.count) == (0, 9, 3)


@pytest.mark.parametrize("made", [ORDERS, EXTREME])
def test_each_damaged_byte_is_detected(made: list[Made]) -> None:
    intact = encoded(b"orders", made)
    for at in range(len(intact)):
        damaged = bytearray(intact)
        damaged[at] ^= 0x41
        with pytest.raises(CorruptError):
            section.decode(bytes(damaged))
    for size in range(len(intact)):
        with pytest.raises(CorruptError):
            section.decode(intact[:size])
    with pytest.raises(CorruptError):
        section.decode(intact + b"\0")


def forged(raw: bytes, count: int = 1, first_ord: int = 0, end_ord: int = 1, last_id: int = 5) -> bytes:
    """Return a section with these raw bytes, and a correct checksum."""
    frame = zstandard.ZstdCompressor().compress(raw)
    how = 0 if end_ord - first_ord == count else 1
    header = section.HEADER.pack(
        0, section.HEADER.size + 1 + len(frame), 1, how, 1, count, first_ord, end_ord, 0, 5, last_id >> 64,
        last_id & MASK64, len(raw), 0,
    )  # fmt: skip
    rest = header[8:] + b"s" + frame
    return xxh3_64_intdigest(rest).to_bytes(8, "little") + rest


def columns(ids: bytes, ordinals: bytes, sizes: bytes, body: bytes) -> bytes:
    return b"".join((
        len(ids).to_bytes(4, "little"), len(ordinals).to_bytes(4, "little"), len(sizes).to_bytes(4, "little"), ids,
        ordinals, sizes, body,
    ))  # fmt: skip


def test_a_valid_forgery_is_accepted() -> None:
    body = array((b"f", b"v"))
    found = section.decode(forged(columns(b"\0\5", b"", bytes([len(body)]), body)))
    section.check_fields(found)
    assert made_of(found) == [Made(0, 5, (b"f", b"v"))]


BODY = array((b"f", b"v"))
SIZE = bytes([len(BODY)])


@pytest.mark.parametrize(
    "forgery",
    [
        forged(columns(b"\0\6", b"", SIZE, BODY)),  # another first ID
        forged(columns(b"\0\5", b"", SIZE, BODY), last_id=6),
        forged(columns(b"\0\5\0\0", b"", SIZE * 2, BODY * 2), count=2, end_ord=2),  # an ID twice
        forged(columns(b"\0\5", b"\2", SIZE, BODY), end_ord=2),  # an ordinal that is not covered
        forged(columns(b"\0\5", b"", SIZE, BODY), end_ord=2),  # no column of ordinals
        forged(columns(b"\0\5", b"\0", SIZE, BODY)),  # a column of ordinals
        forged(columns(b"\0\5", b"", SIZE, BODY + b"x")),
        forged(columns(b"\0\5\0", b"", SIZE, BODY)),
        forged(b"\xff" * 12),  # columns beyond the end
        forged(b""),
    ],
)
def test_columns_that_contradict_the_header_are_refused(forgery: bytes) -> None:
    with pytest.raises(CorruptError):
        section.decode(forgery)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"*2\r\n", b"*1\r\n$1\r\nf\r\n", b"*0\r\n", b"*02\r\n$1\r\nf\r\n$1\r\nv\r\n",
        b"*2\r\n$1\r\nf\r\n$1\r\nvxx",
        b"*2\r\n$1\r\nf\r\n$01\r\nv\r\n", b"*2\r\n$1\r\nf\r\n:1\r\n", b"*2\r\n$1\r\nf\r\n$1\r\nv\r\nx", b"*-1\r\n",
        b"*2\r\n$1\r\nf\r\n$99999999999\r\nv\r\n", b"f",
    ],
)  # fmt: skip
def test_entries_that_are_no_fields_are_detected(body: bytes) -> None:
    found = section.decode(forged(columns(b"\0\5", b"", bytes([len(body)]), body)))
    with pytest.raises(CorruptError, match="entry 0 "):
        section.check_fields(found)


def test_a_reader_can_limit_the_memory_of_a_section() -> None:
    small = encoded(b"s", [Made(0, 1, (b"f", b"\0" * 1_000_000))])
    assert len(small) < 1000
    with pytest.raises(CorruptError, match="at most 65536"):
        section.decode(small, 65536)


def test_a_later_format_is_refused_by_name() -> None:
    later = bytearray(encoded(b"s", ORDERS))
    later[12] = 2
    later[:8] = xxh3_64_intdigest(bytes(later[8:])).to_bytes(8, "little")
    with pytest.raises(CorruptError, match=r"format 2.*upgrade"):
        section.decode(bytes(later))


def test_a_section_needs_entries() -> None:
    with pytest.raises(ValueError, match="at least one"):
        section.encode(b"s", 0, 0, [], [], [], section.new_compressor())
