"""``RoutedConnection``: an ``AsyncConnection`` to a cluster of several groups. It has a connection to each leader.

Rule 1: calls are routed as those of ``Client`` (``routing``). Requests that nothing redirects are executed in the order
        in which they were sent, for each key. After a redirection, a request is sent again, while later ones may be
        executed: a sender that needs their order waits for the reply.
Rule 2: if a connection to a leader is lost, or a leader can't serve requests now, all of them are closed, and every
        request in flight raises LostError, as with one server. The routes remain known for the next connection.
Rule 3: readers of streams that wait (TWAIT) are sent to all leaders of their streams. When one has replied, the others
        still wait. If the next call is the same, it continues their waits; a different call closes their connections.
        Send such calls over a connection of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import hiredis
import redis

from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, connect_as, connect_to_leader
from tidelog.transport.call import Call, checked, plain, read_outcome
from tidelog.transport.cancellation import in_own_task
from tidelog.transport.clusterpools import ASKING, denied, map_calls
from tidelog.transport.errors import is_denied, is_temporary, message_of
from tidelog.transport.lookup import address_of, member_url
from tidelog.transport.rawcalls import LOST, reply_error
from tidelog.transport.routing import Delay, MemberBatch, Reload, Routes, Send, Step, routed
from tidelog.transport.slots import OWNERS, MemberAddress, SlotOwners, other_groups


class MemberConnection(AsyncConnection):
    """A connection to one member. Its results are the replies, and each error reply is one of redis-py's errors."""

    def _failed(self, reply: hiredis.ReplyError) -> redis.ResponseError:
        error: redis.ResponseError = reply_error(reply)
        return error

    def _result(self, call: Call[Any], reply: Any) -> Any:  # noqa: ARG002
        return reply


