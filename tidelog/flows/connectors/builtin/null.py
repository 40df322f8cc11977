"""``null``: a source of events as fast as they are taken, a sink that takes everything."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.flows.api.connector import Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event


class NullOptions(ConnectorOptions):
    """What the source makes."""

    count: int | None = None  # events that the source makes; null: no end
    value: Any = None  # of each


class NullConnector(Source, Sink):
    """What it makes can't be made again: what is given back is dropped."""

    type = "null"
    Options = NullOptions
    remembers = False

    def __init__(self, options: NullOptions | None = None) -> None:
        super().__init__()
        self._options = options or NullOptions()
        self._made = 0

    async def pull(self, limit: int) -> list[Event] | None:
        most = self._options.count
        if most is not None:
            limit = min(limit, most - self._made)
            if not limit:
                return None
        value = self._options.value
        first = self._made
        self._made += limit
        await asyncio.sleep(0)
        return [Event(value, None, number) for number in range(first, first + limit)]

    async def write(self, events: list[Event]) -> None:  # noqa: ARG002 - every sink's form
        return None
