"""split and unbatch with long lists: they are processed in steps, in order, and each event is settled once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.opskit import flow_of
from tidelog.flows import op
from tidelog.flows.api.tokens import OK, REJECT
from tidelog.flows.operators.split import SLICE
from tidelog.flows.testing import PipelineTest

LONG = 10 * SLICE + 1


def test_split_processes_long_lists_in_steps_and_in_order() -> None:
    async def body() -> None:
        async with flow_of(op("split")) as kit:
            operator: Any = kit.operator()
            kit.feed.put(list(range(LONG)), "no list", [LONG])
            await kit.until(operator.busy)  # between two steps
            assert len(kit.out.values) < LONG
            assert operator.kept() > 0
            await kit.finished()
            assert kit.out.values == list(range(LONG + 1))
            assert not operator.busy()
            assert operator.kept() == 0
            assert kit.feed.statuses == {0: "ok", 1: "reject", 2: "ok"}

    asyncio.run(body())


def test_items_of_a_long_list_that_are_settled_early_do_not_end_the_event() -> None:
    async def body() -> None:
        async with flow_of(op("split")) as kit:
            kit.out.answer = lambda event: REJECT if event.value == LONG - 1 else OK
            kit.feed.put(list(range(LONG)))
            await kit.until(lambda: kit.out.values)
            assert kit.feed.statuses == {}
            await kit.finished()
            assert kit.feed.statuses == {0: "reject"}

    asyncio.run(body())


def test_unbatch_processes_long_batches_in_steps_and_in_order() -> None:
    async def body() -> None:
        async with flow_of(op("batch", LONG), op("unbatch"), max_unsettled=2 * LONG) as kit:
            operator: Any = kit.operator(1)
            kit.feed.put(*range(LONG))
            kit.feed.end()
            await kit.until(operator.busy)
            await kit.finished()
            assert kit.out.values == list(range(LONG))
            assert set(kit.feed.statuses.values()) == {"ok"}
            assert len(kit.feed.statuses) == LONG

    asyncio.run(body())


@pytest.mark.parametrize("kind", ["split", "unbatch"])
def test_a_drain_waits_for_all_items(kind: str) -> None:
    with PipelineTest(op(kind)) as test:
        test.feed(list(range(LONG)))
        assert test.drain(5).complete
        assert sorted(test.outputs()) == list(range(LONG))  # the kit runs tasks in a random order
        assert test.settled == [("ok", 0)]


def test_an_object_that_occurs_again_is_copied_before_the_first_one_is_emitted() -> None:
    def renamed(value: dict[str, int]) -> dict[str, int]:
        value["n"] = -1
        return value

    first = {"n": 0}
    with PipelineTest(op("split"), op("where", "n == `0`"), renamed) as test:
        test.feed([first, *({"n": 1} for _ in range(LONG)), first])
        assert test.outputs() == [{"n": -1}, {"n": -1}]
