"""``ClusterConnection``: the connection of one user to all groups of a cluster.

Rule 1: calls that a group did not answer have a ``GroupUnavailableError`` as their result. The calls to other groups
        have their replies. An error is raised only if no member of the cluster sends a map.
Rule 2: a request waits for a group for GROUP_MS. A member that did not answer in this time is silent: further calls
        fail immediately, until it accepts a connection again. If there are calls, this is tried every RECHECK seconds.
Rule 3: a slot that no group serves, as during a failover, is waited for during PATIENCE.
Rule 4: the names of groups and the addresses of all members are read from TCLUSTER MAP. Without the permission, or on
        servers that do not have this command, the address of its leader is the name of a group.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from tidelog.console.errors import GroupUnavailableError
from tidelog.operating.tables import counted
from tidelog.operating.tasks import BackgroundTasks
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.call import Call, plain, read_outcome
from tidelog.transport.cancellation import in_own_task
from tidelog.transport.errors import is_denied, is_temporary, message_of
from tidelog.transport.rawcalls import LOST
from tidelog.transport.routedconnection import MemberConnection, RoutedConnection
from tidelog.transport.routing import Delay, MemberBatch, Reload, Routes, Send, Step
from tidelog.transport.slots import MemberAddress, slot_of

GROUP_MS: Final = 5000
SLOW: Final = 1.0  # s after which a failed connection attempt means that the member is silent
RECHECK: Final = 2.0  # s
READINGS: Final = 3  # of the map, until the names of the groups belong to it
PATIENCE: Final = 2.0  # s
IN_TIME: Final = "no reply in time"  # of a connection that was closed because of this
UNSERVED: Final = "CLUSTERDOWN Hash slot not served"


@dataclass
class _Silence:
    """A member that did not answer."""

    error: LostError
    again: float  # monotonic: when to try it again
    trying: bool = False


class ClusterConnection(RoutedConnection):
    """See the module. Create it by ``connect_to_groups``."""

    #: A silent member must reply to this call. A leader without a valid lease replies to a login, but withholds the
    #: reply to DBSIZE, as those to further requests.
    check: Call[Any] = plain("DBSIZE")

    def __init__(self, access: Access, name: str, routes: Routes) -> None:
        super().__init__(access.single_attempt(GROUP_MS), name, routes)
        self._names: dict[MemberAddress, str] = {}  # of groups, by leader
        self._addresses: tuple[MemberAddress, ...] = ()  # of all members
        self._named: list[MemberAddress] = []  # the leaders for which the names were read
        self._silent: dict[MemberAddress, _Silence] = {}
        self._tasks = BackgroundTasks()

    # -- groups ------------------------------------------------------------------------------------------------------
    async def leaders(self) -> list[MemberAddress]:
        """Return the leaders of all groups that have slots now, in the order of their slots. It reads the map.

        Raises LostError or OSError if no member answers.
        """
        self.routes.stale = True
        await self.reload()
        return self.routes.leaders

    def group_of(self, key: bytes) -> str:
        """Return the name of the group that has a key, or the address of its leader; "" if no group has it."""
        owner = self.routes.map.owner(slot_of(key)) if self.routes.map is not None else None
        return "" if owner is None else self.name_of(owner)

    def name_of(self, leader: MemberAddress) -> str:
        """Return the name of the group of a leader, or its address."""
        return self._names.get(leader, str(leader))

    def title(self, member: MemberAddress) -> str:
        """Return a group for messages, with the address of its leader."""
        name = self._names.get(member)
        return f"group {name} ({member})" if name else f"the group of {member}"

    def send_to(self, member: MemberAddress, calls: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        """Send calls to one member, without routing. The results are those of ``send``."""
        return in_own_task(self._sent_to(member, calls))

    async def _sent_to(self, member: MemberAddress, calls: Sequence[Call[Any]]) -> list[Any]:
        return _outcomes(calls, await (await self._sent(MemberBatch(member, list(calls)))))

    # -- requests ----------------------------------------------------------------------------------------------------
    async def _routed(self, calls: Sequence[Call[Any]]) -> list[Any]:
        if self.lost is not None:
            raise LostError(str(self.lost), self.refused)
        try:
            replies = await self._replies_to(calls, _PatientSteps(self).do)
        except LOST as error:
            raise LostError(message_of(error), isinstance(error, LostError) and error.refusal) from None
        return _outcomes(calls, replies)

    async def do(self, step: Step) -> Any:
        """Execute a step of a request. The members of a step are connected to at the same time."""
        if not isinstance(step, Send) or step.race:
            return await self._do(step)
        answers = await asyncio.gather(*map(self._sent, step.batches))
        return [await answer for answer in answers]

    def _failure(self, member: MemberAddress, error: Exception, sent: bool) -> GroupUnavailableError:
        """See the base class. It notices a silent member (Rule 2)."""
        if sent and IN_TIME in str(error):
            self._silent[member] = _Silence(LostError(_no_reply()), monotonic() + RECHECK)
        silent = member in self._silent
        refusal, reason = isinstance(error, LostError) and error.refusal, _reason(error)
        text = f"{self.title(member)} {'refuses requests' if refusal else 'does not reply'}: {reason}"
        return GroupUnavailableError(text, reason, is_denied(reason), uncertain=sent, again=not silent and not refusal)

    # -- members -----------------------------------------------------------------------------------------------------
    async def _connected(self, address: MemberAddress) -> MemberConnection:
        """See the base class. Raises LostError immediately for a silent member."""
        silence = self._silent.get(address)
        if silence is None:
            return await self._tried(address)
        if not silence.trying and monotonic() >= silence.again:
            silence.trying = True
            self._tasks.spawn(self._try_again(address, silence))
        raise silence.error

    async def _tried(self, address: MemberAddress) -> MemberConnection:
        """Open a connection. After a slow failure, the member is silent. Raises LostError or OSError."""
        began = monotonic()
        try:
            return await super()._connected(address)
        except LOST as error:
            if monotonic() - began > SLOW:
                self._silent[address] = _Silence(LostError(_reason(error)), monotonic() + RECHECK)
            raise

    async def _try_again(self, address: MemberAddress, silence: _Silence) -> None:
        try:
            found = await super()._connected(address)
            try:
                await found.send([self.check])
            finally:
                found.close()
        except LOST as error:
            silence.error, silence.again, silence.trying = LostError(_reason(error)), monotonic() + RECHECK, False
        else:
            self._silent.pop(address, None)

    async def reload(self, first: MemberAddress | None = None) -> None:
        """See the base class. The names of the groups are read as well, if there are other leaders (Rule 4)."""
        for _ in range(READINGS):
            await super().reload(first)
            if self.routes.leaders == self._named or await self._read_names():
                return

    async def _read_names(self) -> bool:
        """Read the names of the groups. Return whether they belong to the routes, as far as a member sends them."""
        leaders, slots = self.routes.leaders, self.routes.map
        member = next((each for each in self._members.values() if each.lost is None), None)
        if member is None or slots is None:
            return True
        try:
            (reply,) = await member.send([plain("TCLUSTER", "MAP")])
            found = json.loads(reply)
            pairs = {
                (owner, str(name)) for first, last, name in found["slots"] for slot in (first, last)
                if (owner := slots.owner(slot)) is not None
            }  # fmt: skip
            names = dict(pairs)
            if not len(names) == len(pairs) == len(set(names.values())):
                return False  # the map of this member is older or newer than the routes
            self._names = names
            self._addresses = tuple(
                MemberAddress(str(each["host"]), int(each["tls_port"] if self._access.secure else each["port"]))
                for group in found["groups"].values() for each in group["members"].values()
            )  # fmt: skip
        except LOST:
            return True  # they are read again by the next reload
        except (TypeError, ValueError, KeyError, AttributeError, RecursionError):
            pass  # an error reply, or the map of another version: the names are not essential
        self._named = leaders
        return True

    def _others(self) -> Iterable[MemberAddress]:
        return [*super()._others(), *self._addresses]

    def close(self, why: str = "closed") -> None:
        super().close(why)
        for task in self._tasks.tasks:
            task.cancel()


class MonitoringConnection(ClusterConnection):
    """A connection for calls that a leader without a valid lease answers, too, such as INFO."""

    check = plain("PING")


class _PatientSteps:
    """The steps of one request (Rule 3)."""

    def __init__(self, connection: ClusterConnection) -> None:
        self._connection = connection
        self._waited = 0.0

    async def do(self, step: Step) -> Any:
        if isinstance(step, Delay):
            self._waited += step.seconds
        elif isinstance(step, Reload) and self._waited > PATIENCE:
            raise LostError(f"no group serves a slot of the request: {UNSERVED}")
        return await self._connection.do(step)


def _outcomes(calls: Sequence[Call[Any]], replies: Sequence[Any]) -> list[Any]:
    """Return the results of calls. Errors that are temporary, or of connections, are those of their groups."""
    return [
        GroupUnavailableError(message_of(reply))
        if not isinstance(reply, GroupUnavailableError)
        and (isinstance(reply, LOST) or (isinstance(reply, Exception) and is_temporary(reply)))
        else read_outcome(call, reply)
        for call, reply in zip(calls, replies, strict=True)
    ]  # fmt: skip


def _no_reply() -> str:
    return f"no reply within {counted(GROUP_MS // 1000, 'second')}"


def _reason(error: Exception) -> str:
    """Return why a connection failed, without the address of the member."""
    if isinstance(error, TimeoutError) or IN_TIME in str(error):
        return _no_reply()
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    text = message_of(error)
    place, colon, reason = text.partition(": ")
    return reason if colon and "://" in place else text
