"""The end of keys and groups by time: many at once, and times that are taken back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from respserver.testing import RunningServer, start_in_thread
from storage.keyspace import expiry
from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def test_many_keys_that_expire_at_once(hand: RunningServer, connect: Connect) -> None:
    c = connect()
    c.pipeline(*[("SET", f"k{n}", "v", "PX", 1000) for n in range(20_000)])
    c("SET", "stays", "v")
    hand.advance(3000)
    assert c("DBSIZE") == 1
    assert len(hand.server.data.ks.timers) == 0


@pytest.mark.interpreted
def test_many_keys_that_expire_at_once_do_not_wait_for_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks are a second apart here: with one step each, this would take minutes."""
    monkeypatch.setattr(expiry, "AT_ONCE", 10)
    with start_in_thread(hz="1") as server, Raw(server.port) as c:
        c.pipeline(*[("SET", f"k{n}", "v", "PX", 1) for n in range(3000)])
        began = time.monotonic()
        while c("DBSIZE"):
            assert time.monotonic() - began < 30


def test_expiry_times_that_are_taken_back_leave_no_timer(hand: RunningServer, c: Raw) -> None:
    for n in range(100):
        c.pipeline(("SET", f"lock{n}", "v", "PX", 10**9), ("DEL", f"lock{n}"))
        c.pipeline(("SET", "again", "v", "PX", 10**9), ("SET", "again", "v"))
        c.pipeline(("PEXPIRE", "again", 10**9), ("PERSIST", "again"))
        c.pipeline(("TREAD", f"s{n}", "", 0, "GROUP", "g", 10**9), ("DEL", f"s{n}"))
        c.pipeline(("TREAD", f"s{n}", "", 0, "GROUP", "g", 10**9), ("TGROUP", "DESTROY", f"s{n}", "g"))
    assert len(hand.server.data.ks.timers) == 0
