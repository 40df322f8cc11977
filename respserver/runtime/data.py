"""The open data directory, and the keyspace built from it.

Both are replaced together, by a copy of a leader's data or when DEBUG RELOAD reads everything back from disk. So other
parts read ``data.disk`` and ``data.ks`` each time and store neither.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commands.glob import compiled
from persistence.log import Log, LogOptions, Recovered
from resp.errors import AbsentNodeError, DamagedNodeError
from respserver.config.config import Config
from respserver.config.valuetypes import policies
from respserver.observe.logs import Logger
from respserver.observe.stats import process_memory
from respserver.runtime.clock import Clock
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.nodes.cache import NodeCache
from storage.nodes.pool import NodePool, most_drafted
from storage.streams.retention import RetentionPolicy
from storage.streams.stream import Stream

Opened = tuple[Log, Keyspace, Recovered]

SOUND_MS = 2000  # for which a store that was damaged must be undamaged: damaged nodes are often found one after another


class Data:
    """The data of a server. Opens the data directory. Raises CorruptError, OSError."""

    def __init__(self, config: Config, clock: Clock, logger: Logger) -> None:
        self._config = config
        self._clock = clock
        self._logger = logger
        self.follower = False  # this is a replica: it logs what its leader logged, and expires nothing
        self._damaged_until = clock.mono()  # ms (monotonic) until which the store counts as damaged
        self.frozen = False  # writes are delayed: nothing expires
        self._sync_all = False  # the leader requests that each tick is synced
        self.startup_memory = 0  # bytes of memory before data was loaded
        self.keys_loaded = 0
        self.on_use: Callable[[], None] | None = None  # called when the keyspace was replaced
        # called with a node that is only in the object store, to fetch it
        self.on_absent: Callable[[AbsentNodeError], None] | None = None
        self.last_stats: dict[str, int | float | str] | None = None  # log statistics while the data is being replaced
        self.disk: Log
        self.ks: Keyspace
        self.use(*self.load())

    def load(self) -> Opened:
        """Open the data directory and read it, on any thread. Raises CorruptError, OSError."""
        config = self._config
        options = LogOptions(
            appendfsync=self._sync_policy(), ring_bytes=config.wal_size, checkpoint_bytes=config.checkpoint_size
        )
        disk = Log.open(Path(config.dir), options)
        ks = empty_keyspace(disk, config)
        self.startup_memory = self.startup_memory or process_memory().anonymous
        try:
            return disk, ks, disk.recover(ks)
        except BaseException:
            disk.close()
            raise

    def use(self, disk: Log, ks: Keyspace, recovered: Recovered) -> None:
        self.disk, self.ks = disk, ks
        self.last_stats = None
        ks.log.clear()
        ks.ready.clear()
        ks.follower, ks.frozen = self.follower, self.frozen
        ks.pool.tiered = ks.pool.tiered or disk.store.has_references  # those of the log are set already
        ks.on_damage = self.note_damage
        self._choose_events()
        if self.on_use is not None:
            self.on_use()
        ks.resume(self._clock.now())
        self._choose_policies()  # only now: a replay creates streams, too
        self.keys_loaded = len(ks.keys)
        self.damage_changed()
        for line in recovered.lines():
            self._logger.notice(line)
        seconds = recovered.store_seconds + recovered.replay_seconds
        self._logger.notice(f"DB loaded from disk: {seconds:.3f} seconds")

    def close(self) -> None:
        """Close the data directory, before it is replaced or at shutdown. Idempotent."""
        if self.last_stats is None:
            self.ks.pool.cache.clear()
            self.last_stats = self.disk.stats()
            self.disk.close()

    def follow(self, follower: bool) -> None:
        self.follower = self.ks.follower = follower
        self._choose_events()

    def freeze(self, frozen: bool) -> None:
        self.frozen = self.ks.frozen = frozen

    def _choose_events(self) -> None:
        """Set which events the keyspace publishes."""
        classes = events.parse_classes(self._config.notify_keyspace_events)
        self.ks.event_classes = events.fired(classes, self.follower)

    def _choose_policies(self) -> None:
        """Set the default policies of new streams (``stream-retention``)."""
        found = [(compiled(pattern), policy) for pattern, policy in policies(self._config.stream_retention)]

        def default(key: bytes) -> RetentionPolicy | None:
            return next((policy for pattern, policy in found if pattern.matches(key)), None)

        self.ks.default_policy = default if found else None

    def key_of(self, sid: int) -> bytes | None:
        """Return the key of a stream; None if it was renamed or removed since the last checkpoint."""
        key = self.disk.store.key_of(sid)
        return None if key is None or self.stream(key, sid) is None else key

    def stream(self, key: bytes, sid: int) -> Stream | None:
        """Return the stream at a key, or the stream of its delayed entries, if it is this one."""
        value = self.ks.keys.get(key)
        if isinstance(value, Stream) and value.sid == sid:
            return value
        delayed = self.ks.delayed.get(key)
        return delayed.entries if delayed is not None and delayed.entries.sid == sid else None

    def note_damage(self, error: DamagedNodeError) -> str:
        """Record a damaged node that a read has met, or fetch one that is only in the object store. Return the text of
        the error, with the key."""
        if isinstance(error, AbsentNodeError):
            if self.on_absent is not None and not error.failed:
                self.on_absent(error)
        else:
            self.disk.scrub.note(error.sid, error.first_ord, error.first_id, error.why)
            self.damage_changed()
        key = self.key_of(error.sid)
        return str(error) if key is None else error.of_key(key)

    def damage_changed(self) -> None:
        """Let long replies know which nodes are damaged, see ``NodePool.damaged``."""
        damaged: dict[int, dict[int, str]] = {}
        for damage in self.disk.scrub.damage:
            if damage.node is not None:
                damaged.setdefault(damage.node[0], {})[damage.node[1]] = damage.why
        self.ks.pool.damaged = damaged

    def damaged_lately(self) -> bool:
        """Return whether the store is damaged, or was when this was last called within SOUND_MS."""
        mono = self._clock.mono()
        if self.disk.scrub.damaged:
            self._damaged_until = mono + SOUND_MS
        return mono < self._damaged_until

    def log_stats(self) -> dict[str, int | float | str]:
        """Return the statistics of the log; while the data is being replaced, those from before the replacement."""
        return self.disk.stats() if self.last_stats is None else self.last_stats

    def configure(self) -> None:
        config = self._config
        self.ks.pool.cache.max_bytes = config.node_cache_size
        _configure_nodes(self.ks, config)
        self._choose_policies()
        self._choose_events()
        self.disk.configure(self._sync_policy(), config.checkpoint_size)

    def sync_all(self, required: bool) -> None:
        """Sync each tick, regardless of ``appendfsync``, because the leader counts on it (``replica-acks``)."""
        if required != self._sync_all:
            self._sync_all = required
            self.disk.configure(self._sync_policy(), self._config.checkpoint_size)

    def _sync_policy(self) -> str:
        return "always" if self._sync_all or self._config.replica_acks else self._config.appendfsync


def empty_keyspace(disk: Log, config: Config) -> Keyspace:
    """Return an empty keyspace for the data on ``disk``; ``config`` determines the size of its nodes."""
    ks = Keyspace(NodePool(disk.store, NodeCache(config.node_cache_size)))
    _configure_nodes(ks, config)
    return ks


def _configure_nodes(ks: Keyspace, config: Config) -> None:
    ks.pool.idmp_ms, ks.pool.idmp_most = config.stream_idmp_duration * 1000, config.stream_idmp_maxsize
    ks.pool.most_drafted = most_drafted(config.maxmemory)
    ks.pool.max_entries, ks.pool.max_bytes = config.stream_node_max_entries, config.stream_node_max_bytes
