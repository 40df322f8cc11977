"""Sections and objects of made-up entries."""

from __future__ import annotations

from typing import NamedTuple

from storage.history import section
from storage.history.objectfile import FinishedObject, ObjectWriter
from storage.model.ids import MASK64


class Made(NamedTuple):
    """An entry: its ordinal, its ID as ms << 64 | seq, and its fields and values."""

    ordinal: int
    id: int
    words: tuple[bytes, ...]


def array(words: tuple[bytes, ...]) -> bytes:
    """Return a RESP array."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def wire(entry: Made) -> bytes:
    """Return an entry in wire form."""
    return array((b"%d.%d" % (entry.id >> 64, entry.id & MASK64), *entry.words))


def encoded(stream: bytes, entries: list[Made], first_ord: int | None = None, end_ord: int | None = None) -> bytes:
    """Return a section."""
    return section.encode(
        stream, entries[0].ordinal if first_ord is None else first_ord,
        entries[-1].ordinal + 1 if end_ord is None else end_ord, [each.id for each in entries],
        [each.ordinal for each in entries], [array(each.words) for each in entries], section.new_compressor(),
    )  # fmt: skip


def assembled(*sections: bytes) -> tuple[bytes, FinishedObject]:
    """Return an object with these sections."""
    writer = ObjectWriter()
    for each in sections:
        writer.add(each)
    finished = writer.finish()
    return b"".join((writer.header, *sections, finished.tail)), finished


def made_of(entries: section.SectionEntries) -> list[Made]:
    """Return the entries of a section that was read."""
    return [
        Made(ordinal, id, words_of(entries.fields(at)))
        for at, (ordinal, id) in enumerate(zip(entries.ordinals, entries.ids, strict=True))  # noqa: A001
    ]


def words_of(fields: bytes) -> tuple[bytes, ...]:
    """Return the strings of a RESP array, without checks."""
    head, _, rest = fields.partition(b"\r\n")
    words = []
    for _ in range(int(head[1:])):
        size, _, rest = rest.partition(b"\r\n")
        words.append(rest[: int(size[1:])])
        rest = rest[int(size[1:]) + 2 :]
    return tuple(words)


# Two streams, with binary data, a repeated field, an empty value, deleted entries, and the largest numbers.
ORDERS = [
    Made(0, 1500000000000 << 64, (b"item", b"tea", b"item", b"milk")),
    Made(1, 1500000000000 << 64 | 1, (b"item", b"")),
    Made(4, 1500000000007 << 64, (b"\x00\xff", b"a\r\nb")),
]
EXTREME = [Made(2**63, 5, (b"f", b"v")), Made(2**64 - 2, (MASK64 << 64) | MASK64, (b"f", b"v" * 5000))]
VECTOR: dict[bytes, list[list[Made]]] = {b"orders:1": [ORDERS[:2], ORDERS[2:]], b"\xffedge": [EXTREME]}


def vector() -> bytes:
    """Return the object with VECTOR."""
    return assembled(
        encoded(b"orders:1", ORDERS[:2]),
        encoded(b"orders:1", ORDERS[2:], first_ord=2, end_ord=6),
        encoded(b"\xffedge", EXTREME),
    )[0]
