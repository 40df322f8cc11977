"""What the server holds in memory, and the gate that ``maxmemory`` closes.

The figure includes the data (keys, strings, the parts of streams that are in memory, groups, stages, fences), the cache
of nodes, input and output buffers of clients, their watched keys and subscriptions, the table of CLIENT TRACKING, and
users. As in Redis, it does not include the buffers for replicas and for the journal, nor the program itself. It is an
estimate that depends on the data only; the part for clients is at most a second old.

Rule 1: it is a sum of counters, kept where things are added and dropped. So it is computed when it is asked for: at the
end of each tick while there is a limit, and for each command that was about to be refused.
Rule 2: what can leave memory does so before anything is refused: nodes leave the cache at once, and a checkpoint begins
if nodes wait to be stored.
"""

from __future__ import annotations

from collections.abc import Callable

from respserver.config.config import Config
from respserver.runtime.data import Data
from respserver.runtime.gates import Gates
from storage.keyspace.memory import memory_bytes


class Memory:
    """Compares used() with ``maxmemory``.

    ``client_bytes`` returns the memory size of the clients, and ``overheads`` that of what is neither data nor a
    client's. ``make_room`` starts a checkpoint unless one is running.
    """

    def __init__(
        self, config: Config, data: Data, gates: Gates, client_bytes: Callable[[], int], overheads: Callable[[], int],
        make_room: Callable[[], None],
    ) -> None:  # fmt: skip
        self._config = config
        self._data = data
        self._gates = gates
        self._client_bytes = client_bytes
        self.overheads = overheads
        self._make_room = make_room
        self._peak = 0
        self.limit = 0  # ``maxmemory``, as of the last check(), which follows each change of it

    def used(self) -> int:
        """Bytes in memory."""
        ks = self._data.ks
        used = memory_bytes(ks) + ks.pool.cache.bytes + self._client_bytes() + self.overheads()
        self._peak = max(self._peak, used)
        return used

    def peak(self) -> int:
        """The most bytes that were ever seen."""
        return max(self._peak, self.used())

    def check(self) -> bool:
        """Set the gate; returns whether memory is full, so that commands that add data are refused."""
        limit = self.limit = self._config.maxmemory
        full = bool(limit) and self._above(limit) and not self._data.follower
        if full != self._gates.out_of_memory:
            self._gates.memory(full)
        return full

    def _above(self, limit: int) -> bool:
        """Whether more than ``limit`` bytes are in use, after what can leave memory at once has left it."""
        pool = self._data.ks.pool
        used = self.used()
        over = used - limit
        if over > 0 and pool.cache.bytes:
            pool.cache.shrink(over)
            over = self.used() - limit
        if pool.unstored and (pool.unstored >= over > 0 or (over > -(limit >> 2) and pool.unstored >= limit >> 3)):
            self._make_room()
        return over > 0