class RoutedConnection(AsyncConnection):
    """See the module. Create it by ``connect_to_groups``. ``routes`` may be shared by the connections of a loop."""

    several_groups = True

    def __init__(self, access: Access, name: str, routes: Routes) -> None:
        super().__init__(access.places, 0.0)
        self._access = access
        self._name = name
        self.routes = routes
        self._members: dict[MemberAddress, MemberConnection] = {}
        self._opening: dict[MemberAddress, asyncio.Lock] = {}
        self._waits: dict[MemberAddress, tuple[tuple[Any, ...], asyncio.Future[list[Any]]]] = {}  # Rule 3: in progress

    @property
    def bytes_received(self) -> int:
        """See ``AsyncConnection.bytes_received``. It is less after the connection to a group was lost."""
        return sum(each.bytes_received for each in self._members.values())

    def send(self, calls: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        """See ``AsyncConnection.send``. A call whose keys are on several groups has a CrossGroupError as its result."""
        return in_own_task(self._routed(calls))

    async def _routed(self, calls: Sequence[Call[Any]]) -> list[Any]:
        if self.lost is not None:
            raise LostError(str(self.lost), self.refused)
        try:
            replies = await self._replies_to(calls)
        except LOST as error:
            raise self._gone(error) from None
        for reply in replies:
            if isinstance(reply, LOST) or (isinstance(reply, Exception) and is_temporary(reply)):
                raise self._gone(reply)
        return [read_outcome(call, reply) for call, reply in zip(calls, replies, strict=True)]

    async def _replies_to(
        self, calls: Sequence[Call[Any]], do: Callable[[Step], Awaitable[Any]] | None = None
    ) -> list[Any]:
        """Return a reply, or an error, for each call. ``do`` executes a step, instead of ``_do``.

        Raises LostError or OSError if the map can't be read.
        """
        do = do or self._do
        steps = routed(self.routes, calls)
        try:
            step = next(steps)
            while True:
                try:
                    result = await do(step)
                except LOST as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            replies: list[Any] = end.value
            return replies

    def _gone(self, error: BaseException) -> LostError:
        """Close this connection (Rule 2)."""
        self.refused = self.refused or isinstance(error, redis.ResponseError)
        self.routes.stale = True
        text = message_of(error)
        self.close(text.removeprefix(f"{self.place}: "))
        return LostError(text, self.refused)

    def close(self, why: str = "closed") -> None:
        """See ``AsyncConnection.close``."""
        super().close(why)
        for member in self._members.values():
            member.close(why)
        self._members.clear()

    # -- steps of the routing --------------------------------------------------------------------------------------
    async def _do(self, step: Step) -> Any:
        if isinstance(step, Delay):
            await asyncio.sleep(step.seconds)
        elif isinstance(step, Reload):
            await self.reload(step.first)
        elif step.race:
            return await self._race(step)
        else:
            return [await answer for answer in [await self._sent(batch) for batch in step.batches]]
        return None

    async def _sent(self, batch: MemberBatch) -> asyncio.Future[list[Any]]:
        """Send a batch. The future returns its replies; after a lost connection, an error for each call."""
        try:
            member = await self._member(batch.member)
        except LOST as error:
            self.routes.stale = True
            failed: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            failed.set_result([self._failure(batch.member, error, sent=False)] * len(batch.calls))
            return failed
        words = [word for call in batch.calls for word in ((ASKING, call) if batch.asking else (call,))]
        return in_own_task(self._replies(batch, member.send(words)))

    async def _replies(self, batch: MemberBatch, answer: asyncio.Future[list[Any]]) -> list[Any]:
        try:
            replies = await answer
        except LOST as error:
            self.routes.stale = True
            return [self._failure(batch.member, error, sent=True)] * len(batch.calls)
        return replies[1::2] if batch.asking else replies

    def _failure(self, member: MemberAddress, error: Exception, sent: bool) -> Exception:  # noqa: ARG002
        """Return the error for each call of a batch that was not answered. sent: the calls may have been executed."""
        return error

    async def _race(self, step: Send) -> list[list[Any]]:
        """Return the first reply that is an error or not null; the others still wait (Rule 3)."""
        answers = [await self._waiting_for(batch) for batch in step.batches]
        left: set[asyncio.Future[list[Any]]] = set(answers)
        while left:
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            if any(answer.result()[0] is not None for answer in done):
                break
        return [answer.result() if answer.done() else [None] for answer in answers]

    async def _waiting_for(self, batch: MemberBatch) -> asyncio.Future[list[Any]]:
        """Send a call that waits, unless the same call is in progress."""
        args = batch.calls[0].args
        before, answer = self._waits.get(batch.member, ((), None))
        if answer is not None and not answer.done():
            if before == args:
                return answer
            if (member := self._members.pop(batch.member, None)) is not None:
                member.close()
        answer = await self._sent(batch)
        self._waits[batch.member] = args, answer
        return answer

    # -- members -----------------------------------------------------------------------------------------------------
    async def _member(self, address: MemberAddress) -> MemberConnection:
        """Return the connection to a member. Raises LostError or OSError."""
        async with self._opening.setdefault(address, asyncio.Lock()):
            found = self._members.get(address)
            if found is None or found.lost is not None:
                found = await self._connected(address)
                if self.lost is not None:
                    found.close()
                    raise LostError(str(self.lost), self.refused)
                self._members[address] = found
            return found

    async def _connected(self, address: MemberAddress) -> MemberConnection:
        try:
            return await connect_as(MemberConnection, self._access, member_url(self._access, address), self._name)
        except redis.ResponseError as error:
            raise LostError(message_of(error), refusal=True) from None

    async def reload(self, first: MemberAddress | None = None) -> None:
        """Read the map, if it is stale: from ``first``, from a known leader, or from a server of ``access``.

        Raises LostError or OSError if no member answers, or the user has no permission to read it.
        """
        known = dict.fromkeys([*([first] if first is not None else []), *self.routes.leaders])
        failed: Exception = redis.ConnectionError("no member of the cluster has a map")
        for asked in dict.fromkeys((*known, *self._others())):
            if not self.routes.stale:  # another request has read it
                return
            try:
                member = await self._member(asked)
                slots, *commands = checked(await member.send(map_calls(self.routes)))
                if slots:
                    self.routes.learn(slots, commands[0] if commands else None, asked)
                    return
            except redis.ResponseError as error:
                if is_denied(error):
                    raise LostError(message_of(denied(error)), refusal=True) from None
                failed = LostError(message_of(error), refusal=True)
            except (*LOST, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                failed = error if isinstance(error, LOST) else redis.ConnectionError(f"unexpected replies: {error}")
        raise failed

    def _others(self) -> Iterable[MemberAddress]:
        """Return the members from which the map is read if no known leader answers."""
        return [address_of(self._access, url) for url in self._access.urls]


#: Of clusters of several groups, by the servers, without user and password: all users share them.
_routes: dict[tuple[asyncio.AbstractEventLoop, Access], Routes] = {}


async def connect_to_groups(
    access: Access, name: str, kind: type[RoutedConnection] = RoutedConnection
) -> AsyncConnection:
    """Open a connection to the leader, or to the leaders if several groups of a cluster share the slots.

    kind: the class of a connection to several groups.

    Servers without cluster mode are sent one HELLO more than ``connect_to_leader`` sends. If a cluster of one group
    gets another one, the connection is closed by the first redirection, and the next one is to all leaders.

    If the map is known, nothing is sent: the connection to each leader is opened, and the user is authenticated, when
    the first call is sent there. A wrong password then closes the connection, and ``is_denied`` accepts its LostError.
    Raises OSError if no leader answers, redis.ResponseError for a wrong password.
    """
    at = asyncio.get_running_loop(), replace(access, username=None, password=None)
    routes = _routes.get(at)
    if routes is None:
        leader = await connect_to_leader(access, name)
        if not await shares_slots(leader):
            return leader
        leader.close()
        for loop, other in list(_routes):
            if loop.is_closed():
                del _routes[loop, other]
        routes = _routes.setdefault(at, Routes())
    made = kind(access, name, routes)
    try:
        await made.reload()
    except BaseException:
        made.close()
        raise
    return made


async def shares_slots(leader: AsyncConnection) -> bool:
    """Return whether other groups of its cluster have slots. If the server is in a cluster, it ``follows``."""
    try:
        (hello,) = await leader.send([plain("HELLO")])
        if isinstance(hello, Exception) or b"cluster" not in hello:
            return False
        leader.follows = True
        (slots,) = await leader.send(OWNERS[1:])
        if isinstance(slots, redis.ResponseError):
            leader.advice = f" ({denied(slots)})"
            return False
        if len(SlotOwners(slots, MemberAddress("", 0)).leaders) > 1:
            return True
        return other_groups(*await leader.send(OWNERS))
    except BaseException:
        leader.close()
        raise
