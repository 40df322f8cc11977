"""One of the two servers: connects, identifies the server, and refuses an unsuitable one.

The commands of a list are pipelined. An error among the replies is raised with the name of the command. A lost
connection raises ``OSError``; ``connect`` reconnects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import hiredis

from tidelog.moving.errors import CommandRefusedError, MovingError
from tidelog.transport.access import Access, without_credentials
from tidelog.transport.address import address_of
from tidelog.transport.call import Value
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError

Command = tuple[Value, ...]
Side = Literal["source", "target"]

NAME: Final = "tidelog-moving"  # the name in CLIENT LIST
#: The version of Redis that a target must support: XSETID with ENTRIESADDED, XGROUP with ENTRIESREAD.
TARGET_VERSION: Final = (7, 0)
SOURCE_VERSION: Final = (5, 0)  # the first version with streams


class Endpoint:
    """A server. Raises MovingError if it is unsuitable, and OSError if it does not answer."""

    def __init__(self, side: Side, url: str, password: str | None = None) -> None:
        self.side = side
        self.url = url
        self.place = without_credentials(url)
        try:
            self.db = address_of(url).db or 0
            self._access = Access((url,), password=password)
        except ValueError as error:
            raise MovingError(f"the {side}: {error}") from None
        self._wire: BlockingConnection | None = None
        self.connect()
        try:
            self._examine()
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        return f"the {self.side} {self.place}"

    def connect(self) -> None:
        self.close()
        try:
            self._wire = BlockingConnection(self._access, self.url, NAME)
        except ReplyError as error:
            raise CommandRefusedError(self.where, "the connection", str(error)) from None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def is_as_before(self) -> bool:
        """Return whether the same server process still answers."""
        return _pairs(self.ask("INFO")).get("run_id", "") == self.run_id

    def _examine(self) -> None:
        info = _pairs(self.ask("INFO"))
        version = info.get("redis_version", "")
        if not version:
            raise MovingError(f"{self.where} is no Redis: its INFO tells no version")
        self.version = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
        self.tidelog = "tidelog_version" in info
        self.name = f"tidelog {info['tidelog_version']}" if self.tidelog else f"Redis {version}"
        self.run_id = info.get("run_id", "")
        if info.get("redis_mode") == "sentinel":
            raise MovingError(f"{self.where} is a Sentinel: name the server that it watches")
        if info.get("redis_mode") == "cluster" or info.get("cluster_enabled") == "1":
            raise MovingError(
                f"{self.where} is a node of a Redis Cluster: it has a part of the keys only, and slots may move while "
                "they are copied. Clusters are not supported"
            )
        if self.side == "target":
            if info.get("role") == "slave":
                raise MovingError(f"{self.where} is a replica, and can't be written to: name its leader")
            if self.version < TARGET_VERSION:
                raise MovingError(f"{self.where} is {self.name}: a target must be 7.0 or newer")
        elif self.version < SOURCE_VERSION:
            raise MovingError(f"{self.where} is {self.name}, which has no streams")

    # -- commands ----------------------------------------------------------------------------------------------
    @property
    def wire(self) -> BlockingConnection:
        if self._wire is None:
            raise ConnectionError("not connected")
        return self._wire

    def ask(self, *command: Value) -> Any:
        """Return the reply to one command. Raises CommandRefusedError if it is an error."""
        (reply,) = self.all([command])
        return reply

    def each(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies to commands that are sent together. An error is returned as a hiredis.ReplyError."""
        wire = self.wire
        wire.send(*commands)
        return [wire.take() for _ in commands]

    def all(self, commands: Sequence[Command]) -> list[Any]:
        """Return the replies, as ``each`` does. Raises the first error after all replies were read."""
        return self.checked(commands, self.each(commands))

    def checked(self, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """Return the replies. Raises CommandRefusedError for the first error among them."""
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                raise self.refused(command, str(reply))
        return replies

    def at_once(self, units: Sequence[Sequence[Command]]) -> list[list[Any]]:
        """Return the replies to several transactions that are sent together. Errors inside them are returned in their
        positions.

        Raises CommandRefusedError if the server refuses a command before EXEC.
        """
        commands = [each for unit in units for each in (("MULTI",), *unit, ("EXEC",))]
        replies = self.each(commands)
        results, at = [], 0
        for unit in units:
            self.checked(commands[at : at + len(unit) + 2], replies[at : at + len(unit) + 2])
            at += len(unit) + 2
            results.append(list(replies[at - 1]))
        return results

    def elements(self, *command: Value) -> Iterator[Any]:
        """Yield the elements of an array reply as they arrive. The caller must consume all of them."""
        self.wire.send(command)
        try:
            yield from self.wire.elements()
        except ReplyError as error:
            raise self.refused(command, str(error)) from None

    def send_raw(self, data: bytes) -> None:
        """Send packed commands; ``take`` one reply for each."""
        self.wire.send_raw(data)

    def take(self) -> Any:
        return self.wire.take()

    def refused(self, command: Command, text: str) -> CommandRefusedError:
        """Return the error for a command. Its text contains only the words that name the command."""
        words = [str(word) for word in command[: 2 if command[0] in _CONTAINERS else 1]]
        return CommandRefusedError(self.where, " ".join(words), text)


_CONTAINERS: Final = {"XINFO", "XGROUP", "CLIENT", "CONFIG"}


def different_servers(source: Endpoint, target: Endpoint) -> None:
    """Raise MovingError if both URLs lead to the same server."""
    if source.run_id and source.run_id == target.run_id:
        raise MovingError(f"{source.place} and {target.place} are the same server: nothing to move")


def _pairs(reply: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in reply.decode("utf-8", "replace").splitlines()]
    return {name: value.strip() for name, _, value in lines}
