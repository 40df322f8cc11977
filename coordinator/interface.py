"""The interface of all coordinators: calls, results and errors.

Rule 1: Versions only increase. A key that was deleted and created again has a higher version than before.
Rule 2: After a call has returned a state, all later calls return this state or a newer one. A key that was deleted with
its lease does not reappear.
Rule 3: A call that raises CoordinatorError may have taken effect. The caller reads again and decides again.

etcd, a directory, and a Kubernetes Lease object can all provide these calls. With a Lease object, the version is its
resourceVersion, and a lease is its renewTime. The calls are asynchronous, so simulations run in one event loop without
threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CoordinatorError(Exception):
    """The coordinator sent no reply, or an invalid one. The outcome of the call is unknown."""


class LeaseGoneError(CoordinatorError):
    """The lease of a swap has expired or was revoked. The swap changed nothing."""


class CoordinatorConfigError(Exception):
    """The URL of a coordinator or its target cannot be used. The text names the remedy."""


class Versioned(NamedTuple):
    """The value of a key, and its version."""

    value: bytes
    version: int  # from 1; increases with each change of the key, not necessarily by 1


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. The keys that are bound to it are deleted if it is not renewed for its duration."""

    id: str
    ms: int  # the minimum duration after each grant and renewal; keys may be deleted slightly later


class Watch(Protocol):
    """Notifies of changes of one key. One coroutine at a time may wait.

    The watch sends the first notification when it has begun, so a caller that reads the key after each notification
    misses no change. Several changes may cause one notification, and a notification may be sent without a change. While
    the coordinator cannot be reached, the watch retries. It then sends at least one notification.
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
    """The calls of a coordinator. Each raises CoordinatorError at the latest after the timeout of ``connect``."""

    async def get(self, key: str) -> Versioned | None:
        """Return the value of a key; None if it does not exist."""
        ...

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        """Change a key if it has this version. Return its new version, or None if it has a different version.

        Version 0 means that the key does not exist. Value None deletes the key (ValueError with version 0). With a
        lease, the key is deleted when the lease expires or is revoked. Without one, the key is no longer bound. Raises
        LeaseGoneError if the lease has expired or was revoked.
        """
        ...

    async def grant(self, ms: int) -> Lease:
        """Return a new lease of ``ms`` milliseconds. Its time begins with the call or later."""
        ...

    async def keep(self, lease: Lease) -> bool:
        """Renew a lease for its duration, from the call or later. Return False if it has expired or was revoked."""
        ...

    async def revoke(self, lease: Lease) -> None:
        """Revoke a lease and delete its keys. Do nothing if the lease has already expired."""
        ...

    def watch(self, key: str) -> Watch:
        """Return the notifications of changes of a key."""
        ...

    async def close(self) -> None:
        """End all watches, and free sockets and files. Leases that were granted here may expire immediately."""
        ...
