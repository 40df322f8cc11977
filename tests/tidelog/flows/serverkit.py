"""Flows against a real server: started, waited for, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec

from tidelog.flows import Flow
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.runtime.runningflow import RunningFlow
from tidelog.flows.spec import FlowSpec

PATIENCE = 20.0  # s
P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, run in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@asynccontextmanager
async def running(flow: Flow | FlowSpec, alias: str | None = None, **context: Any) -> AsyncIterator[RunningFlow]:
    """The flow, started; stopped at once at the end. A flow that has failed is an error."""
    spec = flow.spec() if isinstance(flow, Flow) else flow
    made = RunningFlow(spec, FlowContext(alias or flow.name, server=flow.server, debug=True, **context))
    await made.start()
    try:
        yield made
        assert made.status != "failed", made.error
        assert not made.context.lost
    finally:
        await made.stop()


