"""The thread that renews a lease, and the same on a virtual clock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from coordinator.clock import boottime
from coordinator.connect import connect
from coordinator.interface import Coordinator, Lease
from coordinator.keeper import LeaseKeeper, keep_renewing
from coordinator.renewals import Renewals
from coordinator.simulated import SimulatedCoordinator, SimulatedStore
from tests.coordinator.conftest import virtual
from tests.waiting import eventually

MS = 1000


class Leader:
    """A coordinator in a directory, a lease, and its keeper."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = threading.Semaphore(0)

    def connect(self) -> Coordinator:
        return connect(f"file://{self.path}", timeout=10)

    async def __aenter__(self) -> Leader:
        self.coordinator = self.connect()
        granted = boottime()
        self.lease = await self.coordinator.grant(MS)
        await self.coordinator.swap("leader", b"1", 0, self.lease)
        self.keeper = LeaseKeeper(self.connect, self.lease, granted, self.changes.release)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.keeper.stop()
        await self.coordinator.close()


class Keep:
    """A call ``keep`` that fails in a way that nobody has thought of."""

    def __init__(self, keep: Callable[[Lease], Awaitable[bool]]) -> None:
        self.fails = 0
        self._keep = keep

    async def __call__(self, lease: Lease) -> bool:
        if self.fails:
            self.fails -= 1
            raise KeyError("result")
        return await self._keep(lease)


def test_it_renews_while_the_loop_beats_and_not_when_it_hangs(tmp_path: Path) -> None:
    async def story() -> None:
        async with Leader(tmp_path) as leader:
            ends = boottime() + 2.5 * MS / 1000
            while boottime() < ends:
                leader.keeper.beat()
                await asyncio.sleep(0.02)
            assert leader.keeper.valid_until > ends - MS / 1000
            assert leader.changes.acquire(timeout=10)
            eventually(lambda: not leader.keeper.valid(), "the loop hangs here, and its lease is renewed")
            eventually(lambda: boottime() > leader.keeper.valid_until + MS / 1000)
            assert await leader.coordinator.get("leader") is None
            assert not leader.keeper.lost
            leader.keeper.beat()
            eventually(lambda: leader.keeper.lost)
            assert not leader.keeper.valid()

    asyncio.run(story())


def test_stopping_ends_the_thread_and_leaves_the_lease(tmp_path: Path) -> None:
    async def story() -> None:
        async with Leader(tmp_path) as leader:
            leader.keeper.stop()
            assert not keepers()
            assert await leader.coordinator.get("leader") is not None
            leader.keeper.stop()  # harmless

    asyncio.run(story())


class Reluctant(SimulatedCoordinator):
    """Its call ``keep`` has its result at the moment of a cancellation."""

    def __init__(self) -> None:
        super().__init__(SimulatedStore())
        self.called = threading.Event()

    async def keep(self, lease: Lease) -> bool:
        self.called.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return True


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lease-keeper"]


@pytest.mark.parametrize("wait", [True, False])
def test_stopping_ends_a_thread_whose_call_swallows_the_cancellation(wait: bool) -> None:
    """It hung: no renewal is due while the loop stands still, and the loop waited for the thread."""
    made: list[Reluctant] = []

    def connect() -> Coordinator:
        made.append(Reluctant())
        return made[0]

    keeper = LeaseKeeper(connect, Lease("1", 100), boottime(), lambda: None)
    eventually(lambda: made and made[0].called.is_set())
    keeper.stop(wait=wait)
    if not wait:
        eventually(lambda: not keepers())
    assert not keepers()


def test_stopping_does_not_wait_for_a_disk_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.keeper.LONGEST_STOP", 0.05)
    hangs = threading.Event()

    def connect() -> Coordinator:
        hangs.wait()
        raise OSError("unmounted")

    keeper = LeaseKeeper(connect, Lease("1", 100), boottime(), lambda: None)
    keeper.stop()
    assert keepers()
    hangs.set()
    eventually(lambda: not keepers())


def test_a_lease_that_is_not_needed_any_more_is_given_up_without_waiting() -> None:
    """A member that exchanges its lease while the coordinator does not answer must not stall for a second."""
    hangs = threading.Event()
    joined: list[float | None] = []

    def connect() -> Coordinator:
        hangs.wait()
        raise OSError("unmounted")

    keeper = LeaseKeeper(connect, Lease("1", 100), boottime(), lambda: None)
    keeper._thread.join = joined.append  # type: ignore[method-assign, assignment]
    keeper.stop(wait=False)
    assert keepers()
    assert not joined
    hangs.set()
    eventually(lambda: not keepers())


@pytest.mark.parametrize("url", ["file:", "etcd:"])
def test_a_call_is_cancelled_although_its_result_arrives(tmp_path: Path, url: str) -> None:
    """Whoever cancels a task relies on its end."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        coordinator = connect(f"file://{tmp_path}" if url == "file:" else "etcd://127.0.0.1:1", timeout=10)
        result: asyncio.Future[None] = loop.create_future()
        loop.run_in_executor = lambda *_: result  # type: ignore[method-assign, assignment]
        result.add_done_callback(lambda _: call.cancel())  # before the call continues
        call = asyncio.create_task(coordinator.get("leader"))
        await asyncio.sleep(0)
        result.set_result(None)
        with pytest.raises(asyncio.CancelledError):
            await call
        await coordinator.close()

    asyncio.run(story())


def test_a_revoked_lease_is_reported_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with Leader(tmp_path) as leader:
            await leader.coordinator.revoke(leader.lease)
            leader.keeper.beat()
            eventually(lambda: leader.keeper.lost)
            assert not leader.keeper.valid()
            assert leader.changes.acquire(timeout=10)

    asyncio.run(story())


def test_a_thread_that_cannot_connect_loses_the_lease() -> None:
    def connect() -> Coordinator:
        raise OSError("too many open files")

    keeper = LeaseKeeper(connect, Lease("1", MS), boottime(), (changes := threading.Semaphore(0)).release)
    assert changes.acquire(timeout=10)
    assert keeper.lost
    keeper.stop()


@pytest.mark.parametrize("fault", ["none", "cut", "lost replies", "bug"])
def test_without_a_thread(fault: str) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        store = SimulatedStore()
        member = SimulatedCoordinator(store, timeout=1.0, delay=lambda: 0.01)
        keep = Keep(member.keep)
        member.keep = keep  # type: ignore[method-assign]
        granted = loop.time()
        lease = await member.grant(5000)
        await member.swap("leader", b"1", 0, lease)
        renewals, beats = Renewals(5000, granted), 0
        changes: list[float] = []
        task = asyncio.create_task(
            keep_renewing(renewals, member, lease, lambda: beats, loop.time, lambda: changes.append(loop.time()))
        )
        other = SimulatedCoordinator(store)
        for tenth in range(1000):
            beats += 1
            if tenth == 500:
                if fault == "cut":
                    member.cut()
                member.lost_replies = 2 if fault == "lost replies" else 0
                keep.fails = 2 if fault == "bug" else 0
            if await other.get("leader") is None:
                assert not renewals.valid(loop.time())
            elif fault != "cut":
                assert renewals.valid(loop.time())
            await asyncio.sleep(0.1)
        if fault == "cut":
            assert await other.get("leader") is None
            assert not renewals.lost
            await asyncio.sleep(3)  # the last attempt fails
            member.heal()
            await asyncio.sleep(3)
            assert not renewals.lost  # the loop does not advance
            beats += 1
            await task
            assert renewals.lost
        else:
            assert 54 <= len(changes) <= 61
            task.cancel()
        await member.close()
        await other.close()

    virtual(story())
