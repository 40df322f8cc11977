"""Seats on a real server: what interrupted operations leave behind, and what the document says then."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import redis

from tests.tidelog.coordination.leasekit import Hands, losing
from tidelog.client.client import Client
from tidelog.client.steps import run
from tidelog.coordination import Lease, LeaseLostError
from tidelog.coordination.lease import now
from tidelog.workers import keys
from tidelog.workers.coordination import member_document
from tidelog.workers.coordination.member_document import Member, MemberDocument, MembersError
from tidelog.workers.coordination.membership import RESTARTS, Membership

KEY = keys.members("app", "p")


def membership(
    client: Client, name: str, partitions: int = 4, clock: Hands | None = None, **options: Any
) -> Membership:
    lease = Lease(keys.lease("app", name), name, 30, keys.epochs("app"), clock=clock or now)
    assert run(client, lease.acquire())
    return Membership("app", "p", partitions, lease, **({"debounce": 0} | options))


def owners(client: Client) -> list[str | None]:
    return run(client, member_document.read(KEY)).owners


class TestDocument:
    def test_joining_waits_for_others(self, client: Client) -> None:
        clock = Hands()
        one, other = (membership(client, name, clock=clock, debounce=0.3) for name in ("w1", "w2"))
        first = run(client, one.turn(True))
        assert (first.acquired, 0 < first.after <= 0.3) == ([], True)
        clock.now += 0.2
        run(client, other.turn(True))
        clock.now += 0.2  # the other's time is not over
        assert run(client, one.turn(True)).acquired == []
        assert run(client, member_document.read(KEY)).waiting == ["w1", "w2"]
        clock.now += 0.2
        assert [claim.partition for claim in run(client, other.turn(True)).acquired] == [2, 3]
        assert [claim.partition for claim in run(client, one.turn(True)).acquired] == [0, 1]
        assert owners(client) == ["w1", "w1", "w2", "w2"]

    def test_many_joins_don_t_delay_it_for_ever(self, client: Client) -> None:
        clock = Hands()
        first = membership(client, "w00", clock=clock, debounce=0.3)
        run(client, first.turn(True))
        for number in range(1, RESTARTS):
            clock.now += 0.2
            run(client, membership(client, f"w{number:02}", clock=clock, debounce=0.3).turn(True))
        run(client, first.turn(True))
        assert len({owner for owner in owners(client) if owner}) == 4

    def test_the_last_one_to_join_can_die(self, client: Client) -> None:
        clock = Hands()
        one, other = (membership(client, name, clock=clock, debounce=0.3) for name in ("w1", "w2"))
        run(client, one.turn(True))
        run(client, other.turn(True))
        client.redis.delete(keys.lease("app", "w2"))
        assert len(run(client, one.turn(True)).acquired) == 4
        assert sorted(run(client, member_document.read(KEY)).members) == ["w1"]

    def test_capacity(self, client: Client) -> None:
        one, other = membership(client, "w1"), membership(client, "w2", capacity=3)
        for each in (one, other, one):
            run(client, each.turn(True))
        assert owners(client).count("w2") == 3

    def test_a_topic_that_has_grown(self, client: Client) -> None:
        run(client, membership(client, "w1").turn(True))
        run(client, membership(client, "w2", 8).turn(True))
        assert len(owners(client)) == 8

    def test_joining_again_under_another_epoch_keeps_the_share(self) -> None:
        before = MemberDocument().joined("w1", Member(1)).joined("w2", Member(2)).assigned(4)
        after = before.joined("w1", Member(3))
        assert (after.owners, after.waiting) == (before.owners, [])
        assert after.without({"w1": 1}, 4) is after  # that was the former one
        assert after.joined("w1", Member(3)) is after

    def test_changes_at_the_same_time(self, client: Client) -> None:
        """A change between reading and writing is not lost."""
        steps = member_document.change(KEY, lambda doc: doc.joined("w1", Member(1)))
        replies = client.together(*next(steps))
        run(client, member_document.change(KEY, lambda doc: doc.joined("w2", Member(2))))
        replies = client.together(*steps.send(replies))  # the swap, which fails
        assert replies[0] is not None
        swap = steps.send(replies)
        with pytest.raises(StopIteration):
            steps.send(client.together(*swap))
        assert run(client, member_document.read(KEY)).waiting == ["w2", "w1"]

    def test_a_newer_document(self, client: Client) -> None:
        client.redis.set(KEY, '{"version": 2}')
        with pytest.raises(MembersError, match=KEY):
            run(client, membership(client, "w1").turn(True))
        assert client.redis.get(KEY) == b'{"version": 2}'

    @pytest.mark.parametrize(
        "text",
        [
            b"mine", b"[]", b"{}", b'{"version": 0}', b'{"version": 1, "owners": 3}', b"\xff", b"[" * 100_000,
            b'{"version": 1, "members": {"\\ud800": {"epoch": 1}}}', b'{"version": 1, "waiting": ["a|b"]}',
        ],
    )  # fmt: skip
    def test_what_is_no_document_is_replaced(self, client: Client, text: bytes) -> None:
        client.redis.set(KEY, text)
        one = membership(client, "w1")
        run(client, one.turn(True))
        assert list(run(client, member_document.read(KEY)).members) == ["w1"]

    def test_owners_of_partitions_that_there_are_not(self, client: Client) -> None:
        client.redis.set(KEY, '{"version": 1, "members": {"w1": {"epoch": 1}}, "owners": ["w1", "w1", "w1"]}')
        one = membership(client, "w1", 1)
        run(client, one.turn(True))
        assert list(one.claims) == [0]


class TestSeat:
    def test_an_interrupted_take_is_given_back_if_it_is_another_s_by_then(self, client: Client) -> None:
        one = membership(client, "w1", 1)
        for trip in range(100):
            with suppress(redis.ConnectionError):
                losing(client, one.turn(True), trip)
            if client.redis.exists(keys.owner("app", "p", 0)):  # by a SET whose reply was lost
                break
        assert one.uncertain == {0}
        run(client, member_document.change(KEY, lambda doc: doc.without({"w1": 1}, 1)))
        other = membership(client, "v2", 1)
        run(client, other.turn(True))
        assert owners(client) == ["v2"]
        assert run(client, other.turn(True)).acquired == []  # the lease of w1 lasts
        run(client, one.turn(True))
        assert one.claims == {}
        assert [claim.partition for claim in run(client, other.turn(True)).acquired] == [0]

    def test_moving_a_partition(self, client: Client) -> None:
        one, other = membership(client, "w1"), membership(client, "w2")
        run(client, one.turn(True))
        waits = run(client, other.turn(True))
        assert (waits.acquired, other.claims) == ([], {})
        assert run(client, one.turn(True)).releasing == [2, 3]
        assert run(client, other.turn(True)).acquired == []  # not released yet
        run(client, one.release(2))
        assert [claim.partition for claim in run(client, other.turn(True)).acquired] == [2]
        run(client, one.release(3))
        assert [claim.partition for claim in run(client, other.turn(True)).acquired] == [3]

    def test_a_partition_that_comes_back_while_it_is_given_up(self, client: Client) -> None:
        one = membership(client, "w1", 1)
        run(client, one.turn(True))
        run(client, member_document.change(KEY, lambda doc: doc.joined("a0", Member(9)).without({"w1": 1}, 1)))
        client.redis.set(keys.lease("app", "a0"), "a0:9", px=30_000)
        assert run(client, one.turn(True)).releasing == [0]
        client.redis.delete(keys.lease("app", "a0"))
        assert run(client, one.turn(True)).acquired == []
        assert owners(client) == ["w1"]
        run(client, one.release(0))
        assert [claim.partition for claim in run(client, one.turn(True)).acquired] == [0]

    def test_a_lost_lease(self, client: Client) -> None:
        clock = Hands()
        one = membership(client, "w1", clock=clock)
        run(client, one.turn(True))
        clock.now += 30
        with pytest.raises(LeaseLostError):
            run(client, one.turn(True))
        assert one.drop() == [0, 1, 2, 3]

    def test_claims_that_are_gone_are_taken_again(self, client: Client) -> None:
        one = membership(client, "w1", 2)
        run(client, one.turn(True))
        client.redis.delete(keys.owner("app", "p", 1))
        assert run(client, one.turn(True)).lost == []  # nobody looks without a reason
        again = run(client, one.turn(True, doubt=True))
        assert (again.lost, [claim.partition for claim in again.acquired]) == ([1], [1])

    def test_an_idle_turn_asks_only_about_neighbours_that_can_have_died(self, client: Client) -> None:
        clock = Hands()
        seats = [membership(client, f"w{number}", clock=clock) for number in range(4)]
        for each in (*seats, *seats):
            run(client, each.turn(True))
            for at in sorted(each.releasing):
                run(client, each.release(at))
        for each in seats:
            run(client, each.turn(True))
        steps = seats[0].turn(False)
        with pytest.raises(StopIteration):
            next(steps)
        clock.now += 61
        for each in seats:
            each.lease.tenure.until = clock.now + 30
        asked = next(seats[0].turn(False))
        assert [call.args[0] for call in asked] == ["PTTL", "PTTL"]
