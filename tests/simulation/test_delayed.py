"""The checker of delayed entries sees what is wrong, and rules of delayed entries that are broken are detected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.cases import Case, run
from tests.simulation.checker import Ledger
from tests.simulation.delayed import ROUNDING, DelayedEntry, DelayedStream, wall
from tests.simulation.network import NetworkLoop

pytestmark = [pytest.mark.interpreted]


class Checked:
    """A stream with three entries that were sent at 0 ms, and acknowledged: IN 1000, AT 1000, AT 1000."""

    def __init__(self, loop: NetworkLoop, policy: tuple[str | int, ...] = ()) -> None:
        self.loop = loop
        self.stream = DelayedStream(Ledger(lossless=True), "s", policy)
        self.at(self._add)
        loop._now += 2.0

    def at(self, what: Any) -> Any:
        async def call() -> Any:
            return what()

        return self.loop.run_until_complete(call())

    def _add(self) -> None:
        self.zero = round(wall())
        for at, due in enumerate((0, self.zero + 1000, self.zero + 1000)):
            entry = DelayedEntry(b"t%d" % at, 1000, due)
            self.stream.send(entry, b"%d" % at)
            entry.acked = wall()
        self.stream.send(self.stream.entries[0], b"again")

    def check(self, joined: dict[bytes, int], delayed: tuple[bytes, ...] = (), added: int | None = None) -> None:
        """``joined``: value -> ms of its ID."""
        rows = [[b"%d.%d" % (self.zero + ms, at), b"v", value] for at, (value, ms) in enumerate(joined.items())]
        page = [b"0", [[b"", self.zero + 1000, b"v", value] for value in delayed]]
        about = {b"entries-added": len(rows) if added is None else added, b"evicted-to": b"%d.0" % self.zero}

        def call() -> None:
            expected = self.stream.expected()
            self.stream.check(rows, page)
            self.stream.check_policy(rows, about)
            self.stream.check_missing(rows, page, *expected)

        self.at(call)


@pytest.fixture
def loop() -> Iterator[NetworkLoop]:
    loop = NetworkLoop(1)
    yield loop
    loop.world.die()
    loop.close()


@pytest.fixture
def checked(loop: NetworkLoop) -> Checked:
    return Checked(loop)


@pytest.mark.quick
def test_what_is_right(checked: Checked) -> None:
    checked.check({}, (b"0", b"1", b"2"))
    checked.check({b"1": 1001}, (b"0", b"2"))
    checked.check({b"1": 1001, b"2": 1001, b"0": 1001})
    checked.stream.ledger.skew = 500
    checked.check({b"1": 1001, b"2": 1001, b"0": 1001})


@pytest.mark.quick
@pytest.mark.parametrize(
    ("joined", "delayed", "message"),
    [
        ({b"1": 1000, b"2": 1000}, (), "1 entries are lost, such as b't0'"),
        ({b"1": 1000}, (b"0", b"1", b"2"), "in the stream and delayed"),
        ({b"1": 999}, (b"0", b"2"), "joined 1 ms before it was due"),
        ({b"0": 1000 - ROUNDING - 2}, (b"1", b"2"), "ms before it was due"),
        ({b"1": 1000}, (b"0", b"2", b"2"), "twice delayed"),
        ({b"1": 3000}, (b"0", b"2"), "is of the future"),
        ({b"2": 1000, b"1": 1000}, (b"0",), "wrong order"),
        ({b"again": 1000}, (b"1", b"2"), "a repeated token has made the entry"),
        ({}, (b"again", b"1", b"2"), "a repeated token has delayed the entry"),
        ({b"x": 1000}, (), "which nobody has sent"),
        ({}, (b"x",), "which nobody has sent"),
    ],
)
def test_what_is_wrong(checked: Checked, joined: dict[bytes, int], delayed: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        checked.check(joined, delayed)


@pytest.mark.quick
def test_what_a_reader_has_seen_stays(checked: Checked) -> None:
    checked.check({b"1": 1000}, (b"0", b"2"))
    with pytest.raises(AssertionError, match="the ID of b'1' changes"):
        checked.check({b"1": 1001}, (b"0", b"2"))
    with pytest.raises(AssertionError, match="has joined, and is delayed again"):
        checked.check({}, (b"0", b"1", b"2"))


@pytest.mark.quick
def test_a_cancelled_entry_is_gone(checked: Checked) -> None:
    first = checked.stream.entries[0]
    first.cancels, first.cancelled = 1, True
    checked.check({b"1": 1000, b"2": 1000})
    with pytest.raises(AssertionError, match="was cancelled, and has joined"):
        checked.check({b"1": 1000, b"2": 1000, b"0": 1000})
    with pytest.raises(AssertionError, match="was cancelled, and is delayed"):
        checked.check({b"1": 1000, b"2": 1000}, (b"0",))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("policy", "message"),
    [((), "2 entries are gone"), (("COUNT", 2), "1 entries are left"), (("AGE", 5000), "evicted 2999")],
)
def test_what_a_policy_retains_stays(loop: NetworkLoop, policy: tuple[str | int, ...], message: str) -> None:
    checked = Checked(loop, policy)
    with pytest.raises(AssertionError, match=message):
        checked.check({b"2": 1000}, added=3)


@pytest.mark.quick
def test_what_a_policy_does_not_retain_may_be_gone(loop: NetworkLoop) -> None:
    for policy in (("COUNT", 1), ("AGE", 1900)):
        Checked(loop, policy).check({b"2": 1000}, added=3)


def test_seeds_with_delayed_entries() -> None:
    one = run(Case(3, "one leader", ("kill", "clock", "checkpoint", "blackout"), ("delays", "delays"), 2.0))
    other = run(Case(4, "promotions", ("promote", "kill_in_copy", "diverge"), ("delays", "delays"), 2.0, backlog=1))
    assert min(one.delayed, other.delayed) > 100
    assert min(one.repeated, one.cancelled, other.repeated, other.cancelled) > 0
