"""``Membership``: one member of a processor takes and releases its partitions. Operations without I/O.

    turn                   read the document, check neighbours, take the free partitions that it should own
    release, leave, drop   release one partition, leave the processor, forget everything after the lease was lost

Rule 1: members form a ring, ordered by name. Each monitors the next WATCHED members: when a lease can have expired, it
        reads the lease, and removes dead members from the document. Thus no member scans all leases, and any number of
        deaths is detected. Only the nearest neighbour is checked immediately, each further one a ttl later, because
        other members monitor it as well. With four workers this takes 0.8 reads a second, a death is noticed within
        milliseconds of the lease's end, and it also covers processors that the leader does not run, which monitoring by
        the leader would not.
Rule 2: a partition that another member still holds is taken after the notification of its release, or when the lease of
        the holder can have expired.
Rule 3: a partition is in ``claims`` while this member owns it, then in ``releasing`` until it is released. Partitions
        that an interrupted ``take`` may have claimed are in ``uncertain`` until their state is known.
Rule 4: the memberships of a worker share ``lease_ends``, so that they don't read the same lease twice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tidelog.client import strings
from tidelog.client.steps import LOST, Steps, checked
from tidelog.coordination import Claim, Holder, Lease, LeaseLostError, Tenure
from tidelog.coordination.claims import check, release, take
from tidelog.coordination.lease import read_leases
from tidelog.operating.errortexts import summary_of
from tidelog.transport.call import Call
from tidelog.workers import keys, logs
from tidelog.workers.coordination.member_document import Member, MemberDocument, change, read
from tidelog.workers.coordination.messages import message

log = logs.get(__name__)
UNREACHABLE: Final = 1.0  # seconds until the partitions of a group that does not answer are claimed again
WATCHED: Final = 2  # neighbours; more than one, since a live neighbour may be too busy to monitor its own
LATE: Final = 0.02  # seconds after the end of a holder's lease until a claim is retried: the server counts ms
# Seconds after the end of a neighbour's lease until it is checked. A lease that continues was renewed just before then,
# so the next check is a whole lease later: a value of 0.02 caused a third more checks.
ASKED: Final = 0.1
SOON: Final = 0.05  # seconds until a partition whose owner just changed is checked again
NET: Final = 6  # ttls between two turns without notifications
RESTARTS: Final = 10  # joins that can delay an assignment


@dataclass
class MembershipChanges:
    """The result of a turn."""

    after: float  # seconds until the next turn, unless there is a hint before
    acquired: list[Claim] = field(default_factory=list)  # owned from now on
    releasing: list[int] = field(default_factory=list)  # call ``release`` when no entry is in flight
    lost: list[int] = field(default_factory=list)  # another member owns them, or the claim has expired


class Membership:
    """The membership of a worker in a processor, under its lease. ``capacity`` is relative to the other members.

    ``lease_of`` returns the lease for the claim of a partition, and ``tag_of`` the hash tag of its key: in a cluster,
    those of the partition's group. A claim remains valid if only the membership's own lease is lost.

    Operations raise LeaseLostError if the lease is not held; then call ``drop``. After a connection error they can be
    repeated.
    """

    def __init__(
        self, app: str, processor: str, partitions: int, lease: Lease, *, capacity: int = 1, debounce: float = 0.3,
        lease_ends: dict[str, float] | None = None, wall: Callable[[], float] = time.time,
        lease_of: Callable[[int], Lease] | None = None, tag_of: Callable[[int], str] | None = None,
    ) -> None:  # fmt: skip
        self.worker = lease.owner
        self.claims: dict[int, Claim] = {}
        self.releasing: dict[int, Claim] = {}
        self.uncertain: set[int] = set()
        self.members = MemberDocument()  # as last seen
        self._app, self._processor, self._partitions = app, processor, partitions
        self._key = keys.members(app, processor)
        self.lease = lease
        self._capacity = capacity
        self._debounce = debounce  # seconds that a join waits for other joins
        self._lease_ends: dict[str, float] = {} if lease_ends is None else lease_ends  # by lease, on its clock
        self._neighbours: list[str] = []  # the keys of their leases
        self._since = 0.0  # on the lease's clock: when this member joined
        self._next_check = -math.inf  # on the lease's clock
        self._wall = wall
        self._lease_of = lease_of or (lambda _: lease)
        self._tag_of = tag_of or (lambda _: "")

    # -- a turn -------------------------------------------------------------------------------------------------
    def turn(self, hinted: bool, doubt: bool = False) -> Steps[MembershipChanges]:
        """Do what is due: everything after a hint, otherwise perhaps only a check of the neighbours.

        ``doubt``: first compare the claims with the server, as after a lost connection.
        """
        tenure = self._held()
        if not hinted and not doubt and self._clock() < self._next_check and (yield from self._neighbours_live()):
            return MembershipChanges(self._after())
        self._next_check = -math.inf  # an error leaves everything due
        if doubt:
            yield from self._check()
        view = MembershipChanges(0.0)
        view.lost = [at for at, claim in self.claims.items() if not claim.held]
        for at in view.lost:
            del self.claims[at]
        seen = yield from self._present(tenure)
        seen = yield from self._without_dead(seen)
        seen, settle_in = yield from self._settled(seen)
        self.members = seen
        mine = {at for at in seen.of(self.worker) if at < self._partitions}
        for at in sorted(self.claims.keys() - mine):
            self.releasing[at] = self.claims.pop(at)
            view.releasing.append(at)
        retry_in = yield from self._take(mine, view)
        self._next_check = self._clock() + min(settle_in, retry_in, self.lease.ttl * NET)
        view.after = self._after()
        return view

    def _present(self, tenure: Tenure) -> Steps[MemberDocument]:
        """Return the document, with this worker added if it is missing."""
        seen = yield from read(self._key)
        known = seen.members.get(self.worker)
        if known is not None and known.epoch == tenure.epoch:
            return seen
        self._since = self._clock()
        member = Member(tenure.epoch, self._capacity, round(self._wall() * 1000))
        return (yield from self._change("joined", lambda doc: doc.joined(self.worker, member)))

    def _without_dead(self, seen: MemberDocument) -> Steps[MemberDocument]:
        """Remove dead neighbours from the document, and repeat that for the new neighbours."""
        while True:
            neighbours = self._ring(seen)
            leases = [keys.lease(self._app, name) for name in neighbours]
            found = yield from read_leases(leases)
            for each, (_, left) in zip(leases, found, strict=True):
                self._lives(each, left)
            self._neighbours = leases
            dead = {
                name: seen.members[name].epoch
                for name, (value, _) in zip(neighbours, found, strict=True)
                if value != f"{name}:{seen.members[name].epoch}".encode()
            }
            if not dead:
                return seen
            without = partial(MemberDocument.without, gone=dead, partitions=self._partitions)
            hints = [message(self._app, "dead", self.worker, processor) for processor in (self._processor, "")]
            seen = yield from change(self._key, without, hints)  # the second hint is for workers that want to lead

    def _settled(self, seen: MemberDocument) -> Steps[tuple[MemberDocument, float]]:
        """Reassign partitions if that is due; returns the document and the seconds until it is due."""
        waits = self.worker in seen.waiting
        grown = not seen.waiting and len(seen.owners) < self._partitions
        if not waits and not grown:
            return seen, math.inf
        last = waits and (seen.waiting[-1] == self.worker or len(seen.waiting) >= RESTARTS)
        due = self._since + self._debounce * (1 if last else RESTARTS) - self._clock()
        if due > 0 and not grown:
            return seen, due
        return (yield from self._change("settled", lambda doc: doc.settled(self._partitions))), math.inf

    def _take(self, mine: set[int], view: MembershipChanges) -> Steps[float]:
        """Take the missing partitions; returns the seconds until those of other members may be free."""
        wanted = sorted((mine | self.uncertain) - self.claims.keys() - self.releasing.keys())
        self.uncertain.update(wanted)
        waits = [math.inf]
        for lease, some in self._by_lease(wanted):
            if lease is self.lease:
                taken = yield from take(lease, some)
            elif not lease.held:  # a turn follows its next tenure
                self.uncertain.difference_update([at for _, at in some])
                continue
            else:
                try:
                    taken = yield from take(lease, some)
                except (*LOST, LeaseLostError) as error:  # the partitions of other groups don't depend on it
                    log.info("%s: partitions can't be claimed: %s", self._key, summary_of(error))
                    waits.append(UNREACHABLE)
                    continue
            strays = [claim for claim in taken.claims if claim.partition not in mine]
            for claim in taken.claims:
                if claim.partition in mine:
                    self.claims[claim.partition] = claim
                    view.acquired.append(claim)
            self.uncertain.difference_update([at for _, at in some])
            self.uncertain.update([claim.partition for claim in strays])
            if strays:
                yield from release(strays, [self._released(claim.partition) for claim in strays])
                self.uncertain.difference_update([claim.partition for claim in strays])
            waits += [self._wait_for(holder) for holder in taken.held if holder.partition in mine]
        return min(waits)

    def _by_lease(self, partitions: Sequence[int]) -> list[tuple[Lease, list[tuple[str, int]]]]:
        """Return the keys and partitions to claim under each lease; without partitions, none under the own one."""
        found: dict[int, tuple[Lease, list[tuple[str, int]]]] = {}
        for at in partitions:
            lease = self._lease_of(at)
            found.setdefault(id(lease), (lease, []))[1].append((self._owner(at), at))
        return list(found.values())

    def _check(self) -> Steps[None]:
        """Compare the claims with the server. A group that does not answer is compared by the next turn in doubt."""
        claims = [*self.claims.values(), *self.releasing.values()]
        for lease, some in self._by_lease([claim.partition for claim in claims]):
            names = {key for key, _ in some}
            try:
                yield from check([claim for claim in claims if claim.key in names])
            except LOST:
                if lease is self.lease:
                    raise

    @staticmethod
    def _wait_for(holder: Holder) -> float:
        return holder.left / 1000 + LATE if holder.lease else SOON

    # -- giving up ----------------------------------------------------------------------------------------------
    def release(self, partition: int) -> Steps[None]:
        """Release a partition and notify the other members. Does nothing if it is not being released."""
        claim = self.releasing.get(partition)
        if claim is not None:
            yield from release([claim], [self._released(partition)])
            self.releasing.pop(partition, None)

    def leave(self) -> Steps[None]:
        """Leave the document. The partitions in ``releasing`` must still be released."""
        tenure = self._held()
        yield from self._change("left", lambda doc: doc.without({self.worker: tenure.epoch}, self._partitions))
        if self.uncertain:
            yield from self._take(set(), MembershipChanges(0.0))

    def drop(self) -> list[int]:
        """Forget the claims that are not held any more because a lease is lost; returns their partitions."""
        dropped = sorted(at for at, claim in {**self.claims, **self.releasing}.items() if not claim.held)
        for at in dropped:
            self.claims.pop(at, None)
            self.releasing.pop(at, None)
        self.uncertain = {at for at in self.uncertain if self._lease_of(at).held}
        self._next_check = -math.inf
        return dropped

    # -- neighbours ---------------------------------------------------------------------------------------------
    def _ring(self, seen: MemberDocument) -> list[str]:
        names = sorted(seen.members)
        at = names.index(self.worker) + 1 if self.worker in names else 0
        ring = [name for name in names[at:] + names[:at] if name != self.worker]
        return ring[:WATCHED]

    def _neighbours_live(self) -> Steps[bool]:
        """Return whether all neighbours are alive; reads the leases that can have expired."""
        due = [each for each, at in zip(self._neighbours, self._asked_at(), strict=True) if at <= self._clock()]
        lefts: Sequence[int] = checked((yield [strings.remaining_ms(each) for each in due])) if due else []
        for each, left in zip(due, lefts, strict=True):
            self._lives(each, left)
        return all(left != -2 for left in lefts)

    def _lives(self, lease: str, left: int) -> None:
        """Record the remaining milliseconds of a lease, as PTTL returns them."""
        seconds = self.lease.ttl if left == -1 else max(0, left) / 1000
        self._lease_ends[lease] = self._clock() + seconds

    def _asked_at(self) -> list[float]:
        """Return when to check each neighbour, on the lease's clock."""
        return [
            self._lease_ends.get(each, -math.inf) + ASKED + rank * self.lease.ttl
            for rank, each in enumerate(self._neighbours)
        ]

    def _after(self) -> float:
        return max(0.0, min([self._next_check, *self._asked_at()]) - self._clock())

    # -- helpers ------------------------------------------------------------------------------------------------
    def _released(self, partition: int) -> Call[Any]:
        return message(self._app, "released", self.worker, self._processor, partition)

    def _change(self, kind: str, how: Callable[[MemberDocument], MemberDocument]) -> Steps[MemberDocument]:
        return change(self._key, how, [message(self._app, kind, self.worker, self._processor)])

    def _held(self) -> Tenure:
        tenure = self.lease.tenure
        if not tenure.held:
            raise LeaseLostError(f"lease {self.lease.key} is not held")
        return tenure

    def _owner(self, partition: int) -> str:
        return keys.owner(self._app, self._processor, partition, self._tag_of(partition))

    def _clock(self) -> float:
        return self.lease.clock()
