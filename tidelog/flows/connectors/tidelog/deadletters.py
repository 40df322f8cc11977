"""Dead letters of flows: in the form of ``tidelog.topics.deadletters``, so ``tidelog dlq`` lists and replays them.

A flow's letters are in the topic ``flow.<name>.dead``, whichever instance wrote them: ``tidelog dlq list flow.orders``.
The processor of a letter is the flow and its source, as ``orders.in``.

Rule 1: a letter of an entry of a stream has partition -1, and the stream as its topic: a replay appends it there.
Rule 2: an event of anything else is kept as two fields, ``data`` and ``meta``, in JSON. It can be replayed where the
        connector ``dead_letters`` was told into which stream.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import redis

from tidelog.client import calls
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import arun, good
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.tidelog.fieldcodec import EntryCodec
from tidelog.flows.serveraccess import ConnectionClient, access, channel
from tidelog.topics import deadletters
from tidelog.topics.deadletters import NO_PARTITION
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import Channel
from tidelog.transport.call import Call, plain, queued

NOWHERE: Final = ""  # topic of what can't be replayed
_WORKER: Final = socket.gethostname()


class GaveUpError(Exception):
    """An event was tried as often as it may be. The text says why the last time failed."""


def topic_of(flow: str) -> str:
    """The topic of a flow's letters. ``flow``: its alias, as orders or orders.2."""
    return f"flow.{flow.partition('.')[0]}.dead"


def fields_of(
    stream: str, entry: Entry, flow: str, source: str, reason: str, attempts: int, *, rejected: bool
) -> list[tuple[bytes, bytes]]:  # fmt: skip
    """A letter's fields. ``stream``: where the entry came from, and where a replay appends it."""
    error = RejectError(reason) if rejected else GaveUpError(reason)
    return deadletters.fields_of(
        stream, NO_PARTITION, entry, None, f"{flow.partition('.')[0]}.{source}", error, attempts,
        f"{flow}@{_WORKER}:{os.getpid()}", int(time.time() * 1000),
    )  # fmt: skip


def entry_of(event: Event) -> Entry:
    """An event that is no entry of a stream, as one."""
    about = event.meta if event.id is None else {**event.meta, "id": event.id}
    return Entry(StreamId(0), (b"data", _json(event.value), b"meta", _json(about)))


def returned(event: Event) -> tuple[str, Entry] | None:
    """(the stream that an event came from, its value as an entry of that); None: it came from none."""
    stream = event.meta.get("stream")
    if not isinstance(stream, str) or not isinstance(event.id, str):
        return None
    try:
        at = StreamId.parse(event.id.rpartition("/")[2])
        names, values = EntryCodec(event.meta.get("codec", "plain")).encode(event.value)
    except (ValueError, RejectError):
        return None
    words = [word for pair in zip(names, values, strict=True) for word in pair]
    return stream, Entry(at, [word if isinstance(word, bytes) else str(word).encode() for word in words])


def _json(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=repr)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.json.encode(repr(value).encode("utf-8", "replace").decode())


class DeadLetterWriter:
    """Writes letters to one topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._ready = False
        self._homes: set[str] = set()  # what it belongs to, as the topic's facts say

    async def write(
        self, over: Channel, letters: Sequence[Sequence[tuple[bytes, bytes]]], acks: Sequence[Call[Any]] = ()
    ) -> None:
        """Append letters and send ``acks`` in one MULTI. ConnectionError, redis.ResponseError: it is not known, or not,
        done; TopicError: the topic is for something else.
        """
        homes = {deadletters.home(stream.decode(), NO_PARTITION) for (_, stream), *_ in letters if stream}
        if not self._ready or not homes <= self._homes:
            await arun(ConnectionClient(over), deadletters.ready(self.topic, *sorted(homes - self._homes)))
            self._ready = True
            self._homes |= homes
        good(await over.send([calls.tlen(deadletters.stream_of(self.topic))]))  # raises for another type
        work = [*(deadletters.append(self.topic, each) for each in letters), *acks]
        *_, done = good(await over.send([plain("MULTI"), *map(queued, work), plain("EXEC")]))
        for reply in done:
            if isinstance(reply, Exception):
                raise redis.ResponseError(str(reply))


class DeadLetterQueue:
    """``Surroundings.letters`` of flows on one server: for sources that leave their policy to the runtime.

    One for each instance of a flow; its connection is made when it is first needed.
    """

    def __init__(self, flow: str, url: str, *, topic: str | None = None) -> None:
        self._flow = flow
        self._where: Access = access(url)
        self._box = DeadLetterWriter(topic or topic_of(flow))
        self._channel: Channel | None = None
        self._making = asyncio.Lock()

    async def __call__(self, source: str, given: Sequence[tuple[Event, str]]) -> bool:
        """Write (event, reason) pairs. True: they are on the server. Raises what ``LetterBox.write`` does."""
        async with self._making:
            if self._channel is None or self._channel.lost is not None:
                self._channel = await channel(self._where, f"tidelog-flow:{self._flow}:letters")
        await self._box.write(
            self._channel,
            [
                fields_of(NOWHERE, entry_of(event), self._flow, source, reason, event.attempt, rejected=True)
                for event, reason in given
            ],
        )
        return True

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
