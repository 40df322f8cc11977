"""``Worker``: a process that runs processors of an app, until it is told to stop.

    SIGTERM, SIGINT   stop fetching, finish what is in work within ``grace``, acknowledge, give the rest back, leave
    a second one      what is in work is cancelled
    lost server       lines are made again, with growing pauses; claims are compared before anything is acknowledged
    denied            a wrong password, a missing right: the worker ends

The lease of the process is kept by a thread of its own. One that is lost, by a pause or a server that was away for
longer, ends all that the worker owns; then it joins again under another epoch.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self, cast
from uuid import uuid4

import redis

from tidelog.client import strings
from tidelog.client.asyncclient import AsyncClient
from tidelog.client.steps import LOST, arun
from tidelog.coordination import Claim, Keeper, Lease, Tenure
from tidelog.operating.errortexts import FailureLog
from tidelog.operating.signals import ENDING, handling, in_main_thread, unhandled
from tidelog.topics import Topic, TopicError
from tidelog.topics.settings import key_of, read_settings
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.errors import is_denied, is_retryable, message_of
from tidelog.workers import keys, logs
from tidelog.workers.coordination.cancellation import end
from tidelog.workers.coordination.connections import Line, Link
from tidelog.workers.coordination.control_stream import Control
from tidelog.workers.coordination.leader_tasks import Leading
from tidelog.workers.coordination.ownership import Ownership
from tidelog.workers.declare.app_protocol import Program
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.processor import Declared
from tidelog.workers.execution.executor import Executor
from tidelog.workers.execution.stats import Stats

log = logs.get(__name__)
GROWTH: Final = 30.0  # seconds between two looks whether topics have grown
AGAIN: Final = 0.2  # seconds until topics are compared again with a server that was lost, or refused it
MOST: Final = 2.0  # the same after many attempts


class Worker:
    """Runs ``processors`` of ``app``, all by default. ``name``: of this process among the app's workers, never in use
    twice at a time; by default made of host, process and chance.
    """

    def __init__(self, app: Program, processors: Iterable[str] | None = None, name: str | None = None) -> None:
        self.app = app
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self.declared: Sequence[Declared] = app.select(processors)
        self.lease = Lease(keys.lease(app.name, self.name), self.name, app.lease, keys.epochs(app.name))
        self.executors: dict[str, Executor] = {}
        self._former: dict[str, Stats] = {}  # of the run before
        self.ready = asyncio.Event()  # set when all processors have joined
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it runs, or ran last
        self._running = False
        self._denied: asyncio.Future[None]
        self._link = Link(app.access, f"tidelog-worker-{self.name}")

    @property
    def stats(self) -> dict[str, Stats]:
        """What each processor has done in this worker."""
        return {name: executor.stats for name, executor in self.executors.items()}

    def stop(self) -> None:
        """Begin to stop, as SIGTERM does. Any thread can call it. Before ``run``, it makes ``run`` return at once."""
        if self._running and self._loop is not None and self._loop is not _loop_here():
            self._loop.call_soon_threadsafe(self._stopping.set)
        else:
            self._stopping.set()

    async def run(self, signals: bool | None = None) -> None:
        """Run until ``stop`` or a signal. It can then be called again, also in another event loop.

        signals: stop by SIGTERM, SIGINT and SIGHUP, too. None: in the main thread, if the program handles none of them.

        Raises AppError if it is already running, or for signals in another thread; TopicError and AppError if the
        declarations don't match the data on the server; redis.ResponseError if the server denies a required permission.
        """
        if self._running:
            raise AppError(f"worker {self.name} runs already: a second one needs a Worker of its own")
        if signals and not in_main_thread():
            raise AppError("signals can be handled in the main thread only: run(signals=False), and call stop()")
        self._loop = asyncio.get_running_loop()
        self._denied = self._link.denied = self._loop.create_future()
        self._former, self.executors = self.stats, {}
        numbers = ENDING if signals or (signals is None and unhandled(ENDING)) else ()
        if signals is None and not numbers:
            log.info("worker %s: the program keeps its signal handlers; call stop() to stop the worker", self.name)
        token = logs.enter(worker=self.name)
        self._running = True
        try:
            with handling(numbers, partial(self._signalled, asyncio.current_task())):
                await self._run()
        finally:
            self._running = False
            if not self._denied.cancel():
                self._denied.exception()  # it was raised, or another error is
            self.ready, self._stopping = asyncio.Event(), asyncio.Event()  # the next run may be in another loop
            logs.leave(token)

    async def _run(self) -> None:
        async with _Topics(self._link, self.app.topics.values()) as topics:
            if not await self._unless_stopped(topics.ready()):
                return
            keeper = Keeper(self.app.access, self.lease, f"tidelog-lease-{self.name}")
            keeper.start()
            watch = asyncio.create_task(self._watch_lag())
            try:
                while not await asyncio.to_thread(keeper.wait, 1.0):
                    if self._stopping.is_set():
                        return
                    if keeper.denied:
                        raise redis.ResponseError(keeper.denied)
                while not self._stopping.is_set():  # once more after a topic has grown
                    await self._work()
            finally:
                watch.cancel()
                await asyncio.to_thread(keeper.stop)

    async def _work(self) -> None:
        owners: list[Ownership | Unowned] = []
        lines = [self._link.line(), self._link.line()]
        control = Control(self.app.name, lines[0])
        following: asyncio.Task[None] | None = None
        growing = asyncio.create_task(self._growing(lines[1]))
        vitals: dict[str, float] = {}
        leading = Leading(self.app, self.lease, self._link, lines[1], control, vitals)
        try:
            if not await self._unless_stopped(self._prepare(control, lines[1], owners, vitals)):
                return
            following = asyncio.create_task(control.run())
            for each in owners:
                each.start()
            leading.start()
            self.ready.set()
            log.info("worker %s: %s", self.name, ", ".join([*self.executors, *self.app.timers]))
            await self._told(growing)
            log.info("worker %s: %s", self.name, "stopping" if self._stopping.is_set() else "beginning again")
            await _all([leading.stop(self.app.grace), *[each.stop() for each in owners]])
        finally:
            await leading.stop(0)
            await _all(executor.stop() for executor in self.executors.values())
            growing.cancel()
            if following is not None:
                following.cancel()
            for line in lines:
                line.close()

    async def _prepare(
        self, control: Control, line: Line, owners: list[Ownership | Unowned], vitals: dict[str, float]
    ) -> None:  # fmt: skip
        """What is needed before processors can join: the executors, and who owns what for them."""
        await _begun(control)
        for declared in self.declared:
            stats = self.stats.get(declared.name) or self._former.get(declared.name)  # from before a topic has grown
            executor = Executor(declared, self._link, self.lease, self.app.grace, stats)
            self.executors[declared.name] = executor
            await executor.start()
            control.subscribe(declared.name, lambda _, look=executor.look: look())  # type: ignore[misc]
            if declared.ordering == "none":
                owners.append(Unowned(declared, executor, self.lease))
                continue
            owner = Ownership(
                self.app.name, declared.name, declared.topic.partitions, self.lease, line, executor, control,
                vitals=vitals, denied=self._link.deny,
            )  # fmt: skip
            executor.doubted = partial(owner.hint, doubt=True)
            owners.append(owner)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do it, however long the server is away; False if the worker is told to stop before."""
        doing, stopping = asyncio.create_task(work), asyncio.create_task(self._stopping.wait())
        try:
            waited: set[asyncio.Future[Any]] = {doing, stopping, self._denied}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                if self._denied.done():
                    self._denied.result()
                return False
            doing.result()
            return True
        finally:
            stopping.cancel()
            await end(doing)

    async def _told(self, growing: asyncio.Task[None]) -> None:
        """Until it is told to stop, or a topic has grown. Raises what a processor can't go on with."""
        stopping = asyncio.create_task(self._stopping.wait())
        failures = [self._denied, *(executor.failure for executor in self.executors.values())]
        waited: set[asyncio.Future[Any]] = {stopping, growing, *failures}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for failure in failures:
            if failure.done():
                failure.result()

    async def _growing(self, line: Line) -> None:
        """Until a topic has more partitions than processors were begun with."""
        begun = {each.topic: each.topic.partitions for each in self.declared}
        said: set[tuple[str, str]] = set()
        while True:
            await asyncio.sleep(GROWTH)
            try:
                texts = await line.ask(*[strings.get(key_of(topic.name)) for topic in begun])
            except redis.ResponseError as error:
                log.warning("worker %s: topics can't be looked at: %s", self.name, error)
                continue
            for (topic, partitions), text in zip(begun.items(), texts, strict=True):
                try:
                    if text is None or (read_settings(topic.name, text).partitions or 0) <= partitions:
                        continue
                    await arun(line, topic.agree())
                except (TopicError, redis.ResponseError) as error:  # such as a number of partitions that is declared
                    if (topic.name, str(error)) not in said:
                        log.error("worker %s: topic %s has changed, and is processed as it was: %s", self.name,
                                  topic.name, error)  # fmt: skip
                        said.add((topic.name, str(error)))
                    continue
                except LostError:
                    break  # looked at again later
                log.warning("worker %s: topic %s has grown to %d partitions", self.name, topic.name, topic.partitions)
                return

    def _signalled(self, task: asyncio.Task[Any] | None, number: signal.Signals) -> None:
        if self._stopping.is_set() and task is not None:
            log.warning("worker %s: %s again: the current events are cancelled", self.name, number.name)
            task.cancel()
        self._stopping.set()

    async def _watch_lag(self) -> None:
        """Log when the event loop stood still for longer than a quarter of the lease."""
        period = self.lease.ttl / 8
        done: dict[str, int] = {}
        while True:
            before = time.monotonic()
            await asyncio.sleep(period)
            late = time.monotonic() - before - period
            if late > self.lease.ttl / 4:
                busy = [name for name, stats in self.stats.items() if stats.busy or stats.attempts != done.get(name)]
                log.warning(
                    "worker %s: the event loop stood still for %.2f s (lease: %g s); at work meanwhile: %s. What"
                    " computes belongs into a thread or another process", self.name, late, self.lease.ttl,
                    ", ".join(busy) or "nothing",
                )  # fmt: skip
            done = {name: stats.attempts for name, stats in self.stats.items()}


