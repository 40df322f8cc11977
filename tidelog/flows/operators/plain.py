"""``passthrough``: what comes in goes out."""

from __future__ import annotations

from tidelog.flows.event import Event
from tidelog.flows.operators.base import Operator
from tidelog.flows.options import Struct


class PassthroughOptions(Struct):
    pass


class Passthrough(Operator):
    type = "passthrough"
    Options = PassthroughOptions

    def __init__(self, options: PassthroughOptions | None = None) -> None:
        pass

    def process(self, events: list[Event]) -> None:
        self.emit(events)
