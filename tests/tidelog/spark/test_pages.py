"""Invariant: the same bytes, cut anywhere, become the same batches compiled and by hiredis, or the same error."""

from __future__ import annotations

import importlib
import socket
import threading
import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from pyspark.sql import types  # noqa: E402 - needs pyspark

import tidelog.spark  # noqa: E402
from tidelog import Client  # noqa: E402
from tidelog.arrow import pages  # noqa: E402
from tidelog.arrow.columns import MalformedError  # noqa: E402
from tidelog.arrow.pages import HiredisGather, NativeGather, PageContent  # noqa: E402
from tidelog.spark.columns import DEFAULT_SCHEMA, columns_of  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.transport import connection as wire  # noqa: E402
from tidelog.transport.access import Access  # noqa: E402
from tidelog.transport.connection import BlockingConnection  # noqa: E402
from tidelog.transport.errors import ReplyError  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(
    not pages.BUILT, reason="tidelog.arrow._rows is not built here (pip install -e ., with a C compiler)"
)

Entry = list[bytes]

TYPED: Final = "n long, s string, d double, b binary, t short, missing int, _id string, _ts timestamp, _corrupt string"
SCHEMAS: Final = (DEFAULT_SCHEMA, "n long, s string", TYPED, "_ts timestamp, d decimal(9,2)", "_key string")
MODES: Final = ("permissive", "dropmalformed", "failfast")


TYPES: Final = {
    "long": types.LongType(), "int": types.IntegerType(), "short": types.ShortType(), "double": types.DoubleType(),
    "string": types.StringType(), "binary": types.BinaryType(), "timestamp": types.TimestampType(),
    "decimal(9,2)": types.DecimalType(9, 2),
    "map<string,binary>": types.MapType(types.StringType(), types.BinaryType()),
}  # fmt: skip


def schema_of(text: str) -> types.StructType:
    """A schema as Spark parses it, which takes Spark a JVM."""
    columns = [column.split(" ", 1) for column in text.replace(", binary", ",binary").split(", ")]
    return types.StructType([types.StructField(name, TYPES[kind]) for name, kind in columns])


def encoded(entries: list[Entry]) -> bytes:
    return b"".join(
        b"*%d\r\n" % len(entry) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in entry) for entry in entries
    )


def entry(number: int, *words: bytes) -> Entry:
    return [b"17000000%05d.%d" % (number, number % 3), *words]


