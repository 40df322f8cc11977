"""What other runtimes with contraflow get wrong: a test for each, by its name."""

from __future__ import annotations

import asyncio

import pytest

from tests.tidelog.flows.flowkit import Numbers, Taking, flow, hangs
from tests.tidelog.flows.simoperators import Batch, Where
from tidelog.flows import Event
from tidelog.flows.api.connector import DEFERRED, Deferred
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY
from tidelog.flows.operators.passthrough import PassthroughOperator
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate

SEEDS = range(10)


@pytest.mark.parametrize("seed", SEEDS)
def test_fan_out_is_not_acknowledged_by_the_first_branch(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        source, fast = Numbers(3, ends=False), Taking()
        gate = asyncio.Event()

        async def slow(events: list[Event]) -> None:
            await gate.wait()

        connectors = {"in": source, "fast": fast, "slow": Taking(slow)}
        running = flow(loop, connectors, {"p": [PassthroughOperator()]}, "in p", "p fast", "p slow")
        await running.start()
        await asyncio.sleep(3600)
        assert fast.values == [0, 1, 2]
        assert source.heard == []
        gate.set()
        await asyncio.sleep(1)
        assert sorted(source.heard) == [(0, OK), (1, OK), (2, OK)]
        await running.stop()

    simulate(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_worst_branch_counts(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(3)

        async def refuses(events: list[Event]) -> list[tuple[int, str]]:
            return [(RETRY if each.id == 1 else OK, "full") for each in events]

        connectors = {"in": source, "a": Taking(), "b": Taking(refuses)}
        running = flow(loop, connectors, {"p": [PassthroughOperator()]}, "in p", "p a", "p b")
        await running.start()
        await running.finished()
        assert sorted(source.heard) == [(0, OK), (1, RETRY), (2, OK)]
        await running.stop()

    simulate(story, seed)


def test_dropped_events_are_not_pending_for_ever() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(6)

        class Odd(Where):
            def process(self, events: list[Event]) -> None:
                self.drop([each for each in events if each.value % 2], "odd")
                self.emit([each for each in events if not each.value % 2])

        running = flow(loop, {"in": source, "out": Taking()}, {"p": [Odd(lambda _: True)]}, "in p", "p out")
        await running.start()
        await running.finished()
        assert sorted(source.heard) == [(0, OK), (1, DISCARD), (2, OK), (3, DISCARD), (4, OK), (5, DISCARD)]
        assert running.unsettled().count == 0
        await running.stop()

    simulate(story)


def test_events_for_a_port_that_leads_nowhere_are_not_pending_for_ever() -> None:
    class Aside(PassthroughOperator):
        def ports(self) -> tuple[str, ...]:
            return ("aside",)

        def process(self, events: list[Event]) -> None:
            self.emit(events, "aside")

    async def story(loop: VirtualLoop) -> None:
        source = Numbers(2)
        running = flow(loop, {"in": source, "out": Taking()}, {"p": [Aside()]}, "in p", "p out")
        await running.start()
        await running.finished()
        assert sorted(source.heard) == [(0, DISCARD), (1, DISCARD)]
        await running.stop()

    simulate(story)


class Members(Batch):
    """Batches of those that are even, and of those that are odd: their IDs have gaps."""

    def __init__(self) -> None:
        super().__init__(3, 1e9)
        self.odd = Batch(3, 1e9)

    def process(self, events: list[Event]) -> None:
        self.odd.node = self.node
        self.odd.process([each for each in events if each.value % 2])
        super().process([each for each in events if not each.value % 2])

    def drain(self) -> None:
        """Keeps what it has."""

    def drained(self) -> bool:
        return True


def test_a_batch_does_not_acknowledge_its_gaps() -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(5, ends=False)  # 0 2 4 make a batch; 1 and 3 wait for 5
        running = flow(loop, {"in": source, "out": Taking()}, {"p": [Members()]}, "in p", "p out")
        await running.start()
        await asyncio.sleep(3600)
        assert sorted(source.heard) == [(0, OK), (2, OK), (4, OK)]
        assert running.unsettled().count == 2
        await running.stop()

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_out_of_order_acknowledgement_skips_nothing(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        source = Numbers(20, ends=False)

        async def later(events: list[Event]) -> Deferred:
            for each in events:
                if each.id != 7:  # it stays unanswered, although all after it are answered
                    loop.call_later(loop.random.random(), sink.context.answer, each, OK)
            return DEFERRED

        sink = Taking(later)
        running = flow(loop, {"in": source, "out": sink}, {"p": [PassthroughOperator()]}, "in p", "p out")
        await running.start()
        await asyncio.sleep(3600)
        assert source.acknowledged == set(range(20)) - {7}
        unsettled = running.unsettled()
        assert unsettled.count == 1
        assert unsettled.where == {"out": 1}
        assert unsettled.oldest == pytest.approx(3600, abs=2)
        await running.stop()

    simulate(story, seed)


def test_bulk_items_are_not_lost() -> None:
    """The third item of a bulk request failed, the fourth will never work."""

    async def story(loop: VirtualLoop) -> None:
        source = Numbers(4)

        async def bulk(events: list[Event]) -> list[list[tuple[int, str]]]:
            assert [each.value for each in events] == [[0, 1, 2, 3]]
            return [[(OK, ""), (OK, ""), (RETRY, "busy"), (REJECT, "bad")]]

        running = flow(loop, {"in": source, "out": Taking(bulk)}, {"p": [Batch(4, 1.0)]}, "in p", "p out")
        await running.start()
        await running.finished()
        assert sorted(source.heard) == [(0, OK), (1, OK), (2, RETRY), (3, REJECT)]
        await running.stop()

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_paused_source_is_not_resumed_by_a_restore(seed: int) -> None:
    async def story(loop: VirtualLoop) -> None:
        source, sink = Numbers(10_000, ends=False), Taking()
        running = flow(loop, {"in": source, "out": sink}, {"p": [PassthroughOperator()]}, "in p", "p out")
        await running.start()
        await running.pause()
        sink.context.trigger("busy")
        await asyncio.sleep(1)
        assert {each.reason for each in running.reasons()["in"]} == {"paused:api", "busy:out"}
        pulled = source.pulls
        for _ in range(5):
            sink.context.restore("busy")
            sink.context.disconnected(ConnectionError("gone"))
            await asyncio.sleep(10)  # it is connected again
        assert {each.reason for each in running.reasons()["in"]} == {"paused:api"}
        assert source.pulls == pulled
        assert sink.values == []
        await running.resume()
        await asyncio.sleep(10)
        assert len(sink.values) == 10_000
        await running.stop()

    simulate(story, seed)


def test_one_flapping_sink_does_not_unblock_another() -> None:
    async def story(loop: VirtualLoop) -> None:
        source, down, flapping = Numbers(10, ends=False), Taking(), Taking()
        running = flow(
            loop, {"in": source, "a": down, "b": flapping}, {"p": [PassthroughOperator()]}, "in p", "p a", "p b"
        )
        down.context.trigger("busy")
        await running.start()
        for _ in range(10):
            flapping.context.trigger("busy")
            flapping.context.restore("busy")
            flapping.context.restore("busy")
            await asyncio.sleep(1)
        assert source.pulls == 0
        assert [each.reason for each in running.reasons()["in"]] == ["busy:a"]
        await running.stop()

    simulate(story)


def test_a_sink_that_hangs_from_the_beginning_keeps_the_source_from_starting() -> None:
    async def story(loop: VirtualLoop) -> None:
        source, sink = Numbers(10, ends=False), Taking(hangs)
        gate = asyncio.Event()
        sink.connect = gate.wait  # type: ignore[method-assign,assignment]
        running = flow(loop, {"in": source, "out": sink}, {"p": [PassthroughOperator()]}, "in p", "p out")
        await running.start()
        await asyncio.sleep(3600)
        assert running.status == "initializing"
        assert source.pulls == 0
        gate.set()
        await asyncio.sleep(1)
        assert running.reasons()["in"] == ()
        assert source.pulls > 0
        await running.stop()

    simulate(story)
