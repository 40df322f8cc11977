"""One member of a processor: what it should own, and how it takes that and gives it up. Operations without I/O.

    turn   look at the document and at the neighbours, take what it should have and is free
    release, leave, drop   give up one partition, everything, or what is lost already

Rule 1: members stand in a ring, by name. Each watches the next WATCHED ones: when such a lease can have ended, it
        looks, and takes the dead out of the document. So a death costs nobody a scan, and any number of them are found.
        Only the first is asked about at once, the others a ttl later each: they have a watcher of their own.
Rule 2: what it should have and another still holds it takes when it is told that it was released, or when the lease of
        that other can have ended.
Rule 3: a partition is in ``claims`` from when it is taken until it is to be given up, then in ``leaving`` until it is
        released. What an interrupted take may have taken is in ``doubtful`` until that is known.
Rule 4: several seats of a worker share ``vitals``, so that they don't ask about the same lease twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import Claim, Holder, Lease, LeaseLostError, Tenure
from tidelog.coordination.claims import check, release, take
from tidelog.transport.call import Call
from tidelog.workers import keys
from tidelog.workers.coordination.control_stream import message
from tidelog.workers.coordination.member_document import Member, Members, change, read

WATCHED: Final = 2  # neighbours; more than one, since one may be alive and too busy to watch its own
LATE: Final = 0.02  # seconds after the end of a holder's lease at which a claim is tried again: the server counts ms
# Seconds after the end of a neighbour's lease at which it is asked about. A lease that lasts was renewed just before
# then, so that the next question is a whole lease later: with 0.02, a third more questions were asked.
ASKED: Final = 0.1
SOON: Final = 0.05  # seconds until what changed hands just now is looked at again
NET: Final = 6  # ttls between two looks when nothing is heard
RESTARTS: Final = 10  # joins that can delay an assignment


@dataclass
class View:
    """What came of a turn."""

    after: float  # seconds until the next one, unless there is a hint before
    acquired: list[Claim] = field(default_factory=list)  # from now on its own
    leaving: list[int] = field(default_factory=list)  # to be given up: ``release`` when nothing of it is in hand
    lost: list[int] = field(default_factory=list)  # another's, or gone


class Seat:
    """A worker's seat in a processor, under its lease; ``capacity``: its share in proportion to the others'.

    Operations raise LeaseLostError where the lease is not held; ``drop`` follows. After an error of the connection they
    can be repeated.
    """

    def __init__(
        self, app: str, processor: str, partitions: int, lease: Lease, *, capacity: int = 1, debounce: float = 0.3,
        vitals: dict[str, float] | None = None, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.worker = lease.owner
        self.claims: dict[int, Claim] = {}
        self.leaving: dict[int, Claim] = {}
        self.doubtful: set[int] = set()
        self.members = Members()  # as last seen
        self._app, self._processor, self._partitions = app, processor, partitions
        self._key = keys.members(app, processor)
        self._lease = lease
        self._capacity = capacity
        self._debounce = debounce  # seconds for which a join waits for others
        self._vitals: dict[str, float] = {} if vitals is None else vitals  # by lease: when it can end, on the clock
        self._neighbours: list[str] = []  # their leases
        self._since = 0.0  # on the clock: when it joined
        self._look_at = -math.inf  # on the clock
        self._wall = wall

    # -- a turn -------------------------------------------------------------------------------------------------
    def turn(self, hinted: bool, doubt: bool = False) -> Steps[View]:
        """What is due: a look at everything after a hint, else perhaps at the neighbours only.

        ``doubt``: claims are compared with the server first, as after a lost connection.
        """
        tenure = self._held()
        if not hinted and not doubt and self._clock() < self._look_at and (yield from self._neighbours_live()):
            return View(self._after())
        self._look_at = -math.inf  # where this ends with an error, it is due again
        if doubt:
            yield from check([*self.claims.values(), *self.leaving.values()])
        view = View(0.0, lost=[at for at, claim in self.claims.items() if claim.lost or claim.tenure is not tenure])
        for at in view.lost:
            del self.claims[at]
        seen = yield from self._present(tenure)
        seen = yield from self._without_dead(seen)
        seen, settle_in = yield from self._settled(seen)
        self.members = seen
        mine = {at for at in seen.of(self.worker) if at < self._partitions}
        for at in sorted(self.claims.keys() - mine):
            self.leaving[at] = self.claims.pop(at)
            view.leaving.append(at)
        retry_in = yield from self._take(mine, view)
        self._look_at = self._clock() + min(settle_in, retry_in, self._lease.ttl * NET)
        view.after = self._after()
        return view

    def _present(self, tenure: Tenure) -> Steps[Members]:
        """The document with this worker in it."""
        seen = yield from read(self._key)
        known = seen.members.get(self.worker)
        if known is not None and known.epoch == tenure.epoch:
            return seen
        self._since = self._clock()
        member = Member(tenure.epoch, self._capacity, round(self._wall() * 1000))
        return (yield from self._change("joined", lambda doc: doc.joined(self.worker, member)))

    def _without_dead(self, seen: Members) -> Steps[Members]:
        """The document after neighbours that are dead were taken out; the next ones are looked at then."""
        while True:
            neighbours = self._ring(seen)
            leases = [keys.lease(self._app, name) for name in neighbours]
            replies = checked(
                (yield [call for each in leases for call in (strings.get(each), strings.remaining_ms(each))])
            )
            for each, left in zip(leases, replies[1::2], strict=True):
                self._lives(each, left)
            self._neighbours = leases
            dead = {
                name: seen.members[name].epoch
                for name, value in zip(neighbours, replies[::2], strict=True)
                if value != f"{name}:{seen.members[name].epoch}".encode()
            }
            if not dead:
                return seen
            without = partial(Members.without, gone=dead, partitions=self._partitions)
            hints = [message(self._app, "dead", self.worker, processor) for processor in (self._processor, "")]
            seen = yield from change(self._key, without, hints)  # the second for who waits to lead

    def _settled(self, seen: Members) -> Steps[tuple[Members, float]]:
        """The document, with partitions assigned anew if that is due; and the seconds until it will be."""
        waits = self.worker in seen.waiting
        grown = not seen.waiting and len(seen.owners) < self._partitions
        if not waits and not grown:
            return seen, math.inf
        last = waits and (seen.waiting[-1] == self.worker or len(seen.waiting) >= RESTARTS)
        due = self._since + self._debounce * (1 if last else RESTARTS) - self._clock()
        if due > 0 and not grown:
            return seen, due
        return (yield from self._change("settled", lambda doc: doc.settled(self._partitions))), math.inf

    def _take(self, mine: set[int], view: View) -> Steps[float]:
        """Take what is missing; the seconds until what others hold may be free."""
        wanted = sorted((mine | self.doubtful) - self.claims.keys() - self.leaving.keys())
        self.doubtful.update(wanted)
        taken = yield from take(self._lease, [(self._owner(at), at) for at in wanted])
        strays = [claim for claim in taken.claims if claim.partition not in mine]
        for claim in taken.claims:
            if claim.partition in mine:
                self.claims[claim.partition] = claim
                view.acquired.append(claim)
        self.doubtful = {claim.partition for claim in strays}
        if strays:
            yield from release(strays, [self._released(claim.partition) for claim in strays])
            self.doubtful.clear()
        waits = [self._wait_for(holder) for holder in taken.held if holder.partition in mine]
        return min(waits, default=math.inf)

    @staticmethod
    def _wait_for(holder: Holder) -> float:
        return holder.left / 1000 + LATE if holder.lease else SOON

    # -- giving up ----------------------------------------------------------------------------------------------
    def release(self, partition: int) -> Steps[None]:
        """Release a partition that is leaving, and tell the others. Nothing happens if it isn't there any more."""
        claim = self.leaving.get(partition)
        if claim is not None:
            yield from release([claim], [self._released(partition)])
            self.leaving.pop(partition, None)

    def leave(self) -> Steps[None]:
        """Leave the document. What is in ``leaving`` is still to be released."""
        tenure = self._held()
        yield from self._change("left", lambda doc: doc.without({self.worker: tenure.epoch}, self._partitions))
        if self.doubtful:
            yield from self._take(set(), View(0.0))

    def drop(self) -> list[int]:
        """Forget everything, since the lease is lost; returns the partitions that were held."""
        dropped = sorted({**self.claims, **self.leaving})
        self.claims.clear()
        self.leaving.clear()
        self.doubtful.clear()
        self._look_at = -math.inf
        return dropped

    # -- neighbours ---------------------------------------------------------------------------------------------
    def _ring(self, seen: Members) -> list[str]:
        names = sorted(seen.members)
        at = names.index(self.worker) + 1 if self.worker in names else 0
        ring = [name for name in names[at:] + names[:at] if name != self.worker]
        return ring[:WATCHED]

    def _neighbours_live(self) -> Steps[bool]:
        """Whether all neighbours' leases last; asks about those that can have ended."""
        due = [each for each, at in zip(self._neighbours, self._asked_at(), strict=True) if at <= self._clock()]
        lefts: Sequence[int] = checked((yield [strings.remaining_ms(each) for each in due])) if due else []
        for each, left in zip(due, lefts, strict=True):
            self._lives(each, left)
        return all(left != -2 for left in lefts)

    def _lives(self, lease: str, left: int) -> None:
        """Remember that a lease has so many milliseconds left, as PTTL says it."""
        seconds = self._lease.ttl if left == -1 else max(0, left) / 1000
        self._vitals[lease] = self._clock() + seconds

    def _asked_at(self) -> list[float]:
        """When each neighbour is to be asked about, on the clock."""
        return [
            self._vitals.get(each, -math.inf) + ASKED + rank * self._lease.ttl
            for rank, each in enumerate(self._neighbours)
        ]

    def _after(self) -> float:
        return max(0.0, min([self._look_at, *self._asked_at()]) - self._clock())

    # -- small things -------------------------------------------------------------------------------------------
    def _released(self, partition: int) -> Call[Any]:
        return message(self._app, "released", self.worker, self._processor, partition)

    def _change(self, kind: str, how: Callable[[Members], Members]) -> Steps[Members]:
        return change(self._key, how, [message(self._app, kind, self.worker, self._processor)])

    def _held(self) -> Tenure:
        tenure = self._lease.tenure
        if not tenure.held:
            raise LeaseLostError(f"lease {self._lease.key} is not held")
        return tenure

    def _owner(self, partition: int) -> str:
        return keys.owner(self._app, self._processor, partition)

    def _clock(self) -> float:
        return self._lease.clock()
