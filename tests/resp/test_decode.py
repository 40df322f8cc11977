from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.decode import LARGEST, Call, RequestDecoder, SharedDecoding, expanded
from resp.exact import BATCH, LINE_LIMIT, ExactDecoder
from resp.hiredisparser import HiredisParser

Outcome = tuple[list[list[bytes]], str]


def by_loop(**limits: int) -> RequestDecoder:
    return RequestDecoder(SharedDecoding(), **limits)


def by_hiredis(**limits: int) -> RequestDecoder:
    return RequestDecoder(SharedDecoding(parser=HiredisParser({})), **limits)


FAST = [by_loop, by_hiredis]
DECODERS = [*FAST, ExactDecoder]
Decoder = Callable[..., ExactDecoder]
Fast = Callable[..., RequestDecoder]


@pytest.fixture(params=FAST, ids=["loop", "hiredis"], scope="module")
def fast(request: pytest.FixtureRequest) -> Fast:
    make: Fast = request.param
    return make


def feed(decoder: ExactDecoder, data: bytes) -> list[list[bytes]]:
    return expanded(decoder.calls(data)) if isinstance(decoder, RequestDecoder) else decoder.feed(data)


def pack(argv: Iterable[bytes]) -> bytes:
    words = list(argv)
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def outcome(decoder: ExactDecoder, chunks: Iterable[bytes]) -> Outcome:
    commands = [argv for chunk in chunks for argv in feed(decoder, chunk)]
    return commands, str(decoder.error or "")


def cuts(data: bytes) -> Iterable[list[bytes]]:
    """Whole, in two at each place, byte by byte."""
    yield [data]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    yield [data[i : i + 1] for i in range(len(data))]


