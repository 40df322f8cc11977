"""``null``: a source that produces events as fast as they are accepted, and a sink that accepts all events."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event


class NullOptions(ConnectorOptions):
    """Options of ``null``. They apply to the source."""

    count: int | None = None  # Source: number of events, then the source ends. `null`: unlimited.
    value: Any = None  # Source: the value of each event.


class NullConnector(Source, Sink):
    """Produces or accepts events. Failed events are not retried."""

    type = "null"
    Options = NullOptions
    remembers = False

    def __init__(self, options: NullOptions | None = None) -> None:
        super().__init__()
        self._options = options or NullOptions()
        count = self._options.count
        self._numbers = itertools.count() if count is None else iter(range(count))

    async def pull(self, limit: int) -> list[Event] | None:
        value = self._options.value
        await asyncio.sleep(0)
        return [Event(value, None, number) for number in itertools.islice(self._numbers, limit)] or None

    async def write(self, events: list[Event]) -> None:  # noqa: ARG002 - every sink's form
        return None
