"""Exceptions of user code: whatever is raised, the failure policy applies."""


from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tidelog.workers.workerkit import SOON, Order, orders, working
from tests.waiting import until
from tidelog.client import Client
from tidelog.testing import Server
from tidelog.workers import App, DeadLetter, Event, Events, Retry, Take


@pytest.mark.parametrize("form", ["each", "event", "key", "none", "batch", "events"])
def test_a_cancellation_that_nobody_asked_for_is_a_failure(app: App, tidelog_server: Server, form: str) -> None:
    """Such as that of a task that the function waits for: the processor goes on behind it."""
    topic = orders(app)
    on_error = [SOON, DeadLetter()]
    seen: list[int] = []

    async def see(order: Order) -> None:
        seen.append(order.id)
        if order.id == 3:
            waited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waited.cancel()
            await waited

    if form in ("each", "key", "none"):
        ordering: Any = "partition" if form == "each" else form

        @app.each(topic, name="bill", ordering=ordering, concurrency=1, on_error=on_error)
        async def bill(order: Order) -> None:
            await see(order)

    elif form == "event":

        @app.each(topic, name="bill", on_error=on_error)
        async def bill_event(event: Event[Order]) -> None:
            await see(event.record)

    elif form == "batch":

        @app.batch(topic, name="bill", take=Take(1), on_error=on_error)
        async def bill_batch(batch: list[Order]) -> None:
            await see(batch[0])

    else:

        @app.processor(topic, name="bill", on_error=on_error)
        async def bill_events(events: Events[Order]) -> None:
            async for order in events.records():
                await see(order)

    async def main(client: Client) -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(6))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 6)
            await until(lambda: worker.stats["bill"].deadlettered == 1)  # counted after the acknowledgement
        assert seen.count(3) == 3
        (letter,) = client.trange("orders.dead:0")
        assert b"CancelledInsideError" in (letter["dlq:error"] or b"")

    with tidelog_server.client() as client:
        asyncio.run(main(client))


class Unforeseen(BaseException):
    """No Exception, and no cancellation."""


class StrFailsError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class UnpicklableError(Exception):
    def __init__(self) -> None:
        super().__init__(lambda: None)


RAISED = [SystemExit, GeneratorExit, asyncio.CancelledError, Unforeseen, StrFailsError, UnpicklableError]
FORMS = ["each", "key", "none", "event", "batch", "batch-none", "events", "layered"]


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_raised_the_policy_gets_it(
    app: App, tidelog_server: Server, form: str, raised: type[BaseException]
) -> None:
    topic = orders(app)
    seen: list[int] = []
    options: dict[str, Any] = {"name": "bill", "on_error": [Retry(1, first=0.001), DeadLetter()]}

    async def see(order: Order) -> None:
        seen.append(order.id)
        if order.id == 3:
            raise raised

    async def layer(events: Any, call_next: Any) -> None:
        await call_next(events)
        for event in events:
            await see(event.record)

    if form in ("each", "key", "none"):

        @app.each(topic, ordering="partition" if form == "each" else form, **options)  # type: ignore[arg-type]
        async def bill(order: Order) -> None:
            await see(order)

    elif form == "event":

        @app.each(topic, **options)
        async def bill_event(event: Event[Order]) -> None:
            await see(event.record)

    elif form.startswith("batch"):

        @app.batch(topic, take=Take(1), ordering="none" if form.endswith("none") else "partition", **options)
        async def bill_batch(batch: list[Order]) -> None:
            await see(batch[0])

    elif form == "events":

        @app.processor(topic, **options)
        async def bill_events(events: Events[Order]) -> None:
            async for order in events.records():
                await see(order)

    else:

        @app.processor(topic, middleware=[layer], **options)
        async def bill_layered(events: Events[Order]) -> None:
            async for _ in events.records():
                pass

    async def main(client: Client) -> None:
        await topic.send_many(Order(number, f"k{number}") for number in range(6))
        async with working(app) as worker:
            await until(lambda: worker.stats["bill"].acknowledged == 6)
            await until(lambda: worker.stats["bill"].deadlettered == 1)
        assert seen.count(3) == 2
        (letter,) = client.trange("orders.dead:0")
        assert letter["dlq:attempts"] == b"2"
        told = (letter["dlq:error"] or b"") + (letter["dlq:message"] or b"") + (letter["dlq:traceback"] or b"")
        assert raised.__name__.encode() in told

    with tidelog_server.client() as client:
        asyncio.run(main(client))
