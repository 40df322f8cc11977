"""Clients: each is a process with one connection, which sends commands to the leader until it is stopped.

Rule 1: The outcome of a command without a reply is unknown.
Rule 2: A client records a command before it sends it, and the reply when it arrives.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from tests.simulation.members import Member
from tests.simulation.network import NetworkLoop
from tests.simulation.simloop import Process
from tests.wire.rawclient import pack

# replies of a server that follows another one now, is loading, or has no disk; a blocked client was freed
EXPECTED = ("READONLY", "ERR WAIT cannot", "ERR WAITAOF cannot", "LOADING", "UNBLOCKED", "MISCONF", "MASTERDOWN")
Word = bytes | str | int
THINKING = (0.001, 0.02, 0.1)  # seconds between two steps of a client
PATIENCE = 1.5  # seconds for a reply


class LostError(Exception):
    """There is no answer: the outcome is unknown."""


class RefusedError(Exception):
    """The server answered with an error."""


class SimConnection(asyncio.Protocol):
    """One connection to a server."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport
        self._lost = False
        self.member: Member | None = None
        self.on_message: Callable[[Any], None] | None = None  # called with messages of channels

    @classmethod
    async def open(cls, loop: NetworkLoop, member: Member) -> SimConnection:
        """Connect. Raises LostError."""
        try:
            with socket.socket() as sock:  # only a key; closed even if the world ends meanwhile
                async with asyncio.timeout(PATIENCE):
                    await loop.sock_connect(sock, member.address)
                    _, protocol = await loop.create_connection(cls, sock=sock)
        except (OSError, TimeoutError) as error:
            raise LostError(str(error)) from error
        assert isinstance(protocol, cls)
        protocol.member = member
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self.on_message is not None and not self._waiting:
                self.on_message(reply)
                continue
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        for future in self._waiting:
            if not future.done():
                future.set_exception(LostError(str(exc)))
                future.exception()
        self._waiting.clear()

    def close(self) -> None:
        self._transport.abort()

    async def ask(self, *commands: tuple[Word, ...], patience: float = PATIENCE) -> list[Any]:
        """Send commands together, and return their replies, errors included. Raises LostError."""
        if self._lost:
            raise LostError("the connection is closed")
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in commands]
        self._waiting += futures
        self._transport.write(b"".join(pack(*words) for words in commands))
        try:
            async with asyncio.timeout(patience):
                return [await future for future in futures]
        except TimeoutError as error:
            self.close()
            raise LostError("no answer in time") from error

    async def __call__(self, *words: Word, patience: float = PATIENCE) -> Any:
        """Return the reply to one command. Raises LostError, RefusedError."""
        (reply,) = await self.ask(words, patience=patience)
        if isinstance(reply, hiredis.ReplyError):
            raise RefusedError(str(reply))
        return reply


async def answer(loop: NetworkLoop, member: Member, *words: Word, proto: int = 2) -> Any:
    """Return the reply to one command over a new connection. For the world. Raises LostError, RefusedError: the text
    names the member and the command."""
    who = f"{member.name} to {' '.join(map(str, words))}"
    try:
        connection = await SimConnection.open(loop, member)
        try:
            if proto == 3:
                await connection("HELLO", 3)
            return await connection(*words)
        finally:
            connection.close()
    except (LostError, RefusedError) as error:
        raise type(error)(f"{who}: {error}") from error


async def asked(loop: NetworkLoop, member: Member, *words: Word, proto: int = 2) -> Any:
    """As ``answer``, but None if there is none."""
    try:
        return await answer(loop, member, *words, proto=proto)
    except (LostError, RefusedError) as error:
        loop.note(str(error))
        return None


class Directory:
    """Tells clients which member leads. ``term`` counts the changes."""

    def __init__(self, leader: Member) -> None:
        self.leader = leader
        self.term = 0

    def switch(self, leader: Member) -> None:
        self.leader = leader
        self.term += 1


class Client:
    """Runs one workload. ``stopping``: it ends after the current operation."""

    def __init__(self, loop: NetworkLoop, number: int, directory: Directory, work: Any) -> None:
        self.loop = loop
        self.process: Process = loop.process(f"c{number}", f"10.0.1.{number}")
        self.directory = directory
        self.work = work
        self.stopping = False
        self.done = self.process.start(self._run())

    async def _run(self) -> None:
        while not self.stopping:
            term, leader = self.directory.term, self.directory.leader
            try:
                connection = await SimConnection.open(self.loop, leader)
            except LostError:
                await asyncio.sleep(self.loop.random.uniform(0.01, 0.3))
                continue
            self.work.connected()
            try:
                while not self.stopping and term == self.directory.term:
                    await self.work.step(connection)
                    await asyncio.sleep(self.loop.random.choice(THINKING))
            except LostError:
                await asyncio.sleep(self.loop.random.uniform(0.01, 0.1))
            except RefusedError as error:
                if not str(error).startswith(EXPECTED):
                    self.loop.trouble.append(f"{self.process.name}: {error}")
                await asyncio.sleep(self.loop.random.uniform(0.01, 0.1))
            except AssertionError as error:
                self.loop.trouble.append(f"{self.process.name}: {error}")
                return
            finally:
                connection.close()
