"""Supervisors with runners that keep a diary, in this process: which jobs run where, and what ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.tidelog.jobs.enginekit import (
    Diarist,
    Idle,
    add,
    change,
    diary,
    engine,
    fold,
    in_loop,
    soon,
    supervised,
    supervisor,
)
from tests.waiting import eventually
from tidelog import Client
from tidelog.client import strings
from tidelog.coordination import Claim
from tidelog.jobs import JobError, keys
from tidelog.jobs.engine.membership import chosen
from tidelog.jobs.engine.runner import Runner
from tidelog.jobs.engine.supervisor import Supervisor
from tidelog.jobs.errors import SupersededError, TryAgainError
from tidelog.jobs.registry import registry
from tidelog.jobs.registry.registry import JobSpec
from tidelog.jobs.registry.status import StepReport
from tidelog.testing import Server
from tidelog.transport.leader import UnreachableError

pytestmark = pytest.mark.slow
LEASE = 2.0
JOBS = [f"j{at}" for at in range(8)]


def value(client: Client, key: str) -> bytes:
    """Of a key; empty if it isn't there."""
    return client.run(strings.get(key)) or b""


def status(client: Client, name: str) -> dict[str, Any]:
    return dict(msgspec.json.decode(value(client, keys.status(name)) or b"{}"))


def events(client: Client, name: str) -> list[str]:
    return [entry["kind"].decode() for entry in client.trange(keys.events(name))]


def steps_of(client: Client, job: str) -> list[tuple[str, str]]:
    return [(each["engine"], each["what"]) for each in diary(client, job)]


def where(client: Client) -> dict[str, str]:
    """The engine that wrote last about each job."""
    return {each["job"]: each["engine"] for each in diary(client)}


def assert_one_at_a_time(client: Client) -> None:
    """Nobody wrote about a job after somebody with a later claim had."""
    for job in where(client):
        epochs = [int(each["claim"]) for each in diary(client, job) if each["what"] != "close"]
        assert epochs == sorted(epochs)


# -- one engine -----------------------------------------------------------------------------------------------
@in_loop
async def test_jobs_run_from_add_to_remove(tidelog_server: Server, client: Client) -> None:
    add(client, "before")
    async with supervised(tidelog_server.url):
        await soon(lambda: len(steps_of(client, "before")) > 5)
        await asyncio.to_thread(add, client, "after")
        await soon(lambda: len(steps_of(client, "after")) > 5)
        await asyncio.to_thread(change, client, registry.remove("before"))
        await soon(lambda: steps_of(client, "before")[-1] == ("e1", "close"))
        await soon(lambda: value(client, keys.owner("before")).startswith(b"||"))
        number = len(steps_of(client, "after"))
        await soon(lambda: len(steps_of(client, "after")) > number)
        assert await soon(lambda: status(client, "after").get("rows_in"))
        assert status(client, "after")["state"] == "running"
    assert steps_of(client, "after")[-1] == ("e1", "close")
    assert not client.redis.exists(keys.lease("e1"))
    assert msgspec.json.decode(value(client, keys.ENGINES))["engines"] == {}
    assert events(client, "after") == ["start", "stop"]
    assert status(client, "after")["state"] == "stopped"


@in_loop
async def test_pause_resume_and_reset(tidelog_server: Server, client: Client) -> None:
    add(client, "job")
    async with supervised(tidelog_server.url):
        await soon(lambda: steps_of(client, "job"))
        await asyncio.to_thread(change, client, registry.pause("job"))
        await soon(lambda: steps_of(client, "job")[-1] == ("e1", "close"))
        await soon(lambda: status(client, "job").get("state") == "stopped")
        written = len(diary(client))
        await asyncio.to_thread(change, client, registry.resume("job"))
        await soon(lambda: len(diary(client)) > written)
        assert {each["revision"] for each in diary(client)[written:]} == {"3"}
        await asyncio.to_thread(change, client, registry.reset(JobSpec("job", "module:job", start="latest")))
        await soon(lambda: diary(client)[-1]["generation"] == "2")
    assert_one_at_a_time(client)


