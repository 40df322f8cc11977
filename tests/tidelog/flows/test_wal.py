"""``wal`` and ``dead_letters`` on a real server."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.tidelog.flows.serverkit import in_loop, running
from tests.waiting import until
from tidelog import Client
from tidelog.client.alone import run_alone
from tidelog.client.steps import run
from tidelog.flows import Flow
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.tidelog.deadletters import DeadLetterQueue
from tidelog.testing import Server
from tidelog.topics import deadletters

KEY = "flow:orders:wal:log"


def flow_of(server: Server, source: Any, sink: Any, **options: Any) -> Flow:
    flow = Flow("orders", server=server.url)
    flow.connector("in", source)
    flow.connector("log", "wal", **options)
    flow.connector("out", sink)
    flow.connect("in -> log -> out")
    return flow


def numbers(count: int) -> Any:
    async def source() -> Any:
        for number in range(count):
            yield {"n": number, "raw": b"\xff"}

    return source


async def nothing() -> Any:
    await asyncio.Event().wait()
    yield


@in_loop
async def test_what_comes_in_goes_out_in_order_and_is_gone(tidelog_server: Server, client: Client) -> None:
    seen: list[Any] = []

    async def sink(event: Event) -> None:
        seen.append((event.value["n"], event.value["raw"]))

    async with running(flow_of(tidelog_server, numbers(2000), sink)) as made:
        await until(lambda: len(seen) == 2000 and client.tlen(KEY) == 0)
        assert made.graph.sources["in"].unsettled == 0
    assert seen == [(n, b"\xff") for n in range(2000)]


@in_loop
async def test_the_source_is_settled_before_the_sink_has_it_and_a_restart_sends_it(
    tidelog_server: Server, client: Client
) -> None:
    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    async with running(flow_of(tidelog_server, numbers(700), stuck)) as made:
        source = made.graph.sources["in"]
        await until(lambda: source.counts.get("ok") == 700 and not source.unsettled)
    assert client.tlen(KEY) == 700
    seen: list[int] = []

    async def sink(value: Any) -> None:
        seen.append(value["n"])

    async with running(flow_of(tidelog_server, nothing, sink)):
        await until(lambda: client.tlen(KEY) == 0)
    assert seen == list(range(700))


@in_loop
async def test_what_is_settled_before_a_gap_stays_until_the_gap_is_closed(
    tidelog_server: Server, client: Client
) -> None:
    gate = asyncio.Event()
    seen: list[int] = []

    async def sink(event: Event) -> None:
        if event.value["n"] == 3 and not gate.is_set():
            raise OSError("not yet")
        seen.append(event.value["n"])

    async with running(flow_of(tidelog_server, numbers(10), sink)):
        await until(lambda: len(seen) == 9 and client.tlen(KEY) == 7)
        gate.set()
        await until(lambda: client.tlen(KEY) == 0)
    assert sorted(seen) == list(range(10))


@in_loop
async def test_it_takes_no_more_than_its_size(tidelog_server: Server, client: Client) -> None:
    gate = asyncio.Event()
    seen: list[int] = []

    async def sink(value: Any) -> None:
        await gate.wait()
        seen.append(value["n"])

    async with running(flow_of(tidelog_server, numbers(5000), sink, max_events=600)) as made:
        source = made.graph.sources["in"]
        await until(lambda: "wal_full:log" in source.breaker)
        assert 600 <= client.tlen(KEY) <= 600 + 512
        gate.set()
        await until(lambda: len(seen) == 5000 and client.tlen(KEY) == 0)
        await until(lambda: "wal_full:log" not in source.breaker)
    assert seen == list(range(5000))


@in_loop
async def test_instances_have_streams_of_their_own(tidelog_server: Server, client: Client) -> None:
    async def stuck(_: Any) -> None:
        await asyncio.Event().wait()

    one = running(flow_of(tidelog_server, numbers(3), stuck))
    two = running(flow_of(tidelog_server, numbers(4), stuck), "orders.2")
    async with one, two:
        await until(lambda: (client.tlen(KEY), client.tlen("flow:orders.2:wal:log")) == (3, 4))


# -- dead letters --------------------------------------------------------------------------------------------
def letters_of(client: Client, topic: str = "flow.orders.dead") -> list[deadletters.DeadLetterRecord]:
    entries, _ = run(client, deadletters.page(topic))
    return [deadletters.read(entry) for entry in entries]


@in_loop
async def test_every_flow_has_dead_letters(tidelog_server: Server, client: Client) -> None:
    entry = client.tappend("orders", {"n": 1})
    flow = Flow("orders", server=tidelog_server.url)
    flow.connector("in", "stream", key="orders", group="shop")
    flow.connect("in -> dead_letters")
    async with running(flow, "orders.2"):
        await until(lambda: client.tlen("flow.orders.dead:0") == 1 and client.tpending("orders", "shop").count == 0)
    (letter,) = letters_of(client)
    assert (letter.stream, letter.event_id, letter.processor) == ("orders", entry, "orders.in")
    assert letter.entry.text() == {"n": "1"}
    assert letter.worker.startswith("orders.2@")
    assert run_alone(client, deadletters.replay("flow.orders.dead")).letters == 1
    assert [each.text() for each in client.trange("orders")] == [{"n": "1"}] * 2


@in_loop
async def test_letters_of_other_sources_are_kept_with_reason_and_attempts(
    tidelog_server: Server, client: Client
) -> None:
    async def source() -> Any:
        yield Event({"n": 1, "odd": {1, 2}}, {"from": "a"}, "id-1")

    async def sink(_: Any) -> None:
        raise ValueError("always")

    flow = Flow("orders", server=tidelog_server.url)
    flow.connector("in", source, on_error={"retry": {"attempts": 2, "first": "10ms"}})
    flow.connector("out", sink)
    flow.connect("in -> out")
    letters = DeadLetterQueue("orders", tidelog_server.url)
    try:
        async with running(flow, dead_letters=letters) as made, asyncio.timeout(20):
            await made.finished()
    finally:
        letters.close()
    (letter,) = letters_of(client)
    assert (letter.attempts, letter.processor, letter.topic) == (3, "orders.in", "")
    assert "always" in letter.message
    assert letter.entry.text()["data"].startswith('{"n":1')
    assert letter.entry.text()["meta"] == '{"from":"a","id":"id-1"}'
    done = run_alone(client, deadletters.replay("flow.orders.dead"))
    assert (done.letters, len(done.refused)) == (0, 1)
    assert "only be purged" in done.refused[0]
    assert run_alone(client, deadletters.purge("flow.orders.dead")).letters == 1


@in_loop
async def test_a_replay_can_be_sent_elsewhere(tidelog_server: Server, client: Client) -> None:
    flow = Flow("orders", server=tidelog_server.url)
    flow.connector("in", numbers(1))
    flow.connector("given_up", "dead_letters", topic="old.dead", replay="again")
    flow.connect("in -> given_up")
    async with running(flow) as made, asyncio.timeout(20):
        await made.finished()
    assert run_alone(client, deadletters.replay("old.dead")).letters == 1
    assert client.tlen("again") == 1
