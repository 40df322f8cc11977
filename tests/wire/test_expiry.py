"""The end of keys and groups by time: many at once, and times that are taken back."""

from __future__ import annotations

from collections.abc import Callable

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def test_many_keys_that_expire_at_once(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    c.pipeline(*[("SET", f"k{n}", "v", "PX", 1000) for n in range(20_000)])
    c("SET", "stays", "v")
    hand.advance(3000)
    assert c("DBSIZE") == 1
    assert len(hand.server.data.ks.timers) == 0


def test_expiry_times_that_are_taken_back_leave_no_timer(hand: RunningServer, c: Raw) -> None:
    for n in range(100):
        c.pipeline(("SET", f"lock{n}", "v", "PX", 10**9), ("DEL", f"lock{n}"))
        c.pipeline(("SET", "again", "v", "PX", 10**9), ("SET", "again", "v"))
        c.pipeline(("PEXPIRE", "again", 10**9), ("PERSIST", "again"))
        c.pipeline(("TREAD", f"s{n}", "", 0, "GROUP", "g", 10**9), ("DEL", f"s{n}"))
        c.pipeline(("TREAD", f"s{n}", "", 0, "GROUP", "g", 10**9), ("TGROUP", "DESTROY", f"s{n}", "g"))
    assert len(hand.server.data.ks.timers) == 0
