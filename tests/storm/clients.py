"""Clients: connections through the proxies, and the loop that runs a work against whichever member answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tests.simulation.clients import LostError, RefusedError, SimConnection, Word
from tests.wire.rawclient import pack

# What a server replies that does not lead, waits for others, or stops.
EXPECTED = ("READONLY", "NOREPLICAS", "LOADING", "MASTERDOWN", "UNBLOCKED", "MISCONF", "EXECABORT", "CLUSTERDOWN")
THINKING = (0.001, 0.01, 0.05)  # seconds between two steps of a client
PATIENCE = 2.0  # seconds for a reply


class Connection(SimConnection):
    """A connection of a client, or of the test itself."""

    _patience = PATIENCE

    @classmethod
    async def to(cls, port: int, patience: float = PATIENCE) -> Connection:
        """Connect to a port of this machine. ``patience``: for this, and for each reply. Raises LostError."""
        try:
            async with asyncio.timeout(patience):
                _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        except (OSError, TimeoutError) as error:
            raise LostError(str(error)) from error
        connection._patience = patience
        return connection

    async def ask(self, *commands: tuple[Word, ...], patience: float | None = None) -> list[Any]:
        return await super().ask(*commands, patience=patience or self._patience)

    async def __call__(self, *words: Word, patience: float | None = None) -> Any:
        return await super().__call__(*words, patience=patience or self._patience)

    async def collect(self, *commands: tuple[Word, ...]) -> list[Any]:
        """Send commands together. Return a reply, an error, or LostError for each."""
        if self._lost:
            raise LostError("the connection is closed")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in commands]
        self._waiting += futures
        self._transport.write(b"".join(pack(*words) for words in commands))
        await asyncio.wait(futures, timeout=self._patience)
        lost = not all(future.done() for future in futures)
        if lost:
            self.close()
        return [
            LostError("no answer in time") if not future.done() else future.exception() or future.result()
            for future in futures
        ]


class Worker(Protocol):
    async def step(self, member: str, server: Connection) -> None: ...


class Client:
    """Runs one work, at any member. After an error, it tries another one. ``trouble`` gets what must not happen."""

    expected: tuple[str, ...] = EXPECTED

    def __init__(
        self, ports: Mapping[str, int], work: Worker, chance: random.Random, trouble: Callable[[str], None],
        tolerant: Callable[[], bool],
    ) -> None:  # fmt: skip
        """``tolerant``: whether reads may meet damage that is not repaired yet."""
        self.work = work
        self.stopping = False
        self.tolerant = tolerant
        self._ports, self._random, self._trouble = ports, chance, trouble
        self.task = asyncio.create_task(self._run())

    async def _connect(self, member: str) -> Connection:
        """Connect. Raises LostError."""
        return await Connection.to(self._ports[member])

    def _is_expected(self, error: str) -> bool:
        return error.startswith(self.expected) or (self.tolerant() and "damaged data" in error)

    async def _run(self) -> None:
        try:
            while not self.stopping:
                member = self._random.choice(list(self._ports))
                try:
                    connection = await self._connect(member)
                except LostError:
                    await asyncio.sleep(0.05)
                    continue
                try:
                    while not self.stopping:
                        await self.work.step(member, connection)
                        await asyncio.sleep(self._random.choice(THINKING))
                except LostError:
                    pass
                except RefusedError as error:
                    if not self._is_expected(str(error)):
                        self._trouble(f"{type(self.work).__name__} at {member}: {error}")
                finally:
                    connection.close()
                await asyncio.sleep(self._random.uniform(0.01, 0.05))
        except AssertionError as error:
            self._trouble(f"{type(self.work).__name__}: {error}")
