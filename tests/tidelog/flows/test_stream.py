"""``stream`` on a real server: what is read, written, acknowledged, given back, and given up."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog import Client
from tidelog.client.alone import run_alone
from tidelog.client.steps import run
from tidelog.flows import Flow, FlowFileError
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.flows.connectors.tidelog.groupsource import GroupSource
from tidelog.testing import Server
from tidelog.topics import deadletters
from tidelog.topics.groupreader import GroupStream


def flow_of(server: Server, sink: Any, name: str = "orders", **options: Any) -> Flow:
    """in -> sink"""
    flow = Flow(name, server=server.url)
    flow.connector("in", "stream", **{"key": "orders", "group": "shop", **options})
    flow.connector("out", sink)
    flow.connect("in -> out")
    return flow


class Twice(Operator):
    """Adds twice n."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            event.value["twice"] = int(event.value["n"]) * 2
        self.emit(events)


def pending(client: Client, key: str = "orders", group: str = "shop") -> int:
    return client.tpending(key, group).count


def done(client: Client, count: int, key: str = "orders", group: str = "shop") -> bool:
    """Whether the group has read so many entries and has nothing pending."""
    groups = [each for each in client.tgroup_list(key) if each.name == group.encode()]
    return bool(groups) and client.tcount(key, f"({groups[0].offset}") == 0 and groups[0].pending == 0


@in_loop
async def test_from_a_stream_to_a_stream(tidelog_server: Server, client: Client) -> None:
    for number in range(2000):
        client.tappend("orders", {"n": number, "item": "tea"})
    flow = Flow("orders", server=tidelog_server.url)
    flow.connector("in", "stream", key="orders", group="shop")
    flow.connector("out", "stream", key="copies")
    flow.pipeline("add", Twice)
    flow.connect("in -> add -> out")
    async with running(flow):
        await until(lambda: client.tlen("copies") == 2000 and pending(client) == 0)
    found = [entry.text() for entry in client.trange("copies")]
    assert found == [{"n": str(n), "item": "tea", "twice": str(2 * n)} for n in range(2000)]


@in_loop
async def test_entries_that_come_later_are_read_without_being_asked_for(tidelog_server: Server, client: Client) -> None:
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append((event.value, event.meta["stream"], event.id, event.attempt))

    async with running(flow_of(tidelog_server, sink)):
        await until(lambda: client.redis.info("clients")["blocked_clients"] >= 1, "the source waits")
        first = client.tappend("orders", {"n": "1"})
        await until(lambda: len(seen) == 1)
        second = client.tappend("orders", {"n": "2"})
        await until(lambda: len(seen) == 2 and pending(client) == 0)
    assert seen == [({"n": "1"}, "orders", str(first), 1), ({"n": "2"}, "orders", str(second), 1)]


@in_loop
async def test_several_keys_are_told_apart(tidelog_server: Server, client: Client) -> None:
    seen: Counter[str] = Counter()

    async def sink(event: Event) -> None:
        assert event.id.startswith(event.meta["stream"] + "/")
        seen[event.meta["stream"]] += 1

    for key in ("a", "b", "c"):
        for number in range(700):
            client.tappend(key, {"n": number})
    async with running(flow_of(tidelog_server, sink, key=["a", "b", "c"])):
        await until(lambda: all(done(client, 700, key) for key in "abc"))
        client.tappend("b", {"n": "last"})
        await until(lambda: seen["b"] == 701 and done(client, 701, "b"))
    assert seen == {"a": 700, "b": 701, "c": 700}


@in_loop
async def test_what_fails_comes_again_with_its_attempt_and_a_growing_delay(
    tidelog_server: Server, client: Client
) -> None:
    seen: list[tuple[float, int]] = []

    async def sink(event: Event) -> None:
        seen.append((asyncio.get_running_loop().time(), event.attempt))
        if event.attempt < 4:
            raise OSError("busy")

    client.tappend("orders", {"n": 1})
    async with running(flow_of(tidelog_server, sink, on_error={"retry": {"first": "50ms"}})):
        await until(lambda: len(seen) == 4 and done(client, 1))
    assert [attempt for _, attempt in seen] == [1, 2, 3, 4]
    waits = [later[0] - before[0] for before, later in pairwise(seen)]
    assert all(wait >= least for wait, least in zip(waits, (0.05, 0.1, 0.2), strict=True)), waits


def letters_of(client: Client, topic: str = "flow.orders.dead") -> list[deadletters.DeadLetterRecord]:
    entries, _ = run(client, deadletters.page(topic))
    return [deadletters.read(entry) for entry in entries]


