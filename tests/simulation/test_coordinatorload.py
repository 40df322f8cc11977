"""The requests to the coordinator while nothing changes grow with the number of members, and not faster."""

from __future__ import annotations

import pytest

from coordinator import slotmap
from tests.simulation.coordinatorload import COUNTED, large_map, reply_of, requests
from tidelog.transport.slots import MemberAddress, SlotOwners, slot_of

pytestmark = pytest.mark.interpreted


def test_requests_while_nothing_changes() -> None:
    """A leader renews its lease three times per lease, other members once in three leases, and reads are rare.

    64 groups of 3 may send 64 requests per second, 5 of which open watches of etcd again: 0.92 remain for each group.
    """
    for groups, members, most in ((1, 2, 0.8), (2, 3, 0.92), (3, 1, 0.65)):
        counted = requests(groups, members)
        assert counted["compare-and-set"] == 0
        assert 0.6 * groups - 0.1 < counted.total() / COUNTED <= most * groups


def test_a_map_with_the_partitions_of_a_large_topic() -> None:
    made = large_map(64, 3, 1024)
    assert slotmap.decode(made.encode()) == made
    owners = SlotOwners(reply_of(made), MemberAddress("10.0.1.1", 6379))
    assert owners.complete
    assert owners.owner(slot_of("orders:70")) == MemberAddress("10.0.7.1", 6379)