class Pieces:
    """In place of a socket: bytes in these pieces, then the end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = iter(pieces)

    def recv(self, _: int) -> bytes:
        return next(self.pieces, b"")


def cut(data: bytes, *places: int) -> list[bytes]:
    ends = [*sorted(places), len(data)]
    return [piece for piece in (data[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)) if piece]


def everywhere(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def outcome(compiled: bool, pieces: list[bytes], number: int, schema: str, mode: str, size: int) -> list[Any]:
    """The batches, and the error if one ends them."""
    made = columns_of(schema_of(schema), mode)
    connection = object.__new__(BlockingConnection)
    connection.url = "redis://here:1"
    connection._sock = cast(socket.socket, Pieces(pieces))
    gather: Any = NativeGather(made.wanted) if compiled else HiredisGather()
    found: list[Any] = []
    try:
        for page in connection.pages(number, b"", gather, size):
            batch = made.batch("k", page)
            batch.validate(full=True)
            found += [page.last, batch]
    except (OSError, ReplyError, MalformedError, pa.ArrowInvalid, OverflowError, ValueError) as error:
        found += [type(error), str(error)]
    return found


def compare(pieces: list[bytes], number: int, schema: str, mode: str = "permissive", size: int = 7) -> list[Any]:
    ours = outcome(True, pieces, number, schema, mode, size)
    theirs = outcome(False, pieces, number, schema, mode, size)
    assert len(ours) == len(theirs)
    for mine, his in zip(ours, theirs, strict=True):
        assert mine.equals(his) if isinstance(mine, pa.RecordBatch) else mine == his, (mine, his)
    return ours


FIELDS: Final = [
    (b"n", b"17"), (b"n", b"-3"), (b"n", b""), (b"n", b"x"), (b"n", b"0x1F"), (b"s", b"text"), (b"s", "ä€".encode()),
    (b"s", b"\xff\xfe"), (b"d", b"1.5"), (b"d", b"1e400"), (b"b", b"\r\n$3\r\nabc\r\n*1\r\n"), (b"b", b""),
    (b"t", b"40000"),
    (b"other", b"x" * 300), (b"", b"no name"), (b"raw\xff", b"\x00"), (b"raw\xfe", b"1"), (b"n" * 40, b"long name"),
]  # fmt: skip

SHAPES: Final[dict[str, list[Entry]]] = {
    "one": [entry(1, b"n", b"1", b"s", b"x")],
    "all the same": [entry(i, b"n", b"%d" % i, b"s", b"text %d" % i, b"d", b"0.5") for i in range(40)],
    "other orders": [entry(i, *((b"n", b"1", b"s", b"2") if i % 2 else (b"s", b"3", b"n", b"4"))) for i in range(20)],
    "repeated": [entry(i, b"n", b"1", b"s", b"a", b"n", b"2", b"s", b"b", b"n", b"%d" % i) for i in range(20)],
    "repeated now and then": [entry(i, b"n", b"1", b"s" if i % 3 else b"n", b"2", b"d", b"3") for i in range(20)],
    "missing now and then": [entry(i, b"n", b"1", *([b"s", b"2"] if i % 4 else [])) for i in range(20)],
    "no fields": [entry(i) for i in range(9)] + [entry(9, b"n", b"1")],
    "all kinds": [
        entry(i, *(word for k in range(i % 5) for word in FIELDS[(7 * i + 3 * k) % len(FIELDS)])) for i in range(200)
    ],
    "many fields": [
        entry(1, *(b"f%d" % (i % 4000) for i in range(10_000))),
        entry(2, *(b"n%d" % i for i in range(4000))),
    ],
    "IDs beyond a timestamp": [[b"18446744073709551615.1", b"n", b"1"], [b"9223372036854775.0", b"n", b"2"], entry(1)],
    "IDs that are none": [entry(1, b"n", b"1"), [b"abc", b"n", b"2"]],
    "IDs that are no text": [entry(1, b"n", b"1"), [b"17\xff.0", b"n", b"2"], [b"17.\xff", b"n", b"2"]],
    "IDs that are odd": [[b"17", b"n", b"1"], [b"+5.0", b"n", b"2"], [b"0017.5", b"n", b"2"], [b"-1.5", b"n", b"2"]],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_batches(shape: str, schema: str, mode: str) -> None:
    entries = SHAPES[shape]
    data = encoded(entries)
    for size in (1, 7, 10_000):
        found = compare([data], len(entries), schema, mode, size)
        assert found
    compare(cut(data, *range(0, len(data), 11)), len(entries), schema, mode)


def test_columns_of_a_batch() -> None:
    entries = [entry(5, b"n", b"1", b"s", b"a"), entry(7, b"s", b"b", b"n", b"2", b"s", b"c"), entry(9, b"s", b"")]
    schema = "n int, s string, fields map<string,binary>"
    for compiled in (True, False):
        _, batch = outcome(compiled, [encoded(entries)], 3, schema, "permissive", 9)
        assert batch.to_pydict() == {
            "n": [1, 2, None],
            "s": ["a", "c", ""],
            "fields": [[("n", b"1"), ("s", b"a")], [("s", b"c"), ("n", b"2")], [("s", b"")]],
        }


@pytest.mark.parametrize("schema", [DEFAULT_SCHEMA, TYPED])
def test_cut_at_every_byte(schema: str) -> None:
    data = encoded(SHAPES["all kinds"][:12])
    whole = compare([data], 12, schema)
    for pieces in (everywhere(data), *(cut(data, place) for place in range(1, len(data)))):
        found = compare(pieces, 12, schema)
        assert all(a.equals(b) if isinstance(a, pa.RecordBatch) else a == b for a, b in zip(found, whole, strict=True))


def test_many_columns() -> None:
    schema = ", ".join(f"f{i} string" for i in range(300))
    entries = [entry(i, *(b"f%d" % ((i * 31 + k) % 350) for k in range(40))) for i in range(100)]
    compare([encoded(entries)], 100, schema, size=30)


def test_huge_values() -> None:
    entries = [entry(i, b"n", b"%d" % i, b"s", bytes([65 + i]) * (i << 20), b"b", b"") for i in range(9)]
    entries += [entry(9, b"s", b"\r\n" * (10 << 20)), entry(10, b"n", b"1"), entry(11, b"n", b"2")]
    data = encoded(entries)
    for schema in (DEFAULT_SCHEMA, "n long, s string, _corrupt string"):
        found = compare(cut(data, *range(0, len(data), 100_000)), 12, schema, size=10_000)
        assert len(found) // 2 > 1  # a page ends where it has many bytes


GARBAGE: Final = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "an error": b"-ERR something went wrong\r\n",
    "an error that passes": b"-LOADING the dataset\r\n",
    "an error inside": b"*3\r\n$3\r\n1.1\r\n-ERR inside\r\n$1\r\nx\r\n",
    "a number": b":17\r\n",
    "a word": b"$3\r\nabc\r\n",
    "nothing": b"*-1\r\n",
    "no words": b"*0\r\n",
    "a name without a value": b"*2\r\n$3\r\n1.1\r\n$1\r\nn\r\n",
    "null for a value": b"*3\r\n$3\r\n1.1\r\n$1\r\nn\r\n$-1\r\n",
    "a number for a value": b"*3\r\n$3\r\n1.1\r\n$1\r\nn\r\n:5\r\n",
    "an array for a value": b"*3\r\n$3\r\n1.1\r\n$1\r\nn\r\n*1\r\n$1\r\nx\r\n",
    "a map": b"%1\r\n$1\r\na\r\n$1\r\nb\r\n",
    "false": b"#f\r\n",
    "no length": b"*\r\n",
    "a length in letters": b"*3\r\n$abc\r\n",
    "a length with a sign": b"*3\r\n$+3\r\nabc\r\n",
    "a length with zeros": b"*3\r\n$003\r\nabc\r\n",
    "a length below zero": b"*3\r\n$-5\r\nabc\r\n",
    "a count below zero": b"*-3\r\n",
    "a count beyond all bounds": b"*99999999999999999999\r\n",
    "a length beyond all bounds": b"*3\r\n$99999999999999999999\r\n",
    "half a line": b"*3\r\n$3",
    "half an entry": b"*3\r\n$3\r\n1.1\r\n$1\r\nn\r\n$10\r\nabc",
    "a length that never comes": b"*3\r\n$2000000000\r\nabc",
    "bytes": bytes(range(128, 256)),
}


@pytest.mark.parametrize("schema", [DEFAULT_SCHEMA, "n long, s string"])
@pytest.mark.parametrize("what", GARBAGE)
def test_input_that_is_no_entry(what: str, schema: str) -> None:
    good = encoded(SHAPES["all the same"][:10])
    for before, number in ((b"", 3), (good, 12)):
        data = before + GARBAGE[what]
        for pieces in ([data], [before, GARBAGE[what]] if before else [data], everywhere(data)):
            *_, kind, text = compare(pieces, number, schema)
            if what in ("an error", "an error that passes"):
                assert (kind, text) == (ReplyError, GARBAGE[what][1:-2].decode())
            else:
                assert kind is ConnectionError
                assert text.startswith(("redis://here:1 does not speak RESP: ", "redis://here:1 closed the connection"))


@pytest.mark.parametrize(
    "data",
    [b"*1\r\n$3\r\n1.1XX", b"*1\r\n+1.1\r\n", b"~1\r\n$3\r\n1.1\r\n"],
    ids=["no CRLF", "a simple string", "a set"],
)
def test_the_compiled_way_refuses_what_no_server_sends(data: bytes) -> None:
    *_, kind, text = outcome(True, [data], 1, "n long", "permissive", 7)
    assert kind is ConnectionError
    assert "does not speak RESP" in text


def test_an_entry_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ENTRY_BYTES", 5000)
    monkeypatch.setattr(wire, "PAGE_BYTES", 1000)
    data = encoded([entry(1, b"n", b"1"), entry(2, b"s", b"x" * 3000), entry(3, b"s", b"x" * 9000)])
    *_, kind, text = compare(cut(data, *range(0, len(data), 100)), 3, DEFAULT_SCHEMA)
    assert kind is OverflowError
    assert text == "redis://here:1: an entry of more than 5000 bytes"


def test_over_a_real_connection() -> None:
    """The server sends entries, then something else."""
    listener = socket.create_server(("127.0.0.1", 0))
    good = encoded(SHAPES["all the same"])

    def answer() -> None:
        for _ in range(2):
            peer, _address = listener.accept()
            with peer:
                for _greeting in ("CLIENT SETNAME", "CLIENT MULTISLOT"):
                    peer.recv(1000)
                    peer.sendall(b"+OK\r\n")
                peer.recv(1000)  # TRANGE
                peer.sendall(b"*41\r\n" + good + b"*1\r\n!?\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
    found = []
    gathers: list[Any] = [NativeGather(PageContent((b"n",))), HiredisGather()]
    for gather in gathers:
        connection = BlockingConnection(Access((url,)), url, "test")
        connection.send(("TRANGE", "a", "-", "+"))
        coming = connection.pages(*connection.header(), gather, 15)
        lasts = [next(coming).last, next(coming).last]
        with pytest.raises(ConnectionError, match="does not speak RESP") as caught:
            next(coming)
        connection.close()
        assert lasts == [SHAPES["all the same"][14][0], SHAPES["all the same"][29][0]]
        found.append(str(caught.value))
    assert found[0] == found[1]
    thread.join()
    listener.close()


# -- random entries -------------------------------------------------------------------------------------------------
words = st.one_of(
    st.sampled_from([word for field in FIELDS for word in field]),
    st.binary(max_size=40),
    st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n),
)
names = st.one_of(st.sampled_from([b"n", b"s", b"d", b"b", b"t", b"_id", b"x"]), st.binary(max_size=3))
ids = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)).map(lambda pair: b"%d.%d" % pair)
random_entries = st.lists(
    st.tuples(ids, st.lists(st.tuples(names, words), max_size=20)).map(
        lambda drawn: [drawn[0], *(word for field in drawn[1] for word in field)]
    ),
    min_size=1,
    max_size=25,
)
SIGNIFICANT: Final = b"\r\n*$0123456789-+: x\x00\xff"
places = st.lists(st.integers(1, 4000), max_size=12)


@settings(deadline=None, max_examples=200)
@given(random_entries, places, st.sampled_from([DEFAULT_SCHEMA, TYPED]), st.sampled_from(MODES), st.integers(1, 30))
def test_random_entries(entries: list[Entry], cuts: list[int], schema: str, mode: str, size: int) -> None:
    data = encoded(entries)
    compare(cut(data, *(place for place in cuts if place < len(data))), len(entries), schema, mode, size)


@settings(deadline=None, max_examples=300)
@given(
    random_entries,
    st.lists(st.tuples(st.integers(0, 4000), st.sampled_from(list(SIGNIFICANT))), min_size=1, max_size=4),
    places,
    st.sampled_from([DEFAULT_SCHEMA, TYPED]),
)
def test_random_damage(entries: list[Entry], damage: list[tuple[int, int]], cuts: list[int], schema: str) -> None:
    """hiredis reads what the compiled way accepts, and reads the same; if both refuse it, the errors are the same."""
    damaged = bytearray(encoded(entries))
    for place, byte in damage:
        damaged[place % len(damaged)] = byte
    pieces = cut(bytes(damaged), *(place for place in cuts if place < len(damaged)))
    ours = outcome(True, pieces, len(entries), schema, "permissive", 7)
    if not (ours[-2] is ConnectionError and "in a form that no server" in ours[-1]):
        compare(pieces, len(entries), schema)


# -- the helper itself ----------------------------------------------------------------------------------------------
def rows(*arguments: Any) -> Any:
    return importlib.import_module("tidelog.arrow._rows").Rows(*arguments)


def test_wrong_calls() -> None:
    for arguments in ((), ([b"n"], 1, 1, 1, 1), ((b"n", "s"), 1, 1, 1, 1), ((), 1, 1, 1, 1, 1)):
        with pytest.raises(TypeError):
            rows(*arguments)
    made = rows((b"n",), True, True, True, True)
    with pytest.raises(TypeError):
        made.feed("text")
    with pytest.raises(TypeError):
        made.parse("1")
    with pytest.raises(RuntimeError):
        made.page()
    assert made.parse(10) == 0
    made.feed(b"")
    assert (made.parse(10), made.rest()) == (0, b"")
    made.feed(memoryview(b"*1\r\n$1\r\n1\r\n*2"))
    assert (made.parse(0), made.parse(10), made.rest()) == (0, 1, b"*2")
    assert made.page()[0] == 1
    with pytest.raises(RuntimeError):
        made.page()


def test_nothing_is_leaked() -> None:
    data = encoded(SHAPES["all kinds"] + SHAPES["many fields"])

    def run() -> None:
        made = rows((b"n", b"s", b"missing"), True, True, True, True)
        for piece in cut(data + b"*2\r\n", *range(0, len(data), 5000)):
            made.feed(piece)
            while made.parse(50) > 0:
                made.page()
        assert made.parse(1000) < 0

    def held() -> int:
        """Bytes that were allocated by this file's lines: other threads of the process have their own."""
        traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])
        return sum(each.size for each in traces.statistics("filename"))

    run()
    tracemalloc.start()
    try:
        run()
        before = held()
        for _ in range(30):
            run()
        assert held() - before < 10_000
    finally:
        tracemalloc.stop()


