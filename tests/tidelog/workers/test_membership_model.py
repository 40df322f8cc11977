"""Leases, claims and seats of several workers, with a clock that the test moves and a server that is modelled.

Invariant: no partition has two workers that both believe they hold it, whatever is lost, late, stopped or killed; the
epochs of a partition's claims grow; and once nothing disturbs them any more, each partition is owned exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.tidelog.workers.modelled import Modelled
from tidelog.client.steps import Steps
from tidelog.coordination import Lease, LeaseLostError
from tidelog.workers import keys
from tidelog.workers.coordination.member_document import decoded
from tidelog.workers.coordination.membership import Membership, MembershipChanges

PARTITIONS = 5
TTL = 10.0
KEPT = "keep"  # the operation of the lease's thread
TURN = "turn"


class Under:
    """An operation under way: it waits for the server, or the server has answered and the reply is on its way."""

    def __init__(self, steps: Steps[Any], done: Callable[[Any], None]) -> None:
        self.steps = steps
        self.done = done
        self.calls = next(steps)
        self.replies: list[Any] | None = None


class Worker:
    """What a process does: a thread that keeps the lease, turns, releases; each one operation at a time."""

    def __init__(self, server: Modelled, number: int, rate: float, seen: Callable[[int, int], None]) -> None:
        self.server = server
        self.name = f"w{number}"
        self.seen = seen
        self.lease = Lease(
            keys.lease("app", self.name), self.name, TTL, keys.epochs("app"), clock=lambda: server.now * rate
        )
        self.membership = Membership("app", "p", PARTITIONS, self.lease, wall=lambda: server.now)
        self.hinted = True
        self.doubt = False
        self.going = False  # has begun to leave
        self.gone = False  # has left
        self.turn_at = 0.0
        self.messages = 0
        self.under: dict[str, Under] = {}
        self.lease.watch(self.changed)

    def changed(self) -> None:
        self.hinted = True
        if not self.lease.held:
            self.membership.drop()

    def believes(self) -> set[int]:
        claims = {**self.membership.claims, **self.membership.releasing}
        return {at for at, claim in claims.items() if claim.held}

    # -- operations -------------------------------------------------------------------------------------------
    def begin(self, what: str) -> None:
        """Begin an operation if it isn't under way."""
        if what in self.under:
            return
        if what == KEPT:
            self._start(what, self.lease.renew() if self.lease.held else self.lease.acquire(), lambda _: None)
        elif what == TURN:
            if not self.going and self.lease.held:
                self.hinted |= self.messages != self.server.messages
                self.messages = self.server.messages
                hinted, self.hinted, doubt, self.doubt = self.hinted, False, self.doubt, False
                self._start(what, self.membership.turn(hinted, doubt), self._turned)
        elif int(what) in self.membership.releasing:
            self._start(what, self.membership.release(int(what)), lambda _: None)

    def leave(self) -> None:
        """Go in order; only where no turn is under way. Repeated while the connection is lost."""
        self.going = True
        self.membership.releasing.update(self.membership.claims)
        self.membership.claims.clear()
        if self.lease.held:
            self._start(TURN, self.membership.leave(), self._left)

    def _left(self, _: object) -> None:
        self.gone = True

    def _turned(self, view: MembershipChanges) -> None:
        self.turn_at = self.server.now + view.after
        for claim in view.acquired:
            if claim.held:
                self.seen(claim.partition, claim.epoch)

    def _start(self, what: str, steps: Steps[Any], done: Callable[[Any], None]) -> None:
        try:
            self.under[what] = Under(steps, done)
        except StopIteration as end:
            done(end.value)
        except LeaseLostError:
            pass

    def step(self, what: str, lost: bool) -> None:
        """Half a round trip: the server answers, or the answer arrives. ``lost``: the connection ends there."""
        under = self.under[what]
        try:
            if lost:
                self.doubt |= what != KEPT
                self.hinted = True
                under.calls = under.steps.throw(redis.ConnectionError("lost"))
            elif under.replies is None:
                under.replies = self.server.answer(under.calls)
                return
            else:
                under.calls = under.steps.send(under.replies)
            under.replies = None
        except StopIteration as end:
            del self.under[what]
            under.done(end.value)
        except (redis.ConnectionError, LeaseLostError):
            del self.under[what]

    def through(self, what: str) -> None:
        """An operation from where it is to its end."""
        self.begin(what)
        while what in self.under:
            self.step(what, lost=False)

    def through_what_is_due(self) -> None:
        self.keep()
        if self.going and not self.gone and TURN not in self.under:
            self.leave()
        hinted = self.hinted or self.doubt or self.messages != self.server.messages
        if hinted or self.server.now >= self.turn_at or TURN in self.under:
            self.through(TURN)
        for at in sorted(self.membership.releasing):
            self.through(str(at))

    def keep(self) -> None:
        if KEPT in self.under or self.lease.clock() > self.lease.tenure.until - TTL / 2:
            self.through(KEPT)


