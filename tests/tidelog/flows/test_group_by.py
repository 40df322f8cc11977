"""group_by: the groups of a list, the outcome of their items, and limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows.opskit import flow_of, passed
from tidelog.flows import FlowFileError, op
from tidelog.flows.api.tokens import OK, REJECT
from tidelog.flows.declare import Op
from tidelog.flows.files import read_files
from tidelog.flows.operators.groupby import SLICE
from tidelog.flows.testing import FlowTest, PipelineTest

EXAMPLE = Path(__file__).parents[3] / "examples" / "flows" / "totals.yaml"


def grouped(**options: Any) -> Op:
    return op("group_by", **({"key": "k", "aggregates": {"all": {"sum": "v"}}} | options))


def item(key: Any, value: Any) -> dict[str, Any]:
    return {"k": key, "v": value}


def test_the_groups_of_a_list() -> None:
    with PipelineTest(grouped(aggregates={"n": "count", "all": {"sum": "v"}})) as test:
        test.feed([item("a", 1), item(None, 2), item("a", 4), item(1, 8), item("1", 16)])
        assert [(each["key"], each["aggregates"]["n"], each["aggregates"]["all"]) for each in test.outputs()] == [
            ("a", 2, 5), (None, 1, 2), (1, 1, 8), ("1", 1, 16),
        ]  # fmt: skip
        assert [each.meta["group"] for each in test.output_events()] == [{"count": n} for n in (2, 1, 1, 1)]
        assert test.settled == [("ok", 0)]


def test_one_group_and_a_list_within_the_value() -> None:
    with PipelineTest(op("group_by", path="items", aggregates={"all": {"sum": "@"}})) as test:
        test.feed({"items": [1, 2]}, {"items": (3,)})
        assert test.outputs() == [{"key": None, "aggregates": {"all": 3}}, {"key": None, "aggregates": {"all": 3}}]


@pytest.mark.parametrize(("value", "error"), [({"v": 1}, "must be a list, and not dict"), (None, "not NoneType")])
def test_an_event_without_a_list_fails(value: Any, error: str) -> None:
    with PipelineTest(grouped()) as test:
        test.feed(value)
        assert error in test.output_events("err")[0].meta["error"]


def test_an_empty_list_is_discarded() -> None:
    with PipelineTest(grouped()) as test:
        test.feed([])
        assert test.reasons() == {0: "group_by: an empty list"}


def test_each_item_of_a_batch_has_the_outcome_of_its_group() -> None:
    async def body() -> None:
        async with flow_of(op("batch", count=5), grouped(), ports=["err"]) as kit:
            kit.out.answer = lambda event: REJECT if event.value["key"] == "b" else OK
            kit.sinks["err"].answer = lambda _: REJECT
            kit.feed.put(item("a", 1), item("b", 2), item("a", "x"), item("b", 4), item("a", 8))
            await kit.finished()
            assert [(each["key"], each["aggregates"]["all"]) for each in kit.out.values] == [("a", 9), ("b", 6)]
            assert [each.value for each in kit.sinks["err"].events] == [item("a", "x")]
            assert kit.sinks["err"].events[0].id == 2
            assert kit.feed.statuses == {0: "ok", 1: "reject", 2: "reject", 3: "reject", 4: "ok"}

    asyncio.run(body())


def test_the_groups_of_another_list_share_the_outcome() -> None:
    async def body() -> None:
        async with flow_of(grouped(), ports=["err"]) as kit:
            kit.out.answer = lambda event: REJECT if event.value["key"] == "b" else OK
            kit.feed.put([item("a", 1), item("b", 2)], [item("a", 1), item("a", "x")])
            await kit.finished()
            assert kit.feed.statuses == {0: "reject", 1: "ok"}
            assert [each.value for each in kit.sinks["err"].events] == [item("a", "x")]

    asyncio.run(body())


def test_groups_are_limited() -> None:
    with PipelineTest(grouped(max_groups=2)) as test:
        test.feed([item(key, 1) for key in "aab"], [item(key, 1) for key in "abc"])
        assert [each["key"] for each in test.outputs()] == ["a", "b"]
        assert "more than 2 groups: increase max_groups" in test.output_events("err")[0].meta["error"]


def test_long_lists_are_processed_in_steps_and_in_order() -> None:
    async def body() -> None:
        async with flow_of(grouped()) as kit:
            operator: Any = kit.operator()
            kit.feed.put([item("a", 1)] * (30 * SLICE + 1), [item("b", 1)] * SLICE, [item("c", 1)])
            await kit.until(operator.busy)  # between two steps
            assert kit.out.values == []
            await kit.finished()
            found = [(each["key"], each["aggregates"]["all"]) for each in kit.out.values]
            assert found == [("a", 30 * SLICE + 1), ("b", SLICE), ("c", 1)]
            assert not operator.busy()
            assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "ok"}

    asyncio.run(body())


def test_a_drain_waits_for_long_lists() -> None:
    with PipelineTest(grouped()) as test:
        test.feed([item("a", 1)] * (3 * SLICE))
        assert test.drain(5).complete
        assert test.outputs()[0]["aggregates"] == {"all": 3 * SLICE}


@pytest.mark.parametrize(
    ("options", "said"),
    [({"aggregates": {}}, "aggregates is empty"), ({"max_groups": 0}, ">= 1"), ({"key": "["}, "key '['")],
)
def test_wrong_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FlowFileError) as raised:
        asyncio.run(passed(grouped(**options), values=[]))
    assert said in str(raised.value)


def test_the_example() -> None:
    with FlowTest(read_files([EXAMPLE], server="redis://localhost:6379").flows["totals"]) as test:
        orders = [("Rome", 10, "a"), ("Oslo", 5, "b"), ("Rome", 30, "c")]
        test.feed(*({"city": city, "amount": amount, "id": number} for city, amount, number in orders))
        assert test.outputs("totals") == []
        test.advance(1)
        assert [each["aggregates"] for each in test.outputs("totals")] == [
            {"orders": 2, "total": 40, "median": 30.0, "ids": ["a", "c"]},
            {"orders": 1, "total": 5, "median": 5.0, "ids": ["b"]},
        ]
