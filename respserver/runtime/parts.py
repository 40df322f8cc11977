"""``RuntimeParts``: the parts of a server that most other parts use."""

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