class Seats(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.server = Modelled()
        self.workers: list[Worker] = []
        self.ever = 0
        self.epochs = dict.fromkeys(range(PARTITIONS), 0)

    def seen(self, partition: int, epoch: int) -> None:
        assert epoch > self.epochs[partition]
        self.epochs[partition] = epoch

    def pick(self, number: int) -> Worker:
        return self.workers[number % len(self.workers)]

    @precondition(lambda self: len(self.workers) < 4)
    @rule(rate=st.sampled_from([0.96, 1.0, 1.04]), quick=st.booleans())
    def start(self, rate: float, quick: bool) -> None:
        """A worker; perhaps it gets as far as its first turn at once."""
        self.ever += 1
        worker = Worker(self.server, self.ever, rate, self.seen)
        self.workers.append(worker)
        if quick:
            worker.through(KEPT)
            worker.through(TURN)

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 3.4, 5.0, 8.9, 9.1, 10.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.server.now += seconds

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 3), what=st.sampled_from([KEPT, TURN, TURN, "release"]), trips=st.integers(0, 9))
    def begin(self, number: int, what: str, trips: int) -> None:
        """Begin an operation, and go on with it for some halves of round trips."""
        worker = self.pick(number)
        worker.hinted = True
        if what == "release":
            what = str(min(worker.membership.releasing, default=0))
        worker.begin(what)
        for _ in range(trips):
            if what in worker.under:
                worker.step(what, lost=False)
                self.no_partition_has_two_holders()

    @precondition(lambda self: any(worker.under for worker in self.workers))
    @rule(number=st.integers(0, 3), what=st.integers(0, 6), lost=st.sampled_from([False] * 5 + [True]))
    def step(self, number: int, what: int, lost: bool) -> None:
        worker = self.pick(number)
        if worker.under:
            worker.step(sorted(worker.under)[what % len(worker.under)], lost)

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 3), what=st.sampled_from([KEPT, TURN]))
    def through(self, number: int, what: str) -> None:
        self.pick(number).through(what)

    @precondition(lambda self: self.workers)
    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 11.0]))
    def live(self, seconds: float) -> None:
        """Time passes, and everybody does what is due."""
        self.others_live(None, seconds, keeps=False)

    @precondition(lambda self: len(self.workers) > 1)
    @rule(
        number=st.integers(0, 3), what=st.sampled_from([KEPT, TURN]), keeps=st.booleans(), lost=st.booleans(),
        pauses=st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.5, 4.0, 6.0, 11.0]), max_size=10),
    )  # fmt: skip
    def slowly(self, number: int, what: str, keeps: bool, lost: bool, pauses: list[float]) -> None:
        """An operation with pauses between its halves of round trips, in which the others go on.

        ``keeps``: its lease is kept meanwhile, as where an event loop is busy; ``lost``: it ends with an error.
        """
        worker = self.pick(number)
        worker.hinted = True
        worker.begin(what)
        for pause in pauses:
            self.others_live(worker, pause, keeps and what != KEPT)
            if what in worker.under:
                worker.step(what, lost=False)
                self.no_partition_has_two_holders()
        if lost and what in worker.under:
            worker.step(what, lost=True)

    def others_live(self, still: Worker | None, seconds: float, keeps: bool) -> None:
        for _ in range(round(seconds / 0.5)):
            self.server.now += 0.5
            for worker in self.workers:
                if worker is not still:
                    worker.through_what_is_due()
                elif keeps:
                    worker.keep()
                self.no_partition_has_two_holders()

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 3))
    def kill(self, number: int) -> None:
        self.workers.remove(self.pick(number))

    @precondition(lambda self: self.workers)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        worker = self.pick(number)
        if not worker.going and TURN not in worker.under:
            worker.leave()

    @invariant()
    def no_partition_has_two_holders(self) -> None:
        held = [at for worker in self.workers for at in worker.believes()]
        assert len(held) == len(set(held)), [(worker.name, worker.believes()) for worker in self.workers]

    def teardown(self) -> None:
        """Nothing is lost any more, all have their turns when they are due: within 40 s all is owned, once."""
        if not any(not worker.going for worker in self.workers):
            return
        end = self.server.now + 40
        not_reading = 0
        while not_reading < 5 and self.server.now < end:
            self.server.now += 0.1
            for worker in self.workers:
                worker.through_what_is_due()
                self.no_partition_has_two_holders()
            not_reading = not_reading + 1 if self.owned_once() else 0
        assert self.owned_once(), [(worker.name, worker.believes(), worker.going) for worker in self.workers]

    def owned_once(self) -> bool:
        there = [worker for worker in self.workers if not worker.going]
        document = decoded("members", self.server.get(keys.members("app", "p")))
        return (
            sorted(document.members) == sorted(worker.name for worker in there)
            and all(
                worker.believes() == set(worker.membership.claims) == set(document.of(worker.name)) for worker in there
            )
            and sorted(at for worker in there for at in worker.believes()) == list(range(PARTITIONS))
        )


