"""How flows end: sources that end, drains, stops, failures; and what hangs meanwhile."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow, hangs
from tests.tidelog.flows.simoperators import Batch
from tidelog.flows import Event
from tidelog.flows.api.connector import DEFERRED, Deferred
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY
from tidelog.flows.operators.passthrough import PassthroughOperator
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate

SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flow_whose_sources_have_ended_has_finished(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        first, second, sink = Numbers(1000), Numbers(3), Taking()
        connectors = {"a": first, "b": second, "out": sink}
        running = flow(loop, connectors, {"p": [Batch(7, 1e9)]}, "a p", "b p", "p out", queue=1)
        await running.start()
        await running.finished()
        assert first.acknowledged == set(range(1000))
        assert second.acknowledged == set(range(3))
        assert sum(map(len, sink.values)) == 1003
        assert sink.calls[-1] == "flush"
        await running.stop()

    simulate(story, seed)


def test_what_is_tried_again_after_the_flush_is_flushed_too() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(2, owns_policy=False)

        async def at_second(events: list[Event]) -> list[int]:
            return [OK if each.attempt > 1 else RETRY for each in events]

        sink = Taking(at_second)
        running = flow(loop, {"in": source, "out": sink}, {"p": [PassthroughOperator()]}, "in p", "p out")
        await running.start()
        await running.finished()
        assert sink.calls == ["write", "flush", "write", "flush"]
        assert source.acknowledged == {0, 1}
        await running.stop()

    simulate(story)


def test_a_sink_is_flushed_after_its_last_write() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def slow(events: list[Event]) -> None:
            await asyncio.sleep(10)
            sink.calls.append("written")

        sink = Taking(slow, concurrency=4)
        running = flow(loop, {"in": Numbers(5), "out": sink}, {}, "in out", options={"in": {"max_unsettled": 2}})
        await running.start()
        await running.finished()
        assert sink.calls[-2:] == ["written", "flush"]
        await running.stop()

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drain_with_a_hanging_sink_reports_what_it_abandoned(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(50, ends=False)

        async def some(events: list[Event]) -> list[int]:
            if any(each.id == 20 for each in events):
                await hangs(events)
            return [OK] * len(events)

        running = flow(loop, {"in": source, "out": Taking(some)}, {}, "in out", options={"in": {"max_unsettled": 10}})
        await running.start()
        await asyncio.sleep(10)
        report = await running.drain(5)
        assert report.seconds == 5
        assert report.abandoned == {"in": source.given - len(source.heard)}
        assert report.abandoned["in"] > 0
        assert running.status == "drained"

    simulate(story, seed)


def test_a_drain_of_a_paused_flow_ends_at_once() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(10, ends=False, owns_policy=False)

        async def gives_back(events: list[Event]) -> list[int]:
            return [RETRY if each.id == 3 else OK for each in events]

        running = flow(loop, {"in": source, "out": Taking(gives_back)}, {}, "in out")
        await running.start()
        await asyncio.sleep(1)
        await running.pause()
        await asyncio.sleep(3600)
        report = await running.drain()
        assert report.seconds < 1
        assert report.abandoned == {"in": 1}  # it waited to be tried again

    simulate(story)


@pytest.mark.parametrize("way", ["never connected", "disconnected", "paused"])
def test_a_drain_does_not_wait_for_a_sink_that_has_nothing_to_write(way: str) -> None:
    class Refused(Taking):
        refuses = way == "never connected"

        async def connect(self) -> None:
            if self.refuses:
                raise ConnectionRefusedError("no")

    async def story(loop: VirtualLoop) -> None:
        source, sink = Numbers(10, ends=False), Refused()
        pipeline = {"p": [Batch(3, 1e9)]}
        running = flow(loop, {"in": source, "out": sink}, pipeline, "in p", "p out")
        await running.start()
        await asyncio.sleep(5)
        if way == "paused":
            await running.pause("out")
        elif way == "disconnected":
            sink.refuses = True
            running.graph.connections["out"].lost(ConnectionError("gone"))
        await asyncio.sleep(5)
        report = await running.drain(30)
        under_way = 0 if way == "never connected" else 1  # the tenth, which the batch flushes
        assert report.abandoned == {"in": under_way}
        assert report.seconds == (30 if under_way else 0)

    simulate(story)


def test_what_a_pull_brought_during_a_pause_is_abandoned_by_a_drain() -> None:
    class Slow(Numbers):
        async def pull(self, limit: int) -> list[Event] | None:
            await asyncio.sleep(1)  # does not heed the interruption
            return await super().pull(4)

    async def story(loop: VirtualLoop) -> None:
        source, sink = Slow(100, ends=False), Taking()
        running = flow(loop, {"in": source, "out": sink}, {}, "in out")
        await running.start()
        await asyncio.sleep(0.5)
        await running.pause()
        await asyncio.sleep(10)
        assert source.given == 4
        assert sink.values == []
        assert (await running.drain()).abandoned == {"in": 4}

    simulate(story)


def test_a_drain_flushes_batches() -> None:
    async def story(loop: VirtualLoop) -> None:
        source, sink = Numbers(5, ends=False), Taking()
        running = flow(loop, {"in": source, "out": sink}, {"p": [Batch(1000, 1e9)]}, "in p", "p out")
        await running.start()
        await asyncio.sleep(3600)
        assert sink.values == []
        report = await running.drain()
        assert report.complete
        assert report.settled == 5
        assert sink.values == [[0, 1, 2, 3, 4]]

    simulate(story)


class Breaks(Operator):
    def process(self, events: list[Event]) -> None:
        if any(each.value == 5 for each in events):
            raise ZeroDivisionError("a bug")
        self.emit(events)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_fails_fails_the_flow_and_the_others_hold(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        source, other = Numbers(100, ends=False), Numbers(10_000, ends=False)
        connectors = {"in": source, "other": other, "out": Taking(), "o": Taking()}
        options = {"in": {"max_unsettled": 2}}
        running = flow(loop, connectors, {"p": [Breaks()]}, "in p", "p out", "other o", options=options)
        await running.start()
        await asyncio.sleep(1)
        assert running.status == "failed"
        assert running.error == "p.0: ZeroDivisionError: a bug"
        assert "failed:p.0" in {each.reason for each in running.reasons()["in"]}
        pulls = source.pulls, other.pulls
        await asyncio.sleep(3600)
        assert (source.pulls, other.pulls) == pulls
        assert 5 not in source.acknowledged
        await running.finished()  # returns
        report = await running.drain()
        assert report.abandoned["in"] == source.given - len(source.heard) > 0
        assert running.status == "failed"

    simulate(story, seed)


def test_a_connector_that_is_not_tried_again_shows_why_nothing_moves() -> None:
    class Refused(Taking):
        async def connect(self) -> None:
            raise ConnectionRefusedError("no")

    async def story(loop: VirtualLoop) -> None:
        source = Numbers(1, ends=False)
        running = flow(loop, {"in": source, "out": Refused()}, {}, "in out", options={"out": {"reconnect": "none"}})
        await running.start()
        await asyncio.sleep(3600)
        assert running.status == "initializing"
        assert running.graph.connections["out"].failed
        assert running.graph.connections["out"].error == "ConnectionRefusedError: no"
        await running.stop()

    simulate(story)


def test_what_waits_for_an_answer_is_given_back_when_the_connection_is_lost() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(3, ends=False)
        kept: list[Event] = []

        async def later(events: list[Event]) -> Deferred:
            kept.extend(events)
            return DEFERRED

        sink = Taking(later)
        running = flow(loop, {"in": source, "out": sink}, {}, "in out")
        await running.start()
        await asyncio.sleep(1)
        sink.context.answer(kept[0], OK)
        sink.context.disconnected(ConnectionResetError("gone"))
        await asyncio.sleep(1)
        assert sorted(source.heard) == [(0, OK), (1, RETRY), (2, RETRY)]
        assert not sink.context.answer(kept[1], OK)  # too late
        await running.stop()

    simulate(story)


def test_an_answer_that_is_put_off_has_the_timeout_of_a_write() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(2, ends=False)

        async def later(events: list[Event]) -> Deferred:
            return DEFERRED

        running = flow(loop, {"in": source, "out": Taking(later)}, {}, "in out", options={"out": {"timeout": 5.0}})
        await running.start()
        await asyncio.sleep(4)
        assert source.heard == []
        await asyncio.sleep(2)
        assert sorted(source.heard) == [(0, RETRY), (1, RETRY)]
        await running.stop()

    simulate(story)


def test_a_source_without_settlement_goes_on_when_a_full_channel_has_room() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(5000)

        async def slow(events: list[Event]) -> None:
            await asyncio.sleep(10)

        sink = Taking(slow)
        running = flow(loop, {"in": source, "out": sink}, {}, "in out", queue=1, settle=False)
        await running.start()
        await running.finished()
        assert sink.values == list(range(5000))
        assert source.heard == []
        await running.stop()

    simulate(story)


def test_a_sink_that_is_not_authoritative_holds_up_nothing() -> None:
    async def story(loop: VirtualLoop) -> None:
        source, sink = Numbers(5000), Taking()
        connectors = {"in": source, "out": sink, "seen": Taking(hangs)}
        running = flow(
            loop, connectors, {"p": [PassthroughOperator()]}, "in p", "p out", "p seen", queue=1,
            options={"seen": {"authoritative": False}},
        )  # fmt: skip
        await running.start()
        await running.pause("seen")
        await running.finished()
        assert source.acknowledged == set(range(5000))
        assert sum(each.dropped for each in running.graph.channels) > 0
        await running.stop()

    simulate(story)


@pytest.mark.parametrize("timeout", [None, 1.0], ids=["for ever", "and is cancelled again and again"])
def test_memory_is_flat_while_a_sink_hangs_for_an_hour(timeout: float | None) -> None:
    """The source has events without end, one each millisecond; the sink takes none."""

    class Endless(Numbers):
        async def pull(self, limit: int) -> list[Event] | None:
            await asyncio.sleep(0.001)
            return await super().pull(1)

    async def story(loop: VirtualLoop) -> None:
        source = Endless(10**9, owns_policy=False)
        connectors = {"in": source, "out": Taking(hangs), "also": Taking()}
        options: dict[str, dict[str, Any]] = {"in": {"max_unsettled": 500}, "out": {"timeout": timeout}}
        running = flow(
            loop, connectors, {"p": [PassthroughOperator()]}, "in p", "p out", "p also", queue=1024, options=options
        )
        tracemalloc.start()
        try:
            await running.start()
            await asyncio.sleep(3600)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            await asyncio.sleep(3600)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        assert source.given == 500
        assert source.heard == []
        assert running.unsettled().count == 500
        assert {each.reason for each in running.reasons()["in"]} == {"window_full:in"}
        assert grown < 200_000, grown  # 400 bytes an event under way; 3600 tries would leave more than that behind
        await running.stop()

    simulate(story)


def test_memory_is_flat_while_one_event_is_tried_again_for_a_day() -> None:
    async def story(loop: VirtualLoop) -> None:
        async def refuses(events: list[Event]) -> list[int]:
            return [RETRY if each.id == 0 else OK for each in events]

        class Trickle(Numbers):
            async def pull(self, limit: int) -> list[Event] | None:
                await asyncio.sleep(10)
                return await super().pull(1)

        source = Trickle(10**9, owns_policy=False)
        running = flow(loop, {"in": source, "out": Taking(refuses)}, {}, "in out")
        await running.start()
        await asyncio.sleep(3600)
        sent = running.graph.sources["in"].window.in_flight
        sink = running.graph.connectors["out"]
        assert isinstance(sink, Taking)
        await asyncio.sleep(23 * 3600)
        assert len(sent) <= 128
        assert running.unsettled().count == 1
        await running.stop()

    simulate(story)


def test_dead_letters_have_reason_and_attempts() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(3, owns_policy=False)
        letters: list[tuple[Any, int, str]] = []
        refusals = iter([False, True])

        async def write(source_name: str, pairs: Sequence[tuple[Event, str]]) -> bool:
            if not next(refusals, True):
                return False  # they come again
            letters.extend((event.value, event.attempt, reason) for event, reason in pairs)
            return True

        async def some(events: list[Event]) -> list[tuple[int, str]]:
            return [((OK, RETRY, REJECT)[each.id], "because") for each in events]

        options = {"in": {"on_error": {"retry": {"attempts": 2}}}}
        running = flow(loop, {"in": source, "out": Taking(some)}, {}, "in out", letters=write, options=options)
        await running.start()
        await running.finished()
        assert sorted(letters) == [(1, 3, "out: because"), (2, 1, "out: because")]
        assert source.acknowledged | {number for number, _ in source.heard} == {0, 1, 2}
        assert len(source.heard) == 3
        assert running.graph.sources["in"].counts["dead"] == 2
        await running.stop()

    simulate(story)


def test_after_a_reason_that_ended_by_time_one_event_goes_first() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(10_000, ends=False)
        sizes: list[int] = []

        async def slow(events: list[Event]) -> None:
            sizes.append(len(events))
            await asyncio.sleep(1)

        sink = Taking(slow)
        running = flow(loop, {"in": source, "out": sink}, {}, "in out")
        sink.context.trigger("busy")
        await running.start()
        await asyncio.sleep(1)
        sink.context.restore("busy", probe=True)
        await asyncio.sleep(100)
        assert sizes[:10] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
        await running.stop()

    simulate(story)


def test_a_breaker_message_comes_once_however_many_ways_there_are() -> None:
    """Ten diamonds in a line have 1024 ways."""

    async def story(loop: VirtualLoop) -> None:
        source, sink = Numbers(1, ends=False), Taking()
        pipelines: dict[str, list[Operator]] = {}
        edges = ["in a0"]
        for number in range(10):
            for name in "abcd":
                pipelines[f"{name}{number}"] = [PassthroughOperator()]
            edges += [f"{pair[0]}{number} {pair[1]}{number}" for pair in ("ab", "ac", "bd", "cd")]
            edges.append(f"d{number} a{number + 1}" if number < 9 else f"d{number} out")
        running = flow(loop, {"in": source, "out": sink}, pipelines, *edges)
        await running.start()
        await asyncio.sleep(10)
        steps = loop.steps
        sink.context.trigger("busy")
        await asyncio.sleep(10)
        assert {each.reason for each in running.reasons()["in"]} == {"busy:out"}
        assert loop.steps - steps < 500
        assert len(sink.values) == 1024
        assert source.heard == [(0, OK)]
        await running.stop()

    simulate(story)


def test_statuses_are_ordered_by_what_is_still_owed() -> None:
    assert OK < DISCARD < REJECT < RETRY


@pytest.mark.parametrize("owns_policy", [True, False])
def test_a_flow_that_was_stopped_is_let_go_of(owns_policy: bool) -> None:
    """Whatever was under way, and wherever: the collector of circles doesn't look at events and tokens."""

    async def story(loop: VirtualLoop) -> list[weakref.ref[Any]]:
        kept: list[Event] = []

        async def mixed(events: list[Event]) -> Deferred | list[int]:
            if len(kept) < 3:
                kept.extend(events)
                return DEFERRED
            if len(kept) < 6:
                kept.extend(events)
                return [RETRY] * len(events)
            await hangs(events)
            return DEFERRED

        sink = Taking(mixed, concurrency=3)
        connectors = {"in": Numbers(10_000, ends=False, owns_policy=owns_policy), "out": sink}
        options = {"in": {"max_unsettled": 5000, "on_error": {"retry": {"first": 1e6, "most": 1e6}}}}
        running = flow(loop, connectors, {"p": [Batch(3, 1e9)]}, "in p", "p out", queue=2, options=options)
        await running.start()
        await asyncio.sleep(10)
        assert running.unsettled().count > 100
        await running.stop()
        kept.clear()  # a connector's own affair
        return [weakref.ref(each) for each in (running, *running.graph.nodes)]

    left = simulate(story)
    gc.collect()
    assert [each() for each in left if each() is not None] == []


def test_a_stop_does_not_wait_for_a_task_that_does_not_heed_it() -> None:
    async def story(loop: VirtualLoop) -> None:
        gate = asyncio.Event()

        async def stubborn(events: list[Event]) -> None:
            while not gate.is_set():
                try:
                    await gate.wait()
                except asyncio.CancelledError:
                    continue

        running = flow(loop, {"in": Numbers(1), "out": Taking(stubborn)}, {}, "in out")
        await running.start()
        await asyncio.sleep(1)
        await running.stop()
        assert loop.time() < 10
        gate.set()
        await asyncio.sleep(1)

    simulate(story)


def test_a_sink_that_was_never_connected_and_is_owed_nothing_does_not_hold_up_a_drain() -> None:
    class Gone(Taking):
        async def connect(self) -> None:
            raise ConnectionRefusedError("nobody there")

    async def story(loop: VirtualLoop) -> None:
        running = flow(loop, {"in": Numbers(5), "out": Gone()}, {"p": [PassthroughOperator()]}, "in p", "p out")
        await running.start()
        await asyncio.sleep(3)
        report = await running.drain(30.0)
        assert report.complete
        assert report.seconds < 1

    simulate(story)
