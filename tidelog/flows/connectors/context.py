"""What a connector may use of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidelog.flows.event import Event

if TYPE_CHECKING:
    from tidelog.flows.runtime.sinknode import SinkNode
    from tidelog.flows.runtime.sourcenode import SourceNode
    from tidelog.flows.runtime.surroundings import Surroundings


class Context:
    """One connector's own. ``name`` is the connector's in its flow."""

    def __init__(self, name: str, around: Surroundings) -> None:
        self.name = name
        self.around = around
        self.source: SourceNode | None = None  # where it stands on the left
        self.sink: SinkNode | None = None  # where it stands on the right
        self.described: dict[str, Any] = {}  # what the API tells of it besides: an address, a file

    @property
    def flow(self) -> str:
        return self.around.flow

    @property
    def server(self) -> str | None:
        """URL of the tidelog server."""
        return self.around.server

    def answer(self, event: Event, status: int, reason: str = "") -> bool:
        """Settle an event of a ``write`` that returned LATER. False: it was settled already, and nothing happened."""
        assert self.sink is not None
        return self.sink.answer(event, status, reason)

    def respond(self, events: Sequence[Event], port: str = "out") -> None:
        """A sink's own events, as responses: out of its port, if something is connected there."""
        assert self.sink is not None
        self.sink.respond(list(events), port)

    def responds(self, port: str = "out") -> bool:
        """Whether something is connected there."""
        return self.sink is not None and bool(self.sink.outputs.get(port))

    def disconnected(self, error: BaseException) -> None:
        """The peer is gone, noticed outside of a call: connect again."""
        for node in (self.source, self.sink):
            if node is not None:
                node.lost(error)

    def wake(self) -> None:
        """The sink's ``concurrency`` has changed."""
        if self.sink is not None:
            self.sink.wake()

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
