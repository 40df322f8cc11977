"""The requests to the coordinator while nothing changes grow with the number of members, and not faster."""

from __future__ import annotations

import pytest

from coordinator import slotmap
from tests.simulation.coordinatorload import COUNTED, large_map, reply_of, requests
from tidelog.transport.slots import MemberAddress, SlotOwners, slot_of

pytestmark = pytest.mark.interpreted


def test_requests_while_nothing_changes() -> None:
    """Each member renews its lease once per second, and then reads two keys."""
    one, two = requests(1, 2), requests(2, 2)
    for counted, members in ((one, 2), (two, 4)):
        assert counted["compare-and-set"] == 0
        assert 0.5 * members < counted.total() / COUNTED <= 3.5 * members


def test_a_map_with_the_partitions_of_a_large_topic() -> None:
    made = large_map(64, 3, 1024)
    assert slotmap.decode(made.encode()) == made
    owners = SlotOwners(reply_of(made), MemberAddress("10.0.1.1", 6379))
    assert owners.complete
    assert owners.owner(slot_of("orders:70")) == MemberAddress("10.0.7.1", 6379)
