"""INFO and MEMORY, gathered from the parts of the server.

The cost is one pass over the clients and one over the streams; the result of the latter is reused for a while if it
took long (streamtotals).
"""

from __future__ import annotations

import os
import sys
from typing import Final

from commands.declare import all_commands
from respserver.clients.clients import Clients
from respserver.clients.pubsub import PubSub
from respserver.clients.tracking import Tracking
from respserver.clients.users import Users
from respserver.config.config import Config
from respserver.execution.blocking import Blocking
from respserver.maintenance.checkpoints import Checkpoints
from respserver.observe import info
from respserver.observe.clienttotals import ClientWalk
from respserver.observe.info import ServerStats
from respserver.observe.slowlog import Timings
from respserver.observe.stats import Counters
from respserver.observe.streamtotals import StreamWalk
from respserver.roles.roles import Roles
from respserver.runtime.clock import Clock
from respserver.runtime.data import Data
from respserver.runtime.gates import Gates
from respserver.runtime.memory import Memory
from storage.keyspace.memory import recount

RECOUNTED: Final = 2000  # groups that are looked at together: some milliseconds


class Reporting:
    """Implements ``StatsPart``."""

    def __init__(
        self, config: Config, clock: Clock, data: Data, gates: Gates, counters: Counters, timings: Timings,
        clients: Clients, users: Users, pubsub: PubSub, blocking: Blocking, roles: Roles, checkpoints: Checkpoints,
        memory: Memory, tracking: Tracking,
    ) -> None:  # fmt: skip
        self._config = config
        self._clock = clock
        self._data = data
        self._gates = gates
        self._counters = counters
        self._timings = timings
        self._clients = clients
        self._users = users
        self._pubsub = pubsub
        self._blocking = blocking
        self._roles = roles
        self._checkpoints = checkpoints
        self._memory = memory
        self._tracking = tracking
        self._walk = StreamWalk()
        self._client_walk = ClientWalk()
        self._started = clock.now()
        self._run_id = os.urandom(20).hex()

    def info(self, sections: list[str]) -> str:
        """The text of INFO; ``sections`` as in ``info.render``."""
        return info.render(self._stats(), sections)

    def ready(self, sections: list[str]) -> bool:
        """Look at some of the clients and of the groups that changed, and at some of the streams if INFO with these
        sections sums them up. True once info() costs little."""
        if not recount(self._data.ks, RECOUNTED) or not self._client_walk.more(self._clients.all()):
            return False
        if sections and info.SUMS.isdisjoint(sections):
            return True
        return self._walk.more(self._data.ks)

    def memory(self) -> dict[str, int]:
        """Bytes by purpose, see ``info.memory_stats``."""
        return info.memory_stats(self._stats())

    def _stats(self) -> ServerStats:
        config, data = self._config, self._data
        return ServerStats(
            now=self._clock.now(), started=self._started, run_id=self._run_id, roles=self._roles.stats(),
            loading=self._gates.loading, config=config.value, keyspace=data.ks,
            clients=self._client_walk.take(self._clients.all()),
            counters=self._counters, walk=self._walk, saves=self._checkpoints.saves,
            rewrites=self._checkpoints.rewrites, rewrite_scheduled=self._checkpoints.rewrite_scheduled,
            log=data.log_stats(),
            log_offset=data.disk.offset, write_error=self._gates.unwritable or None,
            startup_memory=data.startup_memory, keys_loaded=data.keys_loaded, deadlines=self._blocking.deadlines(),
            channels=self._pubsub.channel_count(),
            shard_channels=self._pubsub.shard_count(),
            patterns=self._pubsub.pattern_count(), config_file=config.file or "", executable=sys.executable,
            histograms=self._timings.histograms, peak_memory=self._memory.peak(),
            denials=self._users.denials.counts, tracking=self._tracking.stats(),
            overheads=self._memory.overheads(),
        )  # fmt: skip

    def reset(self) -> None:
        """CONFIG RESETSTAT."""
        self._counters.reset()
        self._timings.histograms.clear()
        self._users.denials.reset_counts()
        ks = self._data.ks
        ks.hits = ks.misses = ks.expired_keys = ks.expired_groups = ks.stages.expired = 0
        ks.pool.cache.hits = ks.pool.cache.misses = 0
        for command in all_commands():
            command.calls = command.usec = command.rejected = command.failed = 0
