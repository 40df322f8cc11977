"""``roundrobin``: fair, around outputs that fail, hang or are gone; sources stop when none is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.qoskit import OwnFeed, down, lab, on_seeds
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.declare import Flow, op
from tidelog.flows.testing.virtualloop import VirtualLoop

REASON = "roundrobin:line.0"
STARTING = "starting:line.0"
WAYS = {"a": "a", "b": "b"}


def robin(**options: Any) -> Any:
    return op("roundrobin", **({"outputs": ["a", "b"]} | options))


def test_events_are_dealt_out_in_turn() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS) as it:
            await it.connected()
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            it.feed.feed(*range(10))
            it.feed.feed(*range(10, 1000))
            it.feed.end()
            await it.running.finished()
            assert len(it.sink("a").got) == len(it.sink("b").got) == 500
            assert sorted(it.sink("a").values + it.sink("b").values) == list(range(1000))

    on_seeds(story)


def test_roundrobin_never_starts() -> None:
    """With one output that can't connect the flow starts when the other one is connected."""

    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS, before=down("a")) as it:
            assert it.reasons == {STARTING}
            await it.connected()
            assert not it.reasons
            it.feed.feed(*range(20))
            await it.until(lambda: len(it.feed.told) == 20)
            assert it.sink("b").values == list(range(20))
            it.sink("a").up = True
            await it.until(lambda: it.running.graph.connections["a"].connected)
            it.feed.feed(*range(20))
            await it.until(lambda: len(it.feed.told) == 40)
            assert len(it.sink("a").got) == 10

    on_seeds(story)


def test_it_starts_with_no_output_only_when_there_is_one() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS, before=down("a", "b")) as it:
            it.feed.feed(1)
            await asyncio.sleep(100)
            assert it.running.status == "initializing"
            assert it.reasons == {STARTING}
            assert not it.feed.pulled
            it.sink("b").up = True
            await it.connected()
            await it.until(lambda: it.feed.told == [(0, "ok")])

    on_seeds(story)


def test_an_output_that_is_gone_gets_nothing_until_it_is_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(), sinks=WAYS) as it:
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            it.sink("a").down()
            await it.until(lambda: not it.operator.outputs["a"].usable)
            it.feed.feed(*range(10))
            await it.until(lambda: len(it.feed.told) == 10)
            assert it.sink("b").values == list(range(10))
            assert not it.reasons
            it.sink("b").down()
            await it.until(lambda: it.reasons == {REASON})
            it.feed.feed(*range(10, 20))
            await asyncio.sleep(1)
            it.sink("a").up = True
            await it.until(lambda: not it.reasons)  # with the first that is back
            await it.until(lambda: len(it.feed.told) == 20)
            assert it.sink("a").values == list(range(10, 20))

    on_seeds(story)


def test_failures_in_a_row_take_an_output_out_and_a_probe_brings_it_back() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(
            robin(failures=3, probe_after="2s"), sinks=WAYS, options={"on_error": {"retry": {"first": "10ms"}}}
        ) as it:
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            sink = it.sink("a")
            sink.answer = lambda event: (RETRY, "broken")
            for number in range(30):
                it.feed.feed(number)
                await asyncio.sleep(0.02)
            await it.until(lambda: len(it.feed.told) == 30)
            assert len(sink.got) == 3
            assert not it.reasons
            await asyncio.sleep(2)
            before = len(sink.got)
            it.feed.feed(*range(100))  # one of these is the probe, and fails: out for twice as long
            await it.until(lambda: len(it.feed.told) == 130)
            assert len(sink.got) == before + 1
            sink.answer = lambda event: OK
            await asyncio.sleep(4.1)
            for number in range(100):
                it.feed.feed(number)
                await asyncio.sleep(0.02)
            await it.until(lambda: len(it.feed.told) == 230)
            assert 45 <= len(sink.got) - before <= 55

    on_seeds(story)


def test_no_output_left_by_failures_stops_the_source_until_a_probe() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(
            robin(failures=1, probe_after="5s"), sinks=WAYS, options={"on_error": {"retry": {"first": "10ms"}}}
        ) as it:
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            for name in WAYS:
                it.sink(name).answer = lambda event: (RETRY, "broken")
            it.feed.feed(*range(10))
            await it.until(lambda: it.reasons == {REASON})
            since = loop.time()
            for name in WAYS:
                it.sink(name).answer = lambda event: OK
            await it.until(lambda: not it.reasons)
            assert loop.time() - since == pytest.approx(5, abs=0.1)
            await it.until(lambda: len(it.feed.told) == 10)

    on_seeds(story)


