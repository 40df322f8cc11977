"""``LeaderConnection``: requests to the leader, which are repeated while it does not answer.

Rule 1: the contents of a stream are read from the leader only. A replica may lag, so an entry that it lacks may exist.
Rule 2: the lookup of the leader (``lookup``) is repeated after each failure, so requests follow a failover. A server
        with ``cluster-enabled`` that does not lead any more replies with MOVED, which is such a failure.
Rule 3: ``ask`` may send a request twice. Use it only for requests that may be repeated: reads, and TPUBLISH, TDROP and
        eviction, which change nothing the second time.
Rule 4: after MOVED, the map of the cluster is read. If several groups share the slots, ``ask`` and ``leader(key)`` use
        the leader of each key from then on (``groupleaders``). Requests that a caller sends over ``leader()`` without
        a key fail with OneGroupError. Other servers are sent nothing more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any, TypeVar

import hiredis

from tidelog.transport.access import Access
from tidelog.transport.call import Call, Name, plain
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import OneGroupError, ReplyError, is_denied, is_temporary
from tidelog.transport.groupleaders import GroupLeaders
from tidelog.transport.lookup import find_leader, url_of
from tidelog.transport.slots import OWNERS, MemberAddress, SlotOwners, of_another_group, other_groups

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
        self._groups: GroupLeaders | None = None  # None: one server, or one group
        self._unknown = ""  # why the map of a cluster could not be read; "": it was not needed, or it was read

    def close(self) -> None:
        """Close the connection. The next request opens another one."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None
        if self._groups is not None:
            self._groups.close()

    def attempts(self, do: Callable[[], T], key: Name | None = None) -> T:
        """Call ``do`` until it succeeds, with at most ``access.retries`` further attempts, and return its result.

        Another attempt follows an OSError or a temporary ReplyError; the connection is closed first.
        Other errors are raised immediately. Raises UnreachableError after the last attempt, and OneGroupError (Rule 4),
        unless ``do`` sends its requests over ``leader(key)``.
        """
        return self._attempts(do, lambda error: self.redirected(error, key))

    def _attempts(self, do: Callable[[], T], check: Callable[[ReplyError], object] | None = None) -> T:
        for left in range(self.access.retries, -1, -1):
            try:
                return do()
            except (OSError, ReplyError) as error:
                try:
                    if isinstance(error, ReplyError) and check is not None:
                        check(error)
                finally:
                    self.close()
                if isinstance(error, ReplyError) and not is_temporary(error):
                    raise
                if left and left == self.access.retries:
                    seconds = left * self.access.retry_ms / 1000
                    log.warning("%s: %s; trying again for %g s at least", self.access.places, error, seconds)
                if not left:
                    told = f"no answer from {self.access.places}{self._tried()}: {type(error).__name__}: {error}"
                    raise UnreachableError(told + (f" ({self._unknown})" if self._unknown else "")) from error
                time.sleep(self.access.retry_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def _tried(self) -> str:
        """Return the number of attempts for a message; empty for a single one, unless its user can configure more."""
        access = self.access
        if not access.retries and "retries" not in access.names:
            return ""
        limits = f"{access.called('retries')}, {access.called('retry_ms')}"
        return f" in {access.retries + 1} attempt{'s' if access.retries else ''} ({limits}); the last one"

    def leader(self, key: Name | None = None) -> BlockingConnection:
        """Return the connection to the leader; in a cluster of several groups, to the leader that has the key.

        Raises OSError if no leader answers, ReplyError for a wrong password.
        """
        if self._groups is not None and key is not None:
            return self._groups.leader(key)
        if self._leader is None:
            self._leader = find_leader(self.access, self.name)
        return self._leader

    def leaders(self) -> list[BlockingConnection]:
        """Return connections to the leaders of all groups, for requests without keys: one, without several groups.

        The map is read each time. Raises OSError if no leader answers, or while slots have no leader, and ReplyError
        for a wrong password, or if the user has no permission to read the map of a cluster.
        """
        if self._groups is None:
            leader = self.leader()
            (hello,) = leader.run(plain("HELLO"))
            if isinstance(hello, ReplyError) or b"cluster" not in hello:
                return [leader]
            (slots,) = leader.run(*OWNERS[1:])
            if isinstance(slots, ReplyError):
                raise slots
            owners = SlotOwners(slots, MemberAddress("", 0))
            if not owners.complete:
                raise ConnectionError(f"{leader.place}: some slots of the cluster have no leader at present")
            if len(owners.leaders) < 2 and not other_groups(*leader.run(*OWNERS)):
                return [leader]
            groups = GroupLeaders(self.access, self.name)
            try:
                groups.read_map()
            except BaseException:
                groups.close()
                raise
            self._groups = groups
        return self._groups.leaders()

    def redirected(self, error: ReplyError, key: Name | None = None) -> bool:
        """Handle an error of a request that the caller has sent over ``leader(key)``.

        Returns whether the error is a redirection within a cluster of several groups, so that ``leader(key)`` is
        another server now. Without a key, raises OneGroupError if another group has the slot.
        """
        if key is None:
            self._check_group(error)
        return key is not None and error.code == "MOVED" and self._several_groups(str(error)) is not None

    def _check_group(self, error: ReplyError) -> None:
        """Raise OneGroupError if the error is a redirection to another group."""
        if error.code == "MOVED" and self._leads_elsewhere(str(error)):
            raise OneGroupError.of(error)

    def _leads_elsewhere(self, moved: str) -> bool:
        """Return whether a redirection of the current connection names another group; False in case of doubt."""
        if self._leader is None:
            return False
        try:  # on a new connection: the caller may not have read all replies
            with closing(BlockingConnection(self.access, self._leader.url, self.name)) as connection:
                own, slots = connection.run(*OWNERS)
        except (OSError, ReplyError):  # the next attempt ends with an error, or with another redirection
            return False
        self._note_denied(own if isinstance(own, ReplyError) else slots)
        return of_another_group(moved, own, slots)

    def _note_denied(self, reply: Any) -> None:
        self._unknown = str(reply) if isinstance(reply, ReplyError) and is_denied(reply) else ""

    def _several_groups(self, moved: str) -> GroupLeaders | None:
        """Return the leaders if other groups have slots, after a redirection. Reads the map.

        A single leader that has all slots can be another one than the current one, which then has none.
        """
        if self._groups is None:
            groups = GroupLeaders(self.access, self.name)
            number = 0
            try:
                number = groups.read_map()
                self._unknown = ""
            except OSError:  # as above
                pass
            except ReplyError as error:
                self._note_denied(error)
            if number > 1 or (number and self._leads_elsewhere(moved)):
                self._groups = groups
            else:
                groups.close()
        return self._groups

    def ask(self, *calls: Call[Any]) -> list[Any]:
        """Send calls in one pipeline to the leader, or to those of their keys, and return their results (Rules 3, 4).

        An error reply is not raised: a ReplyError takes the place of the result. Temporary errors are retried, except
        those whose code is in ``returned``. Raises UnreachableError as ``attempts`` does.
        """

        def once() -> list[Any]:
            replies = self._sent(calls)
            for reply in replies:
                if isinstance(reply, ReplyError) and reply.code not in self._returned and is_temporary(reply):
                    raise reply
            return replies

        return self._attempts(once) if calls else []

    def _sent(self, calls: Sequence[Call[Any]]) -> list[Any]:
        if self._groups is not None:
            return self._groups.ask(calls, None, ())
        leader = self.leader()
        replies = leader.exchange(calls)
        errors = [str(reply) for reply in replies if isinstance(reply, hiredis.ReplyError)]
        moved = next((text for text in errors if text.startswith("MOVED ")), None)
        if moved is not None:
            groups = self._several_groups(moved)
            if groups is not None:
                return groups.ask(calls, leader, replies)
        return leader.results(calls, replies)

    def replicas(self) -> tuple[str, ...]:
        """Return the URLs of the replicas: with several URLs, those that are not the leader; with one, those in ROLE.

        If the only URL is that of a replica, it is returned. In a cluster of several groups, none are returned. Raises
        UnreachableError as ``attempts`` does.
        """
        if self._groups is not None:
            return ()

        def once() -> tuple[str, ...]:
            leader = self.leader()
            if len(self.access.urls) > 1 and not self.access.sentinels:
                return tuple(url for url in self.access.urls if url != leader.url)
            role = leader.ask("ROLE")
            if role[0] != b"master":
                return (leader.url,)
            return tuple(url_of(self.access, leader.url, host.decode(), int(port)) for host, port, _ in role[2])

        return self.attempts(once)