@in_loop
async def test_poison_reaches_the_dead_letters_with_reason_and_attempts(tidelog_server: Server, client: Client) -> None:
    async def sink(event: Event) -> None:
        if event.value["n"] == "reject":
            raise RejectError("no such customer")
        if event.value["n"] == "fail":
            raise ValueError("always")

    ids = {name: client.tappend("orders", {"n": name, "item": "tea"}) for name in ("good", "reject", "fail")}
    flow = flow_of(tidelog_server, sink, on_error={"retry": {"attempts": 2, "first": "10ms"}})
    async with running(flow) as made:
        await until(lambda: done(client, 3))
        await until(lambda: made.graph.sources["in"].counts.get("dead") == 2)  # the replies are on their way
    letters = {letter.entry.text()["n"]: letter for letter in letters_of(client)}
    assert set(letters) == {"reject", "fail"}
    assert letters["reject"].attempts == 1
    assert letters["reject"].event_id == ids["reject"]
    assert "no such customer" in letters["reject"].message
    assert letters["reject"].processor == "orders.in"
    assert letters["reject"].error == "tidelog.flows.api.errors.RejectError"
    assert letters["fail"].attempts == 3
    assert letters["fail"].message == "out: ValueError: always"
    assert {each.stream for each in letters.values()} == {"orders"}

    assert run_alone(client, deadletters.replay("flow.orders.dead")).letters == 2
    assert [entry.text()["n"] for entry in client.trange("orders")][3:] == ["reject", "fail"]
    assert letters_of(client) == []


@in_loop
async def test_an_entry_that_ends_its_process_is_given_up_unseen(tidelog_server: Server, client: Client) -> None:
    entry = client.tappend("orders", {"n": 1})
    for _ in range(3):  # readers that die with it
        assert client.tread("orders", "0", 10, group="shop", retry=1)
        await asyncio.sleep(0.01)
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    async with running(flow_of(tidelog_server, sink, on_error={"retry": {"attempts": 1}})):
        await until(lambda: done(client, 1))
    (letter,) = letters_of(client)
    assert not seen
    assert (letter.attempts, letter.event_id) == (4, entry)


@in_loop
async def test_a_letter_that_can_not_be_written_keeps_its_entry_pending(tidelog_server: Server, client: Client) -> None:
    client.redis.set("flow.orders.dead:0", "no stream")

    async def sink(_: Any) -> None:
        raise RejectError("never")

    client.tappend("orders", {"n": 1})
    async with running(flow_of(tidelog_server, sink)) as made:
        await until(lambda: made.graph.sources["in"].counts.get("settle_errors"))
        assert pending(client) == 1
        client.redis.delete("flow.orders.dead:0")
        await until(lambda: pending(client) == 0)
    assert len(letters_of(client)) == 1


@in_loop
async def test_what_takes_longer_than_retry_is_not_delivered_to_another(tidelog_server: Server, client: Client) -> None:
    gate = asyncio.Event()
    seen: list[str] = []

    async def slow(event: Event) -> None:
        seen.append(event.id)
        await gate.wait()

    async def other(event: Event) -> None:
        seen.append(f"other {event.id}")

    entry = client.tappend("orders", {"n": 1})
    async with running(flow_of(tidelog_server, slow, retry="200ms")):
        await until(lambda: seen)
        async with running(flow_of(tidelog_server, other, retry="200ms"), "orders.2"):
            await asyncio.sleep(1.0)  # five times its retry
            assert seen == [str(entry)]
            assert client.tpending_range("orders", "shop")[0].deliveries == 1
            gate.set()
            await until(lambda: pending(client) == 0)
    assert seen == [str(entry)]


@in_loop
async def test_what_a_read_brings_to_a_paused_flow_is_given_back_at_once(
    tidelog_server: Server, client: Client
) -> None:
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    async with running(flow_of(tidelog_server, sink, retry="1h")) as made:
        await until(lambda: client.tgroup_list("orders"))
        await until(lambda: client.redis.info("clients")["blocked_clients"] >= 1)
        await made.pause()
        client.tmappend("orders", ["n"], [[str(n)] for n in range(100)])
        await until(lambda: client.redis.info("clients")["blocked_clients"] == 0, "the source has heard of it")
        client.redis.execute_command("CLIENT", "PAUSE", 300, "WRITE")
        await made.resume()
        await asyncio.sleep(0.1)  # the read has left, and the server does not answer yet
        await made.pause()
        await until(lambda: client.tpending("orders", "shop").count == 100)
        await until(lambda: all(each.due < time.time() * 1000 for each in client.tpending_range("orders", "shop")))
        assert not seen
        await made.resume()
        await until(lambda: len(seen) == 100 and pending(client) == 0)


