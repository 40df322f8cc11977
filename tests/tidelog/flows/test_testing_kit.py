"""The kit for users' tests: a flow or operators, fed, read and steered by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.simoperators import Batch, Failing, Where
from tidelog.flows import Event, Flow, op
from tidelog.flows.api.operator import Operator
from tidelog.flows.testing import DeadlockError, FlowTest, LivelockError, PipelineTest, VirtualLoop, simulate


class Evens(Where):
    def __init__(self) -> None:
        super().__init__(lambda number: number % 2 == 0)


class Threes(Batch):
    def __init__(self) -> None:
        super().__init__(3, 0.5)


class Never2(Failing):
    def __init__(self) -> None:
        super().__init__(lambda number: number == 2, lambda _: False)


class Loses(Operator):
    def process(self, events: list[Event]) -> None:
        """Lets go of them."""


class Settles(Operator):
    def process(self, events: list[Event]) -> None:
        for event in events:
            assert event.token is not None
            event.token.settle()
        self.emit(events)


def numbered(*numbers: int) -> list[dict[str, int]]:
    return [{"id": each} for each in numbers]


def test_operators_are_fed_and_read() -> None:
    with PipelineTest(Evens) as test:
        test.feed(*numbered(1, 2, 3, 4))
        assert test.outputs() == numbered(2, 4)
        assert test.dead_letters() == []
        assert sorted(test.settled) == [("discard", 0), ("discard", 2), ("ok", 1), ("ok", 3)]
        assert test.reasons() == {0: "filtered", 2: "filtered"}


def test_the_clock_moves_by_hand() -> None:
    with PipelineTest(Threes) as test:
        test.feed(*numbered(1, 2, 3, 4))
        assert test.outputs() == [numbered(1, 2, 3)]
        test.advance(0.4)
        assert test.outputs() == [numbered(1, 2, 3)]
        test.advance(0.2)
        assert test.outputs() == [numbered(1, 2, 3), numbered(4)]
        assert test.loop.time() == pytest.approx(0.6)


def test_what_failed_is_read_from_err() -> None:
    with PipelineTest(Never2) as test:
        test.feed(*numbered(1, 2))
        assert test.outputs() == numbered(1)
        failed = test.output_events("err")
        assert [each.value for each in failed] == numbered(2)
        assert failed[0].meta["error"] == "RejectError: never"


def test_answers_are_given_by_hand() -> None:
    with PipelineTest(op("passthrough")) as test:
        test.answers(lambda _: None)
        test.feed("a", "b")
        first, second = test.output_events()
        assert test.settled == []
        test.settle(second, "retry")
        test.settle(first)
        assert test.settled == [("retry", 1), ("ok", 0)]
        with pytest.raises(AssertionError, match="settled before"):
            test.settle(first)


def test_rejected_events_are_dead_letters() -> None:
    with PipelineTest(op("passthrough")) as test:
        test.answers(lambda event: "reject" if event.id == 1 else "retry" if event.id == 2 else "ok")
        test.feed({"n": 1}, {"n": 2}, {"n": 3})
        (letter,) = test.dead_letters()
        assert letter == ("in", 1, {"n": 2}, "out: the test says so")
        assert test.dead_letters("in") == [letter]
        with pytest.raises(ValueError, match="no source 'out'"):
            test.dead_letters("out")


def test_a_whole_flow_has_all_its_connectors_replaced() -> None:
    flow = Flow("orders")
    flow.connector("in", "metronome", interval=1)
    flow.connector("search", "fault", refuses=1.0)
    flow.connector("seen", "null")
    flow.pipeline("p", op("passthrough"))
    flow.connect("in -> p -> search", "p -> seen")
    with FlowTest(flow) as test:
        assert test.running.status == "running"
        test.feed(1)
        assert test.outputs("search") == test.outputs("seen") == [1]
        with pytest.raises(ValueError, match="which sink"):
            test.outputs()
        with pytest.raises(ValueError, match="no sink 'serach'"):
            test.outputs("serach")


def test_breakers_and_connections_are_steered() -> None:
    with PipelineTest() as test:
        test.trigger("busy")
        test.feed("a")
        assert test.outputs() == []
        assert test.active() == {"busy:out"}
        test.restore("busy")
        assert test.outputs() == ["a"]
        test.disconnect()
        assert test.active() == {"disconnected:out"}
        test.advance(1)
        assert test.active() == set()


def test_a_drain_says_what_was_abandoned() -> None:
    with PipelineTest() as test:
        test.answers(lambda _: None)
        test.feed("a", "b")
        report = test.drain(5)
        assert report.abandoned == {"in": 2}
        assert not report.complete
        assert report.seconds == 5


def test_an_event_that_is_lost_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="dropped before it was settled"), PipelineTest(Loses) as test:
        test.feed("a")


def test_an_event_that_is_settled_twice_fails_the_test() -> None:
    with pytest.raises(AssertionError, match="was settled before"), PipelineTest(Settles) as test:
        test.feed("a")


def test_the_tests_own_failure_is_the_one_that_is_seen() -> None:
    with pytest.raises(ZeroDivisionError), PipelineTest(Loses) as test:
        test.feed(1 / 0)


def test_an_hour_takes_no_time_and_a_seed_is_one_order() -> None:
    async def story(loop: VirtualLoop) -> Any:
        order: list[tuple[int, int]] = []

        async def walk(number: int) -> None:
            for step in range(20):
                await asyncio.sleep(0)
                order.append((number, step))
            await asyncio.sleep(3600)

        await asyncio.gather(*(walk(each) for each in range(3)))
        assert loop.time() == 3600
        assert loop.now_ns() == 1_767_225_600 * 10**9 + 3600 * 10**9
        return order

    assert simulate(story, 1) == simulate(story, 1)
    assert simulate(story, 1) != simulate(story, 2)


def test_what_goes_to_a_thread_runs_in_the_loop() -> None:
    async def story(loop: VirtualLoop) -> int:
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return await asyncio.to_thread(lambda: 17)

    assert simulate(story) == 17


def test_a_deadlock_names_who_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    async def story(loop: VirtualLoop) -> None:
        await loop.create_task(waits_for_ever(), name="the one")

    with pytest.raises(DeadlockError, match=r"the one waits in .*waits_for_ever"):
        simulate(story, 5)


def test_spinning_at_one_moment_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.flows.testing.virtualloop.MOST_STEPS", 1000)

    async def story(loop: VirtualLoop) -> None:
        while True:  # noqa: ASYNC110 - it spins
            await asyncio.sleep(0)

    with pytest.raises(LivelockError):
        simulate(story)
