"""``fault``: a source and a sink that delay and fail at random, to try out a flow.

All rates are probabilities from 0 to 1, per event; those of ``hangs`` and ``disconnects`` are per write or pull, and
that of ``refuses`` is per connect.
"""

from __future__ import annotations

import asyncio
import itertools
import random

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.options.limits import Probability
from tidelog.options.units import Duration


class FaultOptions(ConnectorOptions):
    """Options of ``fault``."""

    latency: Duration = Duration(0)  # Delay of each pull and write.
    jitter: Duration = Duration(0)  # Maximum random addition to `latency`.
    errors: Probability = 0.0  # Sink: rate of events that must be retried.
    rejects: Probability = 0.0  # Sink: rate of rejected events.
    hangs: Probability = 0.0  # Rate of pulls and writes that never return.
    disconnects: Probability = 0.0  # Rate of pulls and writes that lose the connection.
    refuses: Probability = 0.0  # Rate of failed connects.
    count: int | None = None  # Source: number of events. `null`: unlimited.
    seed: int | None = None
    # Seed of the random failures. The same seed gives the same failures. `null`: a random seed.


class FaultConnector(Source, Sink):
    """Produces values {"number": 0}, {"number": 1} and so on."""

    type = "fault"
    Options = FaultOptions

    def __init__(self, options: FaultOptions | None = None) -> None:
        super().__init__()
        self._options = options or FaultOptions()
        self._random = random.Random(self._options.seed)
        count = self._options.count
        self._numbers = itertools.count() if count is None else iter(range(count))

    async def connect(self) -> None:
        if self._happens(self._options.refuses):
            raise ConnectionRefusedError("refused at random")

    async def pull(self, limit: int) -> list[Event] | None:
        if not await self.wait(self._break()):
            return []
        return [Event({"number": number}, None, number) for number in itertools.islice(self._numbers, limit)] or None

    async def write(self, events: list[Event]) -> list[Outcome]:
        await self._break()
        outcomes: list[Outcome] = []
        for _ in events:
            if self._happens(self._options.rejects):
                outcomes.append((REJECT, "rejected at random"))
            elif self._happens(self._options.errors):
                outcomes.append((RETRY, "failed at random"))
            else:
                outcomes.append(OK)
        return outcomes

    async def _break(self) -> None:
        options = self._options
        await asyncio.sleep(options.latency + self._random.uniform(0, options.jitter))
        if self._happens(options.hangs):
            await asyncio.get_running_loop().create_future()
        if self._happens(options.disconnects):
            raise ConnectionResetError("reset at random")

    def _happens(self, rate: float) -> bool:
        return self._random.random() < rate
