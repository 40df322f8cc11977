"""The memory that the server uses, and the gate that ``maxmemory`` closes.

The figure includes the data (keys, strings, the parts of streams that are in memory, groups, stages, fences), the node
cache, input and output buffers of clients, their watched keys and subscriptions, the table of CLIENT TRACKING, and
users. As in Redis, it does not include the buffers for replicas and for the journal, nor the program itself. It is an
estimate that depends on the data only; the part for clients is at most one second old.

Rule 1: it is a sum of counters, each maintained by the code that adds and removes objects. So it is computed on demand:
at the end of each tick while there is a limit, and before a command is refused.
Rule 2: before anything is refused, memory is freed: nodes are evicted from the cache, and a checkpoint starts if nodes
are waiting to be stored.
"""

from __future__ import annotations

from collections.abc import Callable

from respserver.runtime.parts import RuntimeParts
from storage.keyspace.memory import memory_bytes


class Memory:
    """Compares used() with ``maxmemory``.

    ``client_bytes`` returns the memory size of the clients, and ``overheads`` that of everything that is neither data
    nor a client's. ``make_room`` starts a checkpoint unless one is running.
    """

    def __init__(
        self, parts: RuntimeParts, client_bytes: Callable[[], int], overheads: Callable[[], int],
        make_room: Callable[[], None],
    ) -> None:  # fmt: skip
        self._config = parts.config
        self._data = parts.data
        self._gates = parts.gates
        self._client_bytes = client_bytes
        self.overheads = overheads
        self._make_room = make_room
        self._peak = 0
        self.limit = 0  # ``maxmemory`` as of the last check(), which follows each change of it

    def used(self) -> int:
        ks = self._data.ks
        used = memory_bytes(ks) + ks.pool.cache.bytes + self._client_bytes() + self.overheads()
        self._peak = max(self._peak, used)
        return used

    def peak(self) -> int:
        """Return the highest number of bytes observed."""
        return max(self._peak, self.used())

    def check(self) -> bool:
        """Set the gate. Returns whether memory is full; commands that add data are then refused."""
        limit = self.limit = self._config.maxmemory
        full = bool(limit) and self._above(limit) and not self._data.follower
        if full != self._gates.out_of_memory:
            self._gates.memory(full)
        return full

    def _above(self, limit: int) -> bool:
        """Return whether more than ``limit`` bytes are in use after the cache has been shrunk."""
        pool = self._data.ks.pool
        used = self.used()
        over = used - limit
        if over > 0 and pool.cache.bytes:
            pool.cache.shrink(over)
            over = self.used() - limit
        if pool.unstored and (pool.unstored >= over > 0 or (over > -(limit >> 2) and pool.unstored >= limit >> 3)):
            self._make_room()
        return over > 0
