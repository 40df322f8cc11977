"""The flow within ``branch``: a source of requests, the operators, the connector, and a sink of responses.

Each event is a request, whose ID is the number of its call. The settlement of the request reports the end of the call:
all of its responses have arrived by then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tidelog.flows.api.connector import Outcome, Sink, Source
from tidelog.flows.api.errors import FlowFileError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT, Settleable, Token, TokenGroup
from tidelog.flows.declare import Flow, Op
from tidelog.flows.spec import FlowSpec

PIPELINE: Final = "operators"
CLIENT: Final = "http_client"


class RequestSource(Source):
    """Sends the requests that were added."""

    owns_policy = True
    ended: Callable[[Sequence[Token]], None]  # the operator sets both before the start
    sent: Callable[[Sequence[Event]], None]

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[Event] = deque()
        self._changed = asyncio.Event()

    def add(self, requests: Sequence[Event]) -> None:
        self.waiting.extend(requests)
        self._changed.set()

    async def pull(self, limit: int) -> list[Event] | None:
        if not self.waiting:
            self._changed.clear()
            if not await self.wait(self._changed.wait()):
                return []
        found = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        self.sent(found)
        return found

    async def settled(self, tokens: Sequence[Token]) -> None:
        self.ended(tokens)


class ResponseSink(Sink):
    """Passes responses on, each with the number of its call."""

    concurrency = 1000
    received: Callable[[int, Event], None]  # the operator sets it before the start

    async def write(self, events: list[Event]) -> list[Outcome]:
        return [self._outcome(each) for each in events]

    def _outcome(self, event: Event) -> Outcome:
        numbers = set(_calls(event.token))
        if len(numbers) != 1:
            return REJECT, f"a response for {len(numbers)} requests: put unbatch after batch"
        self.received(numbers.pop(), event)
        return OK


def _calls(token: Settleable | None) -> Iterator[int]:
    """Yield the numbers of the calls to which a token belongs."""
    if isinstance(token, TokenGroup):
        for each in token.members:
            yield from _calls(each)
    elif isinstance(token, Token):
        if token.parent is None:
            yield token.key
        else:
            yield from _calls(token.parent)


def inner_flow(operators: list[Any], client: Mapping[str, Any] | None, most: int, server: str | None) -> FlowSpec:
    """Return the declaration. Raises ValueError with all errors."""
    flow = Flow("branch", server=server)
    problems: list[str] = []
    chain = ["requests", PIPELINE]
    flow.connector("requests", RequestSource, max_unsettled=most)
    flow.connector("responses", ResponseSink)
    try:
        flow.pipeline(PIPELINE, *map(_operator, operators))
    except FlowFileError as error:
        problems += error.problems
    if client is not None:
        chain.append(CLIENT)
        try:
            flow.connector(CLIENT, "http_client", **client)
        except FlowFileError as error:
            problems += error.problems
    if not problems:
        try:
            flow.connect(" -> ".join([*chain, "responses"]))
            return flow.spec()
        except FlowFileError as error:
            problems += error.problems
    raise ValueError(
        "; ".join(each.removeprefix("branch.pipelines.").removeprefix("branch.connectors.") for each in problems)
    )


def _operator(given: Any) -> Op:
    """Return an operator as it is written in flow files, or an ``op``."""
    if isinstance(given, Op):
        return given
    if isinstance(given, str):
        return Op(given, {})
    if isinstance(given, Mapping) and len(given) == 1:
        ((kind, options),) = given.items()
        return Op(str(kind), options)
    raise ValueError(f"operators: {given!r:.100} is no operator, such as {{map: ...}}")
