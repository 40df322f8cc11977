"""What a connector may use of the runtime."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Protocol

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext


class ConnectorEntity(Protocol):
    """A connector's entity: its source or its sink."""

    name: str
    context: FlowContext

    def lost(self, error: BaseException) -> None: ...
    def count(self, name: str, more: int = 1) -> None: ...
    def wake(self) -> None: ...


class SourceEntity(ConnectorEntity, Protocol):
    """What ``SourceNode`` has for its connector."""

    def room_changed(self) -> None: ...

    @property
    def taking(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def tells(self) -> bool: ...
    @property
    def leading(self) -> Collection[str]: ...


class SinkEntity(ConnectorEntity, Protocol):
    """What ``SinkNode`` has for its connector."""

    @property
    def responding(self) -> Collection[str]: ...
    def answer(self, event: Event, status: int, reason: str = "") -> bool: ...
    def respond(self, events: list[Event], port: str) -> None: ...
    def trigger(self, kind: str, detail: str = "") -> None: ...
    def restore(self, kind: str, *, probe: bool = False) -> None: ...


class ConnectorContext:
    """One connector's own. ``name`` is the connector's in its flow."""

    def __init__(self, name: str, context: FlowContext) -> None:
        self.name = name
        self.flow_context = context
        self.source: SourceEntity | None = None  # where it stands on the left
        self.sink: SinkEntity | None = None  # where it stands on the right
        self.described: dict[str, Any] = {}  # what the API tells of it besides: an address, a file

    @property
    def flow(self) -> str:
        return self.flow_context.flow

    @property
    def server(self) -> str | None:
        """URL of the tidelog server."""
        return self.flow_context.server

    def answer(self, event: Event, status: int, reason: str = "") -> bool:
        """Settle an event of a ``write`` that returned DEFERRED. Return False if it was settled before."""
        assert self.sink is not None  # noqa: S101 - a sink's own calls
        return self.sink.answer(event, status, reason)

    def respond(self, events: Sequence[Event], port: str = "out") -> None:
        """A sink's own events, as responses: out of its port, if something is connected there."""
        assert self.sink is not None  # noqa: S101 - a sink's own calls
        self.sink.respond(list(events), port)

    def responds(self, port: str = "out") -> bool:
        """Whether something is connected there."""
        return self.sink is not None and port in self.sink.responding

    def disconnected(self, error: BaseException) -> None:
        """The peer is gone, noticed outside of a call: connect again."""
        for node in (self.source, self.sink):
            if node is not None:
                node.lost(error)

    @property
    def taking(self) -> bool:
        """Whether an event of this source would be sent soon. False: the flow is paused, a sink is gone, it drains."""
        return self.source is not None and self.source.taking

    @property
    def over(self) -> bool:
        """Whether the flow has ended, so that nothing will be settled any more: a source that closes may give back."""
        return self.source is not None and self.source.over

    @property
    def tells(self) -> bool:
        """Whether ``settled`` will be called. False: the flow has ``settle: false``."""
        return self.source is not None and self.source.tells

    def leads(self, port: str) -> bool:
        """Whether something is connected to a port of the source."""
        return self.source is not None and port in self.source.leading

    def wake(self) -> None:
        """The sink's ``concurrency`` has changed."""
        if self.sink is not None:
            self.sink.wake()

    def room_changed(self) -> None:
        """The source's ``room`` has changed, and nothing was settled."""
        if self.source is not None:
            self.source.room_changed()

    def trigger(self, kind: str, detail: str = "") -> None:
        """The sink can't take more for a reason of its own: stop the sources above."""
        if self.sink is not None:
            self.sink.trigger(kind, detail)

    def restore(self, kind: str, *, probe: bool = False) -> None:
        if self.sink is not None:
            self.sink.restore(kind, probe=probe)

    def count(self, name: str, more: int = 1) -> None:
        """A counter of this connector's, seen in the API and in /metrics."""
        for node in (self.source, self.sink):
            if node is not None:
                node.count(name, more)
                return
