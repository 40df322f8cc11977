"""``ConnectorContext``: what the runtime offers a connector."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext

BYTES: Final = "bytes"  # the counter of a source or sink: bytes that it has received or sent


class ConnectorEntity(Protocol):
    """The entity of a connector: its source or its sink."""

    name: str
    context: FlowContext

    def lost(self, error: BaseException) -> None: ...
    def count(self, name: str, more: int = 1) -> None: ...
    def wake(self) -> None: ...


class SourceEntity(ConnectorEntity, Protocol):
    """What ``SourceNode`` offers its connector."""

    def room_changed(self) -> None: ...
    def escalate(self, action: str, reason: str) -> None: ...

    @property
    def accepting(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    @property
    def settles(self) -> bool: ...
    @property
    def connected_ports(self) -> Collection[str]: ...


class SinkEntity(ConnectorEntity, Protocol):
    """What ``SinkNode`` offers its connector."""

    @property
    def connected_ports(self) -> Collection[str]: ...
    def answer(self, event: Event, status: int, reason: str = "") -> bool: ...
    def answer_items(self, event: Event, outcomes: Sequence[tuple[int, str]]) -> None: ...
    def respond(self, events: list[Event], port: str) -> None: ...
    def trigger(self, kind: str, detail: str = "") -> None: ...
    def restore(self, kind: str, *, probe: bool = False) -> None: ...


class ConnectorContext:
    """The context of one connector. ``name`` is the name of the connector in its flow."""

    def __init__(self, name: str, context: FlowContext) -> None:
        self.name = name
        self.flow_context = context
        self.source: SourceEntity | None = None  # None: the connector is not used as a source
        self.sink: SinkEntity | None = None  # None: the connector is not used as a sink
        self.described: dict[str, Any] = {}  # additional values for the API, such as an address or a file

    @property
    def flow(self) -> str:
        return self.flow_context.flow

    @property
    def server(self) -> str | None:
        """URL of the tidelog server."""
        return self.flow_context.server

    def answer(self, event: Event, status: int, reason: str = "") -> bool:
        """Settle an event of a ``write`` that returned DEFERRED. Return False if the event was settled before."""
        assert self.sink is not None  # noqa: S101 - only sinks call this
        return self.sink.answer(event, status, reason)

    def answer_items(self, event: Event, outcomes: Sequence[tuple[int, str]]) -> None:
        """Settle an event that was composed of several, with a status and a reason for each."""
        assert self.sink is not None  # noqa: S101 - only sinks call this
        self.sink.answer_items(event, outcomes)

    def respond(self, events: Sequence[Event], port: str = "out") -> None:
        """Emit events of the sink, such as responses, on a port, if the port is connected."""
        assert self.sink is not None  # noqa: S101 - only sinks call this
        self.sink.respond(list(events), port)

    def responds(self, port: str = "out") -> bool:
        """Return whether a response port of the sink is connected."""
        return self.sink is not None and port in self.sink.connected_ports

    def disconnected(self, error: BaseException) -> None:
        """Report that the connection was lost outside of a call. The runtime reconnects."""
        for node in (self.source, self.sink):
            if node is not None:
                node.lost(error)

    @property
    def accepting(self) -> bool:
        """Whether the source would currently send an event. False if the flow is paused or draining, or a sink is
        disconnected.
        """
        return self.source is not None and self.source.accepting

    @property
    def ended(self) -> bool:
        """Whether the flow has ended, so that no event will be settled any more and a closing source may return its
        events.
        """
        return self.source is not None and self.source.ended

    @property
    def settles(self) -> bool:
        """Whether ``settled`` will be called. False if the flow has ``settle: false``."""
        return self.source is not None and self.source.settles

    def is_connected(self, port: str) -> bool:
        """Return whether a port of the source is connected."""
        return self.source is not None and port in self.source.connected_ports

    def wake(self) -> None:
        """Notify the runtime that the sink's ``concurrency`` has changed."""
        if self.sink is not None:
            self.sink.wake()

    def room_changed(self) -> None:
        """Notify the runtime that the source's ``room`` has changed without a settlement."""
        if self.source is not None:
            self.source.room_changed()

    def escalate(self, action: str, reason: str) -> None:
        """Perform the action ``pause`` or ``halt`` of ``on_error``, for a source that owns its policy."""
        if self.source is not None:
            self.source.escalate(action, reason)

    def trigger(self, kind: str, detail: str = "") -> None:
        """Stop the sources above, because the sink cannot accept events for this reason."""
        if self.sink is not None:
            self.sink.trigger(kind, detail)

    def restore(self, kind: str, *, probe: bool = False) -> None:
        if self.sink is not None:
            self.sink.restore(kind, probe=probe)

    def received(self, size: int) -> None:
        """Count bytes that the source has received from its peer."""
        if self.source is not None:
            self.source.count(BYTES, size)

    def sent(self, size: int) -> None:
        """Count bytes that the sink has sent to its peer. Bytes that are sent again count again."""
        if self.sink is not None:
            self.sink.count(BYTES, size)

    def count(self, name: str, more: int = 1) -> None:
        """Increase a counter of the connector, which the API and /metrics show."""
        for node in (self.source, self.sink):
            if node is not None:
                node.count(name, more)
                return
