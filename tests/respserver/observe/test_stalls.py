"""The longest stall of the last ten minutes."""

from __future__ import annotations

import random

from respserver.observe.stalls import WINDOW, RecentStalls


def test_stalls_expire() -> None:
    stalls = RecentStalls()
    assert stalls.longest(0.0) == 0.0
    stalls.add(10.0, 3.0)
    stalls.add(100.0, 1.0)
    stalls.add(200.0, 2.0)
    assert stalls.longest(200.0) == 3.0
    assert stalls.longest(10.0 + WINDOW) == 3.0
    assert stalls.longest(10.1 + WINDOW) == 2.0
    assert stalls.longest(201.0 + WINDOW) == 0.0
    stalls.add(1000.0, 4.0)
    stalls.reset()
    assert stalls.longest(1000.0) == 0.0


def test_random_stalls() -> None:
    """As a list of all stalls, with few of them in memory."""
    chance, stalls, every, now = random.Random(7), RecentStalls(), [], 0.0
    for _ in range(3000):
        now += chance.random() * 2
        every.append((now, chance.random()))
        stalls.add(*every[-1])
        assert stalls.longest(now) == max(seconds for at, seconds in every if at >= now - WINDOW)
        assert len(stalls._stalls) < 60
