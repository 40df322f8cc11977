"""``exit``: a sink that ends its flow or the process when an event arrives. Events in flight are drained."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from tidelog.flows.api.connector import Sink
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.event import Event
from tidelog.options.units import Duration


class ExitOptions(ConnectorOptions):
    """Options of ``exit``."""

    what: Literal["flow", "process"] = "process"
    # What ends. `flow`: this instance of the flow. `process`: the process, by SIGTERM to itself.
    code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    # Exit status of the process. An event `{"exit": 3}` overrides it.
    delay: Duration = Duration(0)  # Delay after the arrival of the event.


class ExitSink(Sink):
    """Ends the flow or the process at the first event. All events are settled before the end."""

    type = "exit"
    Options = ExitOptions

    def __init__(self, options: ExitOptions | None = None) -> None:
        self._options = options or ExitOptions()
        self._begun = False

    async def write(self, events: list[Event]) -> None:
        if self._begun or not events:
            return
        self._begun = True
        code = self._options.code
        value = events[0].value
        if isinstance(value, Mapping):
            given = value.get("exit")
            if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= 255:
                code = given
        self.context.flow_context.shared["exit_code"] = code
        asyncio.get_running_loop().call_later(self._options.delay, self._end)

    def _end(self) -> None:
        if self._options.what == "flow":
            self.context.flow_context.end()
        else:
            os.kill(os.getpid(), signal.SIGTERM)
