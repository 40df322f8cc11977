"""Connectors for trying out flows: script, fault, metronome, null; and functions of a program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tidelog.flows import Event, Flow, FlowFileError, RejectError, op
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.connectors.builtin.script import ScriptConnector
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate

Counts = dict[str, int]


def begun(loop: VirtualLoop, flow: Flow, letters: Any = None) -> RunningFlow:
    spec = flow.spec()
    context = FlowContext(flow.name, debug=True, now_ns=loop.now_ns, random=loop.random, dead_letters=letters)
    return RunningFlow(spec, context)


def scripted(
    values: int, letters: list[Any] | None = None, **sink: Any
) -> tuple[ScriptConnector, float, Counts, Counts]:
    """A scripted sink that got so many events, the time it took, the counts of the source and of the sink."""

    async def story(loop: VirtualLoop) -> tuple[ScriptConnector, float, Counts, Counts]:
        flow = Flow("f")
        flow.connector("in", "script", values=list(range(values)), on_error={"retry": {"attempts": 3, "first": "1s"}})
        flow.connector("out", "script", reconnect={"retry": {"first": "1s", "jitter": 0}}, **sink)
        flow.connect("in -> out")

        async def write(source: str, pairs: Any) -> bool:
            if letters is not None:
                letters.extend((event.value, event.attempt, reason) for event, reason in pairs)
            return True

        running = begun(loop, flow, write)
        await running.start()
        await running.finished()
        graph = running.graph
        await running.stop()
        made = graph.connectors["out"]
        assert isinstance(made, ScriptConnector)
        return made, loop.time(), graph.sources["in"].counts, graph.sinks["out"].counts

    return simulate(story)


def test_ok() -> None:
    sink, seconds, source, _ = scripted(3)
    assert sink.delivered == [(0, 0), (1, 1), (2, 2)]
    assert seconds == 0
    assert source["ok"] == 3


def test_fails_so_often() -> None:
    sink, seconds, source, _ = scripted(2, act="fails", times=2)
    assert sorted(sink.delivered) == [(0, 0), (1, 1)]
    assert source["retry"] == 4
    assert seconds == 3  # 1 s and 2 s


def test_for_ever_on_one_id() -> None:
    letters: list[Any] = []
    sink, _, _, _ = scripted(3, letters, act="one", id=1)
    assert sorted(sink.delivered) == [(0, 0), (2, 2)]
    assert letters == [(1, 4, "out: the script says one")]


def test_reject_and_discard() -> None:
    letters: list[Any] = []
    assert scripted(2, letters, act="reject")[0].delivered == []
    assert letters == [(0, 1, "out: the script says reject"), (1, 1, "out: the script says reject")]
    assert scripted(2, act="discard")[2]["discard"] == 2


def test_sometimes_is_the_same_with_the_same_seed() -> None:
    first, second = (scripted(200, act="sometimes", p=0.3, seed=5) for _ in range(2))
    assert first[0].delivered == second[0].delivered
    assert 30 < first[2]["retry"] < 120


def test_slow_is_slow_for_each_and_blocks_is_slow_for_all() -> None:
    assert scripted(3, act="slow", delay="5s")[1] == 5
    assert scripted(3, act="blocks", delay="5s")[1] == 15


def test_twice_and_late_count_once() -> None:
    sink, _, source, counts = scripted(1, act="late", delay="5s", timeout="2s")
    assert sink.delivered == []  # four times too late: a dead letter
    assert source["retry"] == 4
    assert counts["late_answers"] >= 2
    sink, _, source, counts = scripted(1, act="twice", delay="0s")
    assert sink.delivered == [(0, 0)]
    assert source["ok"] == 1


def test_hangs_and_after_cancel_end_by_the_timeout() -> None:
    letters: list[Any] = []
    assert scripted(1, letters, act="hangs", timeout="2s")[0].delivered == []
    assert letters == [(0, 4, "out: TimeoutError: no reply within 2 s")]
    sink, _, source, _ = scripted(1, act="after_cancel", timeout="2s")
    assert sink.delivered == [(0, 0)]  # it answered before the write had ended
    assert source["ok"] == 1


def test_disconnects_and_raises() -> None:
    sink, _, source, counts = scripted(1, act="disconnects", times=2)
    assert sink.delivered == [(0, 0)]
    assert source["breaker_disconnected"] == counts["trigger_disconnected"] == 2
    sink, _, source, counts = scripted(1, act="raises")
    assert sink.delivered == [(0, 0)]
    assert source["retry"] == 1


def test_an_event_says_itself_what_is_done_with_it() -> None:
    async def story(loop: VirtualLoop) -> list[Any]:
        async def mixed() -> AsyncIterator[Event]:
            for number, act in enumerate(("ok", "discard", "slow", "fails")):
                yield Event(number, {"script": act}, number)

        flow = Flow("f")
        flow.connector("in", mixed)
        flow.connector("out", "script", delay="7s")
        flow.connect("in -> out")
        running = begun(loop, flow)
        await running.start()
        await running.finished()
        await running.stop()
        assert loop.time() == 7
        assert running.graph.sources["in"].counts["discard"] == 1
        sink = running.graph.connectors["out"]
        assert isinstance(sink, ScriptConnector)
        return sink.delivered

    assert sorted(simulate(story)) == [(0, 0), (2, 2), (3, 3)]


def test_a_metronome_ticks_whatever_becomes_of_its_events() -> None:
    async def story(loop: VirtualLoop) -> None:
        values: list[tuple[float, Any]] = []

        async def take(value: Any) -> None:
            values.append((loop.time(), value))
            raise ValueError("not this one")

        flow = Flow("f")
        flow.connector("in", "metronome", interval="10s")
        flow.connector("out", take)
        flow.connect("in -> out")
        running = begun(loop, flow)
        await running.start()
        await asyncio.sleep(35)
        assert [at for at, _ in values] == [10, 20, 30]
        assert values[1][1] == {"id": 1, "ingest_ns": loop.now_ns() - 15 * 10**9}
        assert running.unsettled().count == 0
        await running.pause()
        await asyncio.sleep(100)
        assert len(values) == 3
        await running.resume()
        await asyncio.sleep(20)
        assert [at for at, _ in values[3:]][-1] == 150  # in step; ticks of the pause were left out
        assert len(values) <= 6
        await running.drain()

    simulate(story)


@pytest.mark.parametrize("seed", range(5))
def test_a_faulty_sink_gets_everything_in_the_end(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f")
        flow.connector("in", "fault", count=100, latency="10ms", jitter="1s", disconnects=0.2, refuses=0.5, seed=seed)
        faults = {"errors": 0.2, "disconnects": 0.1, "hangs": 0.1, "refuses": 0.5, "latency": "10ms", "jitter": "1s"}
        flow.connector("out", "fault", seed=seed, timeout="5s", **faults)
        flow.pipeline("p", op("passthrough"))
        flow.connect("in -> p -> out")
        running = begun(loop, flow)
        await running.start()
        await running.finished()
        counts = running.graph.sources["in"].counts
        assert counts["ok"] == 100
        assert counts["retry"] > 0
        await running.stop()

    simulate(story, seed)


def test_a_hanging_source_is_cancelled_by_a_stop() -> None:
    async def story(loop: VirtualLoop) -> None:
        flow = Flow("f")
        flow.connector("in", "fault", hangs=1.0)
        flow.connector("out", "null")
        flow.connect("in -> out")
        running = begun(loop, flow)
        await running.start()
        await asyncio.sleep(3600)
        assert (await running.drain()).complete
        assert len(asyncio.all_tasks()) == 1

    simulate(story)


def test_options_of_trial_connectors_are_checked() -> None:
    flow = Flow("f")
    for kind, options, text in (
        ("fault", {"errors": 1.5}, "errors: Expected `float` <= 1.0, got 1.5"),
        ("script", {"p": -1}, "p: Expected `float` >= 0.0, got -1"),
        ("script", {"act": "explodes"}, "Invalid enum value 'explodes'"),
        ("metronome", {}, "the option 'interval' is missing"),
    ):
        with pytest.raises(FlowFileError, match=text):
            flow.connector("c", kind, **options)


def test_a_generator_that_lost_its_connection_is_begun_anew() -> None:
    async def story(loop: VirtualLoop) -> None:
        begins = 0
        values: list[int] = []

        async def numbers() -> AsyncIterator[int]:
            nonlocal begins
            begins += 1
            yield begins
            if begins < 3:
                raise ConnectionResetError("gone")

        async def take(value: int) -> None:
            values.append(value)

        flow = Flow("f")
        flow.connector("in", numbers, reconnect={"retry": {"first": "1s"}})
        flow.connector("out", take)
        flow.connect("in -> out")
        running = begun(loop, flow)
        await running.start()
        await running.finished()
        assert values == [1, 2, 3]
        await running.stop()

    simulate(story)


def test_a_generator_with_a_bug_fails_the_flow() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def numbers() -> AsyncIterator[int]:
            yield 1
            raise ZeroDivisionError("a bug")

        flow = Flow("f")
        flow.connector("in", numbers)
        flow.connector("out", "null")
        flow.connect("in -> out")
        running = begun(loop, flow)
        await running.start()
        await running.finished()
        assert running.status == "failed"
        assert running.error == "in: ZeroDivisionError: a bug"
        await running.stop()

    simulate(story)


def test_a_function_is_called_so_often_at_a_time() -> None:
    async def story(loop: VirtualLoop) -> None:
        letters: list[Any] = []
        at_a_time = most = 0

        async def take(value: int) -> None:
            nonlocal at_a_time, most
            at_a_time += 1
            most = max(most, at_a_time)
            await asyncio.sleep(1)
            at_a_time -= 1
            if value == 3:
                raise RejectError("not three")

        async def write(source: str, pairs: Any) -> bool:
            letters.extend((event.value, reason) for event, reason in pairs)
            return True

        flow = Flow("f")
        flow.connector("in", "script", values=list(range(10)))
        flow.connector("out", take, concurrency=5)
        flow.connect("in -> out")
        running = begun(loop, flow, write)
        await running.start()
        await running.finished()
        assert most == 5
        assert loop.time() == 2
        assert letters == [(3, "out: not three")]
        await running.stop()

    simulate(story)
