"""External services of a member: the coordinator, and the renewal of its lease. Simulations supply their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from coordinator.interface import Coordinator, CoordinatorConfigError, Lease
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.group import identity


class RenewedLease(Protocol):
    """Renews a lease: ``coordinator.keeper.LeaseKeeper``."""

    @property
    def valid_until(self) -> float:
        """The time by the services' clock until which the lease is valid."""

    @property
    def lost(self) -> bool:
        """Whether the lease has expired or was revoked. It can't become valid again."""

    def valid(self) -> bool:
        """Return whether the lease is valid now."""

    def beat(self) -> None:
        """Note that the event loop advances."""

    def stop(self, *, wait: bool = True) -> None:
        """Stop renewing the lease. ``wait``: until a renewal in flight has ended, for at most a second."""


@dataclass(frozen=True)
class GroupServices:
    """The coordinator of one member."""

    coordinator: Coordinator
    keep: Callable[[Lease, float, Callable[[], None]], RenewedLease]  # lease, when it was requested, called on change
    clock: Callable[[], float]  # seconds, which continue while the machine is suspended


def without_password(url: str) -> str:
    """Return the URL of a coordinator for messages."""
    return re.sub(r"//[^/@]*@", "//", url)


def services(config: Config) -> GroupServices:
    """Return the services for the directive ``coordinator``. Raises ConfigError, CorruptError, OSError."""
    from coordinator.clock import boottime
    from coordinator.connect import connect
    from coordinator.keeper import LeaseKeeper

    timeout = config.group_lease / 5000  # a fifth of the lease leaves time for another attempt
    try:
        # The directory of a group that exists may be on a file system that is not mounted yet.
        coordinator = connect(config.coordinator, timeout=timeout, create=not identity.load(config).group_id)
    except CoordinatorConfigError as error:
        raise ConfigError(f"coordinator: {error}") from error
    return GroupServices(
        coordinator,
        lambda lease, granted, changed: LeaseKeeper(
            lambda: connect(config.coordinator, timeout=timeout, create=False), lease, granted, changed
        ),
        boottime,
    )
