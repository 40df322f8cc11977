"""``fault``: a source and a sink that are slow and break, by chance that can be repeated. For trying out a flow.

All shares are probabilities, from 0 to 1: of events, but ``hangs`` and ``disconnects`` of writes and pulls, ``refuses``
of connects.
"""

from __future__ import annotations

import asyncio
import random

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.options.units import Duration


class FaultOptions(ConnectorOptions):
    """What goes wrong, and how often."""

    latency: Duration = Duration(0)  # of each pull and write
    jitter: Duration = Duration(0)  # anything from none to this is added
    errors: float = 0.0  # events that are given back
    rejects: float = 0.0  # events that will never work
    hangs: float = 0.0  # writes and pulls that never end
    disconnects: float = 0.0  # writes and pulls in which the connection is lost
    refuses: float = 0.0  # connects that fail
    count: int | None = None  # events that the source makes; null: no end
    seed: int | None = None  # null: another one each time

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("errors", "rejects", "hangs", "disconnects", "refuses"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it is a probability, from 0 to 1")


class FaultConnector(Source, Sink):
    """An event of the source is {"number": from 0}."""

    type = "fault"
    Options = FaultOptions

    def __init__(self, options: FaultOptions | None = None) -> None:
        super().__init__()
        self._options = options or FaultOptions()
        self._random = random.Random(self._options.seed)
        self._made = 0

    async def connect(self) -> None:
        if self._happens(self._options.refuses):
            raise ConnectionRefusedError("refused, by chance")

    async def pull(self, limit: int) -> list[Event] | None:
        most = self._options.count
        if most is not None:
            limit = min(limit, most - self._made)
            if not limit:
                return None
        if not await self.wait(self._break()):
            return []
        first = self._made
        self._made += limit
        return [Event({"number": number}, None, number) for number in range(first, first + limit)]

    async def write(self, events: list[Event]) -> list[Outcome]:
        await self._break()
        outcomes: list[Outcome] = []
        for _ in events:
            if self._happens(self._options.rejects):
                outcomes.append((REJECT, "rejected, by chance"))
            elif self._happens(self._options.errors):
                outcomes.append((RETRY, "given back, by chance"))
            else:
                outcomes.append(OK)
        return outcomes

    async def _break(self) -> None:
        options = self._options
        await asyncio.sleep(options.latency + self._random.uniform(0, options.jitter))
        if self._happens(options.hangs):
            await asyncio.get_running_loop().create_future()
        if self._happens(options.disconnects):
            raise ConnectionResetError("reset, by chance")

    def _happens(self, share: float) -> bool:
        return self._random.random() < share
