"""A member's lease, and the data that it publishes under its name while it is alive.

Rule 1: a member has one lease. Its name and, if it leads, the leader's key are bound to this lease and expire together.
Rule 2: two members can't use one name. The second one waits until the lease of the first one has expired.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from coordinator.interface import CoordinatorError, Lease, LeaseGoneError
from respserver.group.services import GroupServices, RenewedLease
from respserver.group.states import GroupStore, Presence


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
        self.lease: Lease | None = None
        self._keeper: RenewedLease | None = None

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

    async def acquire(self) -> None:
        """Get a lease and the name. Raises CoordinatorError, NameTakenError."""
        if self._keeper is None or self._keeper.lost:
            self._drop()
            loop = asyncio.get_running_loop()
            granted = self._services.clock()
            lease = await self._store.coordinator.grant(self._ms)

            def changed() -> None:  # in the keeper's thread
                try:
                    loop.call_soon_threadsafe(self._changed)
                except RuntimeError:  # the loop is closed
                    pass

            self.lease, self._keeper, self._version = lease, self._services.keep(lease, granted, changed), 0
            self._keeper.beat()
        while not self._version:
            await self._publish(self._own)

    async def candidate(self, epoch: int, end: int, damaged: bool) -> None:
        """Publish that this member is a candidate to succeed the leader of an epoch. Raises CoordinatorError."""
        own = replace(self._own, vacant=epoch, end=end, damaged=damaged)
        if own != self._own:
            await self._publish(own)

    async def _publish(self, own: Presence) -> None:
        if self.lease is None:
            raise CoordinatorError("this member has no lease")
        version: int | None = None
        try:
            version = await self._store.publish(self._name, own, self._version, self.lease)
        except LeaseGoneError:
            self._drop()
            raise
        if version is None:  # the key has another version: perhaps by a request of unknown outcome
            found = await self._store.presence(self._name)
            if found is None:
                self._version = 0
                raise CoordinatorError("the key of this member was deleted")
            if found[0].process != self._own.process:
                self._version = 0
                raise NameTakenError(
                    f"another member with this name is running at {found[0].address}: set another group-member for this"
                    " one. If that is the previous process of this member, its lease expires within"
                    f" {self._ms / 1000 + 2:g} s"
                )
            version = found[1]
            if found[0] != own:
                self._version = version
                raise CoordinatorError("the key of this member has changed")
        self._version, self._own = version, own

    async def release(self) -> None:
        """Revoke the lease. Raises CoordinatorError."""
        lease = self.lease
        self._drop()
        if lease is not None:
            await self._store.coordinator.revoke(lease)

    def _drop(self) -> None:
        if self._keeper is not None:
            self._keeper.stop()
        self._keeper, self.lease, self._version = None, None, 0
