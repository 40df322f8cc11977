"""python: functions of all kinds, in the loop, in threads, in processes; order, failures, what becomes of events."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.flows import opfunctions
from tests.tidelog.flows.opskit import Remembering, flow_of, passed
from tidelog.flows import Event, FlowFileError, RejectError, op, operator

NAME = "tests.tidelog.flows.opfunctions"


def run(what: Any, values: Any, **options: Any) -> Any:
    return asyncio.run(passed(what, values=values, **options))


def test_a_function_of_a_value() -> None:
    assert run(opfunctions.double, [1, 2, 3]).out.values == [2, 4, 6]
    assert run(op("python", f"{NAME}:double"), [1, 2]).out.values == [2, 4]
    assert run(op("python", call=str.upper), ["a"]).out.values == ["A"]
    assert run(op("python", call=int), ["7", "x"]).out.values == [7]


def test_none_discards() -> None:
    kit = run(lambda value: value if value % 2 else None, [1, 2, 3])
    assert kit.out.values == [1, 3]
    assert kit.feed.outcomes[1] == [("discard", "python: None")]


def test_a_function_of_the_event() -> None:
    def by_name(event):  # type: ignore[no-untyped-def]
        event.meta["seen"] = event.id
        return event

    def by_annotation(one: Event) -> Event:
        return Event(one.value + 1, {"new": True})

    def value_of(event: Event) -> Any:
        return event.value * 10

    kit = run(by_name, [5])
    assert (kit.out.values, kit.out.events[0].meta) == ([5], {"seen": 0})
    kit = run(by_annotation, [5])
    assert (kit.out.values, kit.out.events[0].meta, kit.out.events[0].id) == ([6], {"new": True}, 0)
    assert kit.feed.statuses == {0: "ok"}
    assert run(value_of, [5]).out.values == [50]


def test_a_generator_function_makes_many() -> None:
    async def body() -> None:
        async with flow_of(opfunctions.letters) as kit:
            kit.out.answer = lambda event: 2 if event.value == "x" else 0
            kit.feed.put("ab", "", "cxd", "e")
            await kit.finished()
            assert kit.out.values == list("abcxde")
            assert kit.feed.statuses == {0: "ok", 1: "discard", 2: "reject", 3: "ok"}

    asyncio.run(body())


def test_a_generator_that_fails_half_way_emits_nothing() -> None:
    def fails(value: int) -> Iterator[int]:
        yield 1
        raise ValueError(value)

    kit = run(fails, [7], ports=["err"])
    assert kit.out.values == []
    assert [each.meta["error"] for each in kit.sinks["err"].events] == ["ValueError: 7"]


def test_a_generator_of_events_keeps_what_each_says() -> None:
    def each(event: Event) -> Iterator[Any]:
        yield "first"
        yield event
        yield Event("third", {"n": 3})

    kit = run(each, ["x"])
    assert kit.out.values == ["first", "x", "third"]
    assert [each.meta for each in kit.out.events] == [{}, {}, {"n": 3}]


def test_what_it_raises_concerns_its_own_event_only() -> None:
    values = ["a", "reject", "retry", "error", "none", "b"]
    expected = {0: "ok", 1: "reject", 2: "retry", 3: "reject", 4: "discard", 5: "ok"}
    for options in ({}, {"in": "thread", "concurrency": 3}, {"in": "process"}):
        kit = run(op("python", call=opfunctions.moody, **options), values)
        assert kit.out.values == ["a", "b"]
        assert kit.feed.statuses == expected, options
        assert kit.feed.outcomes[3][0][1] == "p.0: KeyError: 'k'"


def test_async_functions_run_side_by_side_and_keep_order() -> None:
    async def body() -> None:
        doors = {value: asyncio.Event() for value in range(6)}
        inside: set[int] = set()

        async def waits(value: int) -> Any:
            inside.add(value)
            await doors[value].wait()
            inside.discard(value)
            if value == 1:
                raise RejectError("one")
            return value

        async with flow_of(op("python", call=waits, concurrency=3)) as kit:
            kit.feed.put(*range(6))
            await kit.until(lambda: inside == {0, 1, 2})
            doors[2].set()
            await kit.until(lambda: inside == {0, 1, 3})
            doors[1].set()
            await kit.until(lambda: inside == {0, 3, 4})
            assert kit.out.values == []
            assert kit.operator().kept() == 6
            for each in doors.values():
                each.set()
            await kit.finished()
            assert kit.out.values == [0, 2, 3, 4, 5]
            assert kit.feed.statuses[1] == "reject"

    asyncio.run(body())


def test_async_functions_take_no_more_than_they_may() -> None:
    async def body() -> None:
        door = asyncio.Event()

        async def waits(value: int) -> int:
            await door.wait()
            return value

        async with flow_of(op("python", call=waits, concurrency=4)) as kit:
            for start in range(0, 4000, 100):
                kit.feed.put(*range(start, start + 100))
            await kit.until(lambda: kit.operator().busy())
            assert kit.operator().kept() <= 512
            door.set()
            await kit.finished()
            assert kit.out.values == list(range(4000))

    asyncio.run(body())


def test_async_generators_and_classes() -> None:
    async def twice(value: int) -> AsyncIterator[int]:
        yield value
        await asyncio.sleep(0)
        yield value

    assert run(op("python", call=twice, concurrency=2), [1, 2, 3]).out.values == [1, 1, 2, 2, 3, 3]
    kit = asyncio.run(passed(opfunctions.Numbers, opfunctions.Numbers, values=["a", "b"]))
    assert kit.out.values == [[1, [1, "a"]], [2, [2, "b"]]]


def test_a_function_that_is_cancelled_from_inside_gives_its_event_back() -> None:
    async def gives_up(value: int) -> int:
        raise asyncio.CancelledError

    kit = run(gives_up, [1])
    ((status, reason),) = kit.feed.outcomes[0]
    assert status == "retry"
    assert "was cancelled from inside" in reason


def test_a_drain_waits_for_calls_under_way() -> None:
    async def body() -> None:
        door = asyncio.Event()

        async def waits(value: int) -> int:
            await door.wait()
            return value

        async with flow_of(waits) as kit:
            kit.feed.put(1, 2)
            await kit.until(lambda: kit.operator().kept() == 2)
            drain = asyncio.ensure_future(kit.running.drain(15))
            await asyncio.sleep(0.05)
            assert not drain.done()
            door.set()
            assert (await drain).complete
            assert kit.out.values == [1, 2]

    asyncio.run(body())


def test_threads_and_processes() -> None:
    kit = run(op("python", call=opfunctions.where, concurrency=2, **{"in": "thread"}), range(50))
    assert {pid for pid, _ in kit.out.values} == {os.getpid()}
    assert all(name.startswith("flow-where") for _, name in kit.out.values)
    kit = run(op("python", call=f"{NAME}:where", concurrency=2, **{"in": "process"}), range(50))
    assert os.getpid() not in {pid for pid, _ in kit.out.values}
    assert len(kit.out.values) == 50
    kit = run(op("python", call=opfunctions.double, concurrency=2, **{"in": "process"}), range(2000))
    assert kit.out.values == [value * 2 for value in range(2000)]


def test_what_a_process_cannot_hand_back_fails_its_own_event() -> None:
    kit = run(op("python", call=opfunctions.moody, **{"in": "process"}), ["a", "odd", "unsendable", "b"])
    assert kit.out.values == ["a", "b"]
    assert kit.feed.outcomes[1] == [("reject", "p.0: RejectError: OddError: 1 and 2")]
    assert "the result can't be returned from a process" in kit.feed.outcomes[2][0][1]


def test_a_process_that_dies_gives_back_its_events_and_another_begins(tmp_path: Path) -> None:
    async def body() -> None:
        one = op("python", call=opfunctions.dies_once, **{"in": "process"})
        async with flow_of(one, source=Remembering, on_error={"retry": {"first": "1ms"}}) as kit:
            kit.feed.put(*[str(tmp_path / "mark")] * 3)
            await kit.until(lambda: kit.out.values == ["alive"] * 3)
            await kit.finished()
            assert kit.running.graph.sources["in"].counts["retry"] == 3

    asyncio.run(body())


def test_the_decorator_says_how_a_function_is_called() -> None:
    order: list[int] = []
    second = asyncio.Event()

    @operator(concurrency=2)
    async def slow_first(value: int) -> int:
        if value == 0:
            await second.wait()
        else:
            second.set()
        order.append(value)
        return value

    @operator
    def plain(value: int) -> int:
        return value + 1

    kit = asyncio.run(passed(slow_first, plain, values=[0, 1]))
    assert order == [1, 0]
    assert kit.out.values == [1, 2]
    assert plain(1) == 2


async def _async(value: int) -> int:
    return value


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (op("python", "shop"), "'shop' is not the name of a function, such as module:function"),
        (op("python", "no_such_module:f"), "the module of 'no_such_module:f' can't be imported: ModuleNotFoundError"),
        (op("python", f"{NAME}:nothing"), "has no 'nothing'"),
        (op("python", f"{NAME}:NAME.x"), "has no 'NAME.x'"),
        (op("python", 5), "5 is not a function"),
        (op("python", call=lambda: 1), "must take one argument"),
        (op("python", call=lambda a, b: 1), "must take one argument"),
        (op("python", call=lambda *, event: 1), "must take one argument"),
        (op("python", call=opfunctions.double, concurrency=2), "is not an async function, so only one call"),
        (op("python", call=opfunctions.double, concurrency=0), "p[0].concurrency: Expected `int` >= 1"),
        (op("python", call=_async, **{"in": "thread"}), "is an async function and runs in the event loop"),
        (op("python", call=lambda value: value, **{"in": "process"}), "it must be importable by name"),
        (op("python", call=lambda event: event, **{"in": "process"}), "a function only gets the value"),
        (op("python", call=opfunctions.double, **{"in": "cloud"}), "in"),
    ],
)
def test_wrong_functions_are_said_at_declaration(what: Any, said: str) -> None:
    with pytest.raises(FlowFileError) as raised:
        run(what, [])
    assert said in str(raised.value)
