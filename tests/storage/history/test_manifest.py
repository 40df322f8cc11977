"""Manifests: their size, gaps, damage, and names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from resp.errors import CorruptError
from storage.history import manifest
from storage.history.manifest import LONGEST_NAME, Manifest, Part, decode, decode_page, directory_of, escaped

SERVER = "ab" * 20
EMPTY = Manifest(b"orders:1", SERVER, 1, 3, 0, sid=7)


def part(at: int, entries: int = 10) -> Part:
    """Return the object with the entries from 10 * at on."""
    first = 10 * at
    return Part(f"{at:x}.tide", 0, 1000, 900, first, first + 10, first + 1, first + 10, entries, 800)


def grown(count: int) -> tuple[Manifest, dict[str, bytes]]:
    """Return a manifest with some objects, and the contents of its pages."""
    made, pages = EMPTY, {}
    for at in range(count):
        made, new = made.extended(part(at), 3)
        pages.update({each.part.name: each.content for each in new})
    return made, pages


def listed(parts: tuple[Part, ...], pages: dict[str, bytes]) -> list[Part]:
    """Return all objects."""
    found: list[Part] = []
    for each in parts:
        found += listed(decode_page(pages[each.name], each, b"orders:1"), pages) if each.level else [each]
    return found


@pytest.mark.parametrize("count", [0, 1, 199, 200, 1000])
def test_all_objects_are_listed(count: int) -> None:
    made, pages = grown(count)
    again = decode(made.encode(), b"orders:1")
    assert again == made
    assert listed(again.parts, pages) == [part(at) for at in range(count)]
    assert (made.number, made.end_ord, made.stored) == (count + 1, 10 * count, 800 * count)


def test_the_size_grows_with_the_logarithm_of_the_history() -> None:
    made, pages = grown(10_500)
    assert len(made.parts) < 4 * manifest.PAGE
    assert {each.level for each in made.parts} == {0, 1}
    assert len(listed(made.parts, pages)) == 10_500


def test_the_vector() -> None:
    line = (
        b'{"format":"tidelog history manifest","version":1,"stream":"orders%3A1","server":"' + SERVER.encode() + b'",'
        b'"sid":7,"number":2,"epoch":3,"time":0,"offset":0,"first_ord":0,"parts":[{"name":"0.tide","level":0,"size":1000,'
        b'"index_offset":900,"first_ord":0,"end_ord":10,"first_id":"0.1","last_id":"0.10","entries":10,"stored":800}]}'
    )
    content = line + b"\n8891fdb13fba4dc5\n"
    assert grown(1)[0].encode() == content
    assert decode(content, b"orders:1") == grown(1)[0]


def test_trimming_removes_objects_without_remaining_entries() -> None:
    trimmed = grown(3)[0].trimmed(15, 4, no_page)
    made = trimmed.version
    assert (made.first_ord, made.number, made.epoch) == (15, 5, 4)
    assert [each.name for each in made.parts] == ["1.tide", "2.tide"]
    assert (trimmed.dropped, trimmed.pages) == ([part(0)], [])
    assert made.stored == 1600
    assert made.trimmed(3, 4, no_page).version.first_ord == 15  # never back
    gone = made.trimmed(99, 4, no_page).version
    assert (gone.parts, gone.end_ord) == ((), 99)
    assert decode(gone.encode(), b"orders:1") == gone


def no_page(of: Part) -> tuple[Part, ...]:
    raise AssertionError(of)


@pytest.mark.interpreted
def test_pages_are_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is dropped exactly once, and so is each page. The rest is listed as before."""
    monkeypatch.setattr(manifest, "PAGE", 3)
    made, pages = grown(60)
    assert max(each.level for each in made.parts) == 2

    def page(of: Part) -> tuple[Part, ...]:
        return decode_page(pages[of.name], of, b"orders:1")

    dropped: list[Part] = []
    written = set(pages)
    for first in (5, 10, 195, 300, 305, 310, 598, 600):
        trimmed = made.trimmed(first, 4, page)
        pages.update({each.part.name: each.content for each in trimmed.pages})
        written.update(each.part.name for each in trimmed.pages)
        dropped += trimmed.dropped
        made = decode(trimmed.version.encode(), b"orders:1")
        assert listed(made.parts, pages) == [part(at) for at in range(first // 10, 60)]
        assert made.first_ord == first
    assert [each for each in dropped if not each.level] == [part(at) for at in range(60)]
    assert sorted(each.name for each in dropped if each.level) == sorted(written)


def test_an_object_that_leaves_a_gap_is_refused() -> None:
    made = grown(2)[0]
    for wrong in (part(3), part(1), replace(part(2), first_id=5, last_id=6), replace(part(2), level=1)):
        with pytest.raises(ValueError, match="ordinal 20"):
            made.extended(wrong, 3)


def test_a_gap_is_reported_when_the_manifest_is_read() -> None:
    made = replace(EMPTY, parts=(part(0), part(2)))
    with pytest.raises(CorruptError, match=r"gap: 0\.tide ends before ordinal 10, and 2\.tide begins with 20"):
        decode(made.encode(), b"orders:1")
    with pytest.raises(CorruptError, match="invalid"):
        decode(replace(EMPTY, parts=(part(0, entries=11),)).encode(), b"orders:1")


def test_each_damaged_byte_is_detected() -> None:
    made, pages = grown(200)
    (content,) = pages.values()
    for at in range(0, len(content), 97):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(CorruptError):
            decode_page(bytes(damaged), made.parts[0], b"orders:1")
    small = grown(1)[0].encode()
    for at in range(len(small)):
        with pytest.raises(CorruptError):
            decode(small[:at], b"orders:1")
        with pytest.raises(CorruptError):
            decode(small[:at] + bytes([small[at] ^ 1]) + small[at + 1 :], b"orders:1")


def test_a_file_of_another_stream_is_refused() -> None:
    made, pages = grown(200)
    with pytest.raises(CorruptError, match="stream orders%3A1"):
        decode(made.encode(), b"orders:2")
    with pytest.raises(CorruptError, match="not the one"):
        decode_page(pages[made.parts[0].name], made.parts[0], b"orders:2")
    with pytest.raises(CorruptError, match="not the one"):
        decode_page(pages[made.parts[0].name], replace(made.parts[0], entries=1), b"orders:1")
    with pytest.raises(CorruptError, match="no tidelog history manifest"):
        decode(pages[made.parts[0].name], b"orders:1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"version":1', '"version":2'), ('"number":2', '"number":true'), ('"number":2', '"number":-1'),
        ('"name":"0.tide"', '"name":"../0.tide"'), ('"name":"0.tide"', '"name":""'),
        ('"first_id":"0.1"', '"first_id":7'),
        ('"first_id":"0.1"', '"first_id":"x"'), ('"parts":[{', '"parts":[7,{'), ('"stream":"orders%3A1"', '"stream":7'),
        ('"end_ord":10', '"end_ord":1.5'),
    ],
)  # fmt: skip
def test_invalid_fields_are_refused(old: str, new: str) -> None:
    line = grown(1)[0].encode().partition(b"\n")[0].decode()
    assert old in line
    forged = line.replace(old, new).encode()
    with pytest.raises(CorruptError):
        decode(b"%b\n%b\n" % (forged, xxh3_64_hexdigest(forged).encode()), b"orders:1")


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_directories_are_safe_and_distinct(one: bytes, other: bytes) -> None:
    name = directory_of(one)
    assert 0 < len(name) <= LONGEST_NAME
    assert not set(name) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~%.")
    assert (name == directory_of(other)) == (one == other)


def test_names() -> None:
    assert escaped(b"../x") == "%2E%2E%2Fx"
    assert directory_of(b"") == ".99aa06d3014798d86001c324468d497f"
    assert manifest.object_name(3, "d" * 32) == "0000000000000003-" + "d" * 32 + ".tide"
    assert sorted(manifest.manifest_name(number) for number in (10, 9)) == [
        "00000000000000000009.json", "00000000000000000010.json",
    ]  # fmt: skip
