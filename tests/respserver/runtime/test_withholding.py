"""Withheld replies of many clients: released and cut without a long turn of the event loop."""

from __future__ import annotations

import pytest

from respserver.runtime.confirmation import Confirmation
from respserver.runtime.ticks import FLUSH_AT_ONCE
from tests.respserver.local import LocalServer, Peer

MANY = 2 * FLUSH_AT_ONCE + 10


class Hand(Confirmation):
    """What the test says."""

    def __init__(self) -> None:
        self.offset, self.wanted = -1, True

    def needed(self) -> bool:
        return self.wanted

    def confirmed(self) -> int:
        return self.offset


@pytest.fixture
def hand(local: LocalServer) -> Hand:
    hand = local.server.ticks.confirmation = Hand()
    local.server.timings.confirm(True)
    local.server.ticks.confirmed_changed()
    return hand


def withheld(local: LocalServer) -> list[Peer]:
    """Each peer has two withheld replies, of two ticks."""
    peers = [local.connect() for _ in range(MANY)]
    for _ in range(2):
        for peer in peers:
            peer.send("INCR", f"n{peer.session.id}")
        local.settle()
    assert local.server.ticks.withheld() == (MANY, 8 * MANY)
    local.events.clear()
    return peers


def confirm(local: LocalServer, hand: Hand, how: str) -> None:
    hand.offset = local.server.data.disk.offset if how == "confirmed" else -1
    hand.wanted = how == "confirmed"
    for _ in range(5):  # as after several acknowledgements
        local.server.ticks.confirmed_changed()


@pytest.mark.parametrize("how", ["confirmed", "not needed any more"])
def test_many_clients_are_released_in_several_turns(local: LocalServer, hand: Hand, how: str) -> None:
    peers = withheld(local)
    confirm(local, hand, how)
    for _ in range(MANY):
        assert len(local.events) <= FLUSH_AT_ONCE
        local.events.clear()
        if local.server.ticks.withheld_since() is None:
            break
        local.turn()
    assert [peer.taken() for peer in peers] == [b":1\r\n:2\r\n"] * MANY
    assert local.server.ticks.confirming == hand.wanted
    assert peers[0].ask("PING") == b"+PONG\r\n"


@pytest.mark.parametrize("how", ["confirmed", "not needed any more"])
def test_replies_of_a_client_keep_their_order_during_a_release(local: LocalServer, hand: Hand, how: str) -> None:
    peers = withheld(local)
    confirm(local, hand, how)
    assert peers[-1].taken() == b""
    peers[-1].send("SET", "large", "x" * 100_000)
    peers[-1].send("GET", "large")
    local.turn()
    hand.offset = local.server.data.disk.offset
    local.server.ticks.confirmed_changed()
    local.settle()
    assert peers[-1].taken().startswith(b":1\r\n:2\r\n+OK\r\n$100000\r\nxx")
    assert [peer.taken() for peer in peers[:-1]] == [b":1\r\n:2\r\n"] * (MANY - 1)
    assert local.server.ticks.withheld() == (0, 0)


def test_a_read_during_a_release_takes_the_withheld_replies_with_it(local: LocalServer, hand: Hand) -> None:
    peers = withheld(local)
    confirm(local, hand, "confirmed")
    peers[-1].send("GET", "k")
    local.turn()
    assert peers[-1].taken() == b":1\r\n:2\r\n$-1\r\n"
    assert peers[-1].conn.withheld_bytes() == -1
    hand.offset = -1
    assert peers[-1].ask("GET", "k") == b""
    confirm(local, hand, "confirmed")
    local.settle()
    assert peers[-1].taken() == b"$-1\r\n"


def test_a_confirmation_that_is_withdrawn_during_a_release(local: LocalServer, hand: Hand) -> None:
    """The lease has ended."""
    peers = withheld(local)
    confirm(local, hand, "confirmed")
    hand.offset = -1
    local.settle()
    assert [peer.taken() for peer in peers[FLUSH_AT_ONCE:]] == [b""] * (MANY - FLUSH_AT_ONCE)
    local.server.ticks.cut_withheld("the test says so")
    local.settle()
    assert all(peer.wire.aborted for peer in peers[FLUSH_AT_ONCE:])
    assert not any(peer.wire.aborted for peer in peers[:FLUSH_AT_ONCE])


def test_a_stop_releases_everything(local: LocalServer, hand: Hand) -> None:
    peers = withheld(local)
    confirm(local, hand, "confirmed")
    local.server.ticks.run_whole()
    assert [peer.taken() for peer in peers] == [b":1\r\n:2\r\n"] * MANY


def test_a_cut_is_one_line(local: LocalServer, hand: Hand) -> None:
    peers = withheld(local)
    local.server.ticks.cut_withheld("the test says so")
    local.settle()
    assert all(peer.wire.aborted for peer in peers)
    assert local.log().count("the test says so") == 1
    assert f"{MANY} clients closed: the test says so" in local.log()
