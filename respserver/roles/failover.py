"""FAILOVER: this leader hands over to one of its replicas without losing acknowledged writes.

    waiting-for-sync       writes are delayed until the replica has the whole log
    failover-in-progress   the replica has the whole log: this server follows it with PSYNC ... FAILOVER, which makes
                           the replica the leader

Rule 1: this server becomes a replica when the replica has acknowledged the whole log. From then on it logs nothing, so
the replica has everything.
Rule 2: if a failover ends before that, writes continue as before. If it is aborted later, this server becomes a leader
with a new replication ID, because the replica may already lead.
"""

from __future__ import annotations

from typing import Protocol

from replication.feed import ReplicaFeed
from replication.handshake import ReplicationRefusedError
from resp.errors import CommandError
from respserver.clients.pauses import Pauses
from respserver.roles.replicas import Replicas
from respserver.runtime.parts import RuntimeParts, ServerPart


class FailoverOwner(Protocol):
    """The methods of ``Roles`` that a failover uses."""

    def become_replica(self, host: str, port: int) -> None: ...
    def become_leader(self) -> None:
        """Become the leader. Raises CommandError; this server is still a replica then."""
    def failover_ended(self) -> None: ...


class Failover(ServerPart):
    """One FAILOVER, from the command to its end. ``target``: host and port; None: the first complete replica."""

    def __init__(
        self, parts: RuntimeParts, owner: FailoverOwner, pauses: Pauses, replicas: Replicas,
        target: tuple[str, int] | None, timeout_ms: int, force: bool,
    ) -> None:  # fmt: skip
        self.state = "waiting-for-sync"
        self._owner = owner
        super().__init__(parts)
        self._pauses = pauses
        self._replicas = replicas
        self._target = target
        self._deadline = parts.clock.mono() + timeout_ms if timeout_ms else 0  # ms (monotonic); 0: none
        self._force = force
        parts.logger.notice(f"FAILOVER starts: writes wait until {self._whom()} has the whole log")
        pauses.hold_writes(True)
        replicas.ask()

    def _whom(self) -> str:
        return f"{self._target[0]}:{self._target[1]}" if self._target is not None else "a replica"

    def heard(self, feed: ReplicaFeed) -> None:
        """Continue the failover if the replica has the whole log. Called when a replica has acknowledged."""
        if self.state != "waiting-for-sync" or feed.state != "online" or not feed.port:  # 0: its address is unknown
            return
        if self._target is not None and (feed.host, feed.port) != self._target:
            return
        data = self._data
        # with replica-acks, the other replicas must first release the replies, unless too few are connected
        withheld = self._ticks.withheld_since() is not None and not self._gates.too_few
        if feed.acknowledged == data.disk.offset and not data.ks.log and not self._ticks.stalled and not withheld:
            self._swap(feed.host, feed.port)

    def _swap(self, host: str, port: int) -> None:
        self.state = "failover-in-progress"
        self._target = host, port
        self._logger.notice(f"{host}:{port} has the whole log: it becomes the leader")
        self._owner.become_replica(host, port)

    def on_time(self) -> None:
        if self.state != "waiting-for-sync":
            return
        if self._deadline and self._clock.mono() >= self._deadline:
            if self._force and self._target is not None:
                self._logger.warning(f"FAILOVER is forced: {self._whom()} may lack the last writes")
                self._swap(*self._target)
            else:
                self.abort("TIMEOUT has expired")
        elif not self._replicas.feeds:
            self.abort("no replica is connected any more")
        else:
            self._replicas.ask()

    def link_failed(self, error: Exception) -> None:
        """Abort if the replica refuses to become the leader. Called for other errors, too, which are retried."""
        if self.state == "failover-in-progress" and isinstance(error, ReplicationRefusedError):
            try:
                self.abort(str(error))
            except CommandError as failed:
                self._logger.warning(f"This server continues to follow: {failed.text}")

    def done(self) -> None:
        """End the failover. Called when this server is connected to the new leader."""
        self._logger.notice(f"FAILOVER is complete: {self._whom()} is the leader")
        self._end()

    def abort(self, why: str) -> None:
        """Abort; this server becomes the leader again. Raises CommandError if that fails; it is a replica then."""
        self.end(why)
        if self.state != "waiting-for-sync":
            self._owner.become_leader()

    def end(self, why: str) -> None:
        """Abort and keep the current role."""
        self._logger.warning(f"FAILOVER aborted: {why}")
        self._end()

    def _end(self) -> None:
        self._owner.failover_ended()
        self._pauses.hold_writes(False)
