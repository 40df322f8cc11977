"""``AsyncConnection``: one connection for asyncio. It pipelines the requests of many tasks.

Rule 1: the calls of one request are sent together, so a MULTI in it is not mixed with the calls of other tasks.
Rule 2: a temporary error (``errors.is_temporary``) closes the connection: the same request may succeed later, perhaps
        on another server.
        After MOVED, the connection first asks the server which group has the slot. If it is another group, MOVED is an
        error of the call, with the text of a ``OneGroupError``: a connection to the leader would get the same reply.
        If ``follows`` is set, MOVED closes the connection: its owner finds out which group has the slot.
Rule 3: a lost connection is not reopened here. Every request in flight raises LostError, since it is unknown whether
        the server executed it. The loss of the connection's state, such as a WATCH, is therefore visible.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import hiredis
import redis

from tidelog.transport.access import Access, without_credentials
from tidelog.transport.call import Call, checked, fill_in, is_sent, read_one
from tidelog.transport.connection import MULTISLOT, greeting, tls_context
from tidelog.transport.errors import OneGroupError, ReplyError, is_temporary, message_of, translated
from tidelog.transport.lookup import leader_url
from tidelog.transport.slots import OWNERS, of_another_group


class LostError(redis.ConnectionError, ConnectionError):
    """The server did not answer, or can't serve requests now. It may have executed the last requests anyway."""

    def __init__(self, text: str, refusal: bool = False) -> None:
        super().__init__(text)
        self.refusal = refusal  # whether the text is that of an error reply


@dataclass(slots=True, eq=False)
class _Request:
    calls: Sequence[Call[Any]]
    future: asyncio.Future[list[Any]]
    timer: asyncio.TimerHandle  # closes the connection if the replies take too long
    replies: list[Any] = field(default_factory=list)


class _Moved(redis.ResponseError):
    """A redirection to another server."""


class AsyncConnection(asyncio.Protocol):
    """A connection. Create it by ``connect`` or ``connect_to_leader``."""

    several_groups = False  # whether calls are divided among several groups of a cluster

    def __init__(self, place: str, timeout: float) -> None:
        self.place = place
        self._timeout = timeout  # seconds within which a request must be answered
        self._reader = hiredis.Reader()
        self._waiting: deque[_Request] = deque()
        self._moved: list[_Request] = []  # with a MOVED among their replies, until the map has arrived
        self._asked = False  # whether the map was requested
        self.follows = False  # whether the owner of this connection follows redirections to other groups
        self.advice = ""  # why the owner can't follow them; it is added to the text of MOVED
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self.lost: LostError | None = None  # why the connection was lost
        self.refused = False  # whether it was lost because the server can't serve requests now
        self._size = 0

    @property
    def bytes_received(self) -> int:
        """The number of bytes that have arrived on the open connections."""
        return self._size

    def send(self, calls: Sequence[Call[Any]]) -> asyncio.Future[list[Any]]:
        """Send calls together. None of them may be empty. The future returns their results, including errors.

        The future raises LostError if the connection is lost. Cancelling it does not stop the server.
        """
        future: asyncio.Future[list[Any]] = self._loop.create_future()
        if self.lost is not None or self._transport is None:
            future.set_exception(LostError(str(self.lost), self.refused))
            return future
        if not calls:
            future.set_result([])
            return future
        data = b"".join(
            [call.packed if call.packed is not None else hiredis.pack_command(call.args) for call in calls]  # type: ignore[arg-type]
        )
        timeout = self._timeout + sum(call.block or 0 for call in calls) / 1000
        timer = self._loop.call_later(timeout, self.close, "no reply in time")
        self._waiting.append(_Request(calls, future, timer))
        self._transport.write(data)
        return future

    async def together(self, *calls: Call[Any], raise_on_error: bool = True) -> list[Any]:
        """Send calls as AsyncClient does: for ``steps.arun``. Calls that send nothing are skipped.

        The first error among the results is raised; without ``raise_on_error``, each error takes the place of a result.
        """
        results = fill_in(calls, await self.send(list(filter(is_sent, calls))))
        return checked(results) if raise_on_error else results

    def close(self, why: str = "closed") -> None:
        """Close the connection. Every request in flight raises LostError."""
        if self.lost is None:
            self.lost = LostError(f"{self.place}: {why}", self.refused)
        while self._waiting or self._moved:
            request = self._waiting.popleft() if self._waiting else self._moved.pop()
            request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(LostError(str(self.lost), self.refused))
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # -- asyncio.Protocol ------------------------------------------------------------------------------------
    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # asyncio's signature
        try:  # a server with too many clients sends an error before any request
            last = self._reader.gets() if not self._waiting else False
        except hiredis.ProtocolError:
            last = False
        if isinstance(last, hiredis.ReplyError):
            self.refused = True
            self.close(str(last))
            return
        self.close(str(exc) if exc else "the server closed the connection")

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        self._size += len(data)
        try:
            reader.feed(data)
            while self._waiting and (reply := reader.gets()) is not False:
                self._replied(reply)
        except hiredis.ProtocolError as error:
            self.close(f"does not speak RESP: {error}")

    def _replied(self, reply: Any) -> None:
        request = self._waiting[0]
        if isinstance(reply, hiredis.ReplyError):
            reply = self._failed(reply)
            if reply is None:
                return
        request.replies.append(reply)
        if len(request.replies) < len(request.calls):
            return
        self._waiting.popleft()
        moved = next((reply for reply in request.replies if isinstance(reply, _Moved)), None)
        if moved is None:
            self._finish(request)
            return
        self._moved.append(request)
        if not self._asked:
            self._asked = True
            self.send(OWNERS).add_done_callback(lambda answer: self._owners_arrived(answer, moved))

    def _failed(self, reply: hiredis.ReplyError) -> redis.ResponseError | None:
        """Return the error for an error reply. If it is temporary, close the connection and return None (Rule 2)."""
        text = str(reply)
        moved = text.startswith("MOVED ")
        if moved and not self.follows:
            return _Moved(text)
        if is_temporary(text):
            self.refused = True
            self.close(text + self.advice if moved else text)
            return None
        return translated(redis.ResponseError(text))

    def _result(self, call: Call[Any], reply: Any) -> Any:
        """Return the result of a call. Raises UnexpectedReplyError."""
        return read_one(call, reply)

    def _owners_arrived(self, answer: asyncio.Future[list[Any]], moved: _Moved) -> None:
        """Decide about requests that were redirected (Rule 2)."""
        self._asked = False
        if answer.exception() is not None:  # the connection is lost
            return
        if not of_another_group(str(moved), *answer.result()):
            self.refused = True
            self.close(str(moved))
            return
        requests, self._moved = self._moved, []
        for request in requests:
            request.replies = [
                redis.ResponseError(str(OneGroupError.of(str(reply)))) if isinstance(reply, _Moved) else reply
                for reply in request.replies
            ]
            self._finish(request)

    def _finish(self, request: _Request) -> None:
        """Pass the results to the caller."""
        request.timer.cancel()
        if request.future.done():  # cancelled
            return
        try:
            request.future.set_result(
                [
                    found if isinstance(found, redis.ResponseError) else self._result(call, found)
                    for call, found in zip(request.calls, request.replies, strict=True)
                ]
            )
        except Exception as error:  # noqa: BLE001 - a reply of an unexpected form is an error of this request only
            request.future.set_exception(error)


