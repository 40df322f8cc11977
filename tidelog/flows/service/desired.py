"""The desired state of flows, stored on the tidelog server: what is paused, and the flows that were deployed over HTTP.

It is a JSON document under ``flows:NAME``, where NAME is the name of the process: ``{"wanted": {alias: {"status": ...,
"connectors": {...}}}, "deployed": {name: flow}, "sources": {name: [source]}, "processes": {...}}``. Each change is a
compare-and-set, so several processes with the same name lose no changes. A process also applies what others pause and
resume (``publisher``).

Rule 1: A request takes effect first and is stored then. It succeeds when both are done.
Rule 2: The name of a flow refers to all its instances: setting its status discards the statuses of single instances.
Rule 3: If the key contains another value, it is reported and ignored, so that flows can start. It is not modified, and
        changes are not stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, drive, single
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

ANSWER_MS: Final = 5000  # ms: the timeout of the server's replies
SIZE: Final = 4 << 20  # bytes: the maximum size of the document
TRIES: Final = 20  # attempts of one change in case of conflicts


class DesiredStatus(msgspec.Struct):
    """The desired status of one alias. None: not set."""

    status: str | None = None
    connectors: dict[str, str] = {}


class DesiredDocument(msgspec.Struct):
    """The document with the desired state."""

    wanted: dict[str, DesiredStatus] = {}
    deployed: dict[str, dict[str, Any]] = {}
    sources: dict[str, list[FlowSource]] = {}  # of all flows that were started, by name
    processes: dict[str, int] = {}  # that have started last, with the time in ms since 1970 (``flowstatus``)

    def status(self, name: str, alias: str) -> str | None:
        """Return the desired status of an instance: its own, or that of its flow."""
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
    """The key contains another value."""


def key_of(name: str) -> str:
    """Return the key of the desired state. name: of the process."""
    return f"flows:{name}"


def decoded(key: str, raw: bytes | None) -> DesiredDocument:
    """Return the document from its JSON. Raises DesiredStateError if it is something else."""
    if raw is None:
        return DesiredDocument()
    try:
        return msgspec.json.decode(raw, type=DesiredDocument)
    except (ValueError, RecursionError) as error:
        text = f"the key {key!r} does not contain the desired state of flows: {text_of(error)}"
        raise _NoDocumentError(text) from None


def changing(name: str, edit: Callable[[DesiredDocument], None]) -> Steps[None]:
    """Change the document. ``edit`` may be called several times. Raises DesiredStateError."""
    key, attempts = key_of(name), 0

    def edited(text: bytes | None) -> tuple[bytes, None]:
        nonlocal attempts
        attempts += 1
        if attempts > TRIES:
            raise DesiredStateError("it is in effect, but was not stored: others keep changing the document")
        document = decoded(key, text)
        edit(document)
        after = msgspec.json.encode(document)
        if len(after) > SIZE:
            raise DesiredStateError(f"the document would have {len(after):,} bytes: {SIZE:,} is the maximum")
        return after, None

    return documents.change(key, edited)


class Desired:
    """Reads and changes the desired state: ``Desired(url, "shop").change(lambda document: document.set(...))``."""

    def __init__(self, server: str, name: str) -> None:
        self.name = name
        self.key = key_of(name)
        where = access(server).single_attempt(ANSWER_MS)
        self._servers = LeaderConnection(where, f"tidelog-flows:{name}")
        self._one = asyncio.Lock()
        self._trouble = FailureLog(log)

    async def read(self) -> DesiredDocument:
        """Read the document. Raises DesiredStateError if there is no reply, or DeniedError if permission is denied."""
        try:
            return self._decoded(await self.send(strings.get(self.key)))
        except _NoDocumentError as error:
            return self._ignored(error)
        except (ReplyError, OSError) as error:
            if is_denied(error):
                raise DeniedError(message_of(error)) from None
            if isinstance(error, ReplyError) and error.code == "WRONGTYPE":
                return self._ignored(error)
            raise DesiredStateError(f"the desired state can't be read from the server: {text_of(error)}") from None

    async def change(self, edit: Callable[[DesiredDocument], None]) -> None:
        """Change the document. ``edit`` may be called several times, in a thread. Raises DesiredStateError."""
        try:
            await self.drive(changing(self.name, edit))
        except (ReplyError, OSError) as error:
            raise DesiredStateError(
                f"it is in effect, but the tidelog server did not store it: {text_of(error)}"
            ) from None

    async def drive(self, steps: Steps[T]) -> T:
        """Drive another operation on the connection, in a thread. Raises ReplyError, OSError.

        A cancellation takes effect when the thread has ended, because the next operation uses the same connection.
        """
        async with self._one:
            work = asyncio.create_task(asyncio.to_thread(drive, lambda calls: self._servers.ask(*calls), steps))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                await asyncio.wait([work])
                if not work.cancelled():
                    work.exception()  # mark it as retrieved
                raise

    async def send(self, call: Call[T]) -> T:
        """Send another call on the connection. Raises ReplyError, OSError."""
        return await self.drive(single(call))

    def _decoded(self, raw: bytes | None) -> DesiredDocument:
        kept = decoded(self.key, raw)
        self._trouble.succeeded()
        return kept

    def _ignored(self, error: Exception) -> DesiredDocument:
        """Apply Rule 3: report the error, and return an empty document."""
        self._trouble.warn(f"{self.key}: {text_of(error)}; flows start without a desired state")
        return DesiredDocument()

    def close(self) -> None:
        self._servers.close()
