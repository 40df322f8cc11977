"""What only the coordinator for simulations can do: partitions and lost replies, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.interface import CoordinatorError, Versioned
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from tests.coordinator.conftest import virtual


def test_a_lost_reply_has_its_effect() -> None:
    async def story() -> None:
        one = SimulatedCoordinator(SimulatedStore(), timeout=2.0)
        loop = asyncio.get_running_loop()
        one.lost_replies = 1
        with pytest.raises(CoordinatorError, match="did not answer within 2 s"):
            await one.swap("k", b"1", 0)
        assert loop.time() == 2.0
        assert await one.get("k") == Versioned(b"1", 1)

    virtual(story())


def test_a_cut_member_has_no_effect_and_its_watch_notifies_after_it() -> None:
    async def story() -> None:
        store = SimulatedStore()
        one, other = (SimulatedCoordinator(store, timeout=2.0, delay=lambda: 0.1) for _ in range(2))
        watch = one.watch("k")
        await anext(watch)
        one.cut()
        with pytest.raises(CoordinatorError):
            await one.swap("k", b"1", 0)
        await other.swap("k", b"2", 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 3600)
        one.heal()
        await anext(watch)
        assert await one.get("k") == Versioned(b"2", 1)

    virtual(story())


def test_a_delay_longer_than_the_timeout_is_a_lost_message() -> None:
    async def story() -> None:
        delays = iter([0.1, 5.0])
        one = SimulatedCoordinator(SimulatedStore(), timeout=2.0, delay=lambda: next(delays, 0.0))
        with pytest.raises(CoordinatorError):
            await one.swap("k", b"1", 0)
        assert await one.get("k") == Versioned(b"1", 1)

    virtual(story())
