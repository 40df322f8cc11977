"""A member's lease, and the data that it publishes under its name while it is alive.

Rule 1: a member has one lease. Its name and, if it leads, the leader's key are bound to this lease and expire together.
Rule 2: two members can't use one name. The second one waits until the lease of the first one has expired.
Rule 3: a member that follows has a long lease, because nothing depends on its end except its name, and because most
members follow: renewals are most of the requests while nothing changes. It exchanges the lease for one of
``group-lease`` in the change of its key that makes it a candidate. The leader's key is never bound to a long lease.
Rule 4: a process that starts does not wait for the long lease of its predecessor, which used the same directory and
address: it revokes this lease. If the other process is alive, its next change of the key fails, so it can't lead.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from coordinator.interface import CoordinatorError, Lease, LeaseGoneError
from respserver.group.services import GroupServices, RenewedLease
from respserver.group.states import GroupStore, Presence

FOLLOWING: Final = 10  # times group-lease: the lease of a member that follows
_TRIES: Final = 3  # of a change of the key, whose version may have been changed by a request of unknown outcome


class NameTakenError(Exception):
    """Another live member uses the name. The text has its address."""


class MemberPresence:
    """The lease and the key ``members/MEMBER``. ``changed``: called on the loop when the lease was renewed or lost."""

    def __init__(
        self, services: GroupServices, store: GroupStore, name: str, own: Presence, ms: int, changed: Callable[[], None]
    ) -> None:  # fmt: skip
        self._services = services
        self._store = store
        self._name: Final = name
        self._own = replace(own, process=secrets.token_hex(8))
        self._ms = ms
        self._changed = changed
        self._version = 0
        self._named = False  # this process has had its name
        self.lease: Lease | None = None
        self._keeper: RenewedLease | None = None
        self._follows_since: float | None = None  # by the clock, with the current lease; None: it may lead
        self._revocations: set[asyncio.Task[None]] = set()  # of previous leases

    def valid(self) -> bool:
        """Return whether this member's lease is valid now. Called at each release of replies; takes no lock."""
        return self._keeper is not None and self._keeper.valid()

    @property
    def held(self) -> bool:
        """Whether this member has its name, and a lease that is not known to be lost."""
        return self._keeper is not None and not self._keeper.lost and self._version > 0

    @property
    def seconds_left(self) -> float:
        """The seconds for which the lease is valid; 0 if it is not."""
        return max(0.0, self._keeper.valid_until - self._services.clock()) if self._keeper is not None else 0.0

    def beat(self) -> None:
        """Note that the event loop advances."""
        if self._keeper is not None:
            self._keeper.beat()

    @property
    def lease_to_lead(self) -> Lease | None:
        """The lease to which the leader's key can be bound; None if this member has none (Rule 3)."""
        return None if self._own.lease else self.lease

    async def acquire(self) -> None:
        """Get a lease and the name. Raises CoordinatorError, NameTakenError."""
        if self._keeper is None or self._keeper.lost:
            self._drop()
            self.lease, self._keeper = await self._granted(self._ms)
            self._own = replace(self._own, lease="")
        await self._publish(self._own, self.lease)

    async def follow(self) -> float:
        """Have the long lease (Rule 3) after this member has followed for the time of a short one, so that the requests
        of a failover do not compete with it. Returns the seconds until then, or 0. Raises CoordinatorError,
        NameTakenError."""
        if self._own.lease:
            return 0.0
        now = self._services.clock()
        if self._follows_since is None:
            self._follows_since = now
        wait = self._follows_since + self._ms / 1000 - now
        if wait <= 0:
            await self._exchange(FOLLOWING * self._ms, self._own)
        return max(0.0, wait)

    async def may_lead(self) -> None:
        """Have a lease to which the leader's key can be bound. Raises CoordinatorError, NameTakenError."""
        await self._lead_with(self._own)

    async def candidate(self, epoch: int, end: int, damaged: bool) -> None:
        """Publish that this member is a candidate to succeed the leader of an epoch, and have a lease with which it can
        lead. Raises CoordinatorError, NameTakenError."""
        await self._lead_with(replace(self._own, vacant=epoch, end=end, damaged=damaged))

    async def _lead_with(self, own: Presence) -> None:
        self._follows_since = None
        if self._own.lease:
            await self._exchange(self._ms, own)
        elif own != self._own:
            await self._publish(own, self.lease)

    async def _granted(self, ms: int) -> tuple[Lease, RenewedLease]:
        """Return a new lease, and what renews it. Raises CoordinatorError."""
        loop = asyncio.get_running_loop()
        granted = self._services.clock()
        lease = await self._store.coordinator.grant(ms)

        def changed() -> None:  # in the keeper's thread
            try:
                loop.call_soon_threadsafe(self._changed)
            except RuntimeError:  # the loop is closed
                pass

        keeper = self._services.keep(lease, granted, changed)
        keeper.beat()
        return lease, keeper

    async def _exchange(self, ms: int, own: Presence) -> None:
        """Bind the key to a new lease of this duration, and revoke the previous one."""
        lease, keeper = await self._granted(ms)
        own = replace(own, lease=lease.id if ms > self._ms else "")
        try:
            await self._publish(own, lease)
        except BaseException as error:
            keeper.stop(wait=False)
            self._version = 0  # the key may be bound to the new lease: it is written again, with the previous one
            if isinstance(error, Exception):
                await self._revoke(lease)
            raise
        previous, unneeded = self.lease, self._keeper
        self.lease, self._keeper = lease, keeper
        if unneeded is not None:
            unneeded.stop(wait=False)  # the event loop would stall, often while the coordinator is slow
        if previous is not None:  # nothing is bound to it any more, so an election does not wait for the reply
            revocation = asyncio.get_running_loop().create_task(self._revoke(previous))
            self._revocations.add(revocation)
            revocation.add_done_callback(self._revocations.discard)

    async def _revoke(self, lease: Lease) -> None:
        with suppress(CoordinatorError):  # it expires
            await self._store.coordinator.revoke(lease)

    async def _publish(self, own: Presence, lease: Lease | None) -> None:
        """Write the key, bound to a lease."""
        if lease is None:
            raise CoordinatorError("this member has no lease")
        for _ in range(_TRIES):
            try:
                version = await self._store.publish(self._name, own, self._version, lease)
            except LeaseGoneError:
                self._drop()
                raise
            if version is not None:
                self._version, self._own, self._named = version, own, True
                return
            self._version = await self._found()
        raise CoordinatorError("the key of this member is changed by another process")

    async def _found(self) -> int:
        """Return the version of the key, which this process may replace; 0 if it does not exist. Raises
        CoordinatorError, NameTakenError."""
        found = await self._store.presence(self._name)
        if found is None:
            return 0
        other, version = found
        if other.process == self._own.process:
            return version  # of a request of unknown outcome
        self._version = 0
        predecessor = not self._named and (other.id, other.address) == (self._own.id, self._own.address)
        if predecessor and await self.end_long(other):
            return 0
        raise NameTakenError(
            f"another member with this name is running at {other.address}: set another group-member for this one. If"
            f" that is the previous process of this member, its lease expires within {self.longest(other):g} s"
        )

    async def end_long(self, other: Presence) -> bool:
        """Revoke the long lease of another process, and return True, unless the lease is short. If that process is
        alive, it gets another lease when it renews this one. Raises CoordinatorError."""
        if other.lease:
            await self._store.coordinator.revoke(Lease(other.lease, FOLLOWING * self._ms))
        return bool(other.lease)

    def longest(self, other: Presence) -> float:
        """Return the seconds after which the name of another process is free at the latest, once it has ended."""
        return (FOLLOWING if other.lease else 1) * self._ms / 1000 + 2

    async def revoked(self) -> None:
        """Wait until the previous leases are revoked, or can't be."""
        await asyncio.gather(*self._revocations)

    async def release(self) -> None:
        """Revoke the lease. Raises CoordinatorError."""
        lease = self.lease
        self._drop()
        await self.revoked()
        if lease is not None:
            await self._store.coordinator.revoke(lease)

    def _drop(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        self._keeper, self.lease, self._version, self._follows_since = None, None, 0, None
        self._own = replace(self._own, lease="")
