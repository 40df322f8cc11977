"""Interceptors: golden vectors both ways, in any portions, and what hostile peers send."""

from __future__ import annotations

import base64
import gzip
import itertools
import struct
import zlib
from typing import Any

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tidelog.flows.api.errors import RejectError
from tidelog.flows.interceptors.base import (
    POSTPROCESSORS,
    PREPROCESSORS,
    BadMessage,
    BrokenStreamError,
    TimestampedMessage,
    postprocessor,
    preprocessor,
)
from tidelog.flows.interceptors.gelf import OPEN, GelfChunks
from tidelog.options.structs import Struct

MOST = 1000

# (what cuts, what writes, messages, the stream's bytes)
STREAMS: list[tuple[Any, Any, list[bytes], bytes]] = [
    ("separate", "separate", [b"a", b"", b"bc"], b"a\n\nbc\n"),
    ({"separate": {"delimiter": "\r\n"}}, {"separate": {"delimiter": "\r\n"}}, [b"a\rb", b"\n"], b"a\rb\r\n\n\r\n"),
    ({"separate": {"delimiter": "\0"}}, {"separate": {"delimiter": "\0"}}, [b"x\ny"], b"x\ny\0"),
    ("length_prefixed", "length_prefixed", [b"ab", b""], b"\0\0\0\0\0\0\0\2ab" + bytes(8)),
    (
        {"length_prefixed": {"width": 2, "order": "little"}}, {"length_prefixed": {"width": 2, "order": "little"}},
        [b"abc", b"d"], b"\3\0abc\1\0d",
    ),
    ("textual_length_prefixed", "textual_length_prefixed", [b"hello", b"", b"1 2"], b"5 hello0 3 1 2"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "messages", "stream"), STREAMS)
def test_streams_are_cut_in_any_portions(before: Any, after: Any, messages: list[bytes], stream: bytes) -> None:
    writer = postprocessor(after)
    assert b"".join(piece for each in messages for piece in writer.process(each)) + b"".join(writer.end()) == stream

    whole: Any = preprocessor(before, MOST)
    assert whole.feed(stream) == messages
    assert sum(whole.sizes) == len(stream)
    assert whole.end() == []

    bytewise: Any = preprocessor(before, MOST)
    found, sizes = [], []
    for number in range(len(stream)):
        found += bytewise.feed(stream[number : number + 1])
        sizes += bytewise.sizes
    assert found == messages
    assert sizes == whole.sizes or sum(sizes) == len(stream)

    trailing: Any = preprocessor(before, MOST)
    assert trailing.feed(stream + stream[:1]) == messages
    left = trailing.end()
    assert sum(trailing.sizes) == 1
    assert [bytes(each) for each in left] == [stream[:1]]
    assert trailing.feed(stream) == messages  # the next stream begins anew


def test_a_last_message_without_a_delimiter_is_one() -> None:
    cutter: Any = preprocessor("separate", MOST)
    assert cutter.feed(b"a\nb") == [b"a"]
    assert cutter.end() == [b"b"]
    assert cutter.sizes == [1]


@pytest.mark.parametrize("portion", [1, 3, 7, 1000])
@pytest.mark.parametrize("delimiter", ["\n", "\r\n"])
def test_an_endless_line_is_told_of_once_and_skipped(portion: int, delimiter: str) -> None:
    end = delimiter.encode()
    stream = b"ok" + end + b"x" * 55 + end + b"after" + end + b"y" * 11 + end + b"z" * 10 + end
    cutter: Any = preprocessor({"separate": {"delimiter": delimiter, "max_length": 10}}, MOST)
    found, size = [], 0
    for at in range(0, len(stream), portion):
        found += cutter.feed(stream[at : at + portion])
        size += sum(cutter.sizes)
        assert len(cutter._buffer) <= 10 + len(end) + portion
    assert [(type(each) is BadMessage, bytes(each)) for each in found] == [
        (False, b"ok"), (True, b"x" * 10), (False, b"after"), (True, b"y" * 10), (False, b"z" * 10),
    ]  # fmt: skip
    assert size == len(stream)