TestSeats = Seats.TestCase
# Not shrunk: that takes longer than a test may, and what failed would not be shown.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
TestSeats.settings = settings(max_examples=200, stateful_step_count=40, deadline=None, phases=PHASES)


def pair(rate: float) -> tuple[Seats, Worker, Worker]:
    """Two workers that share the partitions; the clock of the first goes at ``rate``."""
    machine = Seats()
    for each in (rate, 1.0):
        machine.start(each, True)
    machine.others_live(None, 3.0, keeps=False)
    one, other = machine.workers
    assert one.believes()
    assert other.believes()
    return machine, one, other


def test_a_reply_to_a_renewal_that_is_late() -> None:
    """The lease is counted from when the renewal was sent, not from when the reply came."""
    machine, one, other = pair(1.0)
    one.through(KEPT)
    one.begin(KEPT)
    one.step(KEPT, lost=False)  # the server has renewed it
    machine.others_live(one, 6.0, keeps=False)
    one.step(KEPT, lost=False)
    assert one.believes()
    machine.others_live(one, 10.0, keeps=False)
    assert other.believes() == set(range(PARTITIONS))


def test_a_clock_that_is_slow() -> None:
    """By less than the margin: who is stopped believes nothing any more when the others begin."""
    machine, one, other = pair(0.92)
    one.through(KEPT)
    machine.others_live(one, 14.0, keeps=False)
    assert not one.believes()
    assert other.believes() == set(range(PARTITIONS))


def test_a_member_that_is_alive_and_busy_while_others_die() -> None:
    """Its neighbour's watcher of the second rank finds the dead one."""
    machine, one, other = pair(1.0)
    machine.start(1.0, True)
    machine.others_live(None, 3.0, keeps=False)
    third = machine.workers[2]
    assert third.believes()
    machine.workers.remove(third)  # killed; other, which watches it first, doesn't get to its turns
    machine.others_live(other, 3 * TTL, keeps=True)
    assert one.believes() | other.believes() == set(range(PARTITIONS))
