"""FAILOVER: this leader hands over to one of its replicas, and nothing that was acknowledged is lost.

    waiting-for-sync       writes are held back; the replica catches up
    failover-in-progress   it has everything: this server follows it (PSYNC ... FAILOVER), which makes it the leader

Rule 1: the roles change in the moment in which the replica acknowledges all of this server's log: from then on nothing
more is logged here, so nothing can be missing there.
Rule 2: an end before that changes nothing: writes go on. After that this server can only go back to leading under a
new replication ID, as the other may have become leader meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.feed import Feed
from replication.handshake import RefusedError
from resp.errors import CommandError

if TYPE_CHECKING:
    from respserver.roles.roles import Roles


class Failover:
    """One FAILOVER, from the command to its end."""

    def __init__(self, roles: Roles, target: tuple[str, int] | None, timeout_ms: int, force: bool) -> None:
        self.state = "waiting-for-sync"
        self._roles = roles
        self._target = target
        server = roles.server
        self._deadline = server.mono_ms() + timeout_ms if timeout_ms else 0  # ms (monotonic); 0 never
        self._force = force
        server.log.notice(f"FAILOVER begins: writes wait until {self._whom()} has everything")
        server.api.hold_writes(True)
        roles.ask()

    def _whom(self) -> str:
        return f"{self._target[0]}:{self._target[1]}" if self._target is not None else "a replica"

    def heard(self, feed: Feed) -> None:
        """A replica acknowledged."""
        server = self._roles.server
        if self.state != "waiting-for-sync" or feed.state != "online" or not feed.port:  # 0: nobody can follow it
            return
        if self._target is not None and (feed.host, feed.port) != self._target:
            return
        if feed.acknowledged == server.disk.offset and not server.ks.log and not server.stalled:
            self._swap(feed.host, feed.port)

    def _swap(self, host: str, port: int) -> None:
        self.state = "failover-in-progress"
        self._target = host, port
        self._roles.server.log.notice(f"{host}:{port} has everything: it becomes the leader")
        self._roles.become_replica(host, port)

    def on_time(self) -> None:
        roles = self._roles
        if self.state != "waiting-for-sync":
            return
        if self._deadline and roles.server.mono_ms() >= self._deadline:
            if self._force and self._target is not None:
                roles.server.log.warning(f"FAILOVER is forced: {self._whom()} may lack the last writes")
                self._swap(*self._target)
            else:
                self.abort("it took longer than TIMEOUT")
        elif not roles.replicas.feeds:
            self.abort("there is no replica any more")
        else:
            roles.ask()

    def link_failed(self, error: Exception) -> None:
        """The replica that should take over can't be reached (that is tried again), or refuses."""
        if self.state == "failover-in-progress" and isinstance(error, RefusedError):
            try:
                self.abort(str(error))
            except CommandError as failed:
                self._roles.server.log.warning(f"This server goes on trying to follow: {failed.text}")

    def done(self) -> None:
        """The other is the leader, and this server follows it."""
        self._roles.server.log.notice(f"FAILOVER is complete: {self._whom()} is the leader")
        self._end()

    def abort(self, why: str) -> None:
        """Give it up; this server leads (again). Raises CommandError if it can't: then it is a replica."""
        self.end(why)
        if self.state != "waiting-for-sync":
            self._roles.become_leader()

    def end(self, why: str) -> None:
        """Give it up, and stay what this server is now."""
        self._roles.server.log.warning(f"FAILOVER is given up: {why}")
        self._end()

    def _end(self) -> None:
        self._roles.transition = None
        self._roles.server.api.hold_writes(False)
