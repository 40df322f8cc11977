"""A flow in a process of its own, for tests that kill it: stream -> operator -> stream.

python -m tests.tidelog.flows.flow_process URL ALIAS MAX_UNSETTLED
"""

from __future__ import annotations

import asyncio
import signal
import sys

from tidelog.flows import Flow
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.operator import Operator
from tidelog.flows.runtime.runningflow import RunningFlow


class Mark(Operator):
    """Adds who it was."""

    def process(self, events: list[Event]) -> None:
        for event in events:
            event.value["by"] = self.node.context.flow
        self.emit(events)


def flow(url: str, max_unsettled: int) -> Flow:
    """Retries soon, so that tests don't wait."""
    made = Flow("orders", server=url, drain_timeout="10s")
    reconnect = {"retry": {"first": "50ms", "most": "500ms"}}
    made.connector(
        "in", "stream", key="orders", group="shop", retry="1s", max_unsettled=max_unsettled, codec="json",
        reconnect=reconnect,
    )  # fmt: skip
    made.connector("out", "stream", key="out", codec="json", reconnect=reconnect)
    made.pipeline("mark", Mark)
    made.connect("in -> mark -> out")
    return made


async def main(url: str, alias: str, max_unsettled: int) -> None:
    running = RunningFlow(flow(url, max_unsettled).spec(), FlowContext(alias, server=url))
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await running.start()
    await ended.wait()
    await running.drain()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
