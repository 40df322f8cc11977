"""Objects: read by their index, by a program in the documentation, and refused if a byte differs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from xxhash import xxh3_128_hexdigest

from resp.errors import CorruptError
from storage.history import objectfile, section
from storage.history.objectfile import FOOTER, ObjectWriter, open_section, read_index, verify
from tests.storage.history.kit import ORDERS, VECTOR, Made, assembled, encoded, made_of, vector

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("vector.tide")


def contents(content: bytes) -> dict[bytes, list[list[Made]]]:
    found: dict[bytes, list[list[Made]]] = {}
    for each in verify(content):
        found.setdefault(each.head.stream, []).append(made_of(each))
    return found


def test_the_vector() -> None:
    """The file was written by the first version. zstd may compress differently, so the other direction is compared
    without compression."""
    golden = GOLDEN.read_bytes()
    assert contents(golden) == contents(vector()) == VECTOR
    assert [record.head for record in read_index(golden, len(golden))] == [
        record.head for record in read_index(vector(), len(vector()))
    ]
    assert golden[:16].hex() == "544944454849535401000000" + "00000000"
    assert golden[-8:] == b"TIDEHEND"


def test_the_reader_in_the_documentation(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "history-format.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(program.splitlines()) <= 150
    reader = tmp_path / "history_reader.py"
    reader.write_text(program)
    many = [Made(at, at << 64 | at % 3, (b"n", b"%d" % at)) for at in range(1, 3000)]
    larger = tmp_path / "larger.tide"
    larger.write_bytes(assembled(encoded(b"many", many[:1000]), encoded(b"many", many[1000:]))[0])
    done = subprocess.run(
        [sys.executable, reader, GOLDEN, larger], capture_output=True, text=True, check=True, timeout=60
    )
    expected = [
        {
            "stream": stream.decode("latin-1"), "ordinal": each.ordinal, "id": f"{each.id >> 64}.{each.id % 2**64}",
            "fields": [word.decode("latin-1") for word in each.words],
        }
        for stream, sections in [*VECTOR.items(), (b"many", [many])]
        for entries in sections
        for each in entries
    ]  # fmt: skip
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    damaged = tmp_path / "damaged.tide"
    damaged.write_bytes(GOLDEN.read_bytes().replace(b"orders:1", b"orders:2", 1))
    refused = subprocess.run([sys.executable, reader, damaged], capture_output=True, text=True, timeout=60)
    assert "FormatError: a section is damaged" in refused.stderr


def test_two_requests_read_a_section() -> None:
    content, finished = assembled(*[encoded(b"s%d" % at, ORDERS) for at in range(50)])
    tail = content[finished.index_offset :]
    assert objectfile.index_offset(tail, len(content)) == finished.index_offset
    record = next(record for record in read_index(tail, len(content)) if record.head.stream == b"s31")
    found = open_section(record, content[record.offset : record.offset + record.size])
    assert made_of(found) == ORDERS


def test_what_a_finished_object_states() -> None:
    content, finished = assembled(encoded(b"a", ORDERS), encoded(b"b", ORDERS))
    assert finished.size == len(content)
    assert finished.digest == xxh3_128_hexdigest(content)
    assert list(finished.records) == read_index(content, len(content))
    assert finished.tail == content[finished.index_offset :]


def test_each_damaged_byte_is_detected() -> None:
    intact = vector()
    for at in range(len(intact)):
        damaged = bytearray(intact)
        damaged[at] ^= 0x41
        with pytest.raises(CorruptError):
            list(verify(bytes(damaged)))


def test_each_missing_end_is_detected() -> None:
    intact = vector()
    for size in range(len(intact)):
        with pytest.raises(CorruptError):
            list(verify(intact[:size]))
    for size in range(FOOTER.size, len(intact)):
        if size < len(intact) - objectfile.index_offset(intact, len(intact)):
            with pytest.raises(CorruptError, match="before the bytes"):
                read_index(intact[-size:], len(intact))


def test_another_section_in_the_place_of_one_is_detected() -> None:
    other = [each._replace(words=(b"item", b"tea")) for each in ORDERS]
    content, finished = assembled(encoded(b"s", ORDERS))
    (record,) = finished.records
    with pytest.raises(CorruptError, match="not the one in its index"):
        open_section(record, encoded(b"s", other))
    with pytest.raises(CorruptError, match="not the one in its index"):
        open_section(record, content[record.offset : record.offset + record.size - 1])


def test_sections_in_a_wrong_order_are_refused() -> None:
    first, second = encoded(b"s", ORDERS[:2]), encoded(b"s", ORDERS[2:])
    writer = ObjectWriter()
    writer.add(second)
    with pytest.raises(ValueError, match="in order"):
        writer.add(first)
    writer.add(encoded(b"t", ORDERS))
    with pytest.raises(ValueError, match="adjacent"):
        writer.add(encoded(b"s", [Made(9, 2**100, (b"f", b"v"))]))
    with pytest.raises(ValueError, match="at least one section"):
        ObjectWriter().finish()
    with pytest.raises(CorruptError):
        writer.add(first[:-1])


def test_an_object_of_64_mb_needs_two_requests() -> None:
    """Its sections have 16 KB, like those of sensor readings. The index fits into the bytes that a reader guesses."""
    writer = ObjectWriter()
    compressor = section.new_compressor()
    for at in range(objectfile.LARGEST >> 14):
        first = 5000 * at
        ids = [(1_750_000_000_000 + first + step * 7) << 64 | at % 3 for step in range(2)]
        encoded_section = section.encode(
            b"sensor", first, first + 5000, ids, [first, first + 1], [b"x"] * 2, compressor
        )
        writer.add(encoded_section)
    assert len(writer.finish().tail) < objectfile.INDEX_GUESS
