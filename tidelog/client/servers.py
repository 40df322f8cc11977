"""Which server is asked, and what happens when it doesn't answer.

Rule 1: what there is to read is asked of the leader alone. A replica may lag behind, and its "gone" means nothing.
Rule 2: with one url, that server counts as the leader, whatever its role. With several, the one whose ROLE says so; it
        is looked for anew after each failure, so a query follows a failover.
Rule 3: only what may be repeated is sent through ``ask``: reads, and what publishes, drops and evicts by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from tidelog.client.calls import Call
from tidelog.client.wire import PASSING, ReplyError, Wire
from tidelog.spark.options import Access

T = TypeVar("T")


class UnreachableError(ConnectionError):
    """No attempt succeeded; the text says how many there were and what the last one met."""


class Servers:
    """The servers named by ``url``, and a connection to the leader among them that is made when it is needed."""

    def __init__(self, access: Access, name: str) -> None:
        self.access = access
        self.name = name  # of the connections, for CLIENT LIST
        self._leader: Wire | None = None

    def close(self) -> None:
        if self._leader is not None:
            self._leader.close()
            self._leader = None

    def attempts(self, do: Callable[[], T]) -> T:
        """What ``do`` returns; done again after a failure that may pass. UnreachableError in the end."""
        for left in range(self.access.retries, -1, -1):
            try:
                return do()
            except (OSError, ReplyError) as error:
                self.close()
                if isinstance(error, ReplyError) and error.code not in PASSING:
                    raise
                if not left:
                    tried = self.access.retries + 1
                    places = ", ".join(url.rpartition("@")[2] for url in self.access.urls)
                    raise UnreachableError(
                        f"no answer from {places} in {tried} attempts (fetchOffset.numRetries, "
                        f"fetchOffset.retryIntervalMs); the last one: {type(error).__name__}: {error}"
                    ) from error
                time.sleep(self.access.retry_ms / 1000)
        raise AssertionError("the last attempt returns or raises")

    def leader(self) -> Wire:
        """A connection to the leader. OSError where there is none."""
        if self._leader is None:
            self._leader = self._find()
        return self._leader

    def ask(self, *calls: Call[Any]) -> list[Any]:
        """What calls read from the leader's replies; in the place of each error, a ReplyError."""

        def once() -> list[Any]:
            replies = self.leader().run(*calls)
            for reply in replies:
                if isinstance(reply, ReplyError) and reply.code in PASSING:
                    raise reply
            return replies

        return self.attempts(once) if calls else []

    def _find(self) -> Wire:
        urls = self.access.urls
        if len(urls) == 1:
            return Wire(self.access, urls[0], self.name)
        met = []
        for url in urls:
            try:
                wire = Wire(self.access, url, self.name)
            except OSError as error:
                met.append(f"{url.rpartition('@')[2]}: {error}")
                continue
            if wire.ask("ROLE")[0] == b"master":
                return wire
            met.append(f"{wire.place}: a replica")
            wire.close()
        raise ConnectionError(f"no leader among url ({'; '.join(met)})")

    def replicas(self) -> tuple[str, ...]:
        """URLs of the leader's replicas: those of ``url`` that are not the leader; with one url, those ROLE names."""

        def once() -> tuple[str, ...]:
            leader = self.leader()
            if len(self.access.urls) > 1:
                return tuple(url for url in self.access.urls if url != leader.url)
            role = leader.ask("ROLE")
            if role[0] != b"master":
                return (leader.url,)
            scheme = "rediss" if self.access.tls else "redis"
            user, at, _ = leader.url.partition("://")[2].rpartition("@")  # what opens the leader opens its replicas
            return tuple(f"{scheme}://{user}{at}{_host(host.decode())}:{port.decode()}" for host, port, _ in role[2])

        return self.attempts(once)


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