def test_a_line_without_an_end_takes_no_memory() -> None:
    cutter: Any = preprocessor("separate", MOST)
    found = []
    for _ in range(1000):
        found += cutter.feed(b"x" * 1000)
        assert len(cutter._buffer) <= MOST + 1000
    assert len(found) == 1
    assert cutter.end() == []


@given(
    st.lists(st.binary(max_size=20).filter(lambda each: b"ab" not in each and not each.endswith(b"a")), max_size=10),
    st.lists(st.integers(0, 200), max_size=20),
)
def test_separate_wherever_the_portions_end(messages: list[bytes], cuts: list[int]) -> None:
    """What is cut is what was written, wherever portions end."""
    stream = b"".join(each + b"ab" for each in messages)
    cutter: Any = preprocessor({"separate": {"delimiter": "ab"}}, MOST)
    places = sorted({0, len(stream), *(each for each in cuts if each < len(stream))})
    found = [piece for low, high in itertools.pairwise(places) for piece in cutter.feed(stream[low:high])]
    assert found == messages


@pytest.mark.parametrize(
    ("given", "stream", "messages"),
    [
        ("length_prefixed", struct.pack(">Q", 2) + b"ab" + b"\xff" * 8 + b"more", [b"ab"]),
        ({"length_prefixed": {"width": 4}}, struct.pack(">I", MOST + 1), []),
        ("textual_length_prefixed", b"2 ab1001 x", [b"ab"]),
        ("textual_length_prefixed", b"2 ab<34>x", [b"ab"]),
        ("textual_length_prefixed", b" 2 ab", []),
        ("textual_length_prefixed", b"0" * 50, []),
        ("textual_length_prefixed", b"-1 x", []),
        ("textual_length_prefixed", "²".encode() + b" ab", []),
    ],
)
def test_a_length_that_cannot_be_ends_the_stream(given: Any, stream: bytes, messages: list[bytes]) -> None:
    cutter: Any = preprocessor(given, MOST)
    with pytest.raises(BrokenStreamError) as caught:
        cutter.feed(stream)
    assert caught.value.pieces == messages


def test_a_message_that_is_cut_off_is_bad() -> None:
    for name in ("length_prefixed", "textual_length_prefixed"):
        cutter: Any = preprocessor(name, MOST)
        assert cutter.feed(postprocessor(name).process(b"abcdef")[0][:-1]) == []
        (bad,) = cutter.end()
        assert isinstance(bad, BadMessage)
        assert "within a message" in bad.error


def test_lengths_that_do_not_fit_are_rejected() -> None:
    with pytest.raises(RejectError):
        postprocessor({"length_prefixed": {"width": 1}}).process(b"x" * 256)
    assert postprocessor({"separate": {}}).process(b"a\nb") == [b"a\nb\n"]
    with pytest.raises(RejectError):
        postprocessor({"separate": {"within": "reject"}}).process(b"a\nb")


