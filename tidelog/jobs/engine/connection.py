"""``EngineConnection``: a connection for the operations of a supervisor, with a thread that waits for the replies.

The event loop never waits for a server, and whatever ``Access`` can do (Sentinels, several URLs, TLS) is there.

Rule 1: operations run one after another, in the order in which they were asked for.
Rule 2: nothing is tried again here. Errors are those of ``LeaderConnection`` with no retries: OSError, ReplyError.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from tidelog.client.steps import Steps, drive
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

T = TypeVar("T")
LOST: Final = (OSError, ReplyError)  # what an operation may raise where the server is away, or refuses it
ANSWER_MS: Final = 10_000  # for connecting, and for each reply


class EngineConnection:
    """A connection of an engine. ``name`` is its name in CLIENT LIST; ``answer_ms``: how long a reply may take."""

    def __init__(self, access: Access, name: str, answer_ms: int = ANSWER_MS) -> None:
        quick = access.single_attempt(ANSWER_MS)
        self._servers = LeaderConnection(replace(quick, read_ms=quick.read_ms + answer_ms - ANSWER_MS), name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, steps: Steps[T]) -> T:
        """Drive an operation. One that is cancelled goes on in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.drive, steps)

    def drive(self, steps: Steps[T]) -> T:
        """Drive an operation in this thread: for a program without an event loop."""
        return drive(lambda calls: self._servers.ask(*calls), steps)

    def close(self) -> None:
        """Close the connection when what is under way has ended; does not wait for that."""
        self._thread.submit(self._servers.close)
        self._thread.shutdown(wait=False)
