"""``JobOwnership``: which jobs this engine runs: what should be its own, and what it has claimed. Without I/O.

Rule 1: a job runs here only while its claim (``job:<name>:owner``) is held. It is taken when the job should be here and
        its claim is free, or names a lease that is dead.
Rule 2: what should be elsewhere is in ``leaving`` until it is released, which is when nothing of it runs any more.
Rule 3: every engine looks after every other: when a lease can have ended, it is asked about, and who is dead is taken
        out of the document. There are few engines, and an engine that lives is asked about once in most of a lease.
Rule 4: claims are compared with the server in each turn. One that is not there any more is lost.
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

LOOK: Final = 1.0  # seconds between two turns
AGAIN: Final = 0.25  # seconds, while another engine still has what should be here
LATE: Final = 0.05  # seconds after the end of a lease at which it is asked about


@dataclass
class OwnershipChange:
    """What came of a turn."""

    after: float  # seconds until the next one
    acquired: list[str] = field(default_factory=list)
    leaving: list[str] = field(default_factory=list)  # to be released when nothing of them runs any more
    lost: list[str] = field(default_factory=list)  # another's, or gone


class JobOwnership:
    """What an engine, which is the owner of ``lease``, runs. Operations raise LeaseLostError where it is not held."""

    def __init__(self, lease: Lease, *, look: float = LOOK, wall: Callable[[], float] = time.time) -> None:
        self.engine = lease.owner
        self.lease = lease
        self.claims: dict[str, Claim] = {}
        self.leaving: dict[str, Claim] = {}
        self.engines = EngineMembers()  # as last seen
        self._look = look
        self._wall = wall
        self._doubtful: set[str] = set()  # what a take that was interrupted may have taken
        self._ends: dict[str, float] = {}  # by engine: when its lease can end, on the lease's clock

    def turn(self, jobs: Collection[str]) -> Steps[OwnershipChange]:
        """Look who is there, and take what of ``jobs`` should be here; what should not, is to be left."""
        tenure = self._held()
        view = OwnershipChange(self._look)
        yield from check([*self.claims.values(), *self.leaving.values()])
        view.lost = [name for name, claim in self.claims.items() if claim.lost or claim.tenure is not tenure]
        for name in view.lost:
            del self.claims[name]
        self.leaving = {name: claim for name, claim in self.leaving.items() if claim.held}
        engine = EngineMember(tenure.epoch, round(self._wall() * 1000), socket.gethostname())
        seen = yield from membership.change(lambda there: there.joined(self.engine, engine))
        self.engines = seen = yield from self._without_dead(seen)
        mine = {name for name in jobs if membership.chosen(name, seen.engines) == self.engine}
        for name in sorted(self.claims.keys() - mine):
            self.leaving[name] = self.claims.pop(name)
            view.leaving.append(name)
        if (yield from self._take(mine, view)):
            view.after = min(view.after, AGAIN)
        soonest = min(self._ends.values(), default=math.inf) + LATE - self.lease.clock()
        view.after = max(0.0, min(view.after, soonest))
        return view

    def _without_dead(self, seen: EngineMembers) -> Steps[EngineMembers]:
        """The document without those whose leases have ended."""
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

    def _take(self, mine: set[str], view: OwnershipChange) -> Steps[bool]:
        """Take what is free; whether something that should be here is another's still."""
        wanted = sorted((mine | self._doubtful) - self.claims.keys() - self.leaving.keys())
        self._doubtful.update(wanted)
        taken = yield from take(self.lease, [(keys.owner(name), at) for at, name in enumerate(wanted)])
        self._doubtful.clear()
        for claim in taken.claims:
            name = wanted[claim.partition]
            if name in mine:
                self.claims[name] = claim
                view.acquired.append(name)
            else:
                self.leaving[name] = claim
                view.leaving.append(name)
        return any(wanted[holder.partition] in mine for holder in taken.held)

    def released(self, names: Collection[str]) -> Steps[None]:
        """Release jobs that are leaving: nothing of them runs here any more."""
        found = [self.leaving[name] for name in names if name in self.leaving]
        if found:
            yield from release(found)
        for name in names:
            self.leaving.pop(name, None)

    def leave(self) -> Steps[None]:
        """Leave the document; what is claimed is to be released."""
        tenure = self._held()
        yield from membership.change(lambda there: there.without({self.engine: tenure.epoch}))
        self.leaving |= self.claims
        self.claims = {}

    def drop(self) -> list[str]:
        """The lease is lost: nothing is this engine's any more. Returns what was."""
        dropped = sorted(self.claims)
        self.claims, self.leaving, self._ends = {}, {}, {}
        return dropped

    def _held(self) -> Tenure:
        tenure = self.lease.tenure
        if not tenure.held:
            raise LeaseLostError(f"lease {self.lease.key} is not held")
        return tenure