GOLDEN = {  # of b"hello"
    "gzip": "1f8b0800000000000003cb48cdc9c9070086a6103605000000",
    "zlib": "789ccb48cdc9c90700062c0215",
    "zstd": "28b52ffd200529000068656c6c6f",
    "lz4": "04224d186040820500008068656c6c6f00000000",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_compressed_bytes(name: str) -> None:
    for reader in (name, "decompress"):
        assert preprocessor(reader, MOST).feed(bytes.fromhex(GOLDEN[name])) == [b"hello"]
    if name != "lz4":  # written with the content's size
        assert postprocessor(name).process(b"hello")[0].hex() == GOLDEN[name]


def _packed(name: str, data: bytes) -> bytes:
    return b"".join(postprocessor(name).process(data))


@pytest.mark.parametrize("name", ["gzip", "zlib", "zstd", "lz4"])
@pytest.mark.parametrize("data", [b"", b"hello", b"x" * MOST, bytes(range(256)) * 3])
def test_what_was_compressed_is_read(name: str, data: bytes) -> None:
    packed = _packed(name, data)
    independent: Any = {
        "gzip": gzip.decompress, "zlib": zlib.decompress, "lz4": lz4.frame.decompress,
        "zstd": zstandard.ZstdDecompressor().decompress,
    }[name]  # fmt: skip
    assert independent(packed) == data
    for reader in (name, "decompress"):
        assert preprocessor(reader, MOST).feed(packed) == [data]
        assert preprocessor({reader: {"stream": True}}, MOST).feed(b"") == []
        stream = preprocessor({reader: {"stream": True}}, MOST)
        twice = packed + packed
        assert b"".join(b"".join(stream.feed(twice[at : at + 1])) for at in range(len(twice))) == data * 2
        assert stream.end() == []
        assert preprocessor(reader, 2 * MOST).feed(twice) == [data * 2]


@pytest.mark.parametrize("name", ["gzip", "zlib", "zstd", "lz4"])
def test_what_is_broken_is_bad_and_the_next_message_is_read(name: str) -> None:
    packed = _packed(name, b"hello" * 20)
    for reader in (name, "decompress"):
        one = preprocessor(reader, MOST)
        for broken in (packed[:-1], packed[:5], b"no such thing", packed + b"trailing"):
            (bad,) = one.feed(broken)
            assert isinstance(bad, BadMessage), broken
            assert bad == broken
            assert one.feed(packed) == [b"hello" * 20]


@pytest.mark.parametrize("name", ["gzip", "zlib", "zstd", "lz4"])
def test_bombs_are_bad(name: str) -> None:
    bomb = _packed(name, bytes(50_000_000))
    for reader in (name, "decompress"):
        (bad,) = preprocessor(reader, MOST).feed(bomb)
        assert isinstance(bad, BadMessage)
        assert f"more than {MOST} bytes" in bad.error
        with pytest.raises(BrokenStreamError) as caught:
            preprocessor({reader: {"stream": True}}, MOST).feed(bomb)
        assert sum(map(len, caught.value.pieces)) <= 64 * MOST


def test_a_zstd_frame_that_wants_much_memory_is_bad() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    maker = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (bad,) = preprocessor("zstd", MOST).feed(maker.compress(b"a") + maker.flush())
    assert isinstance(bad, BadMessage)


def test_a_compressed_stream_that_is_cut_off_is_said() -> None:
    stream = preprocessor({"gzip": {"stream": True}}, MOST)
    stream.feed(_packed("gzip", b"hello")[:-3])
    (bad,) = stream.end()
    assert isinstance(bad, BadMessage)


def test_gzip_is_padded_with_zeros() -> None:
    assert preprocessor("gzip", MOST).feed(_packed("gzip", b"hello") + bytes(100)) == [b"hello"]


def test_levels() -> None:
    for name, low, high in (("gzip", 0, 9), ("zlib", 0, 9), ("zstd", 1, 19), ("lz4", 0, 16)):
        for level in (low, high):
            packed = postprocessor({name: {"level": level}}).process(b"hello")[0]
            assert preprocessor(name, MOST).feed(packed) == [b"hello"]
        with pytest.raises(ValueError, match=f"from {low} to {high}"):
            postprocessor({name: {"level": high + 1}})


def test_base64() -> None:
    assert postprocessor("base64").process(b"\xff\xfe") == [b"//4="]
    assert preprocessor("base64", MOST).feed(b" //4=\r\n") == [b"\xff\xfe"]
    assert base64.b64encode(b"\xff\xfe") == b"//4="
    for wrong in (b"//4", b"*", b"//4=x"):
        assert isinstance(preprocessor("base64", MOST).feed(wrong)[0], BadMessage)


def test_empty_messages_go() -> None:
    for each in (preprocessor("remove_empty", MOST).feed, postprocessor("remove_empty").process):
        assert each(b"") == []
        assert each(b"x") == [b"x"]


def test_ingest_timestamps() -> None:
    writer: Any = postprocessor("ingest_timestamp")
    writer.ingest_ns = 258
    assert writer.process(b"x") == [b"\0\0\0\0\0\0\1\2x"]
    (piece,) = preprocessor("ingest_timestamp", MOST).feed(b"\0\0\0\0\0\0\1\2x")
    assert isinstance(piece, TimestampedMessage)
    assert (piece, piece.ingest_ns) == (b"x", 258)
    assert isinstance(preprocessor("ingest_timestamp", MOST).feed(b"1234567")[0], BadMessage)


def test_chunk_and_collect() -> None:
    chunk = postprocessor({"chunk": {"max_bytes": 5}})
    assert [chunk.process(each) for each in (b"ab", b"cd", b"efg", b"12345")] == [[], [], [b"abcd"], [b"efg"]]
    with pytest.raises(RejectError):
        chunk.process(b"123456")
    assert chunk.end() == [b"12345"]
    assert chunk.end() == []
    collect = postprocessor({"collect": {"count": 2}})
    assert [collect.process(each) for each in (b"a", b"b", b"c")] == [[], [b"ab"], []]
    assert collect.end() == [b"c"]


def _part(key: bytes, seq: int, count: int, data: bytes) -> bytes:
    return b"\x1e\x0f" + key + bytes((seq, count)) + data


def test_gelf_parts_in_any_order() -> None:
    now = [0.0]
    gelf = GelfChunks(Struct(), MOST, lambda: now[0])
    a, b = b"A" * 8, b"B" * 8
    assert gelf.feed(b'{"whole": 1}') == [b'{"whole": 1}']
    assert gelf.feed(_part(a, 1, 2, b"World")) == []
    assert gelf.feed(_part(b, 0, 1, b"one")) == [b"one"]
    assert gelf.end() == []
    assert gelf.feed(_part(a, 1, 2, b"World")) == []  # twice
    assert gelf.feed(_part(a, 0, 2, b"Hello")) == [b"HelloWorld"]
    assert gelf.feed(_part(a, 0, 2, b"Hello")) == []
    now[0] = 5.1
    assert gelf.feed(_part(a, 1, 2, b"World")) == []  # the first part is gone
    for wrong in (b"\x1e\x0f123", _part(b, 3, 3, b""), _part(b, 0, 0, b""), _part(b, 0, 129, b""), _part(a, 0, 3, b"")):
        assert isinstance(gelf.feed(wrong)[0], BadMessage)


def test_gelf_memory_is_limited() -> None:
    gelf = GelfChunks(Struct(), MOST, lambda: 0.0)
    for number in range(5 * OPEN):
        gelf.feed(_part(number.to_bytes(8, "big"), 0, 2, b"x" * 500))
        assert len(gelf._open) <= OPEN
        assert gelf._size <= 64 * MOST + 500
    assert isinstance(gelf.feed(_part(b"C" * 8, 0, 2, b"x" * 1001))[0], BadMessage)


@pytest.mark.parametrize("known", [PREPROCESSORS, POSTPROCESSORS])
def test_all_are_found_and_unknown_options_are_told(known: dict[str, str]) -> None:
    for name in known:
        make: Any = (lambda given: preprocessor(given, MOST)) if known is PREPROCESSORS else postprocessor
        make(name)
        make({name: {}})
        make({name: None})
        with pytest.raises(ValueError, match="unknown option 'nonsense'"):
            make({name: {"nonsense": 1}})
    with pytest.raises(ValueError, match="did you mean 'separate'"):
        preprocessor("seperate", MOST)
    with pytest.raises(ValueError, match="delimiter: Expected `str` of length >= 1"):
        preprocessor({"separate": {"delimiter": ""}}, MOST)
