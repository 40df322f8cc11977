"""``EngineConnection``: a connection for the operations of a supervisor, with a thread that waits for the replies.

The event loop never waits for a server, and whatever ``Access`` can do (Sentinels, several URLs, TLS) is there.

Rule 1: operations run one after another, in the order in which they were asked for.
Rule 2: nothing is tried again here. Errors are those of ``LeaderConnection`` with no retries: OSError, ReplyError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidelog.client.steps import Steps, drive
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection

T = TypeVar("T")
LOST: Final = (OSError, ReplyError)  # what an operation may raise where the server is away, or refuses it
ANSWER_MS: Final = 10_000  # for connecting, and for each reply


class EngineConnection:
    """A connection of an engine. ``name`` is its name in CLIENT LIST; ``answer_ms``: how long a reply may take."""

    def __init__(self, access: Access, name: str, answer_ms: int = ANSWER_MS) -> None:
        patient = replace(
            access, retries=0, connect_ms=min(access.connect_ms, ANSWER_MS),
            read_ms=min(access.read_ms, ANSWER_MS) + answer_ms - ANSWER_MS,
        )  # fmt: skip
        self._servers = LeaderConnection(patient, name)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, steps: Steps[T]) -> T:
        """Drive an operation. One that is cancelled goes on in its thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self.drive, steps)

    def drive(self, steps: Steps[T]) -> T:
        """Drive an operation in this thread: for a program without an event loop."""
        return drive(self._send, steps)

    def close(self) -> None:
        """Close the connection when what is under way has ended; does not wait for that."""
        self._thread.submit(self._servers.close)
        self._thread.shutdown(wait=False)

    def _send(self, sequence: Sequence[Call[Any]]) -> list[Any]:
        replies = iter(self._servers.ask(*[call for call in sequence if call.args]))
        return [next(replies) if call.args else call.read(None) for call in sequence]
