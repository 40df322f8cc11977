"""Random sequences of operators, with queues of one batch and few events in flight: each event arrives at least once,
each is settled once, and no event waits without end.

The sequences run on the virtual clock, so the load of the machine can't exceed a time limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.tidelog.flows.opskit import Kit, Remembering, flow_of
from tidelog.flows import Event, RetryError, op
from tidelog.flows.api.tokens import OK, RETRY, TokenGroup
from tidelog.flows.testing.virtualloop import VirtualLoop, simulate


async def waits(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def one(value: Any) -> Iterator[Any]:
    yield value


def wrapped(value: Any) -> list[Any]:
    return [value, value]


PARTS: dict[str, list[Any]] = {
    "batch": [op("batch", 3)],
    "batch that never fills": [op("batch", 1000)],
    "batch by time": [op("batch", count=7, timeout="1ms")],
    "batch by bytes": [op("batch", bytes=10)],
    "there and back": [op("batch", 4), op("unbatch")],
    "there and back, with one more": [op("batch", 4), lambda value: [*value, value[0]], op("unbatch")],
    "split": [wrapped, op("split")],
    "python": [lambda value: value],
    "async": [op("python", call=waits, concurrency=3)],
    "generator": [one],
    "threads": [op("python", call=wrapped, concurrency=2, **{"in": "thread"})],
    "delay": [op("delay", time="1ms", max_kept=2)],
    "sample": [op("sample", 1.0)],
    "where": [op("where", "@ != `null`")],
    "select": [op("select", "[@]")],
    "counter": [op("counter", wrap=True)],
    "history": [op("history")],
}


def leaves(value: Any) -> Iterator[int]:
    """The numbers that were put in, wherever they are now."""
    if isinstance(value, dict):
        yield from leaves(value["event"])
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)
    else:
        yield value


async def run(kit: Kit, count: int, chance: random.Random, failing: float, drain: bool) -> None:
    failures = 12  # in all: waits grow with each try of an event

    def outcome() -> int:
        nonlocal failures
        if not failures or chance.random() >= failing:
            return OK
        failures -= 1
        return RETRY

    def answer(event: Event) -> Any:
        if isinstance(event.token, TokenGroup) and chance.random() < 0.5:
            return [(outcome(), "item") for _ in event.token.members]
        return outcome()

    kit.out.answer = answer
    for start in range(0, count, 10):
        kit.feed.put(*range(start, min(start + 10, count)))
        await asyncio.sleep(0)
    if drain:
        await kit.until(lambda: not kit.feed.waiting)
        report = await kit.running.drain(20)
        assert report.complete
        assert kit.running.error == ""
    else:
        await kit.finished()
    assert {each for value in kit.out.values for each in leaves(value)} == set(range(count))
    assert set(kit.feed.statuses) == set(range(count))


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])  # a hang shrinks for hours
@given(
    st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4),
    st.sampled_from([1, 2, 5, 20]),
    st.sampled_from([0.0, 0.2]),
    st.booleans(),
    st.integers(0, 1000),
)
def test_any_pipeline(names: list[str], max_unsettled: int, failing: float, drain: bool, seed: int) -> None:
    operators = [each for name in names for each in PARTS[name]]

    async def story(loop: VirtualLoop) -> None:
        async with flow_of(
            *operators, source=Remembering, queue=1, max_unsettled=max_unsettled, on_error={"retry": {"first": "1ms"}}
        ) as kit:
            await run(kit, 3 * max_unsettled, random.Random(seed), failing, drain)

    simulate(story, seed=seed)


@pytest.mark.parametrize("name", sorted(PARTS))
def test_each_alone(name: str) -> None:
    async def body() -> None:
        async with flow_of(
            *PARTS[name], source=Remembering, queue=1, max_unsettled=6, on_error={"retry": {"first": "1ms"}}
        ) as kit:
            await run(kit, 40, random.Random(name), 0.2, drain=False)

    asyncio.run(body())


def test_a_function_that_gives_back_at_random() -> None:
    chance = random.Random(3)
    tried: set[int] = set()

    def fails(value: int) -> int:
        if value not in tried and chance.random() < 0.3:
            tried.add(value)
            raise RetryError("not now")
        return value

    async def body() -> None:
        parts = [op("batch", 3), op("unbatch"), fails]
        async with flow_of(
            *parts, source=Remembering, queue=1, max_unsettled=5, on_error={"retry": {"first": "1ms"}}
        ) as kit:
            await run(kit, 60, chance, 0.1, drain=False)

    asyncio.run(body())