@in_loop
@pytest.mark.parametrize("keys", ["orders", ["orders", "other"]])
async def test_an_entry_whose_deliveries_can_not_be_counted_comes_later(
    tidelog_server: Server, client: Client, monkeypatch: pytest.MonkeyPatch, keys: Any
) -> None:
    seen: list[tuple[Any, int]] = []
    count = GroupSource._deliveries
    failures = 2

    async def counted(source: GroupSource, stream: GroupStream, ids: list[bytes]) -> dict[bytes, int]:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError("no reply in time")
        return await count(source, stream, ids)

    async def sink(event: Event) -> None:
        seen.append((event.value["n"], event.attempt))

    monkeypatch.setattr(GroupSource, "_deliveries", counted)
    client.tappend("orders", {"n": 1})
    assert client.tread("orders", "0", 10, group="shop", retry=1)  # a reader that dies
    await asyncio.sleep(0.01)
    async with running(flow_of(tidelog_server, sink, key=keys, retry="200ms", reconnect={"retry": {"first": "10ms"}})):
        await until(lambda: done(client, 1))
    assert failures < 0
    assert seen == [("1", 4)]  # one reader that dies, and two reads whose events were not sent


@in_loop
async def test_a_flow_that_ends_gives_back_what_is_under_way(tidelog_server: Server, client: Client) -> None:
    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    client.tappend("orders", {"n": 1})
    async with running(flow_of(tidelog_server, never, retry="1h")) as made:
        await until(lambda: made.unsettled().count == 1)
        report = await made.drain(0.1)
        assert report.abandoned == {"in": 1}
    again = client.tread("orders", "", 10, group="shop", retry=1000, block=5000)
    assert [entry["n"] for entry in again.entries] == [b"1"]


@in_loop
async def test_three_instances_in_one_group_share_a_stream(tidelog_server: Server, client: Client) -> None:
    seen: Counter[str] = Counter()
    at: dict[str, int] = Counter()

    def sink(name: str) -> Any:
        async def take(event: Event) -> None:
            seen[event.value["n"]] += 1
            at[name] += 1

        return take

    names = ("orders", "orders.2", "orders.3")
    one, two, three = (running(flow_of(tidelog_server, sink(name)), name) for name in names)
    async with one, two, three:
        for start in range(0, 3000, 100):
            client.tmappend("orders", ["n"], [[str(n)] for n in range(start, start + 100)])
            await asyncio.sleep(0)
        await until(lambda: len(seen) == 3000 and done(client, 3000))
    assert set(seen.values()) == {1}
    assert len(at) >= 2, at


@in_loop
async def test_without_a_group_it_reads_on_from_an_id(tidelog_server: Server, client: Client) -> None:
    ids = [client.tappend("orders", {"n": number}) for number in range(10)]
    seen: list[str] = []
    failed: list[str] = []

    async def sink(event: Event) -> None:
        if event.attempt == 1 and event.value["n"] == "6":
            failed.append(event.id)
            raise OSError("once")
        seen.append(event.value["n"])

    flow = flow_of(tidelog_server, sink, group=None, start=str(ids[4]))
    async with running(flow):
        await until(lambda: len(seen) == 5)
        client.tappend("orders", {"n": "new"})
        await until(lambda: "new" in seen)
    assert sorted(seen) == ["5", "6", "7", "8", "9", "new"]
    assert failed == [str(ids[6])]
    assert client.tgroup_list("orders") == []


@pytest.mark.parametrize("group", ["shop", None])
@in_loop
async def test_latest_begins_behind_what_is_there(tidelog_server: Server, client: Client, group: str | None) -> None:
    client.tappend("orders", {"n": "old"})
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value["n"])

    async with running(flow_of(tidelog_server, sink, group=group, start="latest")) as made:
        source = made.graph.sources["in"]
        await until(lambda: source.connection.connected)
        await until(lambda: client.redis.info("clients")["blocked_clients"] >= 1)
        client.tappend("orders", {"n": "new"})
        await until(lambda: seen)
    assert seen == ["new"]


