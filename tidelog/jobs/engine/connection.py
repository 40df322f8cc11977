"""``EngineConnection``: a connection for the operations of a supervisor, with a thread that waits for the replies.

The event loop never waits for a server, and everything that ``Access`` supports (Sentinel, several URLs, TLS) can be
used.

Rule 1: Operations are executed one at a time, in the order in which they were submitted.
Rule 2: Nothing is retried here. Operations raise the errors of a ``LeaderConnection`` without retries: OSError,
        ReplyError.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.client.steps import Steps, drive_over
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

T = TypeVar("T")
LOST: Final = (OSError, ReplyError)  # errors if the server is unreachable or rejects a call
ANSWER_MS: Final = 10_000  # to connect, and for each reply


class EngineConnection:
    """A connection of an engine. ``name``: its name in CLIENT LIST; ``answer_ms``: how long a reply may take."""

    def __init__(self, access: Access, name: str, answer_ms: int = ANSWER_MS) -> None:
        quick = access.single_attempt(ANSWER_MS)
        self._servers = LeaderConnection(replace(quick, read_ms=quick.read_ms + answer_ms - ANSWER_MS), name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, steps: Steps[T]) -> T:
        """Drive an operation. If it is cancelled, it continues in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.drive, steps)

    def drive(self, steps: Steps[T]) -> T:
        """Drive an operation in the calling thread, for programs without an event loop."""
        return drive_over(self._servers.ask, steps)

    def close(self) -> None:
        """Close the connection after the current operation; does not wait for it."""
        self._thread.submit(self._servers.close)
        self._thread.shutdown(wait=False)
