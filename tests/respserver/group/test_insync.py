"""The in-sync set of a leader: nothing is released that a member of the set may lack, and nothing waits for ever."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from respserver.group import document
from respserver.group.document import ServerGroupState
from respserver.server import RespServer
from tests.respserver.group.fakes import Server, group, record


def leader(min_in_sync: int = 2, in_sync: tuple[str, ...] = ("L", "A")) -> Server:
    """Return the leader L of the group L, A, X at version 7 of the state, with a log of 1000 bytes."""
    server = Server("L", min_in_sync)
    server.written(1000)
    server.in_sync.begin(group("L", "A", "X", in_sync=in_sync, least=min_in_sync), "L", 7)
    return server


def test_a_change_that_may_still_happen_counts_after_a_silence() -> None:
    server = leader()
    server.in_sync.heard(server.feed("A", 1000))
    server.in_sync.sending(("L", "A", "X"), "L", 7)
    server.in_sync.silence()
    server.in_sync.begin(group("L", "A", "X", in_sync=("L", "A")), "L", 7)
    assert server.in_sync.confirmed() == 0
    server.in_sync.adopt(group("L", "A", "X", in_sync=("L", "A")), "L", 8)
    assert server.in_sync.confirmed() == 1000


def test_what_a_leader_alone_releases_is_what_a_member_needs_to_join() -> None:
    server = leader(min_in_sync=1, in_sync=("L",))
    server.written(500_000)
    assert server.in_sync.confirmed() == 500_000  # what depends on it is released
    server.in_sync.heard(server.feed("A", 2000))
    assert server.in_sync.wanted("L")[0] == {"L"}


def test_a_lost_change_is_replaced_after_its_member_was_lost() -> None:
    server = leader()
    a = server.feed("A", 1000)
    server.in_sync.heard(a)
    x = server.feed("X", 1000)
    server.in_sync.heard(x)
    server.in_sync.sending(("L", "A", "X"), "L", 7)
    server.disconnect(x)
    server.in_sync.adopt(group("L", "A", "X", in_sync=("L", "A")), "L", 7)
    server.written(2000)
    a.on_disk = 2000
    server.in_sync.heard(a)
    assert server.in_sync.confirmed() == 1000
    assert server.in_sync.must_change("L")
    server.in_sync.adopt(group("L", "A", "X", in_sync=("L", "A")), "L", 8)
    assert server.in_sync.confirmed() == 2000
    assert not server.in_sync.must_change("L")


def test_replies_that_wait_for_the_disk_wait_for_a_member_to_return() -> None:
    server = leader()
    a = server.feed("A", 1000)
    server.in_sync.heard(a)
    server.ticks.waiting = True  # but none is withheld yet
    server.disconnect(a)
    server.in_sync.adopt(group("L", "A", "X", in_sync=("L",)), "L", 8)
    server.written(2000)
    server.in_sync.recount()
    assert server.in_sync.confirmed() == 1000
    server.mono += server.config.in_sync_timeout
    server.in_sync.on_time()
    assert len(server.ticks.cut) == 1


def test_a_silent_leader_copies_to_no_member_of_the_set() -> None:
    server = leader()
    server.in_sync.silence()
    assert not server.in_sync.may_copy("A")
    assert server.in_sync.may_copy("X")
    server.data.follower = True
    assert server.in_sync.may_copy("A")


def test_a_member_with_another_directory_does_not_count() -> None:
    server = leader()
    server.in_sync.heard(server.feed("A", 1000, directory=1))
    server.in_sync.heard(server.feed("X", 1000, directory=1))
    assert server.in_sync.confirmed() == 0
    assert server.in_sync.feed("A") is None
    assert server.in_sync.wanted("L")[0] == {"L", "A"}


def test_a_member_that_connects_before_its_leader_knows_it_counts_once_it_does() -> None:
    server = leader()
    server.in_sync.heard(server.feed("A", 1000))
    server.in_sync.heard(server.feed("N", 1000))
    assert server.in_sync.wanted("L")[0] == {"L", "A"}
    server.in_sync.adopt(group("L", "A", "X", "N", in_sync=("L", "A")), "L", 8)
    assert server.in_sync.wanted("L")[0] == {"L", "A", "N"}


def test_a_member_that_stalls_while_it_joins_counts_for_a_moment_only() -> None:
    server = leader()
    a = server.feed("A", 1000)
    server.in_sync.heard(a)
    server.written(3000)
    a.on_disk = 3000
    server.in_sync.heard(a)
    x = server.feed("X", 2000)
    for waits in (500, 1000, 2000):
        server.in_sync.heard(x)
        server.written(server.disk.offset + 1000)
        a.on_disk = server.disk.offset
        server.in_sync.heard(a)
        assert server.in_sync.confirmed() == a.on_disk - 1000
        server.mono += 500
        server.in_sync.on_time()
        assert server.in_sync.confirmed() == a.on_disk
        x.on_disk += 10
        server.mono += waits - 1
        server.in_sync.heard(x)  # it waits longer each time
        assert "X" not in server.in_sync._joining
        server.mono += 1


@pytest.mark.interpreted  # a compiled method accepts no mock
def test_min_in_sync_takes_effect_at_once() -> None:
    server = leader()
    whole: Any = MagicMock()
    whole.membership.in_sync = server.in_sync
    server.config.min_in_sync = 3
    RespServer.configure(whole)  # called by CONFIG SET
    assert server.replicas.too_few_in_sync


def with_other(least: int, in_sync: tuple[str, ...] = ("L", "A")) -> ServerGroupState:
    """Return the group of ``leader()`` after a change of the settings of X."""
    return document.join(group("L", "A", "X", in_sync=in_sync), "X", record("X", least=least), 9)


def test_the_strictest_setting_of_all_members_counts() -> None:
    server = leader()
    server.in_sync.adopt(with_other(3), "L", 8)
    assert server.in_sync.least == 3
    assert server.replicas.too_few_in_sync
    server.in_sync.adopt(with_other(1), "L", 9)
    assert server.in_sync.least == 2
    assert not server.replicas.too_few_in_sync


def test_replies_wait_if_any_member_requires_it() -> None:
    server = leader()
    server.config.replica_acks = 0
    state = group("L", "A", "X", in_sync=("L", "A"), least=0)
    server.in_sync.begin(state, "L", 7)
    assert (server.in_sync.least, server.in_sync.each(), server.syncs) == (0, False, False)
    assert server.in_sync.confirmed() == 1000
    asked = server.asked
    server.in_sync.adopt(with_other(1), "L", 8)
    assert (server.in_sync.each(), server.syncs) == (True, True)
    assert server.asked > asked  # the replicas are notified that they acknowledge each tick
    server.written(2000)
    assert server.in_sync.confirmed() == 0
    server.in_sync.heard(server.feed("A", 2000))
    assert server.in_sync.confirmed() == 2000


def test_a_follower_withholds_if_any_member_requires_it() -> None:
    server = Server("X")
    server.data.follower, server.config.replica_acks = True, 0
    server.in_sync.configure()
    assert (server.in_sync.needed(), server.in_sync.each()) == (True, True)  # the state has not been read
    server.in_sync.learn(group("L", "A", "X", least=0))
    assert (server.in_sync.needed(), server.in_sync.each()) == (False, False)
    server.link.withholds = lambda required: False  # as sent by a leader that has not read the last state
    server.in_sync.learn(with_other(1))
    assert (server.in_sync.needed(), server.in_sync.each()) == (True, True)