PING = b"*1\r\n$4\r\nPING\r\n"
GOLDEN: dict[str, tuple[bytes, list[list[bytes]], str]] = {
    "one": (b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", [[b"GET", b"k"]], ""),
    "two": (PING + b"*2\r\n$3\r\nGET\r\n$0\r\n\r\n", [[b"PING"], [b"GET", b""]], ""),
    "any bytes": (pack([b"\0\xff\r\n", b"\n"]), [[b"\0\xff\r\n", b"\n"]], ""),
    "no command": (b"*0\r\n" + PING + b"*-1\r\n*0\r\n", [[b"PING"]], ""),
    "line end of an argument is not read": (b"*1\r\n$4\r\nPINGxx" + PING, [[b"PING"], [b"PING"]], ""),
    "payloads like headers": (
        pack([b"\r\n*1\r\n$1\r", b"*999999999\r\n", b"x=5", b"=8\r\ntxt:", b"|5", b">1", b"%1\r\n", b"~0\r\n"]) * 2,
        [[b"\r\n*1\r\n$1\r", b"*999999999\r\n", b"x=5", b"=8\r\ntxt:", b"|5", b">1", b"%1\r\n", b"~0\r\n"]] * 2,
        "",
    ),
    "inline": (
        b"PING\r\nset a  b\n\r\n \t \n" + PING + b"GET x\r\n",
        [[b"PING"], [b"set", b"a", b"b"], [b"PING"], [b"GET", b"x"]],
        "",
    ),
    "inline quotes": (b"a 'b c' \"d\\x41\\n\"\r\n", [[b"a", b"b c", b"dA\n"]], ""),
    "unbalanced": (PING + b"set \"a\r\n" + PING, [[b"PING"]], "unbalanced quotes in request"),
    "attribute is inline": (b"|1\r\n", [[b"|1"]], ""),
    # what hiredis would take
    "integer": (PING + b"*1\r\n:5\r\n", [[b"PING"]], "expected '$', got ':'"),
    "simple string": (b"*1\r\n+abc\r\n" + PING, [], "expected '$', got '+'"),
    "simple string that hides a header": (b"*1\r\n+0123456789\r\n*1\r\n", [], "expected '$', got '+'"),
    "longer and shorter ones make up for each other": (
        b"*7\r\n" + b"=7\r\ntxt:abc\r\n" * 3 + b"+abc\r\n" * 4, [], "expected '$', got '='",
    ),
    "big number": (b"*1\r\n(123\r\n", [], "expected '$', got '('"),
    "error": (b"*1\r\n-ERR\r\n", [], "expected '$', got '-'"),
    "null": (b"*1\r\n_\r\n", [], "expected '$', got '_'"),
    "boolean": (b"*1\r\n#t\r\n", [], "expected '$', got '#'"),
    "double": (b"*1\r\n,1.5\r\n", [], "expected '$', got ','"),
    "nested array": (PING + b"*1\r\n*1\r\n$1\r\na\r\n", [[b"PING"]], "expected '$', got '*'"),
    "nested empty array": (b"*2\r\n*0\r\n$1\r\na\r\n", [], "expected '$', got '*'"),
    "nested arrays make up for each other": (b"*3\r\n*0\r\n*0\r\n*1\r\n$1\r\na\r\n", [], "expected '$', got '*'"),
    "error that is no text": (b"*1\r\n-\xff\r\n", [], "expected '$', got '-'"),
    "map with a key that can be none": (b"*1\r\n%1\r\n*0\r\n$1\r\na\r\n", [], "expected '$', got '%'"),
    "set of lists": (b"*1\r\n~1\r\n*0\r\n", [], "expected '$', got '~'"),
    "push": (b"*1\r\n>1\r\n$1\r\na\r\n", [], "expected '$', got '>'"),
    "attribute between commands": (
        PING + b"|1\r\n$1\r\na\r\n$1\r\nb\r\n", [[b"PING"], [b"|1"], [b"$1"], [b"a"], [b"$1"], [b"b"]], "",
    ),
    "null argument": (PING + b"*1\r\n$-1\r\n", [[b"PING"]], "invalid bulk length"),
    # lengths
    "leading zero": (b"*01\r\n$1\r\na\r\n", [], "invalid multibulk length"),
    "plus": (b"*+1\r\n$1\r\na\r\n", [], "invalid multibulk length"),
    "blank": (b"* 1\r\n$1\r\na\r\n", [], "invalid multibulk length"),
    "underscore": (b"*1_0\r\n", [], "invalid multibulk length"),
    "empty": (b"*\r\n", [], "invalid multibulk length"),
    "minus": (b"*-\r\n", [], "invalid multibulk length"),
    "minus zero": (b"*-0\r\n", [], "invalid multibulk length"),
    "line feed only": (b"*1\n$1\r\na\r\n", [], "invalid multibulk length"),
    "a count beyond the digits": (PING + b"*:\r\n" + b"$1\r\na\r\n" * 10, [[b"PING"]], "invalid multibulk length"),
    "a letter": (PING + b"*A\r\n" + b"$1\r\na\r\n" * 17, [[b"PING"]], "invalid multibulk length"),
    "a length beyond the digits": (b"*1\r\n$:\r\n0123456789\r\n", [], "invalid bulk length"),
    "beyond 64 bits": (b"*-9223372036854775809\r\n", [], "invalid multibulk length"),
    "least of 64 bits": (b"*-9223372036854775808\r\n" + PING, [[b"PING"]], ""),
    "too many": (b"*1048577\r\n", [], "invalid multibulk length"),
    "too long": (PING + b"*1\r\n$536870913\r\n", [[b"PING"]], "invalid bulk length"),
    "bulk leading zero": (b"*1\r\n$01\r\na\r\n", [], "invalid bulk length"),
    "bulk empty": (b"*1\r\n$\r\na\r\n", [], "invalid bulk length"),
    "empty line": (b"*1\r\n\r\n", [], "expected '$', got '\r'"),
    "not ASCII": (b"*1\r\n\xff\r\n", [], "expected '$', got '\\xff'"),
}  # fmt: skip


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, decoder: Decoder) -> None:
    data, commands, error = GOLDEN[name]
    for chunks in cuts(data):
        assert outcome(decoder(), chunks) == (commands, error), chunks


MANY = [b"MSET", *(b"%d" % i for i in range(10))]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_after_many_arguments(name: str) -> None:
    """hiredis begins with the command before, and gets these bytes, too."""
    data, commands, error = GOLDEN[name]
    for decoder in FAST:
        for chunk in (pack(MANY) + data, pack(MANY) * 3 + data):
            many = [MANY] * chunk.count(b"MSET")
            assert outcome(decoder(), [chunk]) == (many + commands, error), decoder


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        (b":5\r\n", "expected '$', got ':'"), (b"+abc\r\n", "expected '$', got '+'"),
        (b"=7\r\ntxt:abc\r\n", "expected '$', got '='"), (b"(123\r\n", "expected '$', got '('"),
        (b"*0\r\n", "expected '$', got '*'"), (b"*99999\r\n", "expected '$', got '*'"),
        (b"$-1\r\n", "invalid bulk length"), (b"$01\r\na\r\n", "invalid bulk length"), (b"$3\r\nabcxx", ""),
        (b"$3\r\nabcx+", ""), (b"$5000\r\n" + b"v" * 5000 + b"\r\n", ""), (b"$3\r\n>12\r\n", ""),
        (b"$6\r\n*99999\r\n", ""), (b"|1\r\n$1\r\na\r\n$1\r\nb\r\n", "expected '$', got '|'"),
    ],
)  # fmt: skip
def test_any_argument_among_many(argument: bytes, error: str) -> None:
    data = (b"*10\r\n" + b"$1\r\na\r\n" * 8 + argument + b"$1\r\nz\r\n") * 2
    expected = outcome(ExactDecoder(), [data])
    assert expected[1] == error
    for decoder in FAST:
        assert outcome(decoder(), [data]) == expected


