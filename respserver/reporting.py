"""INFO and MEMORY, collected from the parts of the server.

The cost is one pass over the clients and one over the streams; the result of the latter is reused for a while if the
pass took long (see ``streamtotals``).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

from commands.declare import all_commands
from commands.session import CHANNELS, PATTERNS, SHARDS
from respserver.clients.clients import Clients
from respserver.clients.pubsub import PubSub
from respserver.clients.tracking import Tracking
from respserver.clients.users import Users
from respserver.execution.blocking import Blocking
from respserver.maintenance.checkpoints import Checkpoints
from respserver.maintenance.scrubbing import Scrubbing
from respserver.observe import info
from respserver.observe.clienttotals import ClientTotals, ClientWalk
from respserver.observe.info import ServerStats
from respserver.observe.streamtotals import StreamWalk
from respserver.roles.roles import Roles
from respserver.runtime.memory import Memory
from respserver.runtime.parts import RuntimeParts, ServerPart
from respserver.tiering.tiering import Tiering
from storage.keyspace.memory import recount

RECOUNTED: Final = 2000  # number of groups that are recounted together, which takes some milliseconds


@dataclass(frozen=True)
class ReportSources:
    """The parts that are needed only by reports."""

    clients: Clients
    users: Users
    pubsub: PubSub
    blocking: Blocking
    roles: Roles
    checkpoints: Checkpoints
    scrubbing: Scrubbing
    tiering: Tiering
    memory: Memory
    tracking: Tracking


class Reporting(ServerPart):
    """Implements ``StatsPart``."""

    def __init__(self, parts: RuntimeParts, sources: ReportSources) -> None:
        super().__init__(parts)
        self._sources = sources
        self._walk = StreamWalk()
        self._client_walk = ClientWalk()
        self._started = parts.clock.now()
        self._run_id = os.urandom(20).hex()

    def info(self, sections: list[str]) -> str:
        return info.render(self.stats(self._clients(), self._walk), sections)

    def ready(self, sections: list[str]) -> bool:
        """Process some of the clients, some of the changed groups, and, if INFO with these sections needs their totals,
        some of the streams. Returns True once info() is fast."""
        if not recount(self._data.ks, RECOUNTED) or not self._client_walk.more(self._sources.clients.all()):
            return False
        if sections and info.SUMS.isdisjoint(sections):
            return True
        return self._walk.more(self._data.ks)

    def memory(self) -> dict[str, int]:
        return info.memory_stats(self.stats(self._clients(), self._walk))

    def _clients(self) -> ClientTotals:
        return self._client_walk.take(self._sources.clients.all())

    def stats(self, clients: ClientTotals, walk: StreamWalk) -> ServerStats:
        """Return the state from which INFO is rendered."""
        config, data, sources = self._config, self._data, self._sources
        return ServerStats(
            now=self._clock.now(), started=self._started, run_id=self._run_id, roles=sources.roles.stats(),
            loading=self._gates.loading, cluster=config.cluster_enabled, config=config.value, keyspace=data.ks,
            clients=clients, counters=self._counters, walk=walk, saves=sources.checkpoints.saves,
            rewrites=sources.checkpoints.rewrites, rewrite_scheduled=sources.checkpoints.rewrite_scheduled,
            scrub=sources.scrubbing.stats(), tier=sources.tiering.stats(), log=data.log_stats(),
            log_offset=data.disk.offset, write_error=self._gates.unwritable or None,
            startup_memory=data.startup_memory, keys_loaded=data.keys_loaded, deadlines=sources.blocking.deadlines(),
            channels=sources.pubsub.count(CHANNELS),
            shard_channels=sources.pubsub.count(SHARDS),
            patterns=sources.pubsub.count(PATTERNS), config_file=config.file or "", executable=sys.executable,
            histograms=self._timings.histograms, peak_memory=sources.memory.peak(),
            denials=sources.users.denials.counts, tracking=sources.tracking.stats(),
            overheads=sources.memory.overheads(), unserved_keys=self._slots.unserved.keys,
        )  # fmt: skip

    def reset(self) -> None:
        self._counters.reset()
        self._timings.histograms.clear()
        self._sources.users.denials.reset_counts()
        ks = self._data.ks
        ks.hits = ks.misses = ks.expired_keys = ks.expired_groups = ks.stages.expired = 0
        ks.pool.cache.hits = ks.pool.cache.misses = 0
        for command in all_commands():
            command.calls = command.usec = command.rejected = command.failed = 0
