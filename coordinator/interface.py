"""What all coordinators have in common: the calls, their results and errors.

Rule 1: Versions only increase. A key that was deleted and created again has a higher version than before.
Rule 2: What one caller has seen, all later calls see. A key that has vanished with its lease does not come back.
Rule 3: A call that raises CoordinatorError may have had its effect. The caller reads again and decides again.

The calls are what etcd, a directory and a Kubernetes Lease object can all provide (there, the version is the object's
resourceVersion, and a lease is its renewTime). They are asynchronous: simulations run in one event loop, without
threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CoordinatorError(Exception):
    """The coordinator did not answer, or not as it should. The outcome of the call is unknown."""


class LeaseGoneError(CoordinatorError):
    """The lease that a swap should bind its key to is gone. The swap changed nothing."""


class CoordinatorConfigError(Exception):
    """The URL of a coordinator, or what it names, cannot be used. The text names the remedy."""


class Versioned(NamedTuple):
    """The value of a key, and its version."""

    value: bytes
    version: int  # from 1; increases with each change of the key, not necessarily by 1


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease: the keys that are bound to it vanish when it is not kept for its duration."""

    id: str
    ms: int  # its holder can rely on this duration after each grant and keep; keys may vanish a little later


class Watch(Protocol):
    """Notifies of changes of one key. One coroutine at a time may wait.

    The first notification comes when the watch has begun: a caller that reads the key after each notification misses
    no change. Several changes may cause one notification, and a notification may come without a change. While the
    coordinator cannot be reached, the watch waits and tries again; at least one notification follows.
    """

    def __aiter__(self) -> AsyncIterator[None]:
        """Return the watch."""
        ...

    async def __anext__(self) -> None:
        """Wait for the next notification. Raises StopAsyncIteration after ``close``."""
        ...

    def close(self) -> None:
        """End the watch, also for a coroutine that waits."""
        ...


class Coordinator(Protocol):
    """The calls of a coordinator. Each raises CoordinatorError after at most the time that ``connect`` was given."""

    async def get(self, key: str) -> Versioned | None:
        """Return the value of a key; None if it does not exist."""
        ...

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        """Change a key if it has a version; return its new version, or None if it has another one.

        Version 0 means that the key does not exist. Value None deletes the key (ValueError with version 0). With a
        lease, the key vanishes when the lease does; without one, the key is no longer bound. Raises LeaseGoneError if
        the lease is gone.
        """
        ...

    async def grant(self, ms: int) -> Lease:
        """Return a new lease of ``ms`` milliseconds. Its time counts from the call at the earliest."""
        ...

    async def keep(self, lease: Lease) -> bool:
        """Renew a lease for its duration, from the call or later. Returns False if it has expired or was revoked."""
        ...

    async def revoke(self, lease: Lease) -> None:
        """End a lease: its keys vanish at once. Nothing happens if it is gone."""
        ...

    def watch(self, key: str) -> Watch:
        """Return the notifications of changes of a key."""
        ...

    async def close(self) -> None:
        """End all watches, and free sockets and files. Leases that were granted here may end at once."""
        ...