def test_hiredis_parses_commands_with_many_short_arguments() -> None:
    parse, many = HiredisParser({b"ADD": lambda _: 2}), pack(MANY)

    def parsed(data: bytes, at: int = 0) -> tuple[list[Call], list[int], int]:
        calls: list[Call] = []
        ends: list[int] = []
        return calls, ends, parse(data, at, calls, ends)

    size = len(many)
    assert parsed(many * 2) == ([MANY, MANY], [size, 2 * size], 2 * size)
    assert parsed(PING + many + PING, len(PING))[2] == len(PING + many + PING)
    assert parsed(many + many[:-1]) == ([MANY], [size], size)
    assert parsed(many) == ([MANY], [size], size), "nothing of the incomplete command is left in the reader"
    assert parsed(pack([b"SET", *[b"v" * 100] * 10])) == ([], [], 0), "large arguments are for the loop"
    add = pack([b"ADD", b"the key", *[b"v"] * 10])
    assert parsed(add)[2] == len(add)
    assert parsed(add * 2)[2] == 0, "they may become an Alike object"


@pytest.mark.parametrize("name", [name for name in GOLDEN if not GOLDEN[name][2]])
def test_golden_with_trailing_bytes(fast: Fast, name: str) -> None:
    data, commands, _ = GOLDEN[name]
    for tail in (b"*2\r\n$3\r\nGET", b"*1\r\n", b"*", b"inline"):
        decoder = fast()
        assert outcome(decoder, [data + tail]) == (commands, "")
        assert decoder.buffered == len(tail)


def test_nothing_is_taken_after_an_error(fast: Fast) -> None:
    decoder = fast()
    assert outcome(decoder, [PING + b"*x\r\n" + PING, PING, b"PING\r\n"]) == ([[b"PING"]], "invalid multibulk length")
    assert decoder.buffered == 0


@pytest.mark.parametrize("count", [99, 100, 1023, 1024, 5000])
def test_many_arguments(fast: Fast, count: int) -> None:
    argv = [b"%d" % i for i in range(count)]
    data = pack(argv)
    for chunks in ([data], [data * 3], [data[:700], data[700:] + data], [PING + data]):
        commands, error = outcome(fast(), chunks)
        assert error == ""
        assert [c for c in commands if c != [b"PING"]] == [argv] * (b"".join(chunks).count(data))


@pytest.mark.parametrize("size", [4090, 4095, 4096, 5000, 16385, 100_000, 1_000_000, LARGEST, LARGEST + 1])
def test_value_sizes_around_the_tables(fast: Fast, size: int) -> None:
    value = b"v" * size
    data = pack([b"SET", b"k", value])
    for chunks in ([data], [data * 3], [PING + data + PING], [data[:40], data[40:-1], data[-1:]]):
        commands, error = outcome(fast(), chunks)
        assert error == ""
        assert [c for c in commands if c != [b"PING"]] == [[b"SET", b"k", value]] * (3 if chunks == [data * 3] else 1)


# -- limits --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("decoder", DECODERS)
def test_limits_of_the_unauthenticated(decoder: Decoder) -> None:
    for data, error in (
        (pack([b"x"] * 10), ""),
        (pack([b"x"] * 11), "unauthenticated multibulk length"),
        (pack([b"x" * 16384]), ""),
        (b"*1\r\n$16385\r\n", "unauthenticated bulk length"),
        (b"*9999999\r\n", "invalid multibulk length"),
        (pack([b"x" * 16385]), "unauthenticated bulk length"),
    ):
        peer = decoder()
        peer.authenticated = False
        assert outcome(peer, [data])[1] == error
        peer = decoder()
        assert outcome(peer, [data])[1] == ("" if "unauth" in error else error)


def test_limits_go_when_the_peer_logs_in(fast: Fast) -> None:
    decoder = fast()
    decoder.authenticated = False
    assert feed(decoder, pack([b"AUTH", b"x"])) == [[b"AUTH", b"x"]]
    decoder.authenticated = True
    assert outcome(decoder, [pack([b"x"] * 11)]) == ([[b"x"] * 11], "")


