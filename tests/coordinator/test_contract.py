"""What all coordinators have in common (coordinator/interface.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from coordinator.interface import CoordinatorError, Lease, LeaseGoneError, Versioned, Watch
from tests.coordinator.conftest import Place
from tests.waiting import until

KEY = "tidelog/groups/tide 1/state"


async def next_of(watch: Watch | AsyncIterator[None], seconds: float = 20) -> None:
    await asyncio.wait_for(anext(aiter(watch)), seconds)


def test_a_value_is_read_with_its_version(place: Place) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        assert await one.get(KEY) is None
        first = await one.swap(KEY, b"\x00\xff\n1", 0)
        assert first is not None
        assert first > 0
        assert await other.get(KEY) == Versioned(b"\x00\xff\n1", first)
        second = await other.swap(KEY, b"", first)
        assert second is not None
        assert second > first
        assert await one.get(KEY) == Versioned(b"", second)
        large = b"x" * 200_000
        third = await one.swap(KEY, large, second)
        assert third is not None
        assert await other.get(KEY) == Versioned(large, third)

    place.run(story())


def test_a_swap_needs_the_current_version(place: Place) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        assert await one.swap(KEY, b"1", 5) is None
        version = await one.swap(KEY, b"1", 0)
        assert version is not None
        assert await other.swap(KEY, b"2", 0) is None
        assert await other.swap(KEY, b"2", version + 1) is None
        assert await other.swap(KEY, None, version + 1) is None
        newer = await other.swap(KEY, b"2", version)
        assert newer is not None
        assert await one.swap(KEY, b"3", version) is None
        assert await one.get(KEY) == Versioned(b"2", newer)

    place.run(story())


def test_a_deleted_key_gets_a_higher_version_when_it_is_created_again(place: Place) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        first = await one.swap(KEY, b"1", 0)
        assert first is not None
        deleted = await one.swap(KEY, None, first)
        assert deleted is not None
        assert deleted > first
        assert await other.get(KEY) is None
        assert await other.swap(KEY, b"2", first) is None
        assert await other.swap(KEY, b"2", deleted) is None
        again = await other.swap(KEY, b"2", 0)
        assert again is not None
        assert again > deleted
        with pytest.raises(ValueError, match="does not exist"):
            await one.swap(KEY, None, 0)

    place.run(story())


def test_one_of_many_swaps_of_a_version_succeeds(place: Place) -> None:
    async def story() -> None:
        members = [place.connect() for _ in range(4)]
        version = 0
        for round_ in range(5):
            results = await asyncio.gather(
                *(each.swap(KEY, b"%d %d" % (round_, n), version) for n, each in enumerate(members)),
                return_exceptions=True,
            )
            won = [(n, result) for n, result in enumerate(results) if isinstance(result, int)]
            assert len(won) == 1, results
            winner, version = won[0]
            assert await members[-1].get(KEY) == Versioned(b"%d %d" % (round_, winner), version)

    place.run(story())


def test_each_increment_counts_once(place: Place) -> None:
    """Unknown outcomes count as what the caller reads next."""
    rounds = 10

    async def count(member: int) -> None:
        coordinator = place.connect()
        for n in range(rounds):
            mark = b"%d.%d" % (member, n)
            while True:
                found = await coordinator.get(KEY)
                value, version = found or (b"", 0)
                if mark in value.split():
                    break
                try:
                    if await coordinator.swap(KEY, value + b" " + mark, version):
                        break
                except CoordinatorError:
                    pass

    async def story() -> None:
        await asyncio.gather(*(count(member) for member in range(3)))
        found = await place.connect().get(KEY)
        assert found is not None
        assert sorted(found.value.split()) == sorted(b"%d.%d" % (m, n) for m in range(3) for n in range(rounds))

    place.run(story())


def test_keys_are_separate(place: Place) -> None:
    async def story() -> None:
        one = place.connect()
        await one.swap("tidelog/groups/a", b"a", 0)
        await one.swap("tidelog/groups/a/state", b"state", 0)
        await one.swap("tidelog/groups/ä%2F..", b"strange", 0)
        for key, value in {"a": b"a", "a/state": b"state", "ä%2F..": b"strange"}.items():
            found = await one.get(f"tidelog/groups/{key}")
            assert found is not None
            assert found.value == value

    place.run(story())


def test_a_key_vanishes_with_its_lease(place: Place) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        lease = await one.grant(60_000)
        assert lease.ms == 60_000
        version = await one.swap(KEY, b"m1", 0, lease)
        await one.swap("unbound", b"1", 0)
        assert version is not None
        assert await other.get(KEY) == Versioned(b"m1", version)
        await one.revoke(lease)
        assert await other.get(KEY) is None
        assert await one.get("unbound") is not None
        assert not await one.keep(lease)
        await one.revoke(lease)
        again = await other.swap(KEY, b"m2", 0, await other.grant(60_000))
        assert again is not None
        assert again > version
        assert await other.swap(KEY, b"m3", version) is None

    place.run(story())


def test_a_lease_expires_unless_it_is_kept(place: Place) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        ms = place.shortest
        granted = time.monotonic()
        kept, left = await one.grant(ms), await one.grant(ms)
        await one.swap("kept", b"1", 0, kept)
        await one.swap("left", b"1", 0, left)
        left_ends = asyncio.create_task(until(lambda: gone("left"), seconds=30))

        async def gone(key: str) -> bool:
            return await other.get(key) is None

        while not left_ends.done():
            assert await one.keep(kept)
            await asyncio.sleep(ms / 5000)
        await left_ends
        if place.late > 0.01:  # on a real clock
            assert time.monotonic() - granted >= ms / 1000 * 0.99
        assert not await one.keep(left)
        assert not await other.keep(left)
        assert await one.keep(kept)
        assert not await gone("kept")
        with pytest.raises(LeaseGoneError):
            await one.swap("new", b"1", 0, left)
        assert await one.get("new") is None

    place.run(story())


def test_another_member_can_keep_a_lease(place: Place) -> None:
    """The thread that renews a lease has a coordinator of its own."""

    async def story() -> None:
        one, keeper = place.connect(), place.connect()
        lease = await one.grant(place.shortest)
        await one.swap(KEY, b"1", 0, lease)
        ends = asyncio.get_running_loop().time() + 2.5 * place.shortest / 1000
        while asyncio.get_running_loop().time() < ends:
            assert await keeper.keep(Lease(lease.id, lease.ms))
            await asyncio.sleep(place.shortest / 5000)
        assert await one.get(KEY) is not None
        await keeper.revoke(lease)
        assert await one.get(KEY) is None

    place.run(story())


def test_a_swap_binds_a_key_to_another_lease_or_to_none(place: Place) -> None:
    async def story() -> None:
        one = place.connect()
        first, second = await one.grant(60_000), await one.grant(60_000)
        version = await one.swap(KEY, b"1", 0, first)
        version = await one.swap(KEY, b"2", version or -1, second)
        await one.revoke(first)
        assert await one.get(KEY) == Versioned(b"2", version or -1)
        version = await one.swap(KEY, b"3", version or -1)
        await one.revoke(second)
        assert await one.get(KEY) == Versioned(b"3", version or -1)

    place.run(story())


def test_a_watch_notifies_after_each_change(place: Place) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        watch = other.watch(KEY)
        await next_of(watch)  # it has begun
        version = 0
        for value in (b"1", b"2", None, b"3"):
            current = await one.get(KEY)
            version = await one.swap(KEY, value, current.version if current else 0) or -1
            seen = None
            while seen != (value, version) and not (value is None and seen == (None, 0)):
                await next_of(watch)
                found = await other.get(KEY)
                seen = (found.value, found.version) if found else (None, 0)
        watch.close()
        with pytest.raises(StopAsyncIteration):
            await anext(watch)

    place.run(story())


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_watch_notifies_when_a_key_vanishes_with_its_lease(place: Place, how: str) -> None:
    async def story() -> None:
        one, other = place.connect(), place.connect()
        lease = await one.grant(60_000 if how == "revoked" else place.shortest)
        await one.swap(KEY, b"1", 0, lease)
        watch = other.watch(KEY)
        await next_of(watch)
        if how == "revoked":
            await one.revoke(lease)
        while await other.get(KEY) is not None:
            await next_of(watch)
        watch.close()

    place.run(story())


def test_closing_ends_a_watch_that_waits(place: Place) -> None:
    async def story() -> None:
        one = place.connect()
        watch = one.watch(KEY)
        await next_of(watch)

        async def rest() -> int:
            return len([None async for _ in watch])

        waiting = asyncio.create_task(rest())
        await asyncio.sleep(0.05)
        await one.close()
        assert await asyncio.wait_for(waiting, 20) <= 1
        with pytest.raises(CoordinatorError, match="closed"):
            await one.get(KEY)

    place.run(story())
