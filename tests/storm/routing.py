"""Connections of one client to all members of a cluster: calls go to the owner of the slot of their key.

Rule 1: MOVED proves that a call was not executed, so the call is repeated. No member sends ASK.
Rule 2: a connection that is lost is opened again for the next call. The outcome of the call on it is unknown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import hiredis

from commands.slots import slot_of
from tests.simulation.clients import LostError, RefusedError, Word
from tests.storm.clients import PATIENCE, Connection

HOPS: Final = 5  # redirections that a client follows
AFTER: Final = {"XREAD": "STREAMS", "XREADGROUP": "STREAMS", "XGROUP": "CREATE"}  # the word before the key


def key_of(words: tuple[Word, ...]) -> bytes:
    """Return the first key of a command that a storm sends."""
    name = str(words[0])
    key = words[words.index(AFTER[name]) + 1] if name in AFTER else words[1]
    return key if isinstance(key, bytes) else str(key).encode()


class Routed(Connection):
    """Stands where a work expects the connection to the leader of a group."""

    def __init__(
        self, ports: Mapping[str, int], names: Mapping[int, str], chance: random.Random, patience: float = PATIENCE,
        losses: Callable[[str], int] = lambda _: 0,
    ) -> None:  # fmt: skip
        """``ports``: those by which this client reaches the members; ``names``: the members by announced port;
        ``losses``: how often a member has lost data."""
        super().__init__()
        self.losses = losses
        self._ports, self._names, self._random = ports, names, chance
        self._patience = patience
        self._open: dict[str, Connection] = {}
        self._guess: dict[int, str] = {}  # by slot: the member that was named, or has answered, last
        self.hops = 0  # redirections that were followed

    @property
    def members(self) -> list[str]:
        return list(self._ports)

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    async def ask(self, *commands: tuple[Word, ...], patience: float | None = None) -> list[Any]:
        """Send one command, or a transaction, to the owner, and return the replies. Raises LostError, RefusedError."""
        slot = slot_of(key_of(commands[1] if len(commands) > 1 else commands[0]))
        replies: list[Any] = []
        for _ in range(HOPS):
            replies = await self._sent(slot, list(commands), patience)
            moved = next((each for each in replies if _moved(each)), None)
            if moved is None:
                return replies
            self._follow(slot, moved)
        raise RefusedError(f"MOVED too often: {replies}")

    async def __call__(self, *words: Word, patience: float | None = None) -> Any:
        (reply,) = await self.ask(words, patience=patience)
        if isinstance(reply, hiredis.ReplyError):
            raise RefusedError(str(reply))
        return reply

    async def collect(self, *commands: tuple[Word, ...]) -> list[Any]:
        """Send a pipeline of calls with the same key to the owner. What was redirected is not repeated."""
        slot = slot_of(key_of(commands[0]))
        try:
            replies = await (await self._at(self._member(slot))).collect(*commands)
        except LostError:
            self._drop(slot)
            raise
        for reply in replies:
            if isinstance(reply, LostError):
                self._drop(slot)
                break
            if _moved(reply):
                self._follow(slot, reply)
        return replies

    async def at(self, member: str, *commands: tuple[Word, ...], patience: float | None = None) -> list[Any]:
        """Send commands to this member. Raises LostError."""
        try:
            return await (await self._at(member)).ask(*commands, patience=patience)
        except LostError:
            self._lose(member)
            raise

    async def separate(self, member: str) -> Connection:
        """Return another connection to this member, which the caller closes. Raises LostError."""
        return await Connection.to(self._ports[member], self._patience)

    # -- members ---------------------------------------------------------------------------------------------------
    def _member(self, slot: int) -> str:
        if slot not in self._guess:
            self._guess[slot] = self._random.choice(list(self._ports))
        return self._guess[slot]

    async def _at(self, member: str) -> Connection:
        if member not in self._open:
            connection = self._open[member] = await Connection.to(self._ports[member], self._patience)
            try:
                await connection("CLIENT", "MULTISLOT", "ON")
            except RefusedError as error:
                raise LostError(str(error)) from error
        return self._open[member]

    async def _sent(self, slot: int, commands: list[tuple[Word, ...]], patience: float | None) -> list[Any]:
        try:
            replies = await (await self._at(self._member(slot))).ask(*commands, patience=patience)
        except LostError:
            self._drop(slot)
            raise
        if any(isinstance(each, hiredis.ReplyError) and not _moved(each) for each in replies):
            self._guess.pop(slot, None)  # another member may lead
        return replies

    def _follow(self, slot: int, error: Any) -> None:
        self.hops += 1
        self._guess[slot] = self._names[int(str(error).rpartition(":")[2])]

    def _drop(self, slot: int) -> None:
        self._lose(self._guess.pop(slot, ""))

    def _lose(self, member: str) -> None:
        connection = self._open.pop(member, None)
        if connection is not None:
            connection.close()


def _moved(reply: Any) -> bool:
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("MOVED ")