@in_loop
async def test_what_may_pass_is_tried_again_ever_later(tidelog_server: Server, client: Client) -> None:
    began: list[float] = []

    class Failing(Diarist):
        def step(self) -> StepReport:
            began.append(time.monotonic())
            if len(began) in (6, 8):
                return StepReport(epoch=1)
            raise OSError("the executor is gone")

    add(client, "job")
    async with supervised(tidelog_server.url, made=Failing, first=0.2, most=0.8):
        await soon(lambda: len(began) >= 9)
        seen = await soon(lambda: (seen := status(client, "job")).get("restarts", 0) >= 6 and seen)
    waits = [after - before for before, after in pairwise(began)]
    assert all(wait >= low for wait, low in zip(waits, (0.15, 0.3, 0.6, 0.6, 0.6), strict=False)), waits
    assert waits[6] < 0.5  # from the beginning, after a step that succeeded
    assert "OSError: the executor is gone" in seen["error"]
    assert seen["state"] in ("failing", "starting", "running")
    assert "failure" in events(client, "job")


@in_loop
async def test_what_cannot_pass_stops_the_job_until_it_is_changed(tidelog_server: Server, client: Client) -> None:
    class Broken(Diarist):
        def step(self) -> StepReport:
            super().step()
            if self.spec.revision == 1:
                raise JobError("job 'job': this can't work")
            return StepReport(epoch=1)

    add(client, "job", "other")
    async with supervised(tidelog_server.url, made=Broken, first=0.05):
        await soon(lambda: status(client, "job").get("state") == "failed")
        number = len(steps_of(client, "other"))
        await asyncio.sleep(1.5)
        assert steps_of(client, "job") == [("e1", "prepare"), ("e1", "step"), ("e1", "close")]
        assert status(client, "job")["error"] == "job 'job': this can't work"
        assert status(client, "job")["restarts"] == 0
        assert len(steps_of(client, "other")) >= number
        await asyncio.to_thread(change, client, registry.resume("job"))
        await soon(lambda: steps_of(client, "job").count(("e1", "step")) > 3)
    assert events(client, "job") == ["start", "failed", "stop", "start", "stop"]


@in_loop
async def test_who_was_superseded_begins_again_at_once(tidelog_server: Server, client: Client) -> None:
    class Superseded(Diarist):
        turns = 0

        def step(self) -> StepReport:
            Superseded.turns += 1
            if Superseded.turns == 2:
                raise SupersededError("epoch 2 is another's")
            return super().step()

    add(client, "job")
    async with supervised(tidelog_server.url, made=Superseded, first=60):
        await soon(lambda: steps_of(client, "job").count(("e1", "prepare")) == 2)
        await soon(lambda: Superseded.turns > 5)
    assert events(client, "job") == ["start", "superseded", "stop"]


@in_loop
async def test_a_job_that_is_stuck_holds_up_nobody(tidelog_server: Server, client: Client) -> None:
    free = threading.Event()

    class Stuck(Diarist):
        def step(self) -> StepReport:
            report = super().step()
            if self.spec.name != "last":
                self.cancelled.wait(60)
            return report

    add(client, *(f"stuck{at}" for at in range(40)), "last")
    async with supervised(tidelog_server.url, made=Stuck, grace=0.2):
        await soon(lambda: len(steps_of(client, "last")) > 20)
        began = time.monotonic()
    assert time.monotonic() - began < 5  # they were cancelled after their grace
    free.set()


@in_loop
@pytest.mark.parametrize("decide", [registry.remove("job"), registry.reset(JobSpec("job", "module:job"))])
async def test_nothing_of_a_generation_that_has_ended_is_finished(
    tidelog_server: Server, client: Client, decide: registry.Decide
) -> None:
    """What it does could not be published. The claim is free at once, so that its groups can be destroyed."""

    class Stuck(Diarist):
        def step(self) -> StepReport:
            report = super().step()
            self.cancelled.wait(60)
            return report

    add(client, "job")
    async with supervised(tidelog_server.url, made=Stuck, grace=60) as it:
        await soon(lambda: ("e1", "step") in steps_of(client, "job"))
        began = time.monotonic()
        await asyncio.to_thread(change, client, decide)
        await soon(lambda: "job" not in it.running or it.running["job"].spec.revision == 2)
        assert time.monotonic() - began < 10
        await asyncio.to_thread(change, client, registry.remove("job")) if "job" in fold(client).specs else None
        await soon(lambda: not it.running)


