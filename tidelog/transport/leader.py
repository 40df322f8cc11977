"""``LeaderConnection``: finds the leader, and retries while it does not answer.

Rule 1: the contents of a stream are read from the leader only. A replica may lag, so an entry that it lacks may exist.
Rule 2: with one URL, that server counts as the leader, whatever its role is. With several URLs, the leader is the
        server whose ROLE is master, or, if none of them leads, the leader that a replica among them follows. With
        Sentinels, it is the server that they name, if its ROLE agrees. The lookup is repeated after each failure, so
        requests follow a failover. A server with ``cluster-enabled`` that does not lead any more replies with MOVED,
        which is such a failure.
Rule 3: ``ask`` may send a request twice. Use it only for requests that may be repeated: reads, and TPUBLISH, TDROP and
        eviction, which change nothing the second time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

from tidelog.transport.access import Access, without_credentials
from tidelog.transport.call import Call
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_temporary

T = TypeVar("T")

log = logging.getLogger(__name__)


class UnreachableError(ConnectionError):
    """No attempt succeeded. The text has the number of attempts and the last error."""


class LeaderConnection:
    """A connection to the leader among the servers of an ``Access``. It is opened by the first request.

    ``name`` is the name of the connection in CLIENT LIST; ``returned``: see ``ask``. Not thread-safe.
    """

    def __init__(self, access: Access, name: str, returned: Collection[str] = ()) -> None:
        self.access = access
        self.name = name
        self._returned = returned
        self._leader: BlockingConnection | None = None

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None

    def attempts(self, do: Callable[[], T]) -> T:
        """Call ``do`` until it succeeds, with at most ``access.retries`` further attempts, and return its result.

        Another attempt follows an OSError or a temporary ReplyError; the connection is closed first.
        Other errors are raised immediately. Raises UnreachableError after the last attempt.
        """
        for left in range(self.access.retries, -1, -1):
            try:
                return do()
            except (OSError, ReplyError) as error:
                self.close()
                if isinstance(error, ReplyError) and not is_temporary(error):
                    raise
                if left and left == self.access.retries:
                    seconds = left * self.access.retry_ms / 1000
                    log.warning("%s: %s; trying again for %g s at least", self.access.places, error, seconds)
                if not left:
                    told = f"no answer from {self.access.places}{self._tried()}: {type(error).__name__}: {error}"
                    raise UnreachableError(told) from error
                time.sleep(self.access.retry_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _tried(self) -> str:
        """Return the number of attempts for a message; empty for a single one, unless its user can configure more."""
        access = self.access
        if not access.retries and "retries" not in access.names:
            return ""
        limits = f"{access.called('retries')}, {access.called('retry_ms')}"
        return f" in {access.retries + 1} attempt{'s' if access.retries else ''} ({limits}); the last one"

    def leader(self) -> BlockingConnection:
        """Return the connection to the leader. Raises OSError if no leader answers, ReplyError for a wrong password."""
        if self._leader is None:
            self._leader = self._find()
        return self._leader

    def ask(self, *calls: Call[Any]) -> list[Any]:
        """Send calls to the leader in one pipeline and return their results (Rule 3).

        An error reply is not raised: a ReplyError takes the place of the result. Temporary errors are retried, except
        those whose code is in ``returned``. Raises UnreachableError as ``attempts`` does.
        """

        def once() -> list[Any]:
            replies = self.leader().run(*calls)
            for reply in replies:
                if isinstance(reply, ReplyError) and reply.code not in self._returned and is_temporary(reply):
                    raise reply
            return replies

        return self.attempts(once) if calls else []

    def replicas(self) -> tuple[str, ...]:
        """Return the URLs of the replicas: with several URLs, those that are not the leader; with one, those in ROLE.

        If the only URL is that of a replica, it is returned. Raises UnreachableError as ``attempts`` does.
        """

        def once() -> tuple[str, ...]:
            leader = self.leader()
            if len(self.access.urls) > 1 and not self.access.sentinels:
                return tuple(url for url in self.access.urls if url != leader.url)
            role = leader.ask("ROLE")
            if role[0] != b"master":
                return (leader.url,)
            return tuple(self._url(leader.url, host, port) for host, port, _ in role[2])  # with the leader's password

        return self.attempts(once)

    def _find(self) -> BlockingConnection:
        """Connect to the leader among the URLs, or to the one that a Sentinel names (Rule 2)."""
        access, met, followed = self.access, list[str](), list[str]()
        if len(access.urls) == 1 and not access.sentinels:
            return BlockingConnection(access, access.urls[0], self.name)
        for place in access.sentinels or access.urls:
            try:
                url = self._asked(place) if access.sentinels else place
                wire = BlockingConnection(access, url, self.name) if url else None
            except (OSError, ReplyError) as error:
                if isinstance(error, ReplyError) and not is_temporary(error):
                    raise
                met.append(f"{without_credentials(place)}: {error}")
                continue
            if wire is None:
                met.append(f"{without_credentials(place)}: no service of this name")
                continue
            url = self._follows(wire)
            if not url:
                return wire
            wire.close()
            met.append(f"{wire.place}: a replica")
            if not access.sentinels and url not in followed:
                followed.append(url)
        for url in followed:  # the URLs may name only some of the servers
            with suppress(OSError, ReplyError):
                wire = BlockingConnection(access, url, self.name)
                if not self._follows(wire):
                    return wire
                wire.close()
        named = f"by {access.called('sentinels')} for {access.service!r}"
        where = named if access.sentinels else f"among {access.called('urls')}"
        raise ConnectionError(f"no leader {where} ({'; '.join(met)})")

    def _follows(self, wire: BlockingConnection) -> str:
        """Return the URL of the leader that a server follows; "" if it leads."""
        role = wire.ask("ROLE")
        return "" if role[0] == b"master" else self._url(wire.url, role[1], role[2])

    def _url(self, like: str, host: bytes, port: bytes | int) -> str:
        """Return the URL of another server, with user and password of the URL ``like``."""
        scheme, address = "rediss" if self.access.secure else "redis", self.access.address(like)
        user = f"{quote(address.username or '', '')}:{quote(address.password, '')}@" if address.password else ""
        return f"{scheme}://{user}{_host(host.decode())}:{int(port)}"

    def _asked(self, sentinel: str) -> str:
        """Return the leader's URL from a Sentinel, or "" if it does not know the service. Raises OSError."""
        wire = BlockingConnection(self.access.of_sentinel(sentinel), sentinel, self.name)
        try:
            found = wire.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.access.service)
        finally:
            wire.close()
        scheme = "rediss" if self.access.secure else "redis"
        return f"{scheme}://{_host(found[0].decode())}:{found[1].decode()}" if found else ""


def leader_url(access: Access, name: str) -> str:
    """Return the URL of the current leader. Raises OSError if no leader answers, ReplyError for a wrong password."""
    connection = LeaderConnection(access, name)
    try:
        return connection.leader().url
    finally:
        connection.close()


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
