"""The parts of a server that most other parts use: one object for constructors, and attributes for the other parts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.observe.slowlog import Timings
from respserver.observe.stats import Counters
from respserver.runtime.clock import Clock
from respserver.runtime.data import Data
from respserver.runtime.gates import Gates
from respserver.runtime.outofmemory import OutOfMemory
from respserver.runtime.ownership import SlotOwnership
from respserver.runtime.ticks import Ticks


@dataclass(frozen=True)
class RuntimeParts:
    """Passed to the constructors of the other parts."""

    loop: asyncio.AbstractEventLoop
    config: Config
    clock: Clock
    logger: Logger
    counters: Counters
    timings: Timings
    exhaustion: OutOfMemory
    data: Data
    gates: Gates
    ticks: Ticks
    slots: SlotOwnership


class ServerPart:
    """A part of the server that uses these. (A compiled class can't derive from this one.)"""

    def __init__(self, parts: RuntimeParts) -> None:
        self._loop = parts.loop
        self._config = parts.config
        self._clock = parts.clock
        self._logger = parts.logger
        self._counters = parts.counters
        self._timings = parts.timings
        self._data = parts.data
        self._gates = parts.gates
        self._ticks = parts.ticks
        self._slots = parts.slots
