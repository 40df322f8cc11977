"""Access to the tidelog server of a flow.

A flow's ``server`` is one of

    redis://HOST:PORT                                  rediss:// (TLS) and unix:// as well
    redis://HOST:PORT,redis://HOST:PORT                the one of them that is the leader, or members of a cluster
    redis+sentinel://HOST:PORT,HOST:PORT/SERVICE       the leader that these Sentinels name; rediss+sentinel:// too

each with user, password and the options of ``tidelog.transport.address``.

Rule 1: A lost connection is not reopened here: the runtime does that, as configured by the connector's ``reconnect``.
        Calls in flight on it raise LostError, which is a ConnectionError.
Rule 2: Sources without entries to read wait in ``SourceNotifier``, which uses one thread and a few connections for each
        process and server, however many flows there are. In a cluster of several groups, each source waits over
        connections of its own to the leaders of its streams.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

import redis

from tidelog.client.entries import StreamId
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection
from tidelog.transport.routedconnection import connect_to_groups
from tidelog.transport.waker import Waker


def access(url: str) -> Access:
    """Return the Access of a URL. Raises ValueError if it can't be used."""
    try:
        return Access.of(url, retries=0)
    except ValueError as error:
        forms = "redis://HOST:PORT, unix:///PATH or redis+sentinel://HOST:PORT/SERVICE"
        raise ValueError(f"{error}; a server is {forms}") from None


async def channel(where: Access, name: str) -> AsyncConnection:
    """Open a connection to the leader, or to the leaders of a cluster, listed as ``name`` in CLIENT LIST.

    Raises OSError if no leader answers, or if it rejects the connection.
    """
    try:
        return await connect_to_groups(where, name)
    except redis.ResponseError as error:  # a wrong password can be corrected on the server
        raise ConnectionError(str(error)) from None


def application(url: str) -> str:
    """Return the host and port of a URL, without credentials."""
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or parts.path


# -- notifications -------------------------------------------------------------------------------------------
class SourceNotifier:
    """Notifies the sources of this process of new entries on one server. Shared: call ``of`` and ``release``."""

    _all: dict[Access, SourceNotifier] = {}  # noqa: RUF012 - of the process
    _lock = threading.Lock()

    def __init__(self, where: Access) -> None:
        self._where = where
        self._users = 0
        self._waker = Waker(where, self._notify, "tidelog-flows-waker")
        self._waiting: dict[str, tuple[frozenset[str], asyncio.AbstractEventLoop, Callable[[], None]]] = {}
        self._names = itertools.count()

    @classmethod
    def of(cls, where: Access) -> SourceNotifier:
        with cls._lock:
            found = cls._all.get(where)
            if found is None:
                found = cls._all[where] = cls(where)
                found._waker.__enter__()
            found._users += 1
            return found

    async def release(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
            if last:
                del self._all[self._where]
        if last:
            await asyncio.to_thread(self._waker.__exit__)

    def name(self) -> str:
        """Return a unique name for ``watch``."""
        return str(next(self._names))

    def watch(self, name: str, streams: Mapping[str, StreamId], call: Callable[[], None]) -> None:
        """Run ``call`` once in the caller's event loop when a stream has entries after its ID.

        Replaces the earlier watch of this name. ``call`` may also run without new entries.
        """
        self._waiting[name] = (frozenset(streams), asyncio.get_running_loop(), call)
        self._waker.watch(name, streams)

    def forget(self, name: str) -> None:
        if self._waiting.pop(name, None) is not None:
            self._waker.forget(name)

    def notify_due(self, streams: Sequence[str]) -> None:
        """Notify the sources that wait for these streams that entries are due for redelivery."""
        wanted = frozenset(streams)
        for name, (theirs, _, _) in list(self._waiting.items()):
            if not wanted.isdisjoint(theirs):
                self._waker.forget(name)
                self._notify(name)

    def _notify(self, name: str) -> None:
        """Run the calls of a watch. Runs in the thread of the waker or of an event loop."""
        found = self._waiting.pop(name, None)
        if found is not None:
            _, loop, call = found
            try:
                loop.call_soon_threadsafe(call)
            except RuntimeError:  # that loop is closed
                return
