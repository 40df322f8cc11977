"""``app.test()``: an app in this process, on a real server that is started for it.

    async with app.test() as test:
        await test.feed(orders, Order(1, "ann", "tea"))
        await test.idle()
        assert await test.outputs(bills) == [Bill(1, 3)]
        assert not await test.dead_letters(orders)

Rule 1: the app's server, lease, grace and topics are restored at the end.
Rule 2: the app is idle if at one time nothing was left to do. ``idle`` therefore checks twice, and accepts the result
        only if nothing was sent between the two checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import fields
from types import TracebackType
from typing import Any, Final, Self

from tidelog.client.asyncclient import AsyncClient
from tidelog.client.steps import arun
from tidelog.testing import Server, running_server
from tidelog.topics import Topic, deadletters
from tidelog.topics.deadletters import DeadLetterRecord
from tidelog.topics.failureactions import DeadLetter
from tidelog.transport.access import Access
from tidelog.workers.declare.app_protocol import AppProtocol
from tidelog.workers.declare.errors import AppError
from tidelog.workers.execution.stats import Stats
from tidelog.workers.execution.worker import Worker
from tidelog.workers.operate import status
from tidelog.workers.operate.status import AppStatus, ProcessorStatus

IDLE: Final = 10.0  # seconds
LOOK: Final = 0.01  # seconds between the first checks
MOST: Final = 0.1  # maximum seconds between two checks
PASSED_OVER: Final = "test.idle(paused=True) ignores it"


class NotIdleError(TimeoutError):
    """The app did not become idle. The text lists the unfinished partitions and the reasons."""


class AppTest:
    """An app under test, whose workers run in this event loop. ``app.test()`` creates it; use it with ``async with``.

    ``server`` is the server, which can be killed and restarted; ``client`` is an AsyncClient for it.
    """

    def __init__(
        self, app: AppProtocol, workers: int = 1, processors: Iterable[str] | None = None, lease: float = 1.0,
        grace: float = 5.0, server: Server | None = None,
    ) -> None:  # fmt: skip
        if workers < 0 or lease > grace:
            raise AppError(f"app.test: workers must be at least 0, and lease ({lease} s) at most grace ({grace} s)")
        self.app = app
        self.declared = app.select(processors)
        self.workers: list[Worker] = []
        self.client: AsyncClient
        self.server: Server
        self._count = workers
        self._names = None if processors is None else [declared.name for declared in self.declared]
        self._lease = lease
        self._grace = grace
        self._running_server = server
        self._tasks: list[asyncio.Task[None]] = []
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            server = self._running_server
            self.server = await stack.enter_async_context(_started()) if server is None else server
            stack.enter_context(self._redirected(self.server.url))
            stack.push_async_callback(self._close_topics)
            self.client = await stack.enter_async_context(AsyncClient(self.server.url))
            stack.push_async_exit(self._stop)
            for _ in range(self._count):
                await self.add_worker()
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._open.__aexit__(kind, error, at)

    async def add_worker(self) -> Worker:
        """Start one more worker; returns it after it has joined."""
        worker = Worker(self.app, self._names, f"test-{len(self.workers) + 1}")
        task = asyncio.create_task(worker.run(signals=False), name=worker.name)
        self.workers.append(worker)
        self._tasks.append(task)
        ready = asyncio.create_task(worker.ready.wait())
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            self._tasks.remove(task)
            await task
        return worker

    # -- input and output ------------------------------------------------------------------------------------
    async def feed(self, topic: Topic[Any], *records: Any) -> int:
        """Send records to a topic; returns their number. ``topic.send`` has the same effect."""
        return await topic.send_many(records)

    async def outputs(self, topic: Topic[Any]) -> list[Any]:
        """Return all records of a topic, partition by partition, in the order of their IDs."""
        found: list[Any] = []
        for partition in range((await topic.ready()).partitions or 0):
            entries = await self.client.trange(topic.stream(partition))
            found += [topic.decode(entry, partition) for entry in entries]
        return found

    # -- waiting ---------------------------------------------------------------------------------------------
    async def idle(self, timeout: float = IDLE, paused: bool = False) -> None:  # noqa: ASYNC109 - its error says more
        """Wait until all records have been processed and acknowledged, except for events of parked keys.

        Delayed records (``delay``, ``at``) don't count until they join their partition. ``paused``: ignore paused
        partitions; otherwise they are an error, since they would not become idle.

        Raises NotIdleError after ``timeout`` seconds, or the error of a worker that has failed.
        """
        clock = asyncio.get_running_loop().time
        end, wait = clock() + timeout, LOOK
        before: list[int] | None = None
        while True:
            await self._check_workers()
            seen = await self.status()
            left = self._left(seen, paused)
            sent = [each.added for processor in seen.processors for each in processor.partitions]
            if not left and sent == before:
                return
            before = None if left else sent
            if left and (clock() > end or any(final for _, final in left)):
                why = "\n".join(f"  {text}" for text, _ in left)
                after = f" after {timeout:g} s" if clock() > end else ""
                raise NotIdleError(f"app {self.app.name!r} is not idle{after}:\n{why}")
            await asyncio.sleep(wait)
            wait = min(MOST, wait * 1.1)

    def _left(self, seen: AppStatus, paused: bool) -> list[tuple[str, bool]]:
        """Return the reasons why the app is not idle, and whether waiting is useless."""
        left = []
        for processor in seen.processors:
            if processor.halted is None:
                left += _partitions_left(processor, paused)
            elif not paused:
                left.append((f"{processor.name} is halted: {processor.halted.get('reason')}. {PASSED_OVER}", True))
        stats = self.stats
        for declared in self.declared:  # with ack="before", the server does not know which events are in progress
            if declared.ack == "before" and declared.kind != "events" and (busy := stats[declared.name].busy):
                left.append((f"{declared.name}: {busy} calls are in progress", False))
        return left

    async def _check_workers(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self._tasks.remove(task)
                raise error

    # -- results ---------------------------------------------------------------------------------------------
    async def status(self) -> AppStatus:
        """Return the same data as ``tidelog app status``."""
        return await arun(self.client, status.read_status(self.app, self._names))

    @property
    def stats(self) -> dict[str, Stats]:
        """The counters of each processor, summed over all workers."""
        found: dict[str, Stats] = {declared.name: Stats() for declared in self.declared}
        for worker in self.workers:
            for name, stats in worker.stats.items():
                total = found[name]
                for each in fields(Stats):
                    setattr(total, each.name, getattr(total, each.name) + getattr(stats, each.name))
        return found

    async def dead_letters(self, topic: Topic[Any] | str) -> list[DeadLetterRecord]:
        """Return the open dead letters of a topic, oldest first. A name denotes the dead-letter queue itself."""
        name = topic if isinstance(topic, str) else DeadLetter().target(topic.name)
        found: list[DeadLetterRecord] = []
        start = None
        while True:
            entries, start = await arun(self.client, deadletters.page(name, start))
            found += map(deadletters.read, entries)
            if start is None:
                return found

    # -- start and stop --------------------------------------------------------------------------------------
    @contextmanager
    def _redirected(self, url: str) -> Iterator[None]:
        app = self.app
        original = app.access, app.lease, app.grace
        app.access, app.lease, app.grace = Access((url,), retries=0), self._lease, self._grace
        try:
            with ExitStack() as stack:
                for topic in app.topics.values():
                    stack.enter_context(topic.elsewhere(url))
                yield
        finally:
            app.access, app.lease, app.grace = original

    async def _close_topics(self) -> None:
        for topic in self.app.topics.values():
            await topic.close()

    async def _stop(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self.workers:
            worker.stop()
        results: Sequence[Any] = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if kind is None and isinstance(result, Exception):
                raise result


@asynccontextmanager
async def _started() -> AsyncIterator[Server]:
    """Start a server without blocking the event loop while it starts and stops."""
    running = running_server()
    server = await asyncio.to_thread(running.__enter__)
    try:
        yield server
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


def _partitions_left(processor: ProcessorStatus, paused: bool) -> list[tuple[str, bool]]:
    left = []
    for each in processor.partitions:
        where = f"{processor.name}: {processor.topic}:{each.partition}"
        waiting = each.pending - each.set_aside
        if each.paused is not None:
            if not paused:
                left.append((f"{where} is paused: {each.paused.get('reason')}. {PASSED_OVER}", True))
        elif each.lag or waiting:
            text = f"{where}: {each.lag} entries not delivered, {waiting} not acknowledged"
            if processor.ordering != "none":
                text += f"; owned by {each.owner or 'nobody'}"
            left.append((text, False))
    return left
