"""batch and unbatch: what a batch holds, when it goes on, and that each member is settled by itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.tidelog.flows.opskit import Kit, Remembering, flow_of, passed
from tidelog.flows import Event, RejectError, op
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY, TokenGroup
from tidelog.flows.operators.batch import size_of
from tidelog.flows.testing import PipelineTest


def test_a_batch_of_so_many() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 3)) as kit:
            kit.feed.put(*range(7))
            await kit.until(lambda: kit.out.values == [[0, 1, 2], [3, 4, 5]])
            await kit.until(lambda: len(kit.feed.outcomes) == 6)
            assert kit.operator().kept() == 1
            assert kit.running.unsettled().where == {"p.0": 1}
            await kit.finished()
            assert kit.out.values[2:] == [[6]]
            assert set(kit.feed.statuses.values()) == {"ok"}
            assert kit.out.events[0].meta == {"batch": {"count": 3}}

    asyncio.run(body())


def test_a_batch_fills_over_many_pulls() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 1000)) as kit:
            for start in range(0, 2000, 300):
                kit.feed.put(*range(start, min(start + 300, 2000)))
                await kit.until(lambda: not kit.feed.waiting)
            await kit.until(lambda: len(kit.out.values) == 2)
            assert kit.out.values == [list(range(1000)), list(range(1000, 2000))]
            await kit.finished()

    asyncio.run(body())


def test_a_batch_of_so_many_bytes() -> None:
    values = ["aaaa", "bb", "ccc", "d" * 20, "e", b"ffff", "é", {"k": 1}]
    assert [size_of(each) for each in values] == [4, 2, 3, 20, 1, 4, 2, 7]
    kit = asyncio.run(passed(op("batch", bytes="8B"), values=values))
    assert kit.out.values == [["aaaa", "bb"], ["ccc"], ["d" * 20], ["e", b"ffff", "é"], [{"k": 1}]]


def test_a_value_without_a_size_fails() -> None:
    kit = asyncio.run(passed(op("batch", bytes=10), values=["a", object(), "b"]))
    assert kit.out.values == [["a", "b"]]
    assert kit.feed.statuses == {0: "ok", 1: "reject", 2: "ok"}


def test_a_batch_waits_no_longer_than_it_may() -> None:
    async def body() -> None:
        async with flow_of(op("batch", count=100, timeout="100ms")) as kit:
            loop = asyncio.get_running_loop()
            for turn in range(3):
                begun = loop.time()
                kit.feed.put(turn, "x")
                await kit.until(lambda turn=turn: len(kit.out.values) > turn)  # type: ignore[misc]
                assert loop.time() - begun >= 0.09
            assert kit.out.values == [[0, "x"], [1, "x"], [2, "x"]]
            await kit.finished()

    asyncio.run(body())


def test_the_time_runs_from_the_first_event_not_from_the_last() -> None:
    async def body() -> None:
        async with flow_of(op("batch", timeout="200ms")) as kit:
            begun = asyncio.get_running_loop().time()
            while not kit.out.values:
                kit.feed.put(1)
                await asyncio.sleep(0.02)
                assert asyncio.get_running_loop().time() - begun < 15
            await kit.finished()
            assert len(kit.out.values[0]) < 100

    asyncio.run(body())


def test_outcomes_of_items_settle_their_own_events() -> None:
    async def body() -> None:
        statuses = {"ok": OK, "discard": DISCARD, "reject": REJECT, "retry": RETRY}
        async with flow_of(op("batch", 5)) as kit:
            kit.out.answer = lambda event: [(statuses[each], f"said {each}") for each in event.value]
            kit.feed.put("ok", "reject", "ok", "retry", "discard")
            await kit.finished()
            assert kit.feed.statuses == {0: "ok", 1: "reject", 2: "ok", 3: "retry", 4: "discard"}
            assert kit.feed.outcomes[3] == [("retry", "said retry")]

    asyncio.run(body())


def test_one_outcome_of_a_batch_is_that_of_all() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 2)) as kit:
            kit.out.answer = lambda event: (RETRY, "busy") if event.value == [0, 1] else OK
            kit.feed.put(*range(4))
            await kit.finished()
            assert kit.feed.statuses == {0: "retry", 1: "retry", 2: "ok", 3: "ok"}

    asyncio.run(body())


def test_gaps_between_members_stay_gaps() -> None:
    """A batch acknowledges its members and nothing between them."""

    async def body() -> None:
        async with flow_of(op("where", "n != `1`"), op("batch", 2), ports=[]) as kit:
            kit.out.open.clear()
            kit.feed.put(*({"n": number} for number in range(3)))
            await kit.until(lambda: kit.feed.outcomes)
            assert kit.feed.outcomes == {1: [("discard", "where: not true")]}
            kit.out.open.set()
            await kit.finished()
            assert kit.feed.statuses == {0: "ok", 1: "discard", 2: "ok"}

    asyncio.run(body())


# -- unbatch ---------------------------------------------------------------------------------------------------
async def put_events(kit: Kit) -> None:
    for number, value in enumerate("abcd"):
        kit.feed.put_event(Event(value, {"n": number}, f"id-{value}", ingest_ns=100 + number, attempt=number + 1))


def test_unbatch_gives_each_item_its_own_event_back() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 4), lambda values: [each.upper() for each in values], op("unbatch")) as kit:
            kit.out.answer = lambda event: {"A": OK, "B": REJECT, "C": RETRY, "D": DISCARD}[event.value]
            await put_events(kit)
            await kit.finished()
            assert [
                (each.value, each.meta, each.id, each.ingest_ns, each.attempt, each.path) for each in kit.out.events
            ] == [
                ("A", {"n": 0}, "id-a", 100, 1, "in.out"),
                ("B", {"n": 1}, "id-b", 101, 2, "in.out"),
                ("C", {"n": 2}, "id-c", 102, 3, "in.out"),
                ("D", {"n": 3}, "id-d", 103, 4, "in.out"),
            ]
            assert kit.feed.statuses == {"id-a": "ok", "id-b": "reject", "id-c": "retry", "id-d": "discard"}

    asyncio.run(body())


def test_items_of_another_number_share_what_becomes_of_all() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 4), lambda values: [*values, "e"], op("unbatch")) as kit:
            kit.out.answer = lambda event: RETRY if event.value == "e" else OK
            await put_events(kit)
            await kit.finished()
            assert kit.out.values == list("abcde")
            assert set(kit.feed.statuses.values()) == {"retry"}
            assert len(kit.feed.statuses) == 4

    asyncio.run(body())


def test_unbatch_of_what_is_no_batch() -> None:
    async def body() -> None:
        async with flow_of(op("unbatch")) as kit:
            kit.out.answer = lambda event: REJECT if event.value == 2 else OK
            kit.feed.put([1, 2], [3], [], "no list")
            await kit.finished()
            assert kit.out.values == [1, 2, 3]
            assert kit.feed.statuses == {0: "reject", 1: "ok", 2: "discard", 3: "reject"}

    asyncio.run(body())


def test_a_batch_whose_items_are_all_gone_is_discarded() -> None:
    kit = asyncio.run(passed(op("batch", 2), lambda values: values[:0], op("unbatch"), values=[1, 2]))
    assert kit.feed.statuses == {0: "discard", 1: "discard"}


def test_two_branches_of_a_batch_are_both_waited_for() -> None:
    """One unbatches and loses an item; the worst of both counts for each member."""

    async def body() -> None:
        from tests.tidelog.flows.opskit import Feed, Out
        from tidelog.flows import Flow
        from tidelog.flows.api.flowcontext import FlowContext
        from tidelog.flows.runtime.runningflow import RunningFlow

        flow = Flow("t")
        flow.connector("in", Feed)
        flow.connector("whole", Out)
        flow.connector("items", Out)
        flow.pipeline("gather", op("batch", 3))
        flow.pipeline("apart", op("unbatch"))
        flow.connect("in -> gather -> whole", "gather -> apart -> items")
        running = RunningFlow(flow.spec(), FlowContext("t", debug=True))
        connectors: Any = running.graph.connectors
        connectors["whole"].answer = lambda event: [(OK, ""), (RETRY, "later"), (OK, "")]
        connectors["items"].answer = lambda event: REJECT if event.value == "a" else OK
        connectors["whole"].open.clear()
        await running.start()
        connectors["in"].put("a", "b", "c")
        connectors["in"].end()
        async with asyncio.timeout(15):
            while len(connectors["items"].values) < 3:  # noqa: ASYNC110 - a sink's list has no event
                await asyncio.sleep(0.002)
            assert connectors["in"].outcomes == {}
            connectors["whole"].open.set()
            await running.finished()
        assert connectors["in"].statuses == {0: "reject", 1: "retry", 2: "ok"}
        assert running.error == ""
        await running.stop()

    asyncio.run(body())


def test_batches_of_batches_come_apart_again() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 2), op("batch", 2), op("unbatch"), op("unbatch")) as kit:
            kit.out.answer = lambda event: REJECT if event.value == 2 else OK
            kit.feed.put(*range(6))
            await kit.finished()
            assert kit.out.values == list(range(6))
            assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "reject", 3: "ok", 4: "ok", 5: "ok"}

    asyncio.run(body())


# -- drain, pause, what can never fill -------------------------------------------------------------------------
def test_a_drain_flushes() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 100), op("batch", 100)) as kit:
            kit.feed.put(*range(5))
            await kit.until(lambda: kit.operator().kept() == 5)
            report = await kit.running.drain(15)
            assert report.complete
            assert kit.out.values == [[[0, 1, 2, 3, 4]]]
            assert set(kit.feed.statuses.values()) == {"ok"}

    asyncio.run(body())


def test_a_drain_can_give_back_instead() -> None:
    async def body() -> None:
        async with flow_of(op("batch", count=3, flush_on_drain=False)) as kit:
            kit.feed.put(*range(5))
            await kit.until(lambda: kit.operator().kept() == 2)
            assert (await kit.running.drain(15)).complete
            assert kit.out.values == [[0, 1, 2]]
            assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "ok", 3: "retry", 4: "retry"}
            assert "the flow drained before the batch was complete" in kit.feed.outcomes[3][0][1]

    asyncio.run(body())


def test_what_is_tried_again_in_a_drain_is_not_kept() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 100), source=Remembering, on_error={"retry": {"first": "1ms"}}) as kit:
            answers = iter([RETRY, RETRY])
            kit.out.answer = lambda event: next(answers, OK)
            kit.feed.put(*range(5))
            await kit.until(lambda: kit.operator().kept() == 5)
            assert (await kit.running.drain(15)).complete
            assert sorted(each for batch in kit.out.values[2:] for each in batch) == [0, 1, 2, 3, 4]

    asyncio.run(body())


def test_a_batch_goes_on_by_time_while_its_source_is_paused() -> None:
    async def body() -> None:
        async with flow_of(op("batch", count=100, timeout="50ms")) as kit:
            kit.feed.put(1, 2)
            await kit.until(lambda: kit.operator().kept() == 2)
            await kit.running.pause()
            await kit.until(lambda: kit.feed.statuses == {0: "ok", 1: "ok"})
            kit.feed.put(3)
            await kit.running.resume()
            await kit.finished()
            assert kit.out.values == [[1, 2], [3]]

    asyncio.run(body())


def test_a_batch_that_can_never_fill_goes_on_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with flow_of(op("batch", 100), max_unsettled=7) as kit:
            kit.feed.put(*range(20))
            await kit.until(lambda: kit.feed.statuses == dict.fromkeys(range(14), "ok"))
            assert kit.out.values == [list(range(7)), list(range(7, 14))]
            await kit.finished()
            assert kit.counts()["released"] == 2

    with caplog.at_level(logging.WARNING, logger="tidelog.flows"):
        asyncio.run(body())
    (said,) = [each.getMessage() for each in caplog.records]
    assert said.startswith("t: p.0: all events that in may have in flight wait here for more events")


def test_batches_that_can_only_fill_together_go_on() -> None:
    """The events of one source are kept by two operators, and none of them has all."""

    async def body() -> None:
        first = op("where", "@ > `0`")
        async with flow_of(first, op("batch", 50), op("batch", 50), max_unsettled=60) as kit:
            kit.feed.put(*range(1, 200))
            await kit.until(lambda: len(kit.feed.outcomes) >= 140)  # less than max_unsettled are left
            await kit.finished()
            assert [each for outer in kit.out.values for inner in outer for each in inner] == list(range(1, 200))

    asyncio.run(body())


def test_a_slow_sink_does_not_make_batches_small() -> None:
    """The source is full, but what a sink has under way will be settled: the batch waits for it."""

    async def body() -> None:
        async with flow_of(op("batch", 4), max_unsettled=6) as kit:
            kit.out.open.clear()
            kit.feed.put(*range(12))
            await kit.until(lambda: kit.operator().kept() == 2)
            await asyncio.sleep(0.3)
            assert kit.operator().kept() == 2
            kit.out.open.set()
            await kit.finished()
            assert kit.out.values == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
            assert "released" not in kit.counts()

    asyncio.run(body())


def test_a_batch_lets_go_of_the_event_that_a_probe_waits_for() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 100)) as kit:
            sink = kit.running.graph.sinks["to_out"]
            sink.trigger("overloaded")
            await kit.until(lambda: "overloaded:to_out" in kit.running.graph.sources["in"].breaker)
            kit.feed.put(*range(3))
            sink.restore("overloaded", probe=True)
            await kit.until(lambda: len(kit.feed.outcomes) == 3)
            await kit.finished()
            assert [each for batch in kit.out.values for each in batch] == [0, 1, 2]

    asyncio.run(body())


def test_without_settlement_batches_have_no_tokens() -> None:
    kit = asyncio.run(passed(op("batch", 2), op("unbatch"), values=range(5), settle=False))
    assert kit.out.values == list(range(5))
    assert kit.feed.outcomes == {}


def test_a_group_is_taken_apart_once() -> None:
    class Told:
        def __init__(self) -> None:
            self.status = -1

        def settle(self, status: int = OK, reason: str = "") -> None:
            self.status = status

        def fork(self) -> Any:
            raise RejectError

        split = fork

    members: list[Any] = [Told(), Told()]
    group = TokenGroup(members)
    group.split(1)
    assert group.apart() is None
    group.settle(REJECT)
    assert group.apart() is None  # a part of it ended worse
    group.settle()
    assert [each.status for each in members] == [REJECT, REJECT]
    group = TokenGroup(members)
    assert group.apart() is members
    assert group.apart() is None


@pytest.mark.parametrize("between", [op("retry"), op("backpressure", "10s"), op("percentile", "10s")])
def test_items_get_their_own_events_back_through_operators_that_look_at_settlements(between: Any) -> None:
    with PipelineTest(op("batch", 2), between, op("unbatch")) as test:
        test.feed(Event("a", {"number": 1}, "x"), Event("b", {"number": 2}, "y"))
        found = test.output_events()
        assert [(each.value, each.id, each.meta["number"]) for each in found] == [("a", "x", 1), ("b", "y", 2)]


def test_what_is_tried_again_of_a_batch_has_its_own_events() -> None:
    with PipelineTest(op("batch", 3), op("retry", first="1s"), op("unbatch")) as test:
        test.answers(lambda event: "retry" if event.id == "z" and event.attempt == 1 else "ok")
        test.feed(Event("a", {}, "x"), Event("b", {}, "y"), Event("c", {"number": 3}, "z"))
        test.answers(lambda _: "ok")
        test.advance(5)
        *first, again = test.output_events()
        assert len(first) == 3
        assert (again.value, again.id, again.meta["number"]) == ("c", "z", 3)


def test_the_last_part_of_a_split_batch_is_not_taken_for_the_batch() -> None:
    """Its list is as long as the batch by chance: what becomes of its items is not what becomes of the members."""
    with PipelineTest(op("batch", 2), op("split"), lambda value: [value, value], op("unbatch")) as test:
        test.answers(lambda event: None)
        test.feed("a", "b")
        parts = test.output_events()
        assert [each.value for each in parts] == ["a", "a", "b", "b"]
        for each, status in zip(parts, ["ok", "ok", "ok", "retry"], strict=True):
            test.settle(each, status)  # type: ignore[arg-type]
        assert test.settled == [("retry", 0), ("retry", 1)]


def test_items_are_settled_by_themselves_through_backpressure() -> None:
    async def body() -> None:
        async with flow_of(op("batch", 2), op("backpressure", "10s")) as kit:
            kit.out.answer = lambda _: [(OK, ""), (REJECT, "bad")]
            kit.feed.put("a", "b")
            await kit.finished()
            assert kit.feed.statuses == {0: "ok", 1: "reject"}

    asyncio.run(body())
