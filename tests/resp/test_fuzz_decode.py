"""For any bytes, in any chunks, decoders raise nothing, buffer no more than their limit, and agree.

The loop, hiredis, and ExactDecoder return the same commands and the same error.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from resp.exact import ExactDecoder
from tests.resp.test_decode import FAST, feed

MAX_BUFFER = 200  # bytes

# Pieces of protocol, right and wrong, so that random sequences get past the first header.
PIECES = [
    b"*1\r\n", b"*2\r\n", b"*3\r\n", b"*0\r\n", b"*-1\r\n", b"*10\r\n", b"*100\r\n", b"*999999\r\n", b"*01\r\n",
    b"*1\n",
    b"$1\r\na\r\n", b"$0\r\n\r\n", b"$3\r\nabc\r\n", b"$10\r\n0123456789\r\n", b"$2\r\nabxx", b"$-1\r\n", b"$5\r\n",
    b"$300\r\n",
    b"+abc\r\n", b"+0123456789\r\n", b"+\r\n", b"-ERR x\r\n", b":5\r\n", b"(12345\r\n", b",1.5\r\n", b"#t\r\n",
    b"_\r\n",
    b"=7\r\ntxt:abc\r\n", b"=4\r\ntxt:\r\n", b"%1\r\n", b"%0\r\n", b"~1\r\n", b"~0\r\n", b">1\r\n", b"|1\r\n",
    b"|5\r\n",
    b"PING\r\n", b"a 'b' \"c\"\n", b"\"\r\n", b"\r\n", b"\n", b"\r", b"*", b"$", b"x", b"\0", b"\xff",
    b"*1\r\n$4\r\nPING\r\n", b"*9\r\n", b"*9\r\n" + b"$1\r\na\r\n" * 9, b"*9\r\n" + b"$1\r\na\r\n" * 8, b">99999\r\n",
]  # fmt: skip

streams = st.lists(st.one_of(st.sampled_from(PIECES), st.sampled_from(PIECES), st.binary(max_size=6)), max_size=25)

FILL = b"*1\r\n$4\r\nPING\r\n=4\r\ntxt:\r\n*100\r\n%1\r\n" * 200  # what a payload may look like
LONG = [
    *(b"*2\r\n$1\r\na\r\n$%d\r\n%b\r\n" % (size, FILL[:size]) for size in (499, 600, 4095, 4096, 5000, 7000)),
    b"$5000\r\n" + FILL[:5000] + b"\r\n", b"$5000\r\n" + FILL[:5000] + b"xx", b"$05000\r\n" + FILL[:5000] + b"\r\n",
    b"$5000\n" + FILL[:5000] + b"\r\n", b"$9999999\r\n", b"$600\r\n" + FILL[:600], FILL[:3000],
    b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" * 20,
]  # fmt: skip

long_streams = st.lists(st.one_of(st.sampled_from(LONG), st.sampled_from(LONG), st.sampled_from(PIECES)), max_size=12)


@settings(max_examples=1500, deadline=None)
@given(pieces=streams, places=st.lists(st.integers(0, 1 << 16), max_size=4), small=st.booleans(), known=st.booleans())
def test_anything(pieces: list[bytes], places: list[int], small: bool, known: bool) -> None:
    check(pieces, places, small, known)


@settings(max_examples=800, deadline=None)
@given(pieces=long_streams, places=st.lists(st.integers(0, 1 << 16), max_size=4), known=st.booleans())
def test_large_arguments(pieces: list[bytes], places: list[int], known: bool) -> None:
    check(pieces, places, False, known)


def check(pieces: list[bytes], places: list[int], small: bool, known: bool) -> None:
    data = b"".join(pieces)
    limits = {"max_buffer": MAX_BUFFER, "max_bulk": 250} if small else {}
    exact = ExactDecoder(**limits)
    exact.authenticated = known
    expected = exact.feed(data)

    for make in FAST:
        fast = make(**limits)
        fast.authenticated = known
        at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
        commands = []
        for begin, end in pairwise(at):
            commands += feed(fast, data[begin:end])
            assert fast.buffered <= (MAX_BUFFER if small else len(data))
        assert commands == expected
        assert str(fast.error) == str(exact.error)
        assert fast.buffered == exact.buffered
        assert all(commands)
        assert {type(arg) for argv in commands for arg in argv} <= {bytes}
