"""Options that every connector has."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidelog.flows.api.reconnect import Retry
from tidelog.options.structs import Struct
from tidelog.options.units import Duration


class Reconnect(Struct):
    """The option ``reconnect``, where it is not ``none``."""

    retry: Retry = msgspec.field(default_factory=Retry)


class ConnectorOptions(Struct):
    """What the runtime does with a connector. Those of one type derive from this."""

    reconnect: Reconnect | Literal["none"] = msgspec.field(default_factory=Reconnect)
    # after an error; none: the connector has failed
    paused: bool = False  # from the beginning
    # as a source
    max_unsettled: int = 10_000  # events under way; when so many are, nothing more is read
    max_deliveries: int | None = None  # tries of one event until it is a dead letter; null: for ever
    retry_delay: Duration = Duration(0.1)  # before an event's second try; then twice as long each time, up to 30 s
    # as a sink
    authoritative: bool = True  # false: what becomes of an event here does not count
    timeout: Duration | None = None  # of one write; null: for ever

    def __post_init__(self) -> None:
        if self.max_unsettled < 1:
            raise ValueError(f"max_unsettled is {self.max_unsettled}: it must be at least 1")
        if self.max_deliveries is not None and self.max_deliveries < 1:
            raise ValueError(f"max_deliveries is {self.max_deliveries}: it must be at least 1, or null")
