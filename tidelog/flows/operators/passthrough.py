"""``passthrough``: passes events on unchanged."""

from __future__ import annotations

from tidelog.flows.api.event import Event
from tidelog.flows.api.operator import Operator
from tidelog.options.structs import Struct


class PassthroughOptions(Struct):
    """``passthrough`` has no options."""


class PassthroughOperator(Operator):
    """Implements ``passthrough``, for pipelines that only join or fork."""

    type = "passthrough"
    transparent = True
    Options = PassthroughOptions

    def __init__(self, options: PassthroughOptions | None = None) -> None:
        pass

    def process(self, events: list[Event]) -> None:
        self.emit(events)
