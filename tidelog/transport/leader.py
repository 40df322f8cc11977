"""Finding the leader, and trying again when it does not answer.

Rule 1: what a stream holds is asked of the leader only. A replica may lag: an entry that it lacks may well exist.
Rule 2: with one URL, that server counts as the leader, whatever its role is. With several, it is the one whose ROLE
        says so. With Sentinels it is the one that they name, if its ROLE agrees. It is looked for again after each
        failure, so requests follow a failover.
Rule 3: ``ask`` may send a request twice. Use it only for what may be repeated: reads, and TPUBLISH, TDROP and eviction,
        which change nothing the second time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar
from urllib.parse import quote

from tidelog.transport.access import Access, without_credentials
from tidelog.transport.call import Call
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_temporary

T = TypeVar("T")

log = logging.getLogger(__name__)


class UnreachableError(ConnectionError):
    """No attempt succeeded. The text says how many there were and how the last one failed."""


class LeaderConnection:
    """The servers of an ``Access``, and one connection to their leader, made when it is first needed.

    ``name`` is the name of the connection in CLIENT LIST; ``given``: see ``ask``. Not for several threads at a time.
    """

    def __init__(self, access: Access, name: str, given: Collection[str] = ()) -> None:
        self.access = access
        self.name = name
        self._given = given
        self._leader: BlockingConnection | None = None

    def close(self) -> None:
        """Close the connection; the next request makes another."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None

    def attempts(self, do: Callable[[], T]) -> T:
        """Call ``do`` until it succeeds, ``access.retries`` times more at most; returns what it returns.

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
        """How often, for a message. One attempt is not counted, unless its user can ask for more."""
        access = self.access
        if not access.retries and "retries" not in access.names:
            return ""
        limits = f"{access.called('retries')}, {access.called('retry_ms')}"
        return f" in {access.retries + 1} attempt{'s' if access.retries else ''} ({limits}); the last one"

    def leader(self) -> BlockingConnection:
        """The connection to the leader. OSError where no leader answers, ReplyError for a wrong password."""
        if self._leader is None:
            self._leader = self._find()
        return self._leader

    def ask(self, *calls: Call[Any]) -> list[Any]:
        """Send calls to the leader, all at once; returns what each reads from its reply. See Rule 3.

        An error reply is not raised: a ReplyError is in its place in the list. UnreachableError as ``attempts``. Errors
        that pass are tried again, but for those whose code is in ``given``: they are in the list, too.
        """

        def once() -> list[Any]:
            replies = self.leader().run(*calls)
            for reply in replies:
                if isinstance(reply, ReplyError) and reply.code not in self._given and is_temporary(reply):
                    raise reply
            return replies

        return self.attempts(once) if calls else []

    def replicas(self) -> tuple[str, ...]:
        """URLs of the leader's replicas: with several URLs, those that are not the leader; with one, those in ROLE.

        If the only URL is a replica's, it is that one. UnreachableError as ``attempts``.
        """

        def once() -> tuple[str, ...]:
            leader = self.leader()
            if len(self.access.urls) > 1 and not self.access.sentinels:
                return tuple(url for url in self.access.urls if url != leader.url)
            role = leader.ask("ROLE")
            if role[0] != b"master":
                return (leader.url,)
            scheme = "rediss" if self.access.secure else "redis"
            address = self.access.address(leader.url)  # replicas have the leader's password
            user = f"{quote(address.username or '', '')}:{quote(address.password, '')}@" if address.password else ""
            return tuple(f"{scheme}://{user}{_host(host.decode())}:{port.decode()}" for host, port, _ in role[2])

        return self.attempts(once)

    def _find(self) -> BlockingConnection:
        urls = self.access.urls
        if self.access.sentinels:
            return self._named()
        if len(urls) == 1:
            return BlockingConnection(self.access, urls[0], self.name)
        met = []
        for url in urls:
            try:
                wire = BlockingConnection(self.access, url, self.name)
            except (OSError, ReplyError) as error:
                if isinstance(error, ReplyError) and not is_temporary(error):
                    raise
                met.append(f"{without_credentials(url)}: {error}")
                continue
            if wire.ask("ROLE")[0] == b"master":
                return wire
            met.append(f"{wire.place}: a replica")
            wire.close()
        raise ConnectionError(f"no leader among {self.access.called('urls')} ({'; '.join(met)})")

    def _named(self) -> BlockingConnection:
        """A connection to the leader that a Sentinel names."""
        access, met = self.access, []
        for sentinel in access.sentinels:
            try:
                place = self._asked(sentinel)
                wire = BlockingConnection(access, place, self.name) if place else None
            except (OSError, ReplyError) as error:
                if isinstance(error, ReplyError) and not is_temporary(error):
                    raise
                met.append(f"{without_credentials(sentinel)}: {error}")
                continue
            if wire is None:
                met.append(f"{without_credentials(sentinel)}: no service of this name")
            elif wire.ask("ROLE")[0] == b"master":
                return wire
            else:
                met.append(f"{wire.place}: a replica")
                wire.close()
        raise ConnectionError(f"no leader by {access.called('sentinels')} for {access.service!r} ({'; '.join(met)})")

    def _asked(self, sentinel: str) -> str:
        """The leader's URL as this Sentinel has it, "" if it does not know the service. OSError if it is not there."""
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
