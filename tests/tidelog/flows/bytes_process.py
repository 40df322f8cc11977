"""A process of its own that runs one flow: ``bytes_process.py file IN OUT``, or ``stdio``, or ``exit``."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from tidelog.flows import Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow


def _flow(what: str, paths: list[str]) -> Flow:
    flow = Flow("copy")
    if what == "file":
        quick = {"poll": 0.01, "linger": 0.05, "max_unsettled": 500}
        flow.connector("in", "file", path=paths[0], tail=True, codec="string", **quick)
        flow.connector("out", "file", path=paths[1], codec="string", rotate_bytes="64KB")
    elif what == "exit":
        flow.connector("in", "stdio", codec="json")
        flow.connector("out", "exit", code=3)
    elif what == "exit-flow":
        flow.connector("in", "stdio", codec="json")
        flow.connector("out", "exit", what="flow")
    else:
        flow.connector("in", "stdio")
        flow.connector("out", "stdio")
    flow.connect("in -> out")
    return flow


async def main() -> int:
    flow = _flow(sys.argv[1], sys.argv[2:])
    context = FlowContext("copy", debug=True)
    running = RunningFlow(flow.spec(), context)
    loop = asyncio.get_running_loop()
    drain = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, drain.set)
    loop.add_signal_handler(signal.SIGINT, drain.set)
    if sys.argv[1] == "paused":
        await running.pause()
        loop.add_signal_handler(signal.SIGUSR1, lambda: loop.create_task(running.resume()))
    await running.start()
    print("started", file=sys.stderr, flush=True)
    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(running.finished()), asyncio.ensure_future(drain.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    report = await running.drain(20)
    if running.error or context.lost:
        print(running.error, context.lost, file=sys.stderr)
        return 99
    return int(context.shared.get("exit_code", 0)) if report.complete else 98


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
