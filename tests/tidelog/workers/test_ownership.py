"""Ownership in workers of one process, on a real server: who is told what, when members join, leave, stall and die."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.replication.proxy import Proxy
from tests.tidelog.workers.ownerkit import PARTITIONS, Notes, Worker, shared
from tests.waiting import until
from tidelog.testing import Server, free_port
from tidelog.workers import keys


async def workers(server: Server, number: int, **options: object) -> list[Worker]:
    made = [Worker(server.url, f"w{at}", **options) for at in range(number)]  # type: ignore[arg-type]
    await asyncio.gather(*[worker.start() for worker in made])
    return made


async def stop(*made: Worker) -> None:
    await asyncio.gather(*[worker.stop() for worker in made])


def test_workers_share_partitions(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 3)
        await until(lambda: shared(made))
        joined = await Worker(tidelog_server.url, "w3").start()
        before = {worker.name: worker.owned for worker in made}
        await until(lambda: shared([*made, joined]))
        assert all(worker.owned <= before[worker.name] for worker in made)  # nothing moved but to the new one
        await stop(*made, joined)
        with tidelog_server.client() as client:
            assert not list(client.redis.scan_iter("app:shop:lease:*"))

    asyncio.run(story())


def test_together_they_are_assigned_once(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 4, debounce=2.0)
        await until(lambda: shared(made))
        assert sum(len(worker.notes.told) for worker in made) == PARTITIONS  # nothing was acquired and given away again
        await stop(*made)

    asyncio.run(story())


def test_leaving_hands_over_at_once(tidelog_server: Server) -> None:
    """Not after a lease, nor after a look that was due: the lease is long."""

    async def story() -> None:
        made = await workers(tidelog_server, 3, ttl=60.0)
        await until(lambda: shared(made))
        began = time.monotonic()
        releasing = asyncio.create_task(made[0].stop())
        await until(lambda: shared(made[1:]))
        await releasing
        print(f"handed over in {time.monotonic() - began:.3f} s")
        assert time.monotonic() - began < 20
        assert {what for what, _ in made[0].notes.told} == {"acquired", "released"}
        await stop(*made[1:])

    asyncio.run(story())


def test_nobody_begins_before_the_former_owner_is_through(tidelog_server: Server) -> None:
    async def story() -> None:
        one = await Worker(tidelog_server.url, "w0", notes=Notes(slow=1.0)).start()
        await until(lambda: len(one.owned) == PARTITIONS)
        other = await Worker(tidelog_server.url, "w1").start()
        while not shared([one, other]):
            assert one.notes.owned.keys().isdisjoint(other.notes.owned)
            await asyncio.sleep(0.005)
        await stop(one, other)

    asyncio.run(story())


def test_a_lost_lease_drops_everything_and_the_worker_rejoins(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 2, ttl=2.0)
        await until(lambda: shared(made))
        before = made[0].lease.epoch
        with tidelog_server.client() as client:
            client.redis.set(keys.lease("shop", "w0"), "somebody", px=3000)
        await until(lambda: not made[0].notes.owned)
        assert {what for what, _ in made[0].notes.told} == {"acquired", "lost"}
        await until(lambda: shared(made))
        assert made[0].lease.epoch > before
        await stop(*made)

    asyncio.run(story())


def test_claims_that_somebody_else_has(tidelog_server: Server) -> None:
    """What a transaction found out: the listener says so, and the claim is looked at again."""

    async def story() -> None:
        (one,) = await workers(tidelog_server, 1)
        await until(lambda: len(one.owned) == PARTITIONS)
        first = one.notes.owned[3]
        with tidelog_server.client() as client:
            client.redis.set(keys.owner("shop", "bill", 3), "||99999")
        one.ownerships[0].hint(doubt=True)
        await until(lambda: one.notes.owned.get(3, first) is not first)
        assert not first.held
        assert one.notes.told[-2:] == [("lost", 3), ("acquired", 3)]
        await stop(one)

    asyncio.run(story())


def test_a_listener_that_fails(tidelog_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        notes = Notes()
        notes.fails = 2
        notes.lost = lambda partition: notes.told.append(("lost", partition))  # type: ignore[method-assign]
        (one,) = await workers(tidelog_server, 1, notes=notes)
        await until(lambda: len(one.owned) == PARTITIONS)
        assert [what for what, _ in notes.told].count("lost") == 2
        await stop(one)

    asyncio.run(story())
    assert "could not be started" in caplog.text


def test_a_server_that_is_killed_and_comes_back(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 3, ttl=30.0)
        await until(lambda: shared(made))
        before = {worker.name: dict(worker.notes.owned) for worker in made}
        tidelog_server.kill()
        tidelog_server.start()
        joined = await Worker(tidelog_server.url, "w3").start()
        await until(lambda: shared([*made, joined]))
        assert all(before[worker.name][at] is claim for worker in made for at, claim in worker.notes.owned.items())
        await stop(*made, joined)

    asyncio.run(story())


def test_a_server_that_is_away_for_longer_than_the_lease(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 2, ttl=2.0)
        await until(lambda: shared(made))
        tidelog_server.kill()
        await until(lambda: not any(worker.notes.owned for worker in made))  # told although no server answers
        tidelog_server.start()
        await until(lambda: shared(made))
        await stop(*made)

    asyncio.run(story())


def test_stopping_without_a_server(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 2, ttl=2.0)
        await until(lambda: shared(made))
        tidelog_server.kill()
        await asyncio.wait_for(stop(*made), 30)
        assert not any(worker.notes.owned for worker in made)

    asyncio.run(story())


@pytest.mark.parametrize("key", ["app:shop:members:bill", "app:shop:owner:bill:0"])
def test_stopping_where_the_server_refuses(tidelog_server: Server, key: str) -> None:
    """The lease is kept meanwhile, so its end doesn't come."""

    async def story() -> None:
        made = await workers(tidelog_server, 1, ttl=1.0)
        await until(lambda: shared(made))
        with tidelog_server.client() as client:
            client.redis.delete(key)
            client.tappend(key, {"a": "b"})
        await asyncio.wait_for(stop(*made), 30)
        assert not any(worker.notes.owned for worker in made)

    asyncio.run(story())


