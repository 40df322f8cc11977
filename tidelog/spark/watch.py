"""Knowing that nothing new came, without asking: the server is told to speak up (TWAIT), on a connection of its own.

Spark asks a source for its latest offset about 90 times a second, and what answers must not wait: another source of the
same query may have rows, a query that is stopped waits for the answer, and so does a batch that ends a window. So the
server waits instead. Each time Spark asks, ``quiet`` looks whether the server's reply is there, which costs no command.

Rule 1: a watch only saves questions. Whatever goes wrong with it, ``quiet`` is False, and the caller asks.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Final

import hiredis

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_temporary
from tidelog.transport.leader import LeaderConnection

WAIT_MS: Final = 5_000  # after so long the caller asks again: a deleted stream, for one, is no news to TWAIT
GRACE_MS: Final = 1_000  # for the reply to that to arrive
REFUSED: Final = 60.0  # seconds until a server that has refused to wait is asked to again: its users may have changed

log = logging.getLogger(__name__)


class Watch:
    """Says whether streams may have got entries since their last IDs were read. Not for several threads at a time.

    ``name`` is the name of the connection in CLIENT LIST.
    """

    def __init__(self, access: Access, name: str) -> None:
        self._servers = LeaderConnection(access, name)
        self._wire: BlockingConnection | None = None  # while the server waits for us
        self._until = 0.0  # monotonic seconds
        self._refused_until = -math.inf  # monotonic seconds

    def begin(self, lasts: Mapping[str, StreamId]) -> None:
        """Let the server wait for entries after these IDs, the last that are known. The wait before this one ends."""
        self.end()
        if not lasts or time.monotonic() < self._refused_until:
            return
        try:
            wire = self._servers.leader()
            wire.send(calls.twait(lasts, block=WAIT_MS).args)
        except (OSError, ReplyError) as error:
            log.debug("no watch: %s", error)
            self._servers.close()
            return
        self._wire = wire
        self._until = time.monotonic() + (WAIT_MS + GRACE_MS) / 1000

    def quiet(self) -> bool:
        """Whether the server waits, and has said nothing. Once this is False, it stays so until ``begin``."""
        if self._wire is None:
            return False
        try:
            reply = self._wire.poll()
        except OSError as error:
            log.debug("the watch ends: %s", error)
            self.end()
            return False
        if reply is False and time.monotonic() < self._until:
            return True
        if reply is False:
            self.end()
        elif isinstance(reply, hiredis.ReplyError):
            self._refuse(ReplyError(str(reply)))
        self._wire = None  # its connection stays, for the next wait
        return False

    def end(self) -> None:
        """End the wait, if there is one."""
        if self._wire is not None:
            self._wire = None
            self._servers.close()

    def close(self) -> None:
        self._wire = None
        self._servers.close()

    def _refuse(self, error: ReplyError) -> None:
        """The server does not take TWAIT: from this user, with so many keys, for what is no stream."""
        if not is_temporary(error):
            self._refused_until = time.monotonic() + REFUSED
            log.info(
                "the server refuses TWAIT, so it is asked for new entries all the time for %g s: %s", REFUSED, error
            )
