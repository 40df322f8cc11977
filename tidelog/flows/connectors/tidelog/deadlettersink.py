"""``dead_letters``: stores failed events on the server until they are replayed or purged (``tidelog dlq``).

Every flow has this sink, so ``enrich.err -> dead_letters`` needs no declaration. Sources do not use it: ``stream``
writes its own dead letters, and the runtime writes those of other sources (``DeadLetterQueue``).
"""

from __future__ import annotations

from collections.abc import Sequence

import redis

from tidelog.client.steps import arun
from tidelog.flows.api.connector import Outcome, Sink
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import RETRY
from tidelog.flows.connectors.tidelog.deadletters import (
    NOWHERE,
    entry_of,
    fields_of,
    returned,
    topic_of,
)
from tidelog.flows.serveraccess import access, channel
from tidelog.topics.deadletterwriter import DeadLetterFields, DeadLetterWriter
from tidelog.transport.asyncconnection import AsyncConnection


class DeadLetterSinkOptions(ConnectorOptions):
    """Options of ``dead_letters``."""

    topic: str | None = None  # The dead-letter queue. `null`: `flow.NAME.dead`.
    replay: str | None = None  # The stream to which a replay appends. `null`: the stream that the event came from.


class DeadLetterSink(Sink):
    """Writes a dead letter for each event. Its reason is ``meta["error"]``."""

    type = "dead_letters"
    Options = DeadLetterSinkOptions

    @classmethod
    def option_server(cls, options: ConnectorOptions) -> bool:  # noqa: ARG003
        return True

    def __init__(self, options: DeadLetterSinkOptions | None = None) -> None:
        self._options = options or DeadLetterSinkOptions()
        self._channel: AsyncConnection | None = None
        self._box: DeadLetterWriter | None = None

    async def connect(self) -> None:
        context = self.context
        self._box = DeadLetterWriter(self._options.topic or topic_of(context.flow))
        self._channel = await channel(access(context.server or ""), f"tidelog-flow:{context.flow}:{context.name}")

    async def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def write(self, events: list[Event]) -> Sequence[Outcome] | None:
        if self._channel is None or self._box is None:
            raise ConnectionError("not connected")
        try:
            await arun(self._channel, self._box.write([self._letter(each) for each in events]))
        except redis.ResponseError as error:
            return [(RETRY, f"{self._box.topic}: {error}")] * len(events)
        return None

    def _letter(self, event: Event) -> DeadLetterFields:
        stream, entry = returned(event) or (NOWHERE, entry_of(event))
        reason = str(event.meta.get("error") or "sent to the dead letters")
        source = event.path.partition(".")[0] or self.context.name
        return fields_of(
            self._options.replay or stream, entry, self.context.flow, source, reason, event.attempt, rejected=True
        )