def test_which_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDELOG_NATIVE", raising=False)
    assert tidelog.spark.native()
    assert isinstance(pages.gather(PageContent()), NativeGather)
    monkeypatch.setenv("TIDELOG_NATIVE", "0")
    assert not tidelog.spark.native()
    assert isinstance(pages.gather(PageContent()), HiredisGather)


@pytest.fixture
def ways(spark: SparkSession) -> Callable[[str], Any]:
    from tests.tidelog.spark.faulty import CompiledSource, HiredisSource

    for source in (CompiledSource, HiredisSource):
        spark.dataSource.register(source)
    return lambda way: spark.read.format(f"tidelog_{way}")


def test_spark_reads_both_ways(ways: Callable[[str], Any], client: Client, tidelog_server: Server) -> None:
    client.tmappend("a", ["n", "s"], [(n, f"text {n}") for n in range(25_000)])
    client.tappend("a", [("n", "none"), (b"raw\xff", b"\xff"), ("n", "7")])
    for schema in (None, "_id string, n long, s string, _corrupt string"):
        found = []
        for way in ("compiled", "hiredis"):
            reader = ways(way).option("url", tidelog_server.url).option("subscribe", "a")
            found.append((reader.schema(schema) if schema else reader).load().collect())
        assert found[0] == found[1]
        assert len(found[0]) == 25_001
