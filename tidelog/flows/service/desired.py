"""What people asked for, kept on the tidelog server: what is paused, and flows that came over HTTP.

One JSON document under ``flows:NAME``, NAME being the process's: ``{"wanted": {alias: {"status": ..., "connectors":
{...}}}, "deployed": {name: flow}}``. Each change is a compare-and-set, so processes of one name that share it lose
nothing.

Rule 1: what was asked for is in force first, and then kept; who asked hears of success when both is done.
Rule 2: a flow's name stands for all its instances: what was wanted of single ones is forgotten when it is set.
Rule 3: a key that holds something else is reported and ignored: it must not prevent flows from starting. It is not
        modified, and changes are not stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from tidelog.client import strings
from tidelog.client.steps import drive
from tidelog.coordination import documents
from tidelog.flows.api.errors import FlowError
from tidelog.flows.serveraccess import access
from tidelog.flows.service.streamgroups import FlowSource
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.transport.call import Call
from tidelog.transport.errors import DeniedError, ReplyError, is_denied, message_of
from tidelog.transport.leader import LeaderConnection

log = logging.getLogger("tidelog.flows")
T = TypeVar("T")

ANSWER_MS: Final = 5000  # that the server has for each answer
SIZE: Final = 4 << 20  # bytes of the document
TRIES: Final = 20  # of one change, while others change it as well


class DesiredStatus(msgspec.Struct):
    """Of one alias. None: nobody said."""

    status: str | None = None
    connectors: dict[str, str] = {}


class DesiredDocument(msgspec.Struct):
    """The document."""

    wanted: dict[str, DesiredStatus] = {}
    deployed: dict[str, dict[str, Any]] = {}
    sources: dict[str, list[FlowSource]] = {}  # of the flows that were started, by name

    def status(self, name: str, alias: str) -> str | None:
        """What is wanted of an instance: what was said of it, else of its flow."""
        own, whole = self.wanted.get(alias, DesiredStatus()), self.wanted.get(name, DesiredStatus())
        return own.status or whole.status

    def connectors(self, name: str, alias: str) -> dict[str, str]:
        own, whole = self.wanted.get(alias, DesiredStatus()), self.wanted.get(name, DesiredStatus())
        return {**whole.connectors, **own.connectors}

    def set(self, name: str, alias: str, status: str, connector: str | None = None) -> None:
        if alias == name:
            for each, wanted in self.wanted.items():
                if each.startswith(f"{name}."):
                    if connector is None:
                        wanted.status = None
                    else:
                        wanted.connectors.pop(connector, None)
        wanted = self.wanted.setdefault(alias, DesiredStatus())
        if connector is None:
            wanted.status = status
        else:
            wanted.connectors[connector] = status

    def forget(self, name: str) -> None:
        self.deployed.pop(name, None)
        self.sources.pop(name, None)
        for alias in [each for each in self.wanted if each == name or each.startswith(f"{name}.")]:
            del self.wanted[alias]


class DesiredStateError(FlowError):
    """The document can't be read or changed now."""


class _NoDocumentError(DesiredStateError):
    """The key holds something else."""


class Desired:
    """>>> await Desired(url, "shop").change(lambda kept: kept.set("orders", "orders", "paused"))"""

    def __init__(self, server: str, name: str) -> None:
        self.key = f"flows:{name}"
        where = access(server).single_attempt(ANSWER_MS)
        self._servers = LeaderConnection(where, f"tidelog-flows:{name}")
        self._one = asyncio.Lock()
        self._trouble = FailureLog(log)

    async def read(self) -> DesiredDocument:
        """Raises KeptError if there is no answer, DeniedError if the server denies the permission."""
        async with self._one:
            try:
                return self._decoded(await self._asked(strings.get(self.key)))
            except _NoDocumentError as error:
                return self._ignored(error)
            except (ReplyError, OSError) as error:
                if is_denied(error):
                    raise DeniedError(message_of(error)) from None
                if isinstance(error, ReplyError) and error.code == "WRONGTYPE":
                    return self._ignored(error)
                raise DesiredStateError(f"the tidelog server does not tell what was paused: {_text(error)}") from None

    async def change(self, edit: Callable[[DesiredDocument], None]) -> None:
        """Change the document. ``edit`` may be called several times, in a thread. Raises DesiredStateError."""
        attempts = 0

        def edited(text: bytes | None) -> tuple[bytes, None]:
            nonlocal attempts
            attempts += 1
            if attempts > TRIES:
                raise DesiredStateError("it is in force, but was not stored: others keep changing the document")
            document = self._decoded(text)
            edit(document)
            after = msgspec.json.encode(document)
            if len(after) > SIZE:
                raise DesiredStateError(f"the document would have {len(after):,} bytes: {SIZE:,} is the maximum")
            return after, None

        async with self._one:
            try:
                steps = documents.change(self.key, edited)
                await asyncio.to_thread(drive, lambda calls: self._servers.ask(*calls), steps)
            except (ReplyError, OSError) as error:
                raise DesiredStateError(
                    f"it is in force, but the tidelog server did not store it: {_text(error)}"
                ) from None

    async def _asked(self, call: Call[T]) -> T:
        """In a thread: who leads may have to be found."""
        (found,) = await asyncio.to_thread(self._servers.ask, call)
        if isinstance(found, ReplyError):
            raise found
        reply: T = found
        return reply

    def _decoded(self, raw: bytes | None) -> DesiredDocument:
        if raw is None:
            return DesiredDocument()
        try:
            kept = msgspec.json.decode(raw, type=DesiredDocument)
        except (ValueError, RecursionError) as error:
            text = f"the key {self.key!r} holds something else than what flows keep there: {text_of(error)}"
            raise _NoDocumentError(text) from None
        self._trouble.succeeded()
        return kept

    def _ignored(self, error: Exception) -> DesiredDocument:
        """Rule 3: nothing was asked for, as far as this process can tell."""
        self._trouble.warn(f"{self.key}: {text_of(error)}; flows start as if nothing had been asked for")
        return DesiredDocument()

    def close(self) -> None:
        self._servers.close()


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