def test_a_worker_that_is_cut_off(tidelog_server: Server) -> None:
    """Its packets vanish: it drops what it has before the other takes it, and comes back."""

    async def story() -> None:
        with Proxy(free_port(), tidelog_server.port) as proxy:
            one = await Worker(tidelog_server.url, "w0", 3.0, proxied=f"redis://127.0.0.1:{proxy.port}").start()
            other = await Worker(tidelog_server.url, "w1", 3.0).start()
            await until(lambda: shared([one, other]))
            proxy.up.hold()
            while len(other.owned) < PARTITIONS:
                assert one.owned.isdisjoint(other.owned)
                await asyncio.sleep(0.002)
            assert not one.notes.owned
            proxy.up.release()
            await until(lambda: shared([one, other]))
            await stop(one, other)

    asyncio.run(story())


def test_a_storm_of_joins_and_leaves(tidelog_server: Server) -> None:
    async def story() -> None:
        chance = random.Random(7)
        there: list[Worker] = []
        going: list[asyncio.Task[None]] = []
        for number in range(40):
            if len(there) > 2 and chance.random() < 0.45:
                going.append(asyncio.create_task(there.pop(chance.randrange(len(there))).stop()))
            else:
                notes = Notes(slow=chance.choice([0.0, 0.05]))
                there.append(await Worker(tidelog_server.url, f"w{number}", notes=notes, debounce=0.1).start())
            await asyncio.sleep(chance.choice([0.0, 0.05, 0.15]))
            held = [at for worker in there for at in worker.owned]
            assert len(held) == len(set(held))
        await asyncio.gather(*going)
        await until(lambda: shared(there))
        await stop(*there)

    asyncio.run(story())


def test_several_processors_of_a_worker(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 2, processors=("bill", "index"), partitions=1)
        with tidelog_server.client() as client:
            await until(lambda: client.redis.exists(keys.owner("shop", "bill", 0), keys.owner("shop", "index", 0)) == 2)
        await stop(*made)

    asyncio.run(story())


def test_one_leads(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 3, ttl=60.0)
        await until(lambda: any(worker.leadership.leading for worker in made))
        (leader,) = [worker for worker in made if worker.leadership.leading]
        others = [worker for worker in made if worker is not leader]
        assert leader.led == ["gained True"]
        first = leader.leadership.claim
        assert first is not None
        await leader.stop()  # hands over at once: the lease is long
        await until(lambda: any(worker.leadership.leading for worker in others))
        assert leader.led == ["gained True", "lost"]
        (second,) = [worker.leadership.claim for worker in others if worker.leadership.claim]
        assert second.epoch > first.epoch
        await stop(*others)

    asyncio.run(story())


def test_a_leader_that_loses_its_lease(tidelog_server: Server) -> None:
    async def story() -> None:
        made = await workers(tidelog_server, 2, ttl=2.0)
        await until(lambda: any(worker.leadership.leading for worker in made))
        (leader,) = [worker for worker in made if worker.leadership.leading]
        (other,) = [worker for worker in made if worker is not leader]
        with tidelog_server.client() as client:
            client.redis.set(keys.lease("shop", leader.name), "somebody", px=4000)
        await until(lambda: other.leadership.leading and leader.led == ["gained True", "lost"])
        await stop(*made)

    asyncio.run(story())


def test_idle_workers_ask_little(tidelog_server: Server) -> None:
    """At most 4 commands a second for four workers with a lease of 10 s, so 40 a lease."""
    ttl, leases = 4.0, 2

    async def story() -> None:
        made = await workers(tidelog_server, 4, ttl=ttl)
        await until(lambda: shared(made) and sum(worker.leadership.leading for worker in made) == 1)
        await asyncio.sleep(ttl)  # hints that are still on their way
        with tidelog_server.client() as client:
            before = client.redis.info("stats")["total_commands_processed"]
            await asyncio.sleep(ttl * leases)
            sent = client.redis.info("stats")["total_commands_processed"] - before
        print(f"{sent} commands in {leases} leases")
        assert sent <= 40 * leases
        await stop(*made)

    asyncio.run(story())