class Unowned:
    """For ordering "none": every worker reads all partitions, for as long as its lease lasts."""

    def __init__(self, declared: Declared, executor: Executor, lease: Lease) -> None:
        self._declared = declared
        self._executor = executor
        self._lease = lease
        self._unwatch: Callable[[], None] | None = None
        self._tenure: Tenure | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self._changed)

        self._unwatch = self._lease.watch(changed)
        self._changed()

    async def stop(self) -> None:
        if self._unwatch is not None:
            self._unwatch()
        await _all(self._executor.released(number) for number in list(self._executor.partitions))

    def _changed(self) -> None:
        tenure = self._lease.tenure
        if tenure is self._tenure and tenure.held:
            return
        for number in list(self._executor.partitions):
            self._executor.lost(number)
        if tenure.held:
            self._tenure = tenure
            for number in range(self._declared.topic.partitions):
                self._executor.begin(Claim("", number, tenure, 0, b""))


class _Topics:
    """The topics of an app while a worker runs: compared with the server, and able to send."""

    def __init__(self, link: Link, topics: Iterable[Topic[Any]]) -> None:
        self._topics = list(topics)
        self._line = link.line()
        self._trouble = FailureLog(log)

    async def __aenter__(self) -> Self:
        return self

    async def ready(self) -> None:
        """Compare them with the server, as soon as it is there. TopicError where they don't fit."""
        for topic in self._topics:
            if topic.url is None:  # several servers, Sentinels, TLS files: where a URL doesn't say enough
                topic.use(cast(AsyncClient, self._line))  # it sends calls together, which is all that a topic needs
            pause = AGAIN
            while True:
                try:
                    await topic.ready()
                    break
                except (*LOST, redis.RedisError) as error:
                    if is_denied(error):
                        raise redis.ResponseError(message_of(error)) from None
                    if not is_retryable(error):
                        raise
                    await self._line.channel()  # waits for the server, and logs that
                    if not isinstance(error, LostError):
                        self._trouble.warn(f"topic {topic.name}: {message_of(error)}; trying again")
                    await asyncio.sleep(pause)
                    pause = min(MOST, pause * 2)

    async def __aexit__(self, *_: object) -> None:
        for topic in self._topics:
            topic.forget(cast(AsyncClient, self._line))
            await topic.close()
        self._line.close()


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _begun(control: Control) -> None:
    while True:
        try:
            await control.begin()
        except LostError:
            continue
        return


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of it; then the first error is raised."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
