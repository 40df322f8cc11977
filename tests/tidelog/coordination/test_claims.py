"""Claims on a real server: one holder, growing epochs, nothing gained or lost by a lost reply."""

from __future__ import annotations

import pytest
import redis

from tests.tidelog.coordination.leasekit import lease_of, losing
from tests.waiting import eventually
from tidelog.client import calls
from tidelog.client.client import Client
from tidelog.client.steps import run
from tidelog.coordination import Claim, Lease, LeaseLostError
from tidelog.coordination.claims import check, reclaim, release, take

WANTED = [("claim:0", 0), ("claim:1", 1)]


def acquired(client: Client, owner: str, ttl: float = 30) -> Lease:
    lease = lease_of(owner, ttl)
    assert run(client, lease.acquire())
    return lease


def taken(client: Client, lease: Lease, key: str = "claim:0") -> Claim:
    (claim,) = run(client, take(lease, [(key, 0)])).claims
    return claim


def test_one_holder_at_a_time(client: Client) -> None:
    one, other = acquired(client, "one"), acquired(client, "other")
    first = run(client, take(one, WANTED))
    assert [claim.partition for claim in first.claims] == [0, 1]
    assert all(claim.held for claim in first.claims)
    assert client.redis.get("claim:0") == b"lease:one|one:1|3"
    found = run(client, take(other, WANTED))
    assert found.claims == []
    assert [(holder.partition, holder.lease) for holder in found.held] == [(0, "lease:one"), (1, "lease:one")]
    assert all(0 < holder.left <= 30_000 for holder in found.held)


def test_claims_end_with_their_lease(client: Client) -> None:
    one, other = acquired(client, "one"), acquired(client, "other")
    claim = taken(client, one)
    run(client, one.release())
    assert not claim.held
    assert taken(client, other).epoch > claim.epoch
    run(client, one.acquire())
    assert not claim.held  # another tenure does not revive it
    assert run(client, take(one, WANTED[:1])).claims == []


def test_a_lease_that_is_not_held_claims_nothing(client: Client) -> None:
    with pytest.raises(LeaseLostError):
        run(client, take(lease_of("w"), WANTED))


def test_released_claims_are_free_and_their_epochs_grow(client: Client) -> None:
    one, other = acquired(client, "one"), acquired(client, "other")
    epochs = []
    for lease in (one, other) * 3:
        claim = taken(client, lease)
        epochs.append(claim.epoch)
        run(client, release([claim], [calls.tappend("control", {"kind": "released"})]))
        assert not claim.held
    assert epochs == sorted(set(epochs))
    assert client.tlen("control") == 6


def test_an_epoch_counted_before_another_claim_does_not_come_after_it(client: Client) -> None:
    """A claim and a release by somebody else between INCR and SET: the swap fails."""
    one, other = acquired(client, "one"), acquired(client, "other")
    steps = take(one, WANTED[:1])
    replies = client.together(*next(steps))  # MGET
    replies = client.together(*steps.send(replies))  # INCRBY
    swap = steps.send(replies)
    between = taken(client, other)
    run(client, release([between]))
    with pytest.raises(StopIteration) as end:
        steps.send(client.together(*swap))
    assert end.value.value.claims == []
    assert [(holder.partition, holder.lease) for holder in end.value.value.held] == [(0, "")]
    assert taken(client, one).epoch > between.epoch


def test_releasing_what_another_has_taken(client: Client) -> None:
    one, other = acquired(client, "one", 0.3), acquired(client, "other")
    claim = taken(client, one)
    eventually(lambda: not client.redis.exists("lease:one"))
    theirs = taken(client, other)
    run(client, release([claim]))
    assert client.redis.get("claim:0") == theirs.value


@pytest.mark.parametrize("at", [0, 1, 2])
def test_taking_again_after_a_lost_reply(client: Client, at: int) -> None:
    one, other = acquired(client, "one"), acquired(client, "other")
    with pytest.raises(redis.ConnectionError):
        losing(client, take(one, WANTED), at)
    assert len(run(client, take(other, WANTED)).claims) == (0 if at == 2 else 2)
    mine = run(client, take(one, WANTED)).claims
    assert len(mine) == (2 if at == 2 else 0)
    for claim in mine:
        assert client.redis.get(claim.key) == claim.value
        assert claim.epoch > 4  # not what the lost attempt wrote


@pytest.mark.parametrize("at", [None, 0, 1])
def test_claiming_again_stops_what_is_under_way(client: Client, at: int | None) -> None:
    lease = acquired(client, "one")
    claim = taken(client, lease)
    with client.redis.pipeline() as pipe:
        pipe.watch("claim:0")
        assert pipe.get("claim:0") == claim.value
        pipe.multi()
        pipe.set("effect", "1")
        if at is not None:
            with pytest.raises(redis.ConnectionError):
                losing(client, reclaim(lease, claim), at)
        before = claim.epoch
        assert run(client, reclaim(lease, claim))
        with pytest.raises(redis.WatchError):
            pipe.execute()
    assert claim.held
    assert claim.epoch > before
    assert client.redis.get("claim:0") == claim.value
    assert not client.redis.exists("effect")


def test_renewing_does_not_touch_claims(client: Client) -> None:
    lease = acquired(client, "one")
    taken(client, lease)
    with client.redis.pipeline() as pipe:
        pipe.watch("claim:0")
        pipe.multi()
        pipe.set("effect", "1")
        assert run(client, lease.renew())
        assert pipe.execute() == [True]


def test_claiming_again_what_another_has(client: Client) -> None:
    one, other = acquired(client, "one"), acquired(client, "other")
    claim = taken(client, one)
    client.redis.delete("lease:one")
    theirs = taken(client, other)
    assert not run(client, reclaim(one, claim))
    assert claim.lost
    assert client.redis.get("claim:0") == theirs.value


def test_claims_are_compared_with_the_server(client: Client) -> None:
    lease = acquired(client, "one")
    claims = run(client, take(lease, WANTED)).claims
    assert run(client, check(claims)) == []
    client.redis.delete("claim:1")
    assert run(client, check(claims)) == [claims[1]]
    assert [claim.held for claim in claims] == [True, False]


@pytest.mark.parametrize("value", [b"mine", b"\xff", b"", b"||", b"a|b|c", b"\xff|w:1|1", b"|||1"])
def test_what_is_no_claim_is_free(client: Client, value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    lease = acquired(client, "one")
    client.redis.set("claim:0", value)
    claims = run(client, take(lease, WANTED)).claims
    assert [claim.key for claim in claims] == [key for key, _ in WANTED]
    assert client.redis.get("claim:0") == claims[0].value
    assert caplog.text.count("'claim:0' can't be read") == 1


def test_a_key_of_another_type_does_not_keep_others_from_being_taken(client: Client) -> None:
    lease = acquired(client, "one")
    client.tappend("claim:0", {"a": "b"})
    found = run(client, take(lease, WANTED))
    assert [claim.key for claim in found.claims] == [key for key, _ in WANTED if key != "claim:0"]
    assert [holder.partition for holder in found.held] == [0]


@pytest.mark.parametrize("value", [b"mine", b"\xff", b"9223372036854775807", b"1.5"])
def test_a_counter_that_holds_no_number_goes_on(client: Client, value: bytes) -> None:
    client.redis.set("epoch", value)
    one = acquired(client, "one")
    claims = run(client, take(one, WANTED)).claims
    epochs = [one.epoch, *(claim.epoch for claim in claims)]
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 1_600_000_000_000
