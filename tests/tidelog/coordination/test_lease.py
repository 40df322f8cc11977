"""Leases on a real server: who holds one, until when, and what a lost reply does."""

from __future__ import annotations

import pytest
import redis

from tests.tidelog.coordination.leasekit import Hands, lease_of, losing
from tests.waiting import eventually
from tidelog.client.client import Client
from tidelog.client.steps import run
from tidelog.coordination import Lease


def test_one_owner_at_a_time(client: Client) -> None:
    one, other = Lease("k", "one", 30, "epoch"), Lease("k", "other", 30, "epoch")
    assert run(client, one.acquire())
    assert not run(client, other.acquire())
    assert (one.held, other.held) == (True, False)
    assert client.redis.get("k") == one.value == b"one:1"
    assert 0 < client.redis.pttl("k") <= 30_000
    assert run(client, one.release())
    assert not one.held
    assert run(client, other.acquire())
    assert other.epoch == 2  # its first attempt had counted
    assert not run(client, one.release())  # what is another's stays
    assert client.redis.get("k") == b"other:2"


def test_epochs_grow_over_all_leases(client: Client) -> None:
    epochs = []
    for number in range(10):
        lease = lease_of(f"w{number % 3}")
        assert run(client, lease.acquire())
        epochs.append(lease.epoch)
        run(client, lease.release())
    assert epochs == sorted(set(epochs))


def test_held_ends_before_the_key_does(client: Client) -> None:
    clock = Hands()
    lease = lease_of("w", 10, clock=clock)
    assert lease.margin == 1
    run(client, lease.acquire())
    clock.now += 8.9
    assert lease.held
    clock.now += 0.2
    assert not lease.held
    assert client.redis.get("lease:w") == lease.value


def test_the_margin_has_a_least(client: Client) -> None:
    assert lease_of("w", 0.2).margin == 0.05


def test_time_is_counted_from_before_the_request(client: Client) -> None:
    """A reply that takes long shortens what is held."""
    clock = Hands()
    lease = lease_of("w", 10, clock=clock)
    run(client, lease.acquire())

    steps = lease.renew()
    calls = next(steps)
    replies = client.together(*calls)
    clock.now += 5
    with pytest.raises(StopIteration) as end:
        steps.send(replies)
    assert end.value.value is True
    clock.now += 3.9
    assert lease.held
    clock.now += 0.2
    assert not lease.held


def test_a_renewal_that_comes_too_late_counts_for_nothing(client: Client) -> None:
    clock = Hands()
    lease = lease_of("w", 10, clock=clock)
    run(client, lease.acquire())
    steps = lease.renew()
    replies = client.together(*next(steps))
    clock.now += 9.5  # the server has prolonged it, but there was a moment when it was not held
    with pytest.raises(StopIteration) as end:
        steps.send(replies)
    assert end.value.value is False
    assert not lease.held
    assert run(client, lease.acquire())  # the key is its own: no need to wait
    assert (lease.epoch, lease.held) == (2, True)


def test_a_lapsed_lease_sends_no_renewal(client: Client) -> None:
    clock = Hands()
    lease = lease_of("w", 10, clock=clock)
    run(client, lease.acquire())
    clock.now += 10
    with pytest.raises(StopIteration):
        next(lease.renew())


@pytest.mark.parametrize("what", ["another's", "gone"])
def test_a_renewal_finds_the_lease_lost(client: Client, what: str) -> None:
    lease = lease_of("w")
    run(client, lease.acquire())
    if what == "gone":
        client.redis.delete("lease:w")
    else:
        client.redis.set("lease:w", "w:99")
    assert not run(client, lease.renew())
    assert not lease.held
    assert client.redis.get("lease:w") == (None if what == "gone" else b"w:99")


@pytest.mark.parametrize("at", [0, 1])
def test_acquiring_again_after_a_lost_reply(client: Client, at: int) -> None:
    lease = lease_of("w")
    with pytest.raises(redis.ConnectionError):
        losing(client, lease.acquire(), at)
    assert not lease.held
    assert run(client, lease.acquire())
    assert client.redis.get("lease:w") == lease.value
    assert client.redis.get("epoch") == b"%d" % lease.epoch == b"%d" % (2 - at)


def test_a_lost_reply_to_a_renewal_leaves_the_old_time(client: Client) -> None:
    clock = Hands()
    lease = lease_of("w", 10, clock=clock)
    run(client, lease.acquire())
    clock.now += 4
    with pytest.raises(redis.ConnectionError):
        losing(client, lease.renew(), 0)
    assert lease.held
    clock.now += 5.1
    assert not lease.held


def test_a_lost_reply_to_a_release(client: Client) -> None:
    lease = lease_of("w")
    run(client, lease.acquire())
    with pytest.raises(redis.ConnectionError):
        losing(client, lease.release(), 0)
    assert not lease.held
    assert not run(client, lease.release())


def test_a_release_after_a_lost_acquisition_leaves_nothing(client: Client) -> None:
    lease = lease_of("w")
    with pytest.raises(redis.ConnectionError):
        losing(client, lease.acquire(), 1)
    assert client.redis.exists("lease:w")
    assert run(client, lease.release())
    assert not client.redis.exists("lease:w")


def test_the_server_lets_it_end(client: Client) -> None:
    lease, other = Lease("k", "one", 0.3, "epoch"), Lease("k", "other", 30, "epoch")
    run(client, lease.acquire())
    eventually(lambda: run(client, other.acquire()))
    assert not lease.held  # whenever the server gives it to another


def test_it_is_renewed_while_the_server_refuses_data(client: Client) -> None:
    lease = lease_of("w", 30)
    run(client, lease.acquire())
    client.redis.pexpire("lease:w", 5000)
    client.redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.OutOfMemoryError):
            client.redis.set("x", "y")
        assert run(client, lease.renew())
        assert client.redis.pttl("lease:w") > 20_000
        client.redis.delete("lease:w")
        assert not run(client, lease.renew())
    finally:
        client.redis.config_set("maxmemory", 0)


def test_listeners(client: Client) -> None:
    lease, seen = lease_of("w"), []
    unwatch = lease.watch(lambda: seen.append(lease.held))
    run(client, lease.acquire())
    run(client, lease.renew())
    run(client, lease.acquire())
    run(client, lease.release())
    lease.end()
    assert seen == [True, False]
    unwatch()
    run(client, lease.acquire())
    assert seen == [True, False]


@pytest.mark.parametrize(("owner", "ttl"), [("a|b", 10), ("", 10), ("a", 0.1), ("a", float("nan"))])
def test_what_no_lease_can_be(owner: str, ttl: float) -> None:
    with pytest.raises(ValueError):
        Lease("k", owner, ttl, "epoch")