@pytest.mark.parametrize("decoder", DECODERS)
def test_limits_do_not_depend_on_chunks(decoder: Decoder) -> None:
    for limits, good, bad, error in (
        ({"max_bulk": 10}, pack([b"x" * 10]), pack([b"x" * 11]), "invalid bulk length"),
        ({"max_multibulk": 3}, pack([b"x"] * 3), pack([b"x"] * 4), "invalid multibulk length"),
        ({"max_buffer": 30}, pack([b"x" * 19]), pack([b"x" * 20, b"y"]), "query buffer limit exceeded"),
        ({"max_buffer": 30}, b"x" * 28 + b"\r\n", b"x" * 29 + b"\r\n", "query buffer limit exceeded"),
    ):
        for chunks in cuts(good * 2):
            commands, text = outcome(decoder(**limits), chunks)
            assert (len(commands), text) == (2, ""), chunks
        for chunks in cuts(good + bad):
            commands, text = outcome(decoder(**limits), chunks)
            assert (len(commands), text) == (1, error), chunks


def test_a_length_is_refused_before_its_data(fast: Fast) -> None:
    assert outcome(fast(max_bulk=100), [b"*2\r\n$3\r\nSET\r\n$101\r\n"])[1] == "invalid bulk length"
    assert outcome(fast(max_buffer=100), [b"*2\r\n$3\r\nSET\r\n$99\r\n"])[1] == "query buffer limit exceeded"


@pytest.mark.parametrize(
    ("start", "error"),
    [(b"", "too big inline request"), (b"*", "too big mbulk count string"), (b"*1\r\n$", "too big bulk count string")],
)
@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_lines_have_a_limit(fast: Fast, start: bytes, error: str, end: bytes) -> None:
    used = len(start) - start.rfind(b"\n") - 1
    too_long = start + b"1" * (LINE_LIMIT + 1 - used) + end
    for chunks in ([too_long], [too_long[i : i + 1000] for i in range(0, len(too_long), 1000)]):
        assert outcome(fast(), chunks) == ([], error)
    longest = start + b"1" * (LINE_LIMIT - used)
    assert outcome(fast(), [longest]) == ([], "")


# -- memory --------------------------------------------------------------------------------------------------
def peak(decoder: ExactDecoder, chunks: Iterable[bytes]) -> int:
    """Bytes allocated at the worst moment."""
    tracemalloc.start()
    try:
        for chunk in chunks:
            feed(decoder, chunk)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        b"*999999\r\n", b"*1\r\n>999999\r\n", b"*1\r\n|999999\r\n", b"*999\r\n", b"*1000000\r\n",
        # hiredis is used from ten arguments on
        *[b"*10\r\n" + b"$1\r\na\r\n" * 9 + kind + b"999999\r\n" for kind in (b"*", b"~", b">", b"|", b"%")],
    ],
)
def test_promises_reserve_nothing(fast: Fast, header: bytes) -> None:
    decoder = fast()
    assert peak(decoder, [header * 1000]) < 1_000_000
    assert decoder.error is not None


def test_small_promises_are_bounded(fast: Fast) -> None:
    decoder = fast()
    assert peak(decoder, [b"*99\r\n" * 10_000]) < 200 * 50_000
    assert str(decoder.error) == "expected '$', got '*'"


@pytest.mark.parametrize(("size", "step"), [(8 << 20, 64 << 10), (400_000, 8)])
def test_a_large_value_costs_its_size(fast: Fast, size: int, step: int) -> None:
    decoder = fast()
    feed(decoder, b"*1\r\n$%d\r\n" % size)
    assert peak(decoder, (bytes(step) for _ in range(size // step))) < 1.5 * size
    assert decoder.buffered == len(b"*1\r\n$%d\r\n" % size) + size
    assert feed(decoder, b"\r\n*1\r") == [[bytes(size)]]
    assert decoder.buffered == 3


# -- any commands, cut anywhere ------------------------------------------------------------------------------
words = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"\r\n", b"\r\n*1\r\n", b"*999999\r\n", b"=9\r\ntxt:", b"$3\r\nabc\r\n", b"x=1", b"a>5", b"*"]),
    st.integers(0, 5000).map(bytes),
)
many_words = st.lists(words, min_size=BATCH, max_size=4 * BATCH)
commands_of = st.lists(st.one_of(st.lists(words, min_size=1, max_size=8), many_words), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(commands=commands_of, places=st.lists(st.integers(0, 1 << 16), max_size=6))
def test_commands_come_back_however_they_are_cut(fast: Fast, commands: list[list[bytes]], places: list[int]) -> None:
    data = b"".join(map(pack, commands))
    at = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    chunks = [data[a:b] for a, b in pairwise(at)]
    decoder = fast()
    assert outcome(decoder, chunks) == (commands, "")
    assert decoder.buffered == 0
