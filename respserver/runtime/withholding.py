"""Withheld replies: replies of ticks that can show data which other servers must store first (``replica-acks``).

Rule 1: a tick can read the log up to its end, so its replies wait until that log offset is confirmed. They are released
in the order of the ticks. Later replies of a client wait for its earlier withheld replies.
Rule 2: a reply that can't show data is not withheld, unless it follows a withheld reply of the same client. Otherwise,
a leader that waits for its replicas would appear dead to Sentinel, and INFO could not show the reason.
Rule 3: all data that is sent to a client counts as a reply, including results of blocked readers, messages, keyspace
events, invalidations, and lines of MONITOR.

Decision: the replies stay in the output of their client (``clients.output``), where they count against its limits. This
module only stores which clients wait for which log offset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from respserver.runtime.tickclient import TickClient

PURGED_FROM: Final = 1000  # number of entries above which closed clients are removed


class Withholding:
    """The clients with withheld replies.

    ``mono``: returns ms, monotonic. ``failed``: called with a client whose replies can't be sent, and the exception.
    """

    def __init__(self, mono: Callable[[], int], failed: Callable[[TickClient, Exception], None]) -> None:
        self._mono = mono
        self._failed = failed
        self._ticks: deque[tuple[int, int, list[TickClient]]] = deque()  # log offset, ms (monotonic), clients
        self._entries = 0  # number of clients in ``_ticks``; a client can be in several of them
        self._purge_at = PURGED_FROM

    def withhold(self, clients: list[TickClient], offset: int) -> None:
        """End a tick that could see the log up to ``offset``."""
        waiting = []
        for client in clients:
            client.queued = False
            try:
                if client.withhold(offset):
                    waiting.append(client)
            except Exception as error:  # noqa: BLE001 - the other clients must be served
                self._failed(client, error)
        if not waiting:
            return
        self._ticks.append((offset, self._mono(), waiting))
        self._entries += len(waiting)
        if self._entries > self._purge_at:
            self._purge()

    def _purge(self) -> None:
        """Remove closed clients. Clients that give up and connect again would otherwise accumulate."""
        ticks = self._ticks
        self._ticks, self._entries = deque(), 0
        for offset, since, clients in ticks:
            left = [client for client in clients if client.withheld_bytes() >= 0]
            if left:
                self._ticks.append((offset, since, left))
                self._entries += len(left)
        self._purge_at = max(PURGED_FROM, 2 * self._entries)

    def release(self, offset: int, limit: int) -> bool:
        """Release the replies that wait for log offset ``offset`` or an earlier one, of ``limit`` clients at most.
        Returns whether more of them are left."""
        ticks = self._ticks
        while ticks and ticks[0][0] <= offset:
            if limit <= 0:
                return True
            awaited, since, clients = ticks[0]
            if len(clients) <= limit:
                ticks.popleft()
            else:
                ticks[0] = awaited, since, clients[limit:]
                del clients[limit:]
            limit -= len(clients)
            self._entries -= len(clients)
            for client in clients:
                self.confirm(client, offset)
        return False

    def confirm(self, client: TickClient, offset: int) -> None:
        """Release the replies of one client."""
        try:
            client.confirm(offset)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(client, error)

    def take_clients(self) -> list[TickClient]:
        """Return the clients with withheld replies, each once, and forget them."""
        found = self.clients()
        self._ticks.clear()
        self._entries = 0
        return found

    def clients(self) -> list[TickClient]:
        """Return the clients with withheld replies, each once."""
        found: dict[TickClient, None] = {}
        for _, _, clients in self._ticks:
            found.update(dict.fromkeys(clients))
        return [client for client in found if client.withheld_bytes() >= 0]

    def since(self) -> int | None:
        """Return the ms (monotonic) since which the oldest reply is withheld; None if there is none."""
        return self._ticks[0][1] if self._ticks else None
