"""Timers and crons in one worker on a real server: what is noted, what is run again, what stops a run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from tests.waiting import until
from tidelog import AsyncClient, Client
from tidelog.client.steps import arun
from tidelog.coordination import Claim, Lease
from tidelog.coordination.claims import release, take
from tidelog.testing import Server
from tidelog.workers import App, keys
from tidelog.workers.coordination.leader_tasks import SingletonTasks
from tidelog.workers.coordination.timers import TimerCounts, TimerRunner

HOUR = 3600.0
KEY = "app:shop:timer:tick"


class Wall:
    """The wall clock, which the test may set."""

    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        return time.time() + self.offset


class Site:
    """What stands around timers in a worker: a lease, the leader's claim, the duties."""

    def __init__(self, client: AsyncClient, owner: str = "w1", clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self.app = App("shop")
        self.lease = Lease(keys.lease("shop", owner), owner, 60, keys.epochs("shop"))
        self.clock = clock
        self.claim: Claim | None = None

    async def lead(self) -> None:
        """Begin to lead."""
        assert await arun(self.client, self.lease.acquire())
        (self.claim,) = (await arun(self.client, take(self.lease, [(keys.leader("shop"), 0)]))).claims
        self.timers = TimerRunner("shop", self.app.timers.values(), self.lease, self.client, clock=self.clock)
        self.duties = SingletonTasks(self.timers.lead)
        self.duties.gained(self.claim)

    async def die(self) -> None:
        """End as a process that is killed, as far as others can see it."""
        await self.duties.stop()
        await self.client.redis.delete(self.lease.key)

    async def go(self, grace: float = 30) -> None:
        """End in order."""
        await self.timers.drain(grace)
        await self.duties.stop()
        if self.claim is not None:
            await arun(self.client, release([self.claim]))
        await arun(self.client, self.lease.release())

    async def noted(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.client.redis.get(KEY) or b"{}")
        return found

    async def is_noted(self) -> bool:
        return bool(await self.noted())


def near(moment: float) -> Any:
    """A moment, up to what is lost on its way through a datetime."""
    return pytest.approx(moment, rel=0, abs=0.001)


def run(server: Server, use: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with AsyncClient(server.url) as client:
            await use(client)

    asyncio.run(main())


@pytest.fixture
def plain(tidelog_server: Server) -> Iterator[Client]:
    with tidelog_server.client() as client:
        yield client


def test_a_timer_of_the_leader_is_noted(tidelog_server: Server) -> None:
    async def use(client: AsyncClient) -> None:
        site = Site(client)
        ran: list[datetime] = []

        @site.app.timer(0.05, on_leader=True)
        async def tick(moment: datetime) -> None:
            ran.append(moment)

        began = time.time()
        await site.lead()
        await until(lambda: len(ran) >= 3)
        await site.go()
        noted = await site.noted()
        assert noted == {
            "moment": noted["moment"], "state": "done", "worker": "app:shop:lease:w1|w1:1", "attempt": 1, "error": "",
        }  # fmt: skip
        assert ran[0].timestamp() >= began + 0.05
        assert ran[-1].timestamp() == near(noted["moment"])
        assert len(set(ran)) == len(ran)
        assert site.timers.counts == {"tick": TimerCounts(runs=len(ran))}

    run(tidelog_server, use)


def test_what_a_timer_raises_is_counted_and_it_goes_on(
    tidelog_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(client: AsyncClient) -> None:
        site = Site(client)
        ran = 0

        @site.app.timer(0.01, on_leader=True)
        async def tick() -> None:
            nonlocal ran
            ran += 1
            if ran == 1:
                raise ZeroDivisionError("no")
            if ran == 2:
                raise asyncio.CancelledError  # of its own: a failure as any other
            if ran == 3:
                await asyncio.sleep(HOUR)

        await site.lead()
        await until(lambda: ran == 3)
        assert site.timers.counts["tick"] == TimerCounts(runs=2, errors=2)
        assert (await site.noted())["state"] == "running"
        await site.go(0.01)
        assert site.timers.counts["tick"] == TimerCounts(runs=2, errors=2, cancelled=1)
        assert (await site.noted())["state"] == "running"  # so that the next leader runs it

    run(tidelog_server, use)
    assert "ZeroDivisionError" in caplog.text
    assert "timer tick cancelled after 0.01 s" in caplog.text


def test_a_run_that_its_worker_did_not_end_is_run_again(tidelog_server: Server) -> None:
    async def use(client: AsyncClient) -> None:
        ran: list[tuple[str, float]] = []
        sites = [Site(client, owner) for owner in ("w1", "w2")]
        for site in sites:

            @site.app.timer(0.2, on_leader=True)
            async def tick(moment: datetime, owner: str = site.lease.owner) -> None:
                ran.append((owner, moment.timestamp()))
                if owner == "w1":
                    await asyncio.sleep(HOUR)

        await sites[0].lead()
        await until(lambda: len(ran) == 1)
        await sites[0].die()
        await sites[1].lead()
        await until(lambda: len(ran) >= 3)
        await sites[1].go()
        assert ran[1] == ("w2", ran[0][1])
        assert ran[2][1] > ran[0][1]
        assert sites[1].timers.counts["tick"].again == 1

    run(tidelog_server, use)


def test_a_run_of_a_worker_that_lives_is_waited_for(tidelog_server: Server) -> None:
    """The leadership changed hands while the run goes on: no second one begins beside it."""

    async def use(client: AsyncClient) -> None:
        other = Lease(keys.lease("shop", "other"), "other", 60, keys.epochs("shop"))
        assert await arun(client, other.acquire())
        running = {"moment": time.time(), "state": "running", "worker": f"{other.key}|{other.value.decode()}"}
        await client.redis.set(KEY, json.dumps(running))
        site = Site(client)
        ran: list[float] = []

        @site.app.timer(0.01, on_leader=True)
        async def tick(moment: datetime) -> None:
            ran.append(moment.timestamp())

        await site.lead()
        await asyncio.sleep(0.3)  # it had time enough for many runs
        assert ran == []
        await client.redis.set(KEY, json.dumps(running | {"state": "done", "attempt": 7}))
        await until(lambda: len(ran) >= 2)
        assert running["moment"] not in ran
        await site.go()

    run(tidelog_server, use)


@pytest.mark.parametrize(("catch_up", "number"), [(True, 120), (False, 1)])
def test_moments_that_passed_while_nobody_led(tidelog_server: Server, catch_up: bool, number: int) -> None:
    async def use(client: AsyncClient) -> None:
        wall = Wall()
        ran: list[float] = []
        first = 0.0
        for owner in ("w1", "w2"):
            site = Site(client, owner, wall)

            @site.app.timer(60, on_leader=True, catch_up=catch_up)
            async def tick(moment: datetime) -> None:
                ran.append(moment.timestamp())

            await site.lead()
            await until(site.is_noted)
            first = (await site.noted())["moment"] if owner == "w1" else first
            if owner == "w2":
                await until(lambda: len(ran) >= number)
            await site.go()
            wall.offset += 2 * HOUR + 1
        assert len(ran) == number
        assert ran[-1] == near(first + 2 * HOUR)
        assert ran == sorted(ran)

    run(tidelog_server, use)


def test_a_cron_that_fell_into_a_change_of_leader_is_not_missed(tidelog_server: Server) -> None:
    """Without catch_up: the newest moment, if it is not long ago."""

    async def use(client: AsyncClient) -> None:
        wall = Wall()
        wall.offset = 1_800_000_000 - time.time()  # the beginning of an hour
        wall.offset -= 10
        ran: list[float] = []
        for owner, passes in (("w1", 40.0), ("w2", 3 * HOUR), ("w3", 0.0)):
            site = Site(client, owner, wall)

            @site.app.cron("0 * * * *", name="tick")
            async def tick(moment: datetime) -> None:
                ran.append(moment.timestamp())

            await site.lead()
            await until(site.is_noted)
            if owner == "w2":
                await until(lambda: ran == [1_800_000_000])
            await site.go()
            wall.offset += passes
        assert ran == [1_800_000_000]  # those of three hours later were left out

    run(tidelog_server, use)


def test_a_leader_that_is_none_any_more_begins_nothing(tidelog_server: Server) -> None:
    """It was stopped before the swap that begins a run; meanwhile another leader has run that moment."""

    async def use(client: AsyncClient) -> None:
        ran: list[float] = []
        site = Site(client)

        @site.app.timer(1, on_leader=True)
        async def tick(moment: datetime) -> None:
            ran.append(moment.timestamp())

        await site.lead()
        await until(site.is_noted)
        noted = await site.noted()
        await client.redis.set(KEY, json.dumps(noted | {"moment": noted["moment"] + 1, "worker": "other|other:9"}))
        await until(lambda: bool(ran))
        await site.go()
        assert ran[0] == near(noted["moment"] + 2)  # not the moment that the other has run

    run(tidelog_server, use)


def test_a_lost_leadership_ends_the_run(tidelog_server: Server) -> None:
    async def use(client: AsyncClient) -> None:
        events: list[str] = []
        site = Site(client)

        @site.app.timer(0.01, on_leader=True)
        async def tick() -> None:
            events.append("begun")
            try:
                await asyncio.sleep(HOUR)
            finally:
                events.append("ended")

        await site.lead()
        await until(lambda: events == ["begun"])
        site.duties.lost()
        assert site.claim is not None
        site.duties.gained(site.claim)  # and leads again: the run comes again, after the first has ended
        await until(lambda: events == ["begun", "ended", "begun"])
        assert (await site.noted())["attempt"] == 2
        await site.go(0.01)

    run(tidelog_server, use)


def test_a_run_is_noted_when_the_server_is_back(tidelog_server: Server) -> None:
    async def use(client: AsyncClient) -> None:
        ran: list[float] = []
        site = Site(client)

        @site.app.timer(0.5, on_leader=True)
        async def tick(moment: datetime) -> None:
            ran.append(moment.timestamp())
            if len(ran) == 1:
                tidelog_server.kill()

        await site.lead()
        await until(lambda: len(ran) == 1)
        await asyncio.to_thread(tidelog_server.start)
        await until(lambda: len(ran) >= 2)
        assert len(set(ran)) == len(ran)
        assert site.timers.counts["tick"].again == 0
        await site.go()

    run(tidelog_server, use)


@pytest.mark.parametrize("text", ["{}", b"\xff", "[" * 100_000, '{"moment": 1e300, "state": "done", "worker": ""}'])
def test_a_key_that_cannot_be_read(
    tidelog_server: Server, plain: Client, caplog: pytest.LogCaptureFixture, text: Any
) -> None:
    plain.redis.set(KEY, text)

    async def use(client: AsyncClient) -> None:
        site = Site(client)

        @site.app.timer(0.01, on_leader=True)
        async def tick() -> None: ...

        await site.lead()
        await until(lambda: site.timers.counts["tick"].runs > 0)
        await site.go()
        assert caplog.text.count("ignoring the unreadable value of app:shop:timer:tick") == 1

    run(tidelog_server, use)


def test_a_moment_that_is_no_time_is_ignored(tidelog_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: AsyncClient) -> None:
        site = Site(client)
        ran = 0

        @site.app.cron("* * * * *")
        async def tick() -> None: ...

        @site.app.timer(0.01, on_leader=True)
        async def other() -> None:
            nonlocal ran
            ran += 1

        await client.redis.set(KEY, b'{"moment": 1e300, "state": "done", "worker": ""}')
        await site.lead()
        await until(lambda: "the unreadable value of app:shop:timer:tick: 1e+300 is not a valid time" in caplog.text)
        await until(lambda: ran >= 2)
        await site.go()

    run(tidelog_server, use)


def test_timers_of_each_worker(tidelog_server: Server) -> None:
    async def use(client: AsyncClient) -> None:
        site = Site(client)
        ran: list[float] = []

        @site.app.timer(0.02)
        async def tick() -> None:
            ran.append(time.monotonic())
            await asyncio.sleep(0.05)  # longer than its interval: the next one waits

        timers = TimerRunner("shop", site.app.timers.values(), site.lease, client)
        timers.start()
        await until(lambda: len(ran) >= 4)
        await timers.drain(30)
        assert timers.counts["tick"] == TimerCounts(runs=len(ran))
        assert all(after - before >= 0.05 for before, after in pairwise(ran))
        assert await site.noted() == {}

    run(tidelog_server, use)
