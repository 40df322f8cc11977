"""``JobOwnership``: the jobs that this engine should run and those that it has claimed. Without I/O.

Rule 1: A job runs here only while its claim (``job:<name>:owner``) is held. The claim is acquired if the job is
        assigned to this engine and the claim is free or names a dead lease.
Rule 2: A job that is assigned to another engine is in ``leaving`` until its execution has ended; then it is released.
Rule 3: Every engine monitors every other engine. When a lease may have expired, it is queried, and dead engines are
        removed from the document. There are few engines, and a live engine is queried about once per lease.
Rule 4: Each round compares the claims with the server. A claim that has disappeared is lost.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import Claim, Lease, LeaseLostError, Tenure
from tidelog.coordination.claims import check, release, take
from tidelog.jobs import keys
from tidelog.jobs.engine import membership
from tidelog.jobs.engine.membership import EngineMember, EngineMembers

INTERVAL: Final = 1.0  # seconds between two rounds
RETRY: Final = 0.25  # seconds, while another engine still has a job that is assigned here
LATE: Final = 0.05  # seconds from the expected expiry of a lease until it is queried


@dataclass
class OwnershipChange:
    """The result of a round."""

    after: float  # seconds until the next one
    acquired: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)  # to be released when their execution has ended
    lost: list[str] = field(default_factory=list)  # claimed by another engine, or deleted


class JobOwnership:
    """The jobs of the engine that owns ``lease``. Operations raise LeaseLostError if the lease is not held."""

    def __init__(self, lease: Lease, *, interval: float = INTERVAL, wall: Callable[[], float] = time.time) -> None:
        self.engine = lease.owner
        self.lease = lease
        self.claims: dict[str, Claim] = {}
        self.leaving: dict[str, Claim] = {}
        self.engines = EngineMembers()  # as last read
        self._interval = interval
        self._wall = wall
        self._doubtful: set[str] = set()  # jobs that an interrupted acquisition may have claimed
        self._ends: dict[str, float] = {}  # by engine: the earliest expiry of its lease, on the lease's clock

    def update(self, jobs: Collection[str]) -> Steps[OwnershipChange]:
        """Update the membership, and claim those of ``jobs`` that are assigned to this engine.

        Claimed jobs that are not assigned to it become ``leaving``.
        """
        tenure = self._held()
        change = OwnershipChange(self._interval)
        yield from check([*self.claims.values(), *self.leaving.values()])
        change.lost = [name for name, claim in self.claims.items() if claim.lost or claim.tenure is not tenure]
        for name in change.lost:
            del self.claims[name]
        self.leaving = {name: claim for name, claim in self.leaving.items() if claim.held}
        engine = EngineMember(tenure.epoch, round(self._wall() * 1000), socket.gethostname())
        seen = yield from membership.change(lambda there: there.joined(self.engine, engine))
        self.engines = seen = yield from self._without_dead(seen)
        mine = {name for name in jobs if membership.chosen(name, seen.engines) == self.engine}
        for name in sorted(self.claims.keys() - mine):
            self.leaving[name] = self.claims.pop(name)
            change.leaving.append(name)
        if (yield from self._take(mine, change)):
            change.after = min(change.after, RETRY)
        soonest = min(self._ends.values(), default=math.inf) + LATE - self.lease.clock()
        change.after = max(0.0, min(change.after, soonest))
        return change

    def _without_dead(self, seen: EngineMembers) -> Steps[EngineMembers]:
        """Remove engines whose leases have expired from the document; return the document."""
        now = self.lease.clock()
        others = {name: each.epoch for name, each in seen.engines.items() if name != self.engine}
        self._ends = {name: end for name, end in self._ends.items() if name in others}
        due = sorted(name for name in others if self._ends.get(name, -math.inf) + LATE <= now)
        if not due:
            return seen
        replies = checked(
            (
                yield [
                    call
                    for name in due
                    for call in (strings.get(keys.lease(name)), strings.remaining_ms(keys.lease(name)))
                ]
            )
        )
        dead = {}
        for name, value, left in zip(due, replies[::2], replies[1::2], strict=True):
            if value == f"{name}:{others[name]}".encode():
                self._ends[name] = now + (left / 1000 if left >= 0 else self.lease.ttl)
            else:
                dead[name] = others[name]
                self._ends.pop(name, None)
        return (yield from membership.change(lambda there: there.without(dead))) if dead else seen

    def _take(self, mine: set[str], change: OwnershipChange) -> Steps[bool]:
        """Acquire free claims; return whether another engine still holds the claim of a job that is assigned here."""
        wanted = sorted((mine | self._doubtful) - self.claims.keys() - self.leaving.keys())
        self._doubtful.update(wanted)
        taken = yield from take(self.lease, [(keys.owner(name), at) for at, name in enumerate(wanted)])
        self._doubtful.clear()
        for claim in taken.claims:
            name = wanted[claim.partition]
            if name in mine:
                self.claims[name] = claim
                change.acquired.append(name)
            else:
                self.leaving[name] = claim
                change.leaving.append(name)
        return any(wanted[holder.partition] in mine for holder in taken.held)

    def released(self, names: Collection[str]) -> Steps[None]:
        """Release jobs that are leaving and no longer run here."""
        found = [self.leaving[name] for name in names if name in self.leaving]
        if found:
            yield from release(found)
        for name in names:
            self.leaving.pop(name, None)

    def leave(self) -> Steps[None]:
        """Leave the document. All claimed jobs become ``leaving``."""
        tenure = self._held()
        yield from membership.change(lambda there: there.without({self.engine: tenure.epoch}))
        self.leaving |= self.claims
        self.claims = {}

    def drop(self) -> list[str]:
        """Discard all claims, because the lease is lost; return the names of the jobs."""
        dropped = sorted(self.claims)
        self.claims, self.leaving, self._ends = {}, {}, {}
        return dropped

    def _held(self) -> Tenure:
        tenure = self.lease.tenure
        if not tenure.held:
            raise LeaseLostError(f"lease {self.lease.key} is not held")
        return tenure
