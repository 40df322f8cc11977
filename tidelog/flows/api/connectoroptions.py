"""``ConnectorOptions``: the options that every connector has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import msgspec

from tidelog.options.limits import AtLeastOne
from tidelog.options.onerror import ErrorPolicy
from tidelog.options.retry import RetryOptions
from tidelog.options.structs import Struct
from tidelog.options.units import Duration


class ReconnectRetryOptions(RetryOptions):
    """The option ``reconnect: {retry: {...}}``."""

    growth: Annotated[float, msgspec.Meta(ge=1, le=1000)] = 1.5
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    min_uptime: Duration = Duration(5.0)  # A connection that lasts this long resets the delays.


class ReconnectOptions(Struct):
    """The option ``reconnect``, unless it is ``none``."""

    retry: ReconnectRetryOptions = msgspec.field(default_factory=ReconnectRetryOptions)


class SourceRetryOptions(RetryOptions):
    """The retries of an event by its source."""

    first: Duration = Duration(0.1)
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0


class SourceErrorPolicy(ErrorPolicy):
    """The option ``on_error`` of a source."""

    Retry = SourceRetryOptions
    unsupported: ClassVar[Mapping[str, str]] = {
        "park": "events of flows have no keys; use pause, which stops the source until it is resumed, or dead_letter"
    }

    @property
    def is_default(self) -> bool:
        """Whether it is the policy of sources without the option."""
        return self.action == "dead_letter" and self.retry == SourceRetryOptions()


class ConnectorOptions(Struct):
    """Options for the runtime. The options of each connector type derive from this class."""

    remedies: ClassVar[Mapping[str, str]] = {
        "max_deliveries": "limit the attempts with on_error: [retry: {attempts: 4}, dead_letter]",
        "retry_delay": "set the delays with on_error: [retry: {first: 1s, most: 30s}, dead_letter]",
    }

    templates: ClassVar[tuple[str, ...]] = ()
    # Names of the options that are templates in a sink. The declaration of a flow checks them.

    reconnect: ReconnectOptions | Literal["none"] = msgspec.field(default_factory=ReconnectOptions)
    # The delays of reconnecting after an error. `none`: the connector fails instead.
    paused: bool = False  # Start paused. This only applies until the connector is resumed for the first time.
    max_unsettled: AtLeastOne = 10_000
    # Source: maximum number of events in flight. At this number, nothing is read.
    on_error: SourceErrorPolicy = msgspec.field(default_factory=lambda: SourceErrorPolicy(SourceRetryOptions()))
    # Source: the [retries and the final action](flows.md#errors) for events that fail.
    authoritative: bool = True  # Sink: whether the outcome of events in this sink counts. `false`: it is ignored.
    timeout: Duration | None = None  # Sink: maximum duration of one write. `null`: unlimited.

    def __post_init__(self) -> None:
        """Raise ValueError for invalid combinations. Subclasses extend this."""