@in_loop
async def test_an_entry_that_the_codec_can_not_read_goes_another_way(tidelog_server: Server, client: Client) -> None:
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value)

    client.tappend("orders", {"data": json.dumps({"n": 1, "deep": [1, 2]})})
    client.tappend("orders", {"data": "{"})
    client.tappend("orders", {"other": "1"})
    async with running(flow_of(tidelog_server, sink, codec="json")):
        await until(lambda: done(client, 3))
    assert seen == [{"n": 1, "deep": [1, 2]}]
    assert [letter.entry.text() for letter in letters_of(client)] == [{"data": "{"}, {"other": "1"}]


def writing(server: Server, values: list[Any], **options: Any) -> Flow:
    """Events of these values to a stream, then the end."""
    flow = Flow("writes", server=server.url)

    async def source() -> Any:
        for value in values:
            yield value

    flow.connector("in", source, on_error="dead_letter")
    flow.connector("out", "stream", **{"key": "out", **options})
    flow.connect("in -> out")
    return flow


async def written(server: Server, values: list[Any], **options: Any) -> list[str]:
    """Write them; returns why events were given up."""
    given_up: list[str] = []

    async def letters(_: str, pairs: Any) -> bool:
        given_up.extend(reason for _, reason in pairs)
        return True

    async with running(writing(server, values, **options), dead_letters=letters) as made:
        async with asyncio.timeout(20):
            await made.finished()
    return given_up


@in_loop
async def test_values_become_fields(tidelog_server: Server, client: Client) -> None:
    values = [
        {"a": "x", "b": 1}, {"a": "y", "b": 2.5}, {"b": 3, "a": "z"}, {"a": None, "c": True, "d": [1, {"e": 2}]},
        "text", {"raw": b"\xff\x00"},
    ]  # fmt: skip
    assert await written(tidelog_server, values) == []
    assert [dict(entry.pairs) for entry in client.trange("out")] == [
        {b"a": b"x", b"b": b"1"}, {b"a": b"y", b"b": b"2.5"}, {b"b": b"3", b"a": b"z"},
        {b"c": b"true", b"d": b'[1,{"e":2}]'}, {b"value": b"text"}, {b"raw": b"\xff\x00"},
    ]  # fmt: skip


@in_loop
async def test_what_can_not_be_written_is_refused_by_itself(tidelog_server: Server, client: Client) -> None:
    values = [{"n": "1"}, {"n": "\udc80"}, {"n": None}, {"n": "2"}, {"n": {"deep": object()}}]
    given_up = await written(tidelog_server, values)
    assert [entry["n"] for entry in client.trange("out")] == [b"1", b"2"]
    assert len(given_up) == 3


@in_loop
async def test_events_say_where_they_go(tidelog_server: Server, client: Client) -> None:
    values = [{"to": {"city": "Oslo"}, "n": 1}, {"to": {"city": "Rome"}, "n": 2}, {"n": 3}]
    given_up = await written(tidelog_server, values, key="city:{to.city}", codec="json")
    assert [entry["data"] for entry in client.trange("city:Oslo")] == [b'{"to":{"city":"Oslo"},"n":1}']
    assert client.tlen("city:Rome") == 1
    assert len(given_up) == 1
    assert "{to.city} is missing" in given_up[0]


@pytest.mark.parametrize("group", ["shop", None])
@in_loop
async def test_a_source_starts_at_a_time(tidelog_server: Server, client: Client, group: str | None) -> None:
    for number, at in enumerate(("1000-0", "2000-0", "2000-1")):
        client.redis.xadd("orders", {"n": number}, id=at)
    seen: list[Any] = []

    async def sink(value: Any) -> None:
        seen.append(value["n"])

    async with running(flow_of(tidelog_server, sink, group=group, start="1970-01-01T00:00:02Z")):
        await until(lambda: len(seen) == 2)
    assert seen == ["1", "2"]


@in_loop
async def test_only_the_newest_entries_stay(tidelog_server: Server, client: Client) -> None:
    assert await written(tidelog_server, [{"n": n} for n in range(1500)], evict=100) == []
    assert [entry["n"] for entry in client.trange("out")] == [b"%d" % n for n in range(1400, 1500)]


