from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp import reply

GOLDEN: list[tuple[bytes, bytes]] = [
    (reply.OK, b"+OK\r\n"),
    (reply.PONG, b"+PONG\r\n"),
    (reply.QUEUED, b"+QUEUED\r\n"),
    (reply.NULL_BULK, b"$-1\r\n"),
    (reply.NULL_ARRAY, b"*-1\r\n"),
    (reply.NULL3, b"_\r\n"),
    (reply.EMPTY_ARRAY, b"*0\r\n"),
    (reply.simple(b"stream"), b"+stream\r\n"),
    (reply.error("ERR no\r\nsuch"), b"-ERR no  such\r\n"),
    (reply.error("ERR \udcff\u00e9"), b"-ERR \\udcff\xc3\xa9\r\n"),
    (reply.integer(-5), b":-5\r\n"),
    (reply.integer(1 << 62), b":4611686018427387904\r\n"),
    (reply.bulk(b""), b"$0\r\n\r\n"),
    (reply.bulk(b"a\r\n"), b"$3\r\na\r\n\r\n"),
    (reply.array([reply.integer(1), reply.OK]), b"*2\r\n:1\r\n+OK\r\n"),
    (reply.bulk_array(iter([b"a", b""])), b"*2\r\n$1\r\na\r\n$0\r\n\r\n"),
    (reply.null(2), b"$-1\r\n"),
    (reply.null(3), b"_\r\n"),
    (reply.null_array(2), b"*-1\r\n"),
    (reply.null_array(3), b"_\r\n"),
    (reply.map_header(2, 3), b"*6\r\n"),
    (reply.map_header(3, 3), b"%3\r\n"),
    (reply.map_reply(2, [(reply.OK, reply.PONG)]), b"*2\r\n+OK\r\n+PONG\r\n"),
    (reply.map_reply(3, [(reply.OK, reply.PONG)]), b"%1\r\n+OK\r\n+PONG\r\n"),
    (reply.set_reply(2, [reply.OK]), b"*1\r\n+OK\r\n"),
    (reply.set_reply(3, [reply.OK]), b"~1\r\n+OK\r\n"),
    (reply.push(2, [reply.OK]), b"*1\r\n+OK\r\n"),
    (reply.push(3, [reply.OK]), b">1\r\n+OK\r\n"),
    (reply.double(2, 1.5), b"$3\r\n1.5\r\n"),
    (reply.double(3, 1.5), b",1.5\r\n"),
    (reply.double(3, 3.0), b",3\r\n"),
    (reply.double(3, float("-inf")), b",-inf\r\n"),
    (reply.double(3, float("nan")), b",nan\r\n"),
    (reply.boolean(2, True), b":1\r\n"),
    (reply.boolean(2, False), b":0\r\n"),
    (reply.boolean(3, True), b"#t\r\n"),
    (reply.boolean(3, False), b"#f\r\n"),
    (reply.verbatim(2, "txt", b"hi"), b"$2\r\nhi\r\n"),
    (reply.verbatim(3, "txt", b"hi"), b"=6\r\ntxt:hi\r\n"),
    (reply.encode(3, None), b"_\r\n"),
    (reply.encode(2, [True, "a", b"b", 1.5]), b"*4\r\n:1\r\n$1\r\na\r\n$1\r\nb\r\n$3\r\n1.5\r\n"),
    (reply.encode(3, {"a": {1}, b"b": (None,)}), b"%2\r\n$1\r\na\r\n~1\r\n:1\r\n$1\r\nb\r\n*1\r\n_\r\n"),
    (reply.encode(2, {"a": frozenset([1])}), b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n"),
]


@pytest.mark.parametrize(("made", "expected"), GOLDEN, ids=[repr(expected) for _, expected in GOLDEN])
def test_golden(made: bytes, expected: bytes) -> None:
    assert made == expected


@pytest.mark.parametrize("n", [0, 9, 10, 1023, 1024, 4095, 4096, 1 << 40])
def test_headers_at_the_ends_of_their_tables(n: int) -> None:
    assert reply.bulk_header(n) == b"$%d\r\n" % n
    assert reply.array_header(n) == b"*%d\r\n" % n


def test_what_is_no_reply() -> None:
    with pytest.raises(TypeError, match="a object is not a reply"):
        reply.encode(3, object())


leaves = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.binary(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.binary(max_size=5), inner, max_size=5)
)


@settings(max_examples=200, deadline=None)
@given(value=values)
def test_hiredis_reads_back_what_encode_wrote(value: Any) -> None:
    reader = hiredis.Reader()
    reader.feed(reply.encode(3, value))
    assert reader.gets() == value
    assert not reader.has_data()
