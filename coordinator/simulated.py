"""A coordinator in memory on the clock of an event loop, for simulations and tests.

Rule: Everything happens at a time of the loop. With a loop on a virtual clock and a seeded ``delay``, each run with the
same seed is the same.

One SimulatedStore is what the members share; each has its own SimulatedCoordinator, which can be cut off from it or
lose replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .interface import CoordinatorError, Lease, LeaseGoneError, Versioned

T = TypeVar("T")


@dataclass
class _Key:
    value: bytes
    version: int
    lease: str  # empty if the key is not bound to a lease


class SimulatedStore:
    """The keys and leases. Methods act at once, at the loop's time."""

    def __init__(self) -> None:
        self.keys: dict[str, _Key] = {}
        self.leases: dict[str, asyncio.TimerHandle] = {}  # by ID: what ends the lease
        self.listeners: set[Callable[[str], None]] = set()
        self._changes = 0  # versions: one sequence for all keys, as in etcd
        self._granted = 0

    def get(self, key: str) -> Versioned | None:
        """Return the value of a key."""
        found = self.keys.get(key)
        return Versioned(found.value, found.version) if found else None

    def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None) -> int | None:
        """Change a key if it has a version. Raises LeaseGoneError."""
        found = self.keys.get(key)
        if (found.version if found else 0) != version:
            return None
        if value is not None and lease is not None and lease.id not in self.leases:
            raise LeaseGoneError(f"the lease of {key} is gone")
        self._changes += 1
        if value is None:
            del self.keys[key]
        else:
            self.keys[key] = _Key(value, self._changes, lease.id if lease else "")
        self._notify(key)
        return self._changes

    def grant(self, ms: int) -> Lease:
        """Create a lease."""
        self._granted += 1
        lease = Lease(f"lease-{self._granted}", ms)
        self._expire_later(lease)
        return lease

    def keep(self, lease: Lease) -> bool:
        """Renew a lease."""
        expiry = self.leases.get(lease.id)
        if expiry is None:
            return False
        expiry.cancel()
        self._expire_later(lease)
        return True

    def revoke(self, name: str) -> None:
        """End a lease, and delete its keys."""
        expiry = self.leases.pop(name, None)
        if expiry is None:
            return
        expiry.cancel()
        for key in [key for key, found in self.keys.items() if found.lease == name]:
            self._changes += 1
            del self.keys[key]
            self._notify(key)

    def _expire_later(self, lease: Lease) -> None:
        self.leases[lease.id] = asyncio.get_running_loop().call_later(lease.ms / 1000, self.revoke, lease.id)

    def _notify(self, key: str) -> None:
        for listener in tuple(self.listeners):
            listener(key)


class SimulatedCoordinator:
    """The coordinator of one member."""

    def __init__(
        self, store: SimulatedStore, *, timeout: float = 1.0, delay: Callable[[], float] = lambda: 0.0
    ) -> None:
        """``delay``: the seconds that the next message takes; it is called for a request, a reply, a notification."""
        self.store = store
        self.reachable = True  # False: cut off from the store
        self.lost_replies = 0  # so many of the next calls have their effect, and raise CoordinatorError
        self._timeout = timeout
        self._delay = delay
        self._watches: set[_SimulatedWatch] = set()
        self._closed = False
        store.listeners.add(self._changed)

    def cut(self) -> None:
        """Cut the member off: requests, replies and notifications are lost."""
        self.reachable = False

    def heal(self) -> None:
        """Connect the member again: its watches notify."""
        self.reachable = True
        for watch in self._watches:
            watch.notify(self._delay())

    async def get(self, key: str) -> Versioned | None:
        """See ``Coordinator.get``."""
        return await self._call(lambda: self.store.get(key))

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        """See ``Coordinator.swap``."""
        if value is None and version == 0:
            raise ValueError("a key that does not exist cannot be deleted")
        return await self._call(lambda: self.store.swap(key, value, version, lease))

    async def grant(self, ms: int) -> Lease:
        """See ``Coordinator.grant``."""
        return await self._call(lambda: self.store.grant(ms))

    async def keep(self, lease: Lease) -> bool:
        """See ``Coordinator.keep``."""
        return await self._call(lambda: self.store.keep(lease))

    async def revoke(self, lease: Lease) -> None:
        """See ``Coordinator.revoke``."""
        await self._call(lambda: self.store.revoke(lease.id))

    def watch(self, key: str) -> _SimulatedWatch:
        """See ``Coordinator.watch``."""
        watch = _SimulatedWatch(key)
        self._watches.add(watch)
        if self.reachable:
            watch.notify(self._delay())
        return watch

    async def close(self) -> None:
        """End all watches. Leases remain, as with a server."""
        self._closed = True
        self.store.listeners.discard(self._changed)
        for watch in self._watches:
            watch.close()

    async def _call(self, act: Callable[[], T]) -> T:
        if self._closed:
            raise CoordinatorError("the coordinator is closed")
        deadline = asyncio.get_running_loop().time() + self._timeout
        await self._travel(deadline)
        result = act()
        if self.lost_replies > 0:
            self.lost_replies -= 1
            await self._time_out(deadline)
        await self._travel(deadline)
        return result

    async def _travel(self, deadline: float) -> None:
        """Wait until a message has arrived. A member that is cut off meanwhile loses it."""
        delay = self._delay()
        if not self.reachable or asyncio.get_running_loop().time() + delay > deadline:
            await self._time_out(deadline)
        await asyncio.sleep(delay)
        if not self.reachable:
            await self._time_out(deadline)

    async def _time_out(self, deadline: float) -> None:
        await asyncio.sleep(max(0.0, deadline - asyncio.get_running_loop().time()))
        raise CoordinatorError(f"the coordinator did not answer within {self._timeout:g} s")

    def _changed(self, key: str) -> None:
        for watch in self._watches:
            if watch.key == key and self.reachable:
                watch.notify(self._delay())


class _SimulatedWatch:
    """Notifications of one key, each of which arrives after a delay."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._changed = asyncio.Event()
        self._closed = False

    def notify(self, delay: float) -> None:
        asyncio.get_running_loop().call_later(delay, self._changed.set)

    def __aiter__(self) -> _SimulatedWatch:
        return self

    async def __anext__(self) -> None:
        await self._changed.wait()
        if self._closed:
            raise StopAsyncIteration
        self._changed.clear()

    def close(self) -> None:
        """End the watch."""
        self._closed = True
        self._changed.set()
