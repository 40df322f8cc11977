"""``UserConnection``: the RESP connection of one logged-in user.

Rule 1: it logs in as the user on each new connection. The password is stored only here, until ``close``.
Rule 2: a lost connection is reopened with the next request, at most once for each request. Only calls that read are
        repeated, if the loss is noticed before ANSWER_MS have passed; a call that writes may have been executed.
Rule 3: a call that is repeated periodically uses ``poll``. If the ACL denies it, it is not sent again for DENIED,
        because each denial is counted in INFO and recorded in ACL LOG.
Rule 4: several requests share the connection. Calls that wait on the server use ``open_another``.
Rule 5: if several groups of a cluster share the slots, each call is sent to the leader that has its key. The results of
        calls to a group that does not answer are ``GroupUnavailableError``, see ``clusterconnection``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import Any, Final

import redis

from tidelog.cluster.view import ClusterView, view_of
from tidelog.console.clusterconnection import ClusterConnection, MonitoringConnection
from tidelog.console.errors import GroupUnavailableError, LoginError, SessionEndedError, UnavailableError
from tidelog.operating.tables import counted
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, needs_no_password
from tidelog.transport.call import Call, Value, checked, fill_in, is_sent, plain
from tidelog.transport.errors import is_denied, message_of
from tidelog.transport.routedconnection import RoutedConnection, connect_to_groups, shares_slots
from tidelog.transport.slots import SLOTS, MemberAddress

NAME: Final = "tidelog-console"  # of the connections, in CLIENT LIST
ANSWER_MS: Final = 10_000  # timeout of connecting, of each reply, and of calls that read, with their repetition
DEFAULT_USER: Final = "default"
AT_ONCE: Final = 200  # calls that are sent together: packing and parsing them takes about 10 ms
DENIED: Final = 60.0  # s
DENIALS: Final = 1000  # denied calls that are known, at most


class UserConnection:
    """A connection that is opened on first use, and again after it was lost."""

    def __init__(
        self, access: Access, user: str, password: str, kind: type[ClusterConnection] = ClusterConnection
    ) -> None:
        """kind: of the connection to several groups."""
        self.user = user
        self._kind = kind
        self._monitoring: UserConnection | None = None
        given: str | None = password
        if user == DEFAULT_USER and not password:
            given = None  # without AUTH: the server decides whether its default user needs a password
        self._access = replace(access, username=user, password=given).single_attempt(ANSWER_MS)
        self._connection: AsyncConnection | None = None
        #: By member and call: until when (monotonic), and the reply.
        self._denials: dict[tuple[MemberAddress | None, tuple[Value, ...]], tuple[float, Exception]] = {}
        self._lock = asyncio.Lock()
        self._closed = False
        self.tidelog: bool | None = None  # whether the server has the T commands; None: not known yet

    async def log_in(self) -> None:
        """Open the connection. Raises LoginError if the server refuses the user, UnavailableError."""
        try:
            connection = await self._opened()
            if isinstance(connection, ClusterConnection):  # no leader may have been sent the password yet
                await self._check_login(connection)
        except SessionEndedError as error:
            raise LoginError(str(error)) from None

    async def needs_no_password(self) -> bool:
        """Return whether the server accepts any password for this user, the default user. Raises UnavailableError."""
        if self.user != DEFAULT_USER:
            return False
        try:
            return await needs_no_password(self._access, NAME)
        except (OSError, TimeoutError) as error:
            raise UnavailableError(f"no answer from {self._access.places}: {str(error) or 'timeout'}") from None

    # -- groups ------------------------------------------------------------------------------------------------------
    async def leaders(self) -> list[MemberAddress | None]:
        """Return the leaders of the groups that share the slots now: the values for ``at`` of ``read`` and ``poll``.

        A server that is not in such a cluster is ``None``. Raises as ``read`` does.
        """
        try:
            try:
                return await self._leaders()
            except LostError:
                return await self._leaders()
        except (OSError, TimeoutError) as error:
            if self.several_groups and is_denied(error):  # all leaders refuse the user
                raise SessionEndedError(message_of(error)) from None
            raise UnavailableError(str(error) or "timeout") from None

    async def _leaders(self) -> list[MemberAddress | None]:
        connection = await self._opened()
        if not isinstance(connection, ClusterConnection) and connection.follows and await shares_slots(connection):
            connection.close()  # other groups have joined its cluster
            connection = await self._opened()
        return [*await connection.leaders()] if isinstance(connection, ClusterConnection) else [None]

    @property
    def several_groups(self) -> bool:
        """Whether several groups of a cluster share the slots, as far as known."""
        return isinstance(self._connection, ClusterConnection)

    def group_of(self, key: bytes) -> str:
        """Return the name of the group that has a key; "" without several groups."""
        return self._connection.group_of(key) if isinstance(self._connection, ClusterConnection) else ""

    def name_of(self, leader: MemberAddress | None) -> str:
        """Return the name of the group of a leader, or its address; "" without several groups."""
        if leader is None or not isinstance(self._connection, ClusterConnection):
            return ""
        return self._connection.name_of(leader)

    def monitoring(self) -> UserConnection:
        """Return the connection of the same user for calls such as INFO: itself, without several groups.

        A leader without a valid lease withholds replies, and those after them on the same connection. Replies about its
        state arrive nevertheless on a connection of their own.
        """
        if not self.several_groups:
            return self
        if self._monitoring is None:
            self._monitoring = UserConnection(
                self._access, self.user, self._access.password or "", MonitoringConnection
            )
        return self._monitoring

    def end_monitoring(self) -> None:
        """Close the connection for monitoring. The next use opens another one."""
        if self._monitoring is not None:
            self._monitoring.close()
            self._monitoring = None

    def cluster_view(self, status: dict[str, Any]) -> ClusterView:
        """Return what a reply to TCLUSTER STATUS says. Raises KeyError, TypeError, ValueError, AttributeError."""
        return view_of(self._access, self._access.urls[0], status)

    def slots_of_leaders(self) -> dict[MemberAddress, int]:
        """Return the number of slots of each leader, as the map of the connection has them."""
        routes = self._connection.routes if isinstance(self._connection, ClusterConnection) else None
        if routes is None or routes.map is None:
            return {}
        return Counter(owner for slot in range(SLOTS) if (owner := routes.map.owner(slot)) is not None)

    # -- requests ----------------------------------------------------------------------------------------------------
    async def read(self, *calls: Call[Any], at: MemberAddress | None = None) -> list[Any]:
        """Send calls that change nothing. Returns their results; an error reply takes the place of its result.

        at: the leader to which they are sent; None: those of their keys, or the only server.
        Raises UnavailableError, or SessionEndedError if the server no longer accepts the user.
        """
        found: list[Any] = []
        for start in range(0, max(1, len(calls)), AT_ONCE):
            found += await self._read(calls[start : start + AT_ONCE], at)
        return found

    async def _read(self, calls: tuple[Call[Any], ...], at: MemberAddress | None) -> list[Any]:
        try:
            async with asyncio.timeout(ANSWER_MS / 1000):
                try:
                    found = await self._send(calls, at)
                except LostError:
                    found = await self._send(calls, at)
                lost = [index for index, each in enumerate(found) if isinstance(each, GroupUnavailableError)]
                again = [index for index in lost if found[index].again]
                if again:  # only these groups
                    results = await self._send([calls[index] for index in again], at)
                    for index, result in zip(again, results, strict=True):
                        found[index] = result
                if any(found[index].denied for index in lost if isinstance(found[index], GroupUnavailableError)):
                    await self._check_login(await self._opened())
                return found
        except LostError as error:
            if self.several_groups and is_denied(error):  # all leaders refuse the user
                raise SessionEndedError(str(error)) from None
            raise UnavailableError(str(error)) from None
        except TimeoutError:
            seconds = counted(ANSWER_MS // 1000, "second")
            raise UnavailableError(f"no answer from {self._access.places} within {seconds}") from None

    async def _check_login(self, connection: AsyncConnection) -> None:
        """Raise SessionEndedError if no group accepts the user, UnavailableError if no group answers."""
        if not isinstance(connection, ClusterConnection):
            return
        problem = GroupUnavailableError("no group of the cluster has a leader")
        for leader in connection.routes.leaders:
            (reply,) = await connection.send_to(leader, [plain("PING")])
            if not isinstance(reply, GroupUnavailableError):
                return
            if reply.denied or not problem.denied:
                problem = reply
        if problem.denied:
            raise SessionEndedError(str(problem))
        raise UnavailableError(str(problem))

    async def poll(self, *calls: Call[Any], at: MemberAddress | None = None) -> list[Any]:
        """Send calls as ``read`` does, without those that were denied recently (Rule 3)."""
        now = monotonic()
        known = [self._denials.get((at, call.args)) for call in calls]
        sent = [call for call, denial in zip(calls, known, strict=True) if denial is None or denial[0] < now]
        replies = iter(await self.read(*sent, at=at)) if sent else iter(())
        results: list[Any] = []
        for call, denial in zip(calls, known, strict=True):
            if denial is not None and denial[0] >= now:
                results.append(denial[1])
                continue
            results.append(next(replies))
            if isinstance(results[-1], Exception) and is_denied(results[-1]):
                if len(self._denials) >= DENIALS:
                    self._denials.clear()
                self._denials[at, call.args] = (now + DENIED, results[-1])
            else:
                self._denials.pop((at, call.args), None)
        return results

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls that change nothing, for ``tidelog.client.steps.arun``."""
        found = fill_in(calls, await self.read(*filter(is_sent, calls)))
        return checked(found) if raise_on_error else found

    async def poll_together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls as ``together`` does, without those that were denied recently (Rule 3)."""
        found = fill_in(calls, await self.poll(*filter(is_sent, calls)))
        return checked(found) if raise_on_error else found

    async def change(self, *calls: Call[Any]) -> list[Any]:
        """Send calls once, as ``read`` does. After an UnavailableError, they may have been executed."""
        try:
            found = await self._send(calls)
        except LostError as error:
            if error.refusal:
                raise UnavailableError(str(error)) from None
            raise UnavailableError(f"{error}. The change may have been executed.") from None
        return [
            GroupUnavailableError(f"{each}. The change may have been executed.", denied=each.denied)
            if isinstance(each, GroupUnavailableError) and each.uncertain else each for each in found
        ]  # fmt: skip

    async def open_another(self) -> AsyncConnection:
        """Open a connection of the same user, which the caller closes. Raises as ``read`` does.

        If it is to several groups, the loss of one of them closes it.
        """
        return await self._open(RoutedConnection)

    async def _open(self, kind: type[RoutedConnection]) -> AsyncConnection:
        if self._closed:
            raise SessionEndedError("the session has ended")
        try:
            return await connect_to_groups(self._access, NAME, kind)
        except redis.ResponseError as error:
            if is_denied(error):
                raise SessionEndedError(message_of(error)) from None
            raise UnavailableError(message_of(error)) from None
        except (OSError, TimeoutError) as error:
            if is_denied(error):  # a leader of a cluster refuses the user, or the user may not read the map
                raise SessionEndedError(message_of(error)) from None
            raise UnavailableError(f"no answer from {self._access.places}: {str(error) or 'timeout'}") from None

    def close(self) -> None:
        """Close the connection, and forget the password."""
        self._closed = True
        self.end_monitoring()
        self._access = replace(self._access, password=None)
        if self._connection is not None:
            self._connection.close()

    async def _send(self, calls: Sequence[Call[Any]], at: MemberAddress | None = None) -> list[Any]:
        connection = await self._opened()
        if isinstance(connection, ClusterConnection) and at is not None:
            return await connection.send_to(at, calls)
        return await connection.send(calls)

    async def _opened(self) -> AsyncConnection:
        async with self._lock:
            if self._connection is None or self._connection.lost is not None:
                self._connection = await self._open(self._kind)
                if self._closed:
                    self._connection.close()
            return self._connection