def test_rejects_are_the_events_fault_not_the_outputs() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(failures=1), sinks=WAYS, source=OwnFeed) as it:
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            it.sink("a").answer = lambda event: (REJECT, "no")
            it.feed.feed(*range(10))
            await it.until(lambda: len(it.feed.told) == 10)
            assert len(it.sink("a").got) == 5
            assert "out_of_rotation" not in it.node.counts

    on_seeds(story)


def test_an_output_that_hangs_holds_up_so_many_and_no_more() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(most=50), sinks=WAYS) as it:
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            it.sink("a").answer = lambda event: None
            it.feed.feed(*range(1000))
            await it.until(lambda: len(it.feed.told) == 950)
            assert len(it.sink("a").held) == 50

    on_seeds(story)


def test_when_all_outputs_hang_the_rest_is_kept_and_goes_on_with_the_first_answer() -> None:
    async def story(loop: VirtualLoop) -> None:
        async with lab(robin(most=5), sinks=WAYS) as it:
            await it.until(lambda: all(each.connected for each in it.running.graph.connections.values()))
            for name in WAYS:
                it.sink(name).answer = lambda event: None
            it.feed.feed(*range(100))
            await it.until(lambda: len(it.sink("a").held) + len(it.sink("b").held) == 10)
            assert it.operator.kept() == 90
            for name in WAYS:
                it.sink(name).answer = lambda event: OK
            for event in it.sink("a").held:
                it.sink("a").context.answer(event, OK)
            await it.until(lambda: len(it.feed.told) == 95)

    on_seeds(story)


def test_storm_with_queues_of_one_loses_nothing() -> None:
    async def story(loop: VirtualLoop) -> None:
        ways = {"a": "a", "b": "b", "c": "c"}
        operator = robin(outputs=["a", "b", "c"], most=20, probe_after="100ms")
        async with lab(operator, sinks=ways, queue=1, options={"on_error": {"retry": {"first": "10ms"}}}) as it:
            sinks = [it.sink(name) for name in ways]
            for sink in sinks:
                sink.delay = 0.005
                sink.answer = lambda event: (RETRY, "no luck") if loop.random.random() < 0.2 else OK
            it.feed.feed(*range(400))
            for _ in range(20):
                await asyncio.sleep(0.2)
                sink = loop.random.choice(sinks)
                if sink.up:
                    sink.down()
                else:
                    sink.up = True
            for sink in sinks:
                sink.up = True
                sink.answer = lambda event: OK
            it.feed.end()
            await it.running.finished()
            assert sorted(it.feed.told) == [(number, "ok") for number in range(400)]
            assert {value for sink in sinks for value in sink.values} == set(range(400))

    on_seeds(story)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"outputs": []}, "at least one"),
        ({"outputs": ["a", "a"]}, "different names"),
        ({"outputs": ["out"]}, "outputs: the port can't be named 'out'"),
        ({"outputs": ["a b"]}, "outputs: 'a b' is not a valid name of a port"),
        ({"failures": 0}, "failures: Expected `int` >= 1"),
        ({"probe_after": 0}, "probe_after: it is 0"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    with pytest.raises(FlowFileError, match=text):
        Flow("f").pipeline("line", robin(**options))


def test_an_operator_after_it_is_an_error() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("a", "null")
    flow.pipeline("line", op("roundrobin", ["a"]), op("passthrough"))
    flow.connect("in -> line", "line.a -> a")
    with pytest.raises(FlowFileError, match="roundrobin must be the last operator: it emits events on a"):
        flow.spec()


def test_an_output_that_leads_nowhere_is_an_error() -> None:
    flow = Flow("f")
    flow.connector("in", "null")
    flow.connector("a", "null")
    flow.pipeline("line", robin())
    flow.connect("in -> line", "line.a -> a")
    with pytest.raises(FlowFileError, match="the port 'b' of roundrobin is not connected"):
        flow.spec()
