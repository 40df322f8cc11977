"""where, select, split, sample, delay, counter, history: what comes out, and what becomes of what does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.flows.opskit import Remembering, flow_of, passed
from tidelog.flows import Event, FlowFileError, RetryError, op
from tidelog.flows.api.tokens import DISCARD, OK, REJECT, RETRY


def test_where_lets_pass_what_is_true() -> None:
    values = [{"n": 20}, {"n": 5}, {"n": 0}, {}, {"n": None}, 7, {"n": "x"}]
    kit = asyncio.run(passed(op("where", "n"), values=values))
    assert kit.out.values == [{"n": 20}, {"n": 5}, {"n": 0}, {"n": "x"}]  # 0 is true in JMESPath
    assert kit.feed.outcomes[3] == [("discard", "where: not true")]
    assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "ok", 3: "discard", 4: "discard", 5: "discard", 6: "ok"}
    assert kit.counts()["discarded"] == 3


def test_where_fails_what_it_cannot_compare() -> None:
    values = [{"n": 20}, {"n": "x"}, {"n": 5}]
    kit = asyncio.run(passed(op("where", "n > `10`"), values=values, ports=["err"]))
    assert kit.out.values == [{"n": 20}]
    (failed,) = kit.sinks["err"].events
    assert failed.value == {"n": "x"}
    assert failed.meta["error"].startswith("TypeError: ")
    assert failed.meta["error_at"] == "p.0"
    assert kit.feed.statuses == {0: "ok", 1: "ok", 2: "discard"}


def test_select_makes_the_new_value() -> None:
    values = [{"a": {"b": 1}, "c": 2}, {}, None]
    kit = asyncio.run(passed(op("select", "{b: a.b, c: c}"), values=values))
    assert kit.out.values == [{"b": 1, "c": 2}, {"b": None, "c": None}, None]


def test_select_fails_one_event_and_no_other() -> None:
    kit = asyncio.run(passed(op("select", "sum(@)"), values=[[1, 2], ["x"], [3]]))
    assert kit.out.values == [3, 3]
    ((status, reason),) = kit.feed.outcomes[1]
    assert status == "reject"
    assert reason.startswith("p.0: JMESPathTypeError: ")


def test_split_settles_with_the_worst_of_its_parts() -> None:
    async def body() -> None:
        async with flow_of(op("split")) as kit:
            answers = {"a": OK, "b": REJECT, "c": RETRY, "d": DISCARD}
            kit.out.answer = lambda event: (answers[event.value], event.value)
            kit.feed.put(["a", "a"], ["a", "b", "d"], ["c", "b"], ["a", "d"], [], "no list")
            await kit.finished()
            assert kit.out.values == ["a", "a", "a", "b", "d", "c", "b", "a", "d"]
            assert kit.feed.statuses == {0: "ok", 1: "reject", 2: "retry", 3: "discard", 4: "discard", 5: "reject"}
            assert kit.feed.outcomes[5][0][1] == "p.0: TypeError: the value must be a list, and not str"

    asyncio.run(body())


def test_split_at_a_path() -> None:
    kit = asyncio.run(passed(op("split", path="order.items[]", max_items=2), values=[
        {"order": {"items": [1, 2]}}, {"order": {"items": [1, 2, 3]}}, {"order": 1},
    ]))  # fmt: skip
    assert kit.out.values == [1, 2]
    assert "ValueError: a list of 3 items: max_items is 2" in kit.feed.outcomes[1][0][1]
    assert kit.feed.statuses[2] == "reject"


def test_parts_of_a_split_share_no_containers() -> None:
    def change(value: dict[str, int]) -> dict[str, int]:
        value["n"] += 1
        return value

    kit = asyncio.run(passed(op("split", path="[@, @]"), change, values=[{"n": 1}]))
    assert kit.out.values == [{"n": 2}, {"n": 2}]


def test_more_parts_than_a_batch_of_the_runtime_holds() -> None:
    kit = asyncio.run(passed(op("split"), values=[list(range(2000))]))
    assert kit.out.values == list(range(2000))
    assert kit.feed.statuses == {0: "ok"}


def test_sample_by_chance_is_the_same_with_the_same_seed() -> None:
    values = range(1000)
    chosen = [asyncio.run(passed(op("sample", probability=0.3, seed=5), values=values)).out.values for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert 200 < len(chosen[0]) < 400
    assert asyncio.run(passed(op("sample", 0), values=values)).out.values == []
    assert asyncio.run(passed(op("sample", 1.0), values=values)).out.values == list(values)


def test_sample_of_every_so_many() -> None:
    kit = asyncio.run(passed(op("sample", every=4), values=range(10)))
    assert kit.out.values == [0, 4, 8]
    assert kit.feed.outcomes[1] == [("discard", "sample: not chosen")]
    assert asyncio.run(passed(op("sample", every=1), values=range(3))).out.values == [0, 1, 2]


def test_sample_chooses_again_what_is_tried_again() -> None:
    async def body() -> None:
        async with flow_of(op("sample", every=3), source=Remembering, on_error={"retry": {"first": "1ms"}}) as kit:
            tried: dict[int, int] = {}

            def answer(event: Event) -> int:
                tried[event.id] = tried.get(event.id, 0) + 1
                return RETRY if tried[event.id] < 3 else OK

            kit.out.answer = answer
            kit.feed.put(*range(7))
            await kit.until(lambda: tried == {0: 3, 3: 3, 6: 3})
            await kit.finished()

    asyncio.run(body())


def test_delay_keeps_order_and_the_time() -> None:
    async def body() -> None:
        async with flow_of(op("delay", "150ms")) as kit:
            begun = asyncio.get_running_loop().time()
            kit.feed.put(1, 2)
            await kit.until(lambda: kit.operator().kept() == 2)
            assert kit.running.unsettled().where == {"p.0": 2}
            kit.feed.put(3)
            await kit.until(lambda: len(kit.out.values) == 3)
            assert asyncio.get_running_loop().time() - begun >= 0.15
            assert kit.out.values == [1, 2, 3]
            await kit.finished()

    asyncio.run(body())


def test_delay_takes_no_more_than_it_may_keep_and_lets_go_in_a_drain() -> None:
    async def body() -> None:
        async with flow_of(op("delay", time="1h", max_kept=3)) as kit:
            for value in range(10):
                kit.feed.put(value)
                await kit.until(lambda: not kit.feed.waiting)
            await kit.until(lambda: kit.operator().busy())
            assert kit.operator().kept() == 3
            report = await kit.running.drain(10)
            assert report.complete
            assert kit.out.values == list(range(10))

    asyncio.run(body())


def test_counter_wraps_and_keeps_its_number() -> None:
    kit = asyncio.run(passed(op("counter", name="orders", wrap=True), values=["a", "b", "c"]))
    assert kit.out.values == [{"count": 1, "event": "a"}, {"count": 2, "event": "b"}, {"count": 3, "event": "c"}]
    assert kit.counts()["orders"] == 3


def test_counts_that_are_sent_add_up_to_the_total() -> None:
    async def body() -> None:
        async with flow_of(op("counter", every="10ms"), ports=["counts"]) as kit:
            told = kit.sinks["counts"]
            for value in range(20):
                kit.feed.put(value)
                before = len(told.values)
                await kit.until(lambda before=before: len(told.values) > before)  # type: ignore[misc]
            kit.feed.put(*range(5))
            await kit.finished()
            await kit.until(lambda: told.values[-1]["total"] == 25)
            assert sum(each["count"] for each in told.values) == 25
            assert all(each["name"] == "counted" and each["seconds"] > 0 for each in told.values)
            assert kit.out.values == [*range(20), *range(5)]

    asyncio.run(body())


def test_history_names_the_places() -> None:
    kit = asyncio.run(passed(op("history"), op("passthrough"), op("history", "here"), values=[1]))
    assert kit.out.events[0].meta["history"] == ["p.0", "here"]


def test_history_of_branches_is_apart() -> None:
    async def body() -> None:
        from tests.tidelog.flows.opskit import Feed, Out
        from tidelog.flows import Flow
        from tidelog.flows.api.flowcontext import FlowContext
        from tidelog.flows.runtime.runningflow import RunningFlow

        flow = Flow("t")
        flow.connector("in", Feed)
        for name in ("one", "two"):
            flow.connector(f"to_{name}", Out)
            flow.pipeline(name, op("history"))
            flow.connect(f"first -> {name} -> to_{name}")
        flow.pipeline("first", op("history"))
        flow.connect("in -> first")
        running = RunningFlow(flow.spec(), FlowContext("t", debug=True))
        await running.start()
        feed: Any = running.graph.connectors["in"]
        feed.put("x")
        feed.end()
        await running.finished()
        found = {name: running.graph.connectors[f"to_{name}"].events[0].meta["history"] for name in ("one", "two")}  # type: ignore[attr-defined]
        await running.stop()
        assert found == {"one": ["first.0", "one.0"], "two": ["first.0", "two.0"]}

    asyncio.run(body())


def test_history_does_not_grow_for_ever() -> None:
    operators = [op("history", str(number)) for number in range(120)]
    kit = asyncio.run(passed(*operators, values=[1]))
    assert kit.out.events[0].meta["history"] == [str(number) for number in range(20, 120)]


def test_a_retry_error_gives_the_event_back() -> None:
    def fails(value: Any) -> Any:
        raise RetryError("not yet")

    kit = asyncio.run(passed(fails, values=[1], ports=["err"]))
    assert kit.feed.outcomes == {0: [("retry", "p.0: not yet")]}
    assert kit.sinks["err"].values == []


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (op("where", "a >"), "the expression 'a >'"),
        (op("where"), "the option 'expression' is missing"),
        (op("select", "foo(a)"), "there is no function foo()"),
        (op("split", path="["), "path '['"),
        (op("split", max_items=0), "p[0].max_items: Expected `int` >= 1"),
        (op("sample"), "requires either"),
        (op("sample", probability=2), "p[0].probability: Expected `float` <= 1.0"),
        (op("sample", every=0), "p[0].every: Expected `int` >= 1"),
        (op("sample", every=2, seed=1), "seed requires probability"),
        (op("delay", "soon"), "'soon' is not a duration"),
        (op("delay", time="1s", max_kept=0), "p[0].max_kept: Expected `int` >= 1"),
        (op("counter", "No!"), "name is 'No!'"),
        (op("counter", "failed"), "the runtime has a counter with this name"),
        (op("counter", every=0), "p[0].every: 0 is too short: it must be at least 1ms"),
        (op("unbatch", 5), "unbatch takes its options by name"),
        (op("batch"), "a batch needs a limit"),
        (op("batch", 0), "p[0].count: Expected `int` >= 1"),
        (op("batch", 1_000_001), "p[0].count: Expected `int` <= 100000"),
        (op("batch", bytes=0), "p[0].bytes: it is 0: it must be more than 0"),
        (op("batch", timeout=0), "p[0].timeout: it is 0: it must be more than 0"),
    ],
)
def test_wrong_options_are_said_at_declaration(operator: Any, said: str) -> None:
    with pytest.raises(FlowFileError) as raised:
        asyncio.run(passed(operator, values=[]))
    assert said in str(raised.value)
    assert "t.pipelines.p[0]" in str(raised.value)
