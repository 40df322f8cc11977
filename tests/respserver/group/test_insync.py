"""The in-sync set of a leader: nothing is released that a member of the set may lack, and nothing waits for ever."""

from __future__ import annotations

from tests.respserver.group.fakes import Server, group


def leader(min_in_sync: int = 2, in_sync: tuple[str, ...] = ("L", "A")) -> Server:
    """Return the leader L of the group L, A, X at version 7 of the state, with a log of 1000 bytes."""
    server = Server("L", min_in_sync)
    server.written(1000)
    server.in_sync.begin(group("L", "A", "X", in_sync=in_sync), "L", 7)
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
