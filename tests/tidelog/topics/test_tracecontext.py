"""The trace context of entries: what writes it, what preserves it, and what does not see it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from tests.tidelog.topics.topickit import Order, orders, run
from tests.waiting import eventually
from tidelog import AsyncClient, Client, Entry, StreamId
from tidelog.client import calls, steps, tracecontext
from tidelog.client.alone import run_alone
from tidelog.codecs import codec_for
from tidelog.testing import Server
from tidelog.topics import Topic, deadletters
from tidelog.topics.deadletterwriter import DeadLetterWriter

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
PARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"
BOTH = {"traceparent": PARENT, "tracestate": "vendor=1"}


@contextmanager
def current(state: str = "vendor=1") -> Iterator[None]:
    """Make a span current."""
    entries = [("vendor", "1")] if state else []
    context = SpanContext(TRACE, SPAN, is_remote=False, trace_flags=TraceFlags(1), trace_state=TraceState(entries))
    with trace.use_span(NonRecordingSpan(context)):
        yield


class Traced(msgspec.Struct):
    id: int
    traceparent: str | None = None


def fields(client: Client, *streams: str) -> list[dict[str, str]]:
    return [entry.text() for stream in streams for entry in client.trange(stream)]


# -- what writes it --------------------------------------------------------------------------------------------
def test_each_way_to_send_writes_the_current_span(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1)

    async def many() -> AsyncIterator[Order]:
        yield Order(4, "d")

    async def use(topic: Topic[Order]) -> None:
        await topic.send(Order(1, "a"))
        await topic.send_many([Order(2, "b"), Order(3, "c", 1.0)])
        await topic.send_many(many())
        await topic.producer("import").send_many([Order(5, "e")])

    with current():
        run(use, topic)
        topic.sync.send(Order(6, "f"))
        topic.sync.send_many([Order(7, "g")])
        topic.sync.producer("sync").send_many([Order(8, "h")])
    topic.sync.send(Order(9, "i"))
    topic.sync.close()
    written = fields(client, "orders:0")
    assert [each.pop("traceparent", None) for each in written] == [PARENT] * 8 + [None]
    assert [each.pop("tracestate", None) for each in written] == ["vendor=1"] * 8 + [None]
    assert [int(each["id"]) for each in written] == list(range(1, 10))
    assert all(each.keys() <= {"id", "item", "price"} for each in written)
    assert [topic.decode(entry, 0).id for entry in client.trange("orders:0")] == list(range(1, 10))


def test_a_span_of_the_sdk_without_a_tracestate(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1)
    with TracerProvider().get_tracer("test").start_as_current_span("checkout") as span:
        topic.sync.send(Order(1, "a"))
    topic.sync.close()
    (written,) = fields(client, "orders:0")
    at = span.get_span_context()
    assert written["traceparent"] == f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"
    assert "tracestate" not in written


def test_many_windows_of_a_thread(tidelog_server: Server, client: Client) -> None:
    """Each window is sent by another thread, in which no span is current."""
    topic = orders(tidelog_server, partitions=1)
    with current():
        topic.sync.send_many(Order(number, "x") for number in range(9000))
        topic.sync.send_many((Order(number, "x") for number in range(9000)), delay=3600)
    topic.sync.close()
    entries = [entry for page in client.pages("orders:0") for entry in page]
    assert len(entries) == 9000
    assert all(tracecontext.read(entry.flat) == BOTH for entry in entries)
    assert client.tdelay_count("orders:0") == 9000
    assert all(tracecontext.read(each.flat) == BOTH for each in client.tdelay_list("orders:0", count=1000).entries)


@pytest.mark.parametrize("name", ["json", "msgpack+zstd", "plain"])
def test_records_of_every_codec_are_decoded_without_it(tidelog_server: Server, client: Client, name: str) -> None:
    topic: Topic[dict[str, str]] = Topic("notes", dict[str, str], codec=name, partitions=1, url=tidelog_server.url)
    records = [{"a": "1"}, {"b": "2", "c": "3"}, {"traceparent": "mine", "a": "1"}, {"a": "1", "tracestate": "mine"}]
    with current():
        for record in records:
            topic.sync.send(record)
        topic.sync.send_many(records)
    topic.sync.close()
    entries = client.trange("notes:0")
    assert [topic.decode(entry, 0) for entry in entries] == records * 2
    traced = [tracecontext.read(entry.flat).get("traceparent") == PARENT for entry in entries]
    assert traced == ([True] * 8 if name != "plain" else [True, True, False, False] * 2)


NAMES = st.sampled_from(["a", "b", "traceparent", "tracestate"])


@given(st.lists(st.dictionaries(NAMES, st.text(max_size=3), min_size=1), min_size=1, max_size=3), st.booleans())
def test_fields_of_a_dict_with_these_names_are_never_lost(records: list[dict[str, str]], alike: bool) -> None:
    codec = codec_for(dict[str, str])
    together = codec.encode_alike(records) if alike else None
    if together is not None:
        rows = [(together[0], values) for values in together[1]]
    else:
        rows = [codec.encode(record) for record in records]
    for (names, values), record in zip(rows, records, strict=True):
        flat = [str(word).encode() for pair in zip(names, values, strict=True) for word in pair]
        assert codec.decode(Entry(StreamId(1), flat), b"k") == record
        assert tracecontext.count(names) == 0


def test_a_type_with_such_a_field_gets_none(tidelog_server: Server, client: Client) -> None:
    """Even if the field is omitted: a decoded record would have it."""
    topic: Topic[Traced] = Topic("own", Traced, partitions=1, url=tidelog_server.url)
    records = [Traced(1), Traced(2, "mine")]
    with current():
        for record in records:
            topic.sync.send(record)
        topic.sync.send_many(records)
    topic.sync.close()
    entries = client.trange("own:0")
    assert [topic.decode(entry, 0) for entry in entries] == records * 2
    assert fields(client, "own:0") == [{"id": "1"}, {"id": "2", "traceparent": "mine"}] * 2


def test_decoding_entries_with_and_without_it_alternately() -> None:
    codec = codec_for(Order)
    bare = (b"id", b"1", b"item", b"tea", b"price", b"2.0")
    traced = (*bare, b"traceparent", PARENT.encode())
    for flat in (bare, traced, traced, bare, (*traced, b"tracestate", b"x=1"), bare):
        assert codec.decode(Entry(StreamId(1), flat), b"k") == Order(1, "tea", 2.0)


# -- clients ---------------------------------------------------------------------------------------------------
def append_all(client: Any) -> list[Any]:
    return [
        client.tappend("s", {"a": 1}),
        client.tappev("s", [("a", 2)], count=100),
        client.tmappend("s", ("a", "b"), [(3, 4), (5, 6)]),
        client.tstage("stage", 0, "FIELDS", ("a",), [(7,), (8,)]),
        client.tappend("s", {"a": 9, "traceparent": "mine"}),
        client.tmappend("s", (b"traceparent",), [("mine",)]),
        client.ttrim("s", count=100),
        client.tdelay("delayed", {"a": 10}, ms=0),
        client.tdelay("delayed", {"a": 11}, ms=0, token="t"),
        client.tdelay("delayed", {"id": 12}, ms=0),
    ]


def test_clients_with_the_option(tidelog_server: Server, client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(tidelog_server.url, trace_context=True) as tracing:
            with current(state=""):
                for each in append_all(tracing):
                    await each

    with Client(tidelog_server.url, trace_context=True) as tracing:
        with current():
            append_all(tracing)
            tracing.run(calls.tappend("call", {"a": 1}))  # a finished call is sent unchanged
        tracing.tappend("none", {"a": 1})
        tracing.tpublish("fence", 1, "stage")
    expected: list[dict[str, str]] = [{"a": "1"}, {"a": "2"}, {"a": "3", "b": "4"}, {"a": "5", "b": "6"}]
    own = [{"a": "9", "traceparent": "mine"}, {"traceparent": "mine"}]
    assert fields(client, "s") == [each | BOTH for each in expected] + own
    assert fields(client, "FIELDS") == [{"a": "7"} | BOTH, {"a": "8"} | BOTH]
    delayed = [{"a": "10"}, {"a": "11"}, {"id": "12"}]
    eventually(lambda: len(fields(client, "delayed")) == 3)
    assert sorted(fields(client, "delayed"), key=str) == sorted([each | BOTH for each in delayed], key=str)
    assert fields(client, "call", "none") == [{"a": "1"}] * 2
    client.redis.delete("s")
    asyncio.run(use())
    assert fields(client, "s") == [each | {"traceparent": PARENT} for each in expected] + own


def test_a_client_without_the_option_writes_none(client: Client) -> None:
    with current():
        client.tappend("s", {"a": 1})
    assert fields(client, "s") == [{"a": "1"}]


def test_without_opentelemetry_nothing_of_it_is_imported(tidelog_server: Server, client: Client) -> None:
    for installed in (True, False):
        assert sending(tidelog_server, installed) == 0
    assert fields(client, "plain:0", "s") == [{"a": "1"}] * 4


def sending(server: Server, installed: bool) -> int:
    """Return how many modules of opentelemetry a program has imported that sends (redis-py imports some)."""
    missing = "" if installed else "sys.modules['opentelemetry'] = None;"
    code = (
        f"import sys; {missing}"
        "import redis, redis.asyncio; before = set(sys.modules);"
        "from tidelog.topics import Topic; from tidelog import Client;"
        f"t = Topic('plain', dict[str, str], partitions=1, url={server.url!r});"
        f"t.sync.send({{'a': '1'}}); Client({server.url!r}, trace_context=True).tappend('s', {{'a': 1}});"
        "sys.exit(sum(name.split('.')[0] == 'opentelemetry' for name in set(sys.modules) - before))"
    )
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


# -- what preserves it -----------------------------------------------------------------------------------------
def test_a_delayed_record_keeps_it(tidelog_server: Server, client: Client) -> None:
    topic = orders(tidelog_server, partitions=1)
    with current():
        topic.sync.send(Order(1, "a"), delay=0)
        topic.sync.send_many([Order(2, "b"), Order(3, "c", 1.0)], delay=0)
    topic.sync.close()
    eventually(lambda: client.tlen("orders:0") == 3)
    entries = client.trange("orders:0")
    assert [topic.decode(entry, 0) for entry in entries] == [Order(1, "a"), Order(2, "b"), Order(3, "c", 1.0)]
    assert [tracecontext.read(entry.flat) for entry in entries] == [BOTH] * 3


@pytest.mark.parametrize("record_type", [Order, dict[str, str]])
def test_a_dead_letter_and_its_replay_keep_it(tidelog_server: Server, client: Client, record_type: Any) -> None:
    topic: Topic[Any] = Topic("orders", record_type, partitions=1, url=tidelog_server.url)
    record = Order(1, "a") if record_type is Order else {"id": "1", "item": "a"}
    with current():
        topic.sync.send(record)
    (entry,) = client.trange("orders:0")
    letter = deadletters.fields_of("orders", 0, entry, None, "shop.bill", ValueError("no"), 1, "w1", 5)
    steps.run(client, DeadLetterWriter("orders.dead").write([letter]))
    (dead,) = client.trange("orders.dead:0")
    assert tracecontext.read(deadletters.read(dead).flat) == BOTH
    replayed = run_alone(client, deadletters.replay("orders.dead"))
    topic.sync.close()
    assert replayed
    first, again = client.trange("orders:0")
    assert tracecontext.read(again.flat) == tracecontext.read(first.flat) == BOTH
    assert topic.decode(again, 0) == record


# -- reading ---------------------------------------------------------------------------------------------------
FOREIGN: list[tuple[list[str], dict[str, str]]] = [
    (["a", "1", "traceparent", "p"], {"traceparent": "p"}),
    (["a", "1", "traceparent", "p", "tracestate", "s"], {"traceparent": "p", "tracestate": "s"}),
    (["traceparent", "p", "a", "1"], {"traceparent": "p"}),  # of a program that writes it first
    (["tracestate", "s", "a", "1"], {}),
    (["tracestate", "mine", "a", "1", "traceparent", "p"], {"traceparent": "p"}),
    (["a", "1"], {}),
]


@pytest.mark.parametrize(("words", "found"), FOREIGN)
def test_reading(words: list[str], found: dict[str, str]) -> None:
    assert tracecontext.read([word.encode() for word in words]) == found


def test_splitting() -> None:
    words = [b"a", b"1", b"traceparent", b"p", b"tracestate", b"s"]
    assert tracecontext.split(words) == ([b"a", b"1"], {"traceparent": "p", "tracestate": "s"})
    for alone in ([b"traceparent", b"p"], [b"traceparent", b"p", b"a", b"1"], [b"a", b"1", b"tracestate", b"s"]):
        assert tracecontext.split(alone) == (alone, {})