@in_loop
async def test_a_name_that_another_engine_has(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The second one says why it does nothing, and takes over when the first one ends."""
    async with supervised(tidelog_server.url, lease=LEASE) as first:
        await soon(lambda: first.lease.held)
        async with supervised(tidelog_server.url, lease=LEASE) as second:
            await soon(lambda: "another live engine has the name 'e1'" in caplog.text)
            assert not second.lease.held
            first.stop()
            await soon(lambda: second.lease.held)
    assert caplog.text.count("another live engine has the name") == 1


@in_loop
async def test_the_server_being_away_is_told_without_a_traceback(tidelog_server: Server, client: Client) -> None:
    class Away(Diarist):
        def step(self) -> StepReport:
            if self.spec.name == "away":
                raise UnreachableError("redis://nowhere: no attempt succeeded")
            raise TryAgainError("job 'again': cancelled")

    add(client, "away", "again")
    async with supervised(tidelog_server.url, made=Away, first=60):
        await soon(lambda: status(client, "away").get("state") == status(client, "again").get("state") == "failing")
        assert status(client, "away")["error"] == "redis://nowhere: no attempt succeeded"
        assert status(client, "again")["error"] == "job 'again': cancelled"


@in_loop
async def test_a_step_that_runs_is_finished(tidelog_server: Server, client: Client) -> None:
    class Slow(Diarist):
        def step(self) -> StepReport:
            time.sleep(1.0)
            return super().step()

    add(client, "job")
    async with supervised(tidelog_server.url, made=Slow):
        await soon(lambda: len(steps_of(client, "job")) == 2)
        await asyncio.sleep(0.3)
    assert steps_of(client, "job") == [("e1", "prepare"), ("e1", "step"), ("e1", "step"), ("e1", "close")]


@in_loop
async def test_a_server_that_is_away_for_long_does_not_fill_the_log(
    tidelog_server: Server, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, "job")
    async with supervised(tidelog_server.url, made=Idle, lease=LEASE) as it:
        await soon(lambda: "job" in it.running)
        tidelog_server.kill()
        await asyncio.sleep(4)  # eight turns
        warned = [each for each in caplog.records if each.name.endswith(".supervisor") and each.levelname == "WARNING"]
        assert 1 <= len(warned) <= 3, caplog.text  # the registry, the turn, the lease


@in_loop
async def test_nothing_begins_when_the_lease_is_lost(tidelog_server: Server, client: Client) -> None:
    """The server is gone: from the end of the lease on, by this machine's clock, no step begins."""
    began: list[bool] = []

    class Counted(Diarist):
        def prepare(self) -> StepReport:
            return StepReport()

        def step(self) -> StepReport:
            began.append(self.claim.held)
            return StepReport(epoch=1)

        def close(self) -> None:
            self.client.close()

    add(client, "job")
    async with supervised(tidelog_server.url, lease=LEASE, made=Counted) as it:
        await soon(lambda: len(began) > 5)
        tidelog_server.kill()
        await soon(lambda: not it.lease.held)
        await soon(lambda: not it.running)
        number = len(began)
        await asyncio.sleep(0.5)
        assert len(began) == number
        assert began.count(False) == 0
        await asyncio.to_thread(tidelog_server.start)
        await soon(lambda: len(began) > number + 5)


@in_loop
async def test_what_200_idle_jobs_cost(tidelog_server: Server, client: Client) -> None:
    add(client, *(f"j{at}" for at in range(200)))
    async with supervised(tidelog_server.url, lease=10.0, made=Idle):
        await soon(lambda: len(diary(client)) == 200)
        await soon(lambda: all(client.redis.exists(keys.status(f"j{at}")) for at in range(200)))
        await asyncio.sleep(2)
        before, cpu = commands(client), time.process_time()
        await asyncio.sleep(26)
        each, cpu = (commands(client) - before) / 26, (time.process_time() - cpu) / 26
    print(f"{each:.1f} commands a second, {cpu:.3f} of a core")
    assert each < 20
    assert cpu < 0.2


def commands(client: Client) -> int:
    return int(client.redis.info("stats")["total_commands_processed"])


# -- two engines ----------------------------------------------------------------------------------------------
@in_loop
async def test_two_share_the_jobs(tidelog_server: Server, client: Client) -> None:
    add(client, *JOBS)
    async with supervised(tidelog_server.url, "e1"):
        await soon(lambda: set(where(client).values()) == {"e1"} and len(where(client)) == len(JOBS))
        async with supervised(tidelog_server.url, "e2"):
            expected = {job: chosen(job, ["e1", "e2"]) for job in JOBS}
            assert set(expected.values()) == {"e1", "e2"}
            await soon(lambda: where(client) == expected)
            moved = [job for job in JOBS if expected[job] == "e2"]
            await soon(lambda: all("moved" in events(client, job) for job in moved))
            assert all(events(client, job) == ["start"] for job in JOBS if expected[job] == "e1")
        await soon(lambda: set(where(client).values()) == {"e1"})
    assert_one_at_a_time(client)


@in_loop
async def test_a_dead_engine_s_jobs_go_on_elsewhere(tidelog_server: Server, client: Client) -> None:
    """It ends without releasing anything, as with SIGKILL: what it had is taken when its lease ends."""
    add(client, *JOBS)
    async with supervised(tidelog_server.url, "e2", lease=LEASE):
        await soon(lambda: len(where(client)) == len(JOBS))
        with engine(tidelog_server.url, "e1", LEASE) as process:
            await soon(lambda: where(client) == {job: chosen(job, ["e1", "e2"]) for job in JOBS})
            began = time.monotonic()
            process.kill()
            process.wait()
            written = len(diary(client))
            lost = {job for job in JOBS if chosen(job, ["e1", "e2"]) == "e1"}
            await soon(lambda: lost <= {each["job"] for each in diary(client)[written:] if each["engine"] == "e2"})
            took = time.monotonic() - began
    print(f"taken over after {took:.2f} s, of a lease of {LEASE} s")
    assert took < 5 * LEASE  # 4.6 s on a busy machine
    assert_one_at_a_time(client)


def test_an_engine_that_was_stopped_past_its_lease(tidelog_server: Server, client: Client) -> None:
    """SIGSTOP, and SIGCONT when its jobs run elsewhere: at most the step that was in hand is finished."""
    add(client, *JOBS)
    with engine(tidelog_server.url, "e1", LEASE) as one, engine(tidelog_server.url, "e2", LEASE):
        expected = {job: chosen(job, ["e1", "e2"]) for job in JOBS}
        eventually(lambda: where(client) == expected)
        os.kill(one.pid, signal.SIGSTOP)
        eventually(lambda: set(where(client).values()) == {"e2"})
        written = len(diary(client))
        os.kill(one.pid, signal.SIGCONT)
        eventually(lambda: where(client) == expected)  # it is back, under another epoch
        for job in JOBS:
            taken = max(int(each["claim"]) for each in diary(client, job)[:-1] if each["engine"] == "e2")
            late = [each["what"] for each in diary(client)[written:]
                    if (each["job"], each["engine"]) == (job, "e1") and int(each["claim"]) < taken]  # fmt: skip
            assert late.count("step") <= 1
            assert "prepare" not in late
        one.terminate()
        assert one.wait(30) == 0
        eventually(lambda: set(where(client).values()) == {"e2"})


def test_sigterm_drains(tidelog_server: Server, client: Client) -> None:
    add(client, *JOBS)
    with engine(tidelog_server.url, "e1", 30) as process:
        eventually(lambda: len(where(client)) == len(JOBS))
        process.terminate()
        assert process.wait(30) == 0
    assert {steps_of(client, job)[-1] for job in JOBS} == {("e1", "close")}
    assert all(value(client, keys.owner(job)).startswith(b"||") for job in JOBS)
    assert not client.redis.exists(keys.lease("e1"))


def test_what_is_made_gets_spec_and_claim(tidelog_server: Server, client: Client) -> None:
    made: list[tuple[JobSpec, Claim]] = []

    def make(spec: JobSpec, claim: Claim) -> Runner:
        made.append((spec, claim))
        raise JobError("not here")

    async def go() -> None:
        it: Supervisor = supervisor(tidelog_server.url, "e1", LEASE, make=make)
        task = asyncio.create_task(it.run())
        await soon(lambda: made)
        it.stop()
        await task

    add(client, "job")
    asyncio.run(go())
    assert made[0][0].name == "job"
    assert made[0][1].key == keys.owner("job")
