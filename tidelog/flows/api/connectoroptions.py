"""``ConnectorOptions``: the options that every connector has."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidelog.flows.api.reconnect import Retry
from tidelog.options.structs import Struct
from tidelog.options.units import Duration


class Reconnect(Struct):
    """The option ``reconnect``, unless it is ``none``."""

    retry: Retry = msgspec.field(default_factory=Retry)


class ConnectorOptions(Struct):
    """Options for the runtime. The options of each connector type derive from this class."""

    reconnect: Reconnect | Literal["none"] = msgspec.field(default_factory=Reconnect)
    # after an error; none: the connector fails
    paused: bool = False  # initially
    # of a source
    max_unsettled: int = 10_000  # maximum number of events in flight
    max_deliveries: int | None = None  # attempts until an event becomes a dead letter; null: unlimited
    retry_delay: Duration = Duration(0.1)  # before the second attempt of an event; then doubled each time, up to 30 s
    # of a sink
    authoritative: bool = True  # false: the outcome of events in this sink is ignored
    timeout: Duration | None = None  # of one write; null: unlimited

    def __post_init__(self) -> None:
        if self.max_unsettled < 1:
            raise ValueError(f"max_unsettled is {self.max_unsettled}: it must be at least 1")
        if self.max_deliveries is not None and self.max_deliveries < 1:
            raise ValueError(f"max_deliveries is {self.max_deliveries}: it must be at least 1, or null")
