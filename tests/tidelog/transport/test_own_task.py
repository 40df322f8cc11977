"""Work in a task of its own: its result, its error, and cancellations that it loses."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from tidelog.transport.cancellation import in_own_task


def test_results_and_errors() -> None:
    async def work(error: Exception | None) -> int:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return 7

    async def main() -> None:
        assert await in_own_task(work(None)) == 7
        with pytest.raises(ValueError, match="wrong"):
            await in_own_task(work(ValueError("wrong")))

    asyncio.run(main())


def test_a_cancellation_that_the_work_loses() -> None:
    lost: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost.append("cancellation")

    async def caller() -> None:
        await in_own_task(work())
        lost.append("caller")

    async def main() -> None:
        task = asyncio.create_task(caller())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: lost == ["cancellation"])

    asyncio.run(main())