C = TypeVar("C", bound=AsyncConnection)


async def connect(access: Access, url: str, name: str) -> AsyncConnection:
    """Open a connection, authenticated, and listed as ``name`` in CLIENT LIST.

    Raises LostError or OSError if no server answers, redis.ResponseError for a wrong password.
    """
    return await connect_as(AsyncConnection, access, url, name)


async def connect_as(kind: type[C], access: Access, url: str, name: str) -> C:
    """Open a connection of a class of its own, see ``connect``.

    Raises LostError or OSError if no server answers, redis.ResponseError for a wrong password.
    """
    address = access.address(url)
    loop = asyncio.get_running_loop()
    made = kind(without_credentials(url), access.read_ms / 1000)
    async with asyncio.timeout(access.connect_ms / 1000):
        if address.path:
            await loop.create_unix_connection(lambda: made, address.path)
        else:
            tls = tls_context(access, address) if address.tls else None
            await loop.create_connection(lambda: made, address.host, address.port, ssl=tls)
        try:
            checked(await made.send(greeting(address, name)))
            await made.send([MULTISLOT])  # whatever the reply, see connection
        except BaseException:
            made.close()
            raise
    return made


async def connect_to_leader(access: Access, name: str) -> AsyncConnection:
    """Open a connection to the current leader, see ``connect``.

    Raises OSError if no leader answers or it can't serve requests now, redis.ResponseError for a wrong password.
    """
    url = access.urls[0]
    if access.movable:
        try:
            url = await _leader_of(access, name)
        except ReplyError as error:
            if is_temporary(error):
                raise ConnectionError(str(error)) from None
            raise redis.ResponseError(str(error)) from None
    return await connect(access, url, name)


_Servers = tuple[tuple[str, ...], tuple[str, ...], str]
_lookups: dict[tuple[asyncio.AbstractEventLoop, _Servers], asyncio.Task[str]] = {}  # in progress
_leaders: dict[_Servers, str] = {}  # the last leaders that lookups found


async def _leader_of(access: Access, name: str) -> str:
    """Return the URL of the current leader. Raises as ``leader_url`` does.

    Connections that are opened at the same time share a lookup: it occupies a thread, for seconds if a server hangs. It
    asks the last leader first, so a server that hangs delays one lookup only.
    """
    servers = tuple(access.urls), tuple(access.sentinels), access.service
    at = asyncio.get_running_loop(), servers
    lookup = _lookups.get(at)
    shared = lookup is not None
    if lookup is None:
        lookup = _lookups[at] = asyncio.create_task(_look_up(access, name, servers))
        lookup.add_done_callback(lambda done: _finished(at, done))
    try:
        return await asyncio.shield(lookup)
    except ReplyError as error:
        if not shared or is_temporary(error):
            raise
    return await asyncio.to_thread(leader_url, access, name)  # the server refused another user


async def _look_up(access: Access, name: str, servers: _Servers) -> str:
    last = _leaders.get(servers)
    if last in access.urls:
        access = replace(access, urls=(last, *(url for url in access.urls if url != last)))
    found = _leaders[servers] = await asyncio.to_thread(leader_url, access, name)
    return found


def _finished(at: tuple[asyncio.AbstractEventLoop, _Servers], lookup: asyncio.Task[str]) -> None:
    del _lookups[at]
    if not lookup.cancelled():
        lookup.exception()  # every connection that waited for it may have been cancelled


async def needs_no_password(access: Access, name: str) -> bool:
    """Return whether the server's default user has no password. The server then accepts any password for this user.

    Raises OSError if no leader answers or it can't serve requests now.
    """
    try:
        connection = await connect_to_leader(replace(access, password=None), name)
    except redis.ResponseError as error:
        if is_temporary(error):
            raise ConnectionError(str(error)) from None
        return not message_of(error).startswith("NOAUTH")
    connection.close()
    return True
