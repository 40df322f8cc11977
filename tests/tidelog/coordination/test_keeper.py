"""The keeper's thread, with real processes that are stopped, killed and kept busy, and servers that die."""

from __future__ import annotations

import os
import signal

import pytest

from tests.replication.proxy import Proxy
from tests.tidelog.coordination.leasekit import holder, lease_of
from tests.waiting import eventually
from tidelog.client.client import Client
from tidelog.client.steps import Steps, run
from tidelog.coordination import Keeper
from tidelog.coordination.claims import take
from tidelog.testing import Server, free_port
from tidelog.transport.access import Access

TTL = 2.0  # two busy cores keep a thread waiting for tenths of a second


def access(server: Server) -> Access:
    return Access((server.url,))


def test_it_is_kept_and_released(tidelog_server: Server, client: Client) -> None:
    lease = lease_of("w", TTL)
    with Keeper(access(tidelog_server), lease) as keeper:
        assert keeper.wait(30)
        first = lease.tenure.until
        eventually(lambda: lease.tenure.until > first + TTL)
        assert lease.held
        assert lease.epoch == 1
    assert not lease.held
    assert not client.redis.exists("lease:w")


def test_what_it_costs(tidelog_server: Server, client: Client) -> None:
    lease = lease_of("w", TTL)

    def renewals() -> int:
        return int(client.redis.info("commandstats").get("cmdstat_set", {"calls": 0})["calls"])

    with Keeper(access(tidelog_server), lease) as keeper:
        assert keeper.wait(30)
        before, first = renewals(), lease.tenure.until
        eventually(lambda: lease.tenure.until > first + TTL)
        assert renewals() - before <= 3 * (lease.tenure.until - first) / TTL + 1


def test_an_unexpected_error_does_not_end_the_renewals(
    tidelog_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    lease = lease_of("w", TTL)
    acquire, errors = lease.acquire, [ValueError("a bug"), ValueError("a bug")]

    def fails() -> Steps[bool]:
        if errors:
            raise errors.pop()
        return acquire()

    lease.acquire = fails  # type: ignore[method-assign]
    with Keeper(access(tidelog_server), lease) as keeper:
        assert keeper.wait(30)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "lease lease:w: unexpected error; trying again"
    ] * 2


def test_a_process_that_computes_keeps_its_lease(tidelog_server: Server) -> None:
    with holder(tidelog_server.url, "w", TTL) as it:
        assert it.asked("burn") == (True, 1, 2)


def test_a_process_that_was_stopped_past_its_lease_holds_nothing(tidelog_server: Server, client: Client) -> None:
    with holder(tidelog_server.url, "w", TTL) as it:
        assert it.asked() == (True, 1, 2)
        os.kill(it.process.pid, signal.SIGSTOP)
        other = lease_of("other")
        run(client, other.acquire())
        eventually(lambda: run(client, take(other, [("claim:0", 0)])).claims)
        it.write("?")  # is there when it wakes, and answered first of all
        os.kill(it.process.pid, signal.SIGCONT)
        assert it.line().split()[0] == "False"
        eventually(lambda: it.asked()[1] > 1)  # the lease is acquired again, as another tenure
        assert it.asked()[0] is False  # which does not revive the claim
        assert run(client, take(other, [("claim:0", 0)])).claims  # its own


def test_a_process_that_was_killed(tidelog_server: Server, client: Client) -> None:
    with holder(tidelog_server.url, "w", TTL) as it:
        os.kill(it.process.pid, signal.SIGKILL)
        other = lease_of("other")
        run(client, other.acquire())
        (seen,) = run(client, take(other, [("claim:0", 0)])).held
        assert (seen.lease, 0 < seen.left <= TTL * 1000) == ("lease:w", True)
        eventually(lambda: run(client, take(other, [("claim:0", 0)])).claims)
        assert not client.redis.exists("lease:w")


def test_a_server_that_is_killed_and_comes_back_in_time(tidelog_server: Server) -> None:
    lease = lease_of("w", 20)
    with Keeper(access(tidelog_server), lease) as keeper:
        assert keeper.wait(30)
        tidelog_server.kill()
        tidelog_server.start()
        first = lease.tenure.until
        eventually(lambda: lease.tenure.until > first)
        assert (lease.held, lease.epoch) == (True, 1)


def test_a_server_that_is_away_for_longer_than_the_lease(tidelog_server: Server, client: Client) -> None:
    lease, changes = lease_of("w", TTL), []
    with Keeper(access(tidelog_server), lease) as keeper:
        assert keeper.wait(30)
        lease.watch(lambda: changes.append((lease.held, lease.epoch)))
        tidelog_server.kill()
        eventually(lambda: not lease.held)
        eventually(lambda: changes == [(False, 1)])  # told although no server answers
        tidelog_server.start()
        assert keeper.wait(30)
    assert changes == [(False, 1), (True, 2), (False, 2)]


def test_a_connection_that_hangs_costs_a_renewal_and_not_the_lease(tidelog_server: Server, client: Client) -> None:
    with Proxy(free_port(), tidelog_server.port) as proxy:
        lease = lease_of("w", 8)
        with Keeper(Access((f"redis://127.0.0.1:{proxy.port}",)), lease) as keeper:
            assert keeper.wait(30)
            first = lease.tenure.until
            proxy.down.swallow(0)  # what the server answers is lost, and the connection stays open
            eventually(lambda: lease.tenure.until > first)
            assert (lease.held, lease.epoch) == (True, 1)


def test_a_name_that_is_used_twice(tidelog_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    one, other = lease_of("w", TTL), lease_of("w", TTL)
    with Keeper(access(tidelog_server), one) as first:
        assert first.wait(30)
        with Keeper(access(tidelog_server), other) as second:
            eventually(lambda: "used twice" in caplog.text)
            assert not second.wait(0)
            first.stop()
            assert second.wait(30)


def test_stopping_without_a_server(tidelog_server: Server) -> None:
    lease = lease_of("w", TTL)
    keeper = Keeper(Access((f"redis://127.0.0.1:{free_port()}",)), lease)
    keeper.start()
    keeper.stop()
    assert not lease.held
