"""Timeouts of many calls: who is late is cancelled, nobody else; another's cancellation stays one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.feedkit import Order, event_of, made
from tidelog.workers.declare.processor import Processor
from tidelog.workers.declare.timeouts import CallTimeouts


async def timed(deadlines: CallTimeouts, call: Any) -> str:
    """What became of it: "done", "late", or what it raised."""
    noted = deadlines.begin()
    try:
        await call
    except BaseException as error:  # noqa: BLE001 - told to the caller
        return "late" if deadlines.end(noted, error) else type(error).__name__
    return "late" if deadlines.end(noted) else "done"


def test_only_those_that_are_late_are_cancelled() -> None:
    async def run() -> list[str]:
        deadlines = CallTimeouts(0.02)
        hang = [timed(deadlines, asyncio.sleep(3600)) for _ in range(3)]
        quick = [timed(deadlines, asyncio.sleep(0)) for _ in range(100)]
        first = await asyncio.gather(*quick[:50], hang[0], hang[1], *quick[50:], hang[2])
        again = await asyncio.gather(timed(deadlines, asyncio.sleep(0)), timed(deadlines, asyncio.sleep(3600)))
        return [*first, *again]  # the timer is set anew after a pause

    assert asyncio.run(run()) == [*["done"] * 50, "late", "late", *["done"] * 50, "late", "done", "late"]


def test_the_timer_goes_on_to_the_next_call() -> None:
    """It was set for a call that is over when it fires, and another one is under way that is not late yet."""

    async def run() -> str:
        deadlines = CallTimeouts(0.05)
        assert await timed(deadlines, asyncio.sleep(0)) == "done"
        await asyncio.sleep(0.02)
        return await asyncio.wait_for(timed(deadlines, asyncio.sleep(3600)), 60)

    assert asyncio.run(run()) == "late"


def test_errors_are_no_timeouts() -> None:
    async def fail() -> None:
        raise ValueError

    async def own() -> None:
        raise TimeoutError

    async def run() -> list[str]:
        deadlines = CallTimeouts(60)
        return [await timed(deadlines, fail()), await timed(deadlines, own())]

    assert asyncio.run(run()) == ["ValueError", "TimeoutError"]


def test_a_cancellation_by_somebody_else_stays_one() -> None:
    async def run() -> None:
        deadlines = CallTimeouts(60)
        started = asyncio.Event()

        async def hang() -> None:
            started.set()
            await asyncio.sleep(3600)

        task = asyncio.create_task(timed(deadlines, hang()))
        await started.wait()
        task.cancel()
        assert await task == "CancelledError"

    asyncio.run(run())


def test_both_at_once_are_a_cancellation() -> None:
    """As with asyncio.timeout(): what the timeout takes back is its own cancellation only."""

    async def run() -> None:
        deadlines = CallTimeouts(0.01)
        tasks: list[asyncio.Task[None]] = []
        became: list[str] = []

        async def hang() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                tasks[0].cancel()  # somebody else, while the timeout's is under way
                raise

        async def whole() -> None:
            became.append(await timed(deadlines, hang()))

        tasks.append(asyncio.create_task(whole()))
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert became == ["CancelledError"]

    asyncio.run(run())


def test_code_that_keeps_the_cancellation_back_goes_on_unharmed() -> None:
    async def run() -> None:
        deadlines = CallTimeouts(0.01)

        async def stubborn() -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

        assert await timed(deadlines, stubborn()) == "done"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left over

    asyncio.run(run())


def test_a_declaration_may_run_in_one_loop_after_another() -> None:
    async def hang(order: Order) -> None:
        await asyncio.sleep(3600)

    app, orders = made()
    app.each(orders, name="it", timeout=0.01)(hang)
    declared: Processor = app.processors["it"]
    for _ in range(2):
        with pytest.raises(TimeoutError, match="'it' took longer than its timeout"):
            asyncio.run(declared.invoke([event_of(orders, 1)]))
