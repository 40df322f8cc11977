"""When a lease is renewed, and until when it is valid (coordinator/renewals.py)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coordinator.renewals import Renewals

MS = 5000


def test_three_renewals_per_lease() -> None:
    renewals, now, sent = Renewals(MS, 100.0), 100.0, []
    for beat in range(1000):
        if renewals.wait(now, beat) == 0:
            renewals.send(now, beat)
            renewals.succeeded()
            sent.append(now)
        now += 0.01
    assert len(sent) == 5
    assert all(abs(later - earlier - 5 / 3) < 0.011 for earlier, later in pairwise(sent))


def test_it_is_valid_until_a_tenth_before_its_end() -> None:
    renewals = Renewals(MS, 100.0)
    assert renewals.valid(104.49)
    assert not renewals.valid(104.5)
    renewals.send(103.0, 1)
    assert not renewals.valid(104.5)  # sent is not renewed
    renewals.succeeded()
    assert renewals.valid(107.49)
    assert not renewals.valid(107.5)


def test_no_renewal_while_the_loop_stands_still() -> None:
    renewals = Renewals(MS, 100.0)
    assert renewals.wait(102.0, 7) == 0
    renewals.send(102.0, 7)
    renewals.succeeded()
    assert renewals.wait(102.5, 7) > 1.0
    for now in (104.0, 105.0, 200.0):
        assert renewals.wait(now, 7) == 0.1
    assert renewals.wait(200.0, 8) == 0


def test_a_failed_renewal_is_repeated_soon_and_does_not_count() -> None:
    renewals = Renewals(MS, 100.0)
    renewals.send(101.0, 1)
    renewals.failed(101.5)
    assert abs(renewals.wait(101.5, 2) - 0.25) < 1e-9
    assert not renewals.valid(104.5)
    renewals.send(101.75, 2)
    renewals.failed(103.5)  # the next is due already
    assert renewals.wait(103.5, 3) == 0


def test_a_lost_lease_is_never_valid_again() -> None:
    renewals = Renewals(MS, 100.0)
    renewals.send(101.0, 1)
    renewals.lose()
    assert not renewals.valid(101.0)
    renewals.succeeded()
    assert not renewals.valid(0)


@given(st.integers(100, 100_000), st.floats(0, 1e7))
def test_the_first_renewals_leave_time_for_others(ms: int, granted: float) -> None:
    renewals = Renewals(ms, granted)
    assert 0 < renewals.wait(granted, 0) <= ms / 3000 + 1e-6
    assert granted < renewals.valid_until < granted + ms / 1000


class Leader(RuleBasedStateMachine):
    """A holder and a coordinator with clocks of different speed, calls that take time, and lost replies.

    Invariant: While the holder takes its lease for valid, the coordinator has not ended it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 50.0  # of the holder's clock
        self.counter = 0
        self.renewals = Renewals(MS, self.now)
        self.ends = self.now + MS / 1000 / 1.05  # the coordinator's clock is 5 % faster
        self.in_flight = False

    @rule(seconds=st.floats(0.001, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_loop_advances(self) -> None:
        self.counter += 1

    @precondition(lambda self: not self.in_flight)
    @rule()
    def the_thread_wakes(self) -> None:
        wait = self.renewals.wait(self.now, self.counter)
        assert 0 <= wait <= MS / 3000 + 1e-9
        if wait == 0:
            assert self.counter != self.renewals._counter
            self.renewals.send(self.now, self.counter)
            self.in_flight = True

    @precondition(lambda self: self.in_flight)
    @rule(on_the_way=st.floats(0, 2.0), back=st.floats(0, 2.0), answered=st.booleans())
    def the_renewal_ends(self, on_the_way: float, back: float, answered: bool) -> None:
        self.in_flight = False
        self.now += on_the_way
        if kept := self.now < self.ends:
            self.ends = self.now + MS / 1000 / 1.05
        self.now += back
        if not answered:
            self.renewals.failed(self.now)
        elif kept:
            self.renewals.succeeded()
        else:
            self.renewals.lose()

    @invariant()
    def a_valid_lease_has_not_ended(self) -> None:
        assert not self.renewals.valid(self.now) or self.now < self.ends
        assert not (self.renewals.lost and self.renewals.valid(0))


TestLeader = Leader.TestCase
TestLeader.settings = settings(max_examples=60, stateful_step_count=30)