@in_loop
async def test_a_stream_of_another_type_is_tried_again(tidelog_server: Server, client: Client) -> None:
    client.redis.set("out", "text")

    async def source() -> Any:
        yield {"n": 1}

    flow = Flow("writes", server=tidelog_server.url)
    flow.connector("in", source, on_error={"retry": {"first": "20ms"}})
    flow.connector("out", "stream", key="out")
    flow.connect("in -> out")
    async with running(flow) as made:
        await until(lambda: made.graph.sources["in"].counts.get("again", 0) >= 1)
        client.redis.delete("out")
        async with asyncio.timeout(20):
            await made.finished()
    assert client.tlen("out") == 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "key is missing"),
        ({"key": "a", "start": "first"}, "earliest, latest, an ID"),
        ({"key": ["a", "a"]}, "twice"),
        ({"key": "a", "topic": "b"}, "fill the key"),
        ({"key": "a", "evict": 0}, "at least 1"),
        ({"key": "a", "retry": "1ms"}, "at least 100ms"),
        ({"key": "a", "url": "http://x"}, "redis://"),
        ({"key": "a", "grup": "x"}, "did you mean 'group'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("orders", server="redis://localhost").connector("in", "stream", **options)


def test_a_stream_needs_a_server() -> None:
    flow = Flow("orders")
    flow.connector("in", "stream", key="a", group="g")
    flow.connector("out", "null")
    flow.connect("in -> out")
    with pytest.raises(FlowFileError, match="need a tidelog server"):
        flow.spec()


# -- traces ----------------------------------------------------------------------------------------------------
TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


@in_loop
@pytest.mark.parametrize("codec", ["plain", "json"])
async def test_the_trace_context_of_an_entry_is_in_meta_and_written_again(
    tidelog_server: Server, client: Client, codec: str
) -> None:
    own = {"n": "1"} if codec == "plain" else {"data": '{"n":"1"}'}
    client.tappend("orders", own | TRACE)
    client.tappend("orders", own)
    client.tappend("orders", TRACE | own)  # fields of the value
    seen: list[Any] = []

    def looks(event: Event) -> Event:
        seen.append((event.value, {name: event.meta.get(name) for name in TRACE}))
        return event

    flow = Flow("orders", server=tidelog_server.url)
    flow.connector("in", "stream", key="orders", group="shop", codec=codec)
    flow.connector("out", "stream", key="copies", codec=codec)
    flow.pipeline("look", looks)
    flow.connect("in -> look -> out")
    async with running(flow):
        await until(lambda: client.tlen("copies") == 3 and pending(client) == 0)
    none = dict.fromkeys(TRACE)
    expected = {"n": "1"}
    assert seen == [(expected, TRACE), (expected, none), (expected if codec == "json" else TRACE | own, none)]
    copies = [entry.text() for entry in client.trange("copies")]
    assert copies == [own | TRACE, own, own if codec == "json" else TRACE | own]
    assert [*copies[0]] == [*own, *TRACE]  # at the end


@in_loop
async def test_a_flow_writes_the_span_that_is_current_where_a_value_is_yielded(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = TracerProvider().get_tracer("test")
    spans: list[str] = []

    async def numbers() -> AsyncIterator[Any]:
        for number in range(2):
            with tracer.start_as_current_span("import") as span:
                at = span.get_span_context()
                spans.append(f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}")
                yield {"n": number}
        yield {"n": 2}
        yield Event({"n": 3}, dict(TRACE))

    flow = Flow("import", server=tidelog_server.url)
    flow.connector("in", numbers)
    flow.connector("out", "stream", key="orders")
    flow.connect("in -> out")
    async with running(flow):
        await until(lambda: client.tlen("orders") == 4)
    found = [entry.text() for entry in client.trange("orders")]
    assert found == [
        {"n": "0", "traceparent": spans[0]}, {"n": "1", "traceparent": spans[1]}, {"n": "2"}, {"n": "3"} | TRACE,
    ]  # fmt: skip
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


@in_loop
@pytest.mark.parametrize("by", ["source", "sink"])
async def test_a_dead_letter_of_a_flow_and_its_replay_keep_the_trace_context(
    tidelog_server: Server, client: Client, by: str
) -> None:
    client.tappend("orders", {"n": "1"} | TRACE)

    def fails(event: Event) -> Any:
        raise RejectError("no")

    flow = Flow("orders", server=tidelog_server.url)
    flow.connector("in", "stream", key="orders", group="shop")
    flow.connector("out", "stream", key="copies")
    flow.pipeline("check", fails)
    flow.connect("in -> check -> out")
    if by == "sink":
        flow.connect("check.err -> dead_letters")
    async with running(flow):
        await until(lambda: client.redis.exists("flow.orders.dead:0") == 1 and pending(client) == 0)
    (dead,) = client.trange("flow.orders.dead:0")
    assert deadletters.read(dead).entry.text() == {"n": "1"} | TRACE
    run_alone(client, deadletters.replay("flow.orders.dead"))
    assert [entry.text() for entry in client.trange("orders")] == [{"n": "1"} | TRACE] * 2
