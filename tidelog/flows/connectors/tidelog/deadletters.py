"""Dead letters of flows, in the format of ``tidelog.topics.deadletters``. ``tidelog dlq`` lists and replays them.

All instances of a flow write to the topic ``flow.<name>.dead``, so ``tidelog dlq list flow.orders`` lists them. The
processor of a dead letter is the flow and its source, such as ``orders.in``.

Rule 1: The dead letter of a stream entry has partition -1 and the stream as its topic. A replay appends it there.
Rule 2: Other events are stored in two fields, ``data`` and ``meta``, as JSON. They can be replayed only if the option
        ``replay`` of the connector ``dead_letters`` names a stream.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import arun
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec, with_context
from tidelog.flows.serveraccess import access, channel
from tidelog.topics import deadletters
from tidelog.topics.deadletters import NO_PARTITION
from tidelog.topics.deadletterwriter import DeadLetterFields, DeadLetterWriter
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection

NOWHERE: Final = ""  # the topic of dead letters that can't be replayed
_WORKER: Final = socket.gethostname()


class GaveUpError(Exception):
    """The last attempt of an event failed. The text is the reason."""


def topic_of(flow: str) -> str:
    """Return the topic of a flow's dead letters. ``flow``: its alias, such as orders or orders.2."""
    return f"flow.{flow.partition('.')[0]}.dead"


def fields_of(
    stream: str, entry: Entry, flow: str, source: str, reason: str, attempts: int, *, rejected: bool
) -> DeadLetterFields:  # fmt: skip
    """Return the fields of a dead letter. ``stream``: the origin of the entry, to which a replay appends it."""
    error = RejectError(reason) if rejected else GaveUpError(reason)
    return deadletters.fields_of(
        stream, NO_PARTITION, entry, None, f"{flow.partition('.')[0]}.{source}", error, attempts,
        f"{flow}@{_WORKER}:{os.getpid()}", int(time.time() * 1000),
    )  # fmt: skip


def entry_of(event: Event) -> Entry:
    """Return an entry for an event that did not come from a stream."""
    about = event.meta if event.id is None else {**event.meta, "id": event.id}
    return Entry(StreamId(0), (b"data", _json(event.value), b"meta", _json(about)))


def returned(event: Event) -> tuple[str, Entry] | None:
    """Return (the stream that an event came from, its value as an entry); None: it did not come from a stream."""
    stream = event.meta.get("stream")
    if not isinstance(stream, str) or not isinstance(event.id, str):
        return None
    try:
        at = StreamId.parse(event.id.rpartition("/")[2])
        written = EntryCodec(event.meta.get("codec", "plain")).encode(event.value)
        names, values = with_context(written, event.meta)
    except (ValueError, RejectError):
        return None
    words = [word for pair in zip(names, values, strict=True) for word in pair]
    return stream, Entry(at, [word if isinstance(word, bytes) else str(word).encode() for word in words])


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=repr)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode(repr(value).encode("utf-8", "replace").decode())


class DeadLetterQueue:
    """Writes the dead letters of sources that leave retries to the runtime.

    Each instance of a flow has its own. It connects at the first dead letter.
    """

    def __init__(self, flow: str, url: str, *, topic: str | None = None) -> None:
        self._flow = flow
        self._where: Access = access(url)
        self._box = DeadLetterWriter(topic or topic_of(flow))
        self._channel: AsyncConnection | None = None
        self._making = asyncio.Lock()

    async def __call__(self, source: str, given: Sequence[tuple[Event, str]]) -> bool:
        """Write (event, reason) pairs; returns True once they are stored. Raises the errors of ``write``."""
        async with self._making:
            if self._channel is None or self._channel.lost is not None:
                self._channel = await channel(self._where, f"tidelog-flow:{self._flow}:letters")
        letters = [
            fields_of(NOWHERE, entry_of(event), self._flow, source, reason, event.attempt, rejected=True)
            for event, reason in given
        ]
        await arun(self._channel, self._box.write(letters))
        return True

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
