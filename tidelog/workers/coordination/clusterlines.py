"""Connections of a worker to a cluster: one that routes each call, and one to the group of a key.

    ClusterConnector  its connections send each call to the leader that has its keys: for coordination and small calls
    GroupConnector    its connections are to the leader of one group: for reads, acknowledgements and transactions

Rule 1: after a loss or a redirection, the map is read from any member that answers, so a connection follows a failover.
Rule 2: if slots that the worker uses were assigned to other groups, ``ClusterConnector.moved`` is set. The worker then
        restarts its processors.
Rule 3: a leader that does not answer is detected by a PING within ``patience`` seconds. Its connections are closed,
        because a TWAIT on them would last a minute, while another member leads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, TypeVar
from weakref import WeakSet

import redis
import redis.asyncio

from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, connect
from tidelog.transport.backoff import Delays
from tidelog.transport.call import Call, plain, read_outcome
from tidelog.transport.cancellation import in_own_task
from tidelog.transport.clusterpools import AsyncClusterPools, denied
from tidelog.transport.errors import is_denied, is_temporary, message_of
from tidelog.transport.lookup import member_url
from tidelog.transport.pools import pool_options
from tidelog.transport.rawcalls import LOST
from tidelog.transport.slots import MemberAddress, slot_of
from tidelog.workers import logs
from tidelog.workers.coordination.connections import BACKOFF, WorkerConnection, WorkerConnector

log = logs.get(__name__)
PATIENCE: Final = 0.5  # leases: how long a leader may take to reply
LEAST_PATIENCE: Final = 1.0  # seconds

T = TypeVar("T")


async def in_cluster(connection: WorkerConnection) -> bool:
    """Return whether the servers run in cluster mode."""
    while True:
        try:
            (reply,) = await connection.send([plain("HELLO", "2")])
        except LostError:
            if connection.closed:
                raise
            continue
        return not isinstance(reply, Exception) and (b"mode", b"cluster") in pairwise(reply)


class RoutedChannel(AsyncConnection):
    """Sends each call to the leader that has its keys. Calls that are sent in one request may run at the same time."""

    def __init__(self, place: str, pools: AsyncClusterPools) -> None:
        super().__init__(place, 0.0)
        self._pools = pools

    def send(self, calls: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        """See ``AsyncConnection.send``. Cancelling the future closes the connections that it uses."""
        return in_own_task(self._send(calls))

    async def _send(self, calls: Sequence[Call[Any]]) -> list[Any]:
        if self.lost is not None:
            raise LostError(str(self.lost), self.refused)
        try:
            replies = await self._pools.send(calls)
        except LOST as error:
            raise self._gone(error) from None
        for reply in replies:
            if isinstance(reply, LOST) or (isinstance(reply, Exception) and is_temporary(reply)):
                raise self._gone(reply)
        return [read_outcome(call, reply) for call, reply in zip(calls, replies, strict=True)]

    def _gone(self, error: BaseException) -> LostError:
        """Close this channel, so that the next request waits a little."""
        self.refused = True
        text = message_of(error)
        self.close(text.removeprefix(f"{self.place}: "))
        return LostError(text, isinstance(error, redis.ResponseError))


class ClusterConnector(WorkerConnector):
    """Opens connections that route their calls. ``lease``: the seconds of the worker's lease."""

    def __init__(self, access: Access, name: str, lease: float, failed: asyncio.Future[None] | None) -> None:
        super().__init__(access, name)
        self.denied = failed
        self.patience = max(LEAST_PATIENCE, lease * PATIENCE)
        limited = replace(access, read_ms=min(access.read_ms, round(self.patience * 1000)))
        limited = replace(limited, connect_ms=min(access.connect_ms, limited.read_ms))
        self.limited: Final = limited
        self._seeds = redis.asyncio.ConnectionPool(**pool_options(limited, {"client_name": name}, redis.asyncio))
        self.pools = AsyncClusterPools(limited, {"client_name": name}, self._seeds)
        self.moved = asyncio.Event()
        self._used: dict[str, int] = {}  # by stream: the number of its group
        self.groups: list[GroupConnector] = []

    async def connect(self) -> AsyncConnection:
        """See ``WorkerConnector.connect``."""

        async def reload() -> AsyncConnection:
            await in_own_task(self.pools.reload())
            self._compare()
            return RoutedChannel(self.access.places, self.pools)

        return await self.attempts(reload)

    async def attempts(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Call ``attempt`` until it succeeds. Raises redis.ResponseError if the server denies something."""
        delays = Delays(BACKOFF)
        while True:
            try:
                found = await attempt()
            except (*LOST, OSError, TimeoutError, redis.ResponseError) as error:
                if is_denied(error):
                    refusal = denied(error) if isinstance(error, redis.ResponseError) else error
                    self.deny(refusal)
                    raise redis.ResponseError(message_of(refusal)) from None
                if isinstance(error, redis.ResponseError) and not is_temporary(error):
                    raise
                self.pools.routes.stale = True
                self._log_outage(error, "it answers")
                await asyncio.sleep(delays.next())
            else:
                if self._away.succeeded():
                    log.info("%s: connected again", self.access.places)
                return found

    def refused(self, channel: AsyncConnection) -> None:
        """See ``WorkerConnector.refused``. Another member may lead now."""
        self.pools.routes.stale = True
        super().refused(channel)

    @property
    def several_groups(self) -> bool:
        """See ``WorkerConnector.several_groups``."""
        return len(self.pools.routes.leaders) > 1

    # -- groups ------------------------------------------------------------------------------------------------
    async def divide(self, streams: Iterable[str]) -> list[GroupConnector]:
        """Return a connector for each group that has some of these streams. Waits until all of them have a leader."""
        names = list(dict.fromkeys(streams))

        async def owners() -> list[MemberAddress]:
            await in_own_task(self.pools.reload())
            return [self.pools.routes.owner(name) for name in names]

        found = await self.attempts(owners)
        members = list(dict.fromkeys(found))
        self._used = {name: members.index(member) for name, member in zip(names, found, strict=True)}
        self.groups = [
            GroupConnector(self, [name for name in names if self._used[name] == at]) for at in range(len(members))
        ]
        self.moved.clear()
        return self.groups

    async def read_map(self) -> None:
        """Read the map now. Waits until a member answers."""
        self.pools.routes.stale = True
        await self.attempts(lambda: in_own_task(self.pools.reload()))
        self._compare()

    def group_of(self, stream: str) -> int:
        """Return the number of the group that has a stream: one of ``divide``, or another one that has the slot now."""
        return self._used[stream]

    def leader_of(self, key: str) -> MemberAddress | None:
        """Return the leader of a key's slot, as far as it is known."""
        return self.pools.routes.map.owner(slot_of(key)) if self.pools.routes.map is not None else None

    def _compare(self) -> None:
        """Set ``moved`` if streams that one group had are on different groups now, or the reverse."""
        if self.pools.routes.stale or self.moved.is_set():
            return
        now = {name: self.leader_of(name) for name in self._used}
        pairs = {(at, now[name]) for name, at in self._used.items()}
        if None not in now.values() and (
            len(pairs) != len(self.groups) or len({member for _, member in pairs}) != len(pairs)
        ):
            self.moved.set()

    async def close(self) -> None:
        """Close all connections."""
        await self.pools.close()
        await self._seeds.disconnect()


class GroupConnector(WorkerConnector):
    """Opens connections to the leader of the group that has these streams."""

    def __init__(self, cluster: ClusterConnector, streams: Sequence[str]) -> None:
        super().__init__(cluster.access, cluster.name)
        self.streams: Final = streams
        self._cluster = cluster
        self._open: WeakSet[AsyncConnection] = WeakSet()
        self._watched: WorkerConnection | None = None
        self._away = cluster._away  # one log of outages

    async def connect(self) -> AsyncConnection:
        """See ``WorkerConnector.connect``."""
        cluster = self._cluster

        async def attempt() -> AsyncConnection:
            await in_own_task(cluster.pools.reload())
            cluster._compare()
            member = self.leader
            if member is None:
                raise ConnectionError("the group has no leader")
            access = replace(cluster.access, connect_ms=cluster.limited.connect_ms)
            made = await connect(access, member_url(access, member), self.name)
            made.follows = True
            self._open.add(made)
            return made

        return await cluster.attempts(attempt)

    @property
    def leader(self) -> MemberAddress | None:
        """The leader of this group, as far as it is known: that of most streams, since some may have been moved."""
        found = Counter(filter(None, map(self._cluster.leader_of, self.streams)))
        return found.most_common(1)[0][0] if found else None

    def refused(self, channel: AsyncConnection) -> None:
        """See ``WorkerConnector.refused``."""
        self._cluster.refused(channel)

    def deny(self, error: BaseException) -> None:
        """See ``WorkerConnector.deny``."""
        self._cluster.deny(error)

    async def watch(self) -> None:
        """Close the connections of this group if its leader does not answer (Rule 3), until cancelled."""
        line = self.connection()
        try:
            while True:
                await asyncio.sleep(self._cluster.patience / 2)
                try:
                    async with asyncio.timeout(self._cluster.patience):
                        await line.send([plain("PING")])
                except TimeoutError:
                    self._cluster.pools.routes.stale = True
                    for channel in list(self._open):
                        channel.close("no reply in time")
                except LostError:
                    pass
        finally:
            line.close()
