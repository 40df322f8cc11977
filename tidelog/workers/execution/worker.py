"""``Worker``: a process that runs processors of an app until it is stopped.

    SIGTERM, SIGINT   stop reading, finish the current events within ``grace``, acknowledge, return the rest, leave
    a second signal   the current events are cancelled
    lost server       connections are re-established with backoff; claims are compared before anything is acknowledged
    denied            a wrong password or a missing permission: the worker ends

A separate thread renews the lease of the process. If the lease is lost, because the process was paused or the server
was unreachable for longer, the worker drops everything that it owns and joins again under another epoch.

A worker has one lease, in a cluster one more for each group, and claims for its partitions. Leases per partition were
rejected: 16 partitions would cost 5 renewals a second on an idle server, and every renewal would fail a transaction
that watches the lease. A claim has no time of its own: it is valid as long as the lease that it names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self, TypeVar, cast
from uuid import uuid4

import redis

from tidelog.client import strings
from tidelog.client.asyncclient import AsyncClient
from tidelog.client.steps import LOST, arun
from tidelog.coordination import Claim, Keeper, Lease, Tenure, programs
from tidelog.coordination.controlstream import ControlStream
from tidelog.operating.errortexts import FailureLog
from tidelog.operating.signals import ENDING, handling, in_main_thread, unhandled
from tidelog.topics import Topic, TopicError, delayed
from tidelog.topics.settings import key_of, read_settings
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.cancellation import cancel_and_wait
from tidelog.transport.errors import is_denied, is_retryable, message_of
from tidelog.workers import keys, logs
from tidelog.workers.coordination import declaration
from tidelog.workers.coordination.clusterlines import ClusterConnector, in_cluster
from tidelog.workers.coordination.connections import WorkerConnection, WorkerConnector
from tidelog.workers.coordination.leader_tasks import LeaderTasks
from tidelog.workers.coordination.messages import SUBJECT
from tidelog.workers.coordination.ownership import PartitionOwnership
from tidelog.workers.coordination.workergroups import ClusterGroups, WorkerGroups
from tidelog.workers.declare.app_protocol import AppProtocol
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.processor import Processor
from tidelog.workers.execution.executor import ProcessorExecutor
from tidelog.workers.execution.group_creation import create_protecting_groups
from tidelog.workers.execution.placement import check_outputs
from tidelog.workers.execution.stats import Stats

T = TypeVar("T")
log = logs.get(__name__)
GROWTH: Final = 30.0  # seconds between two checks whether topics have grown
AGAIN: Final = 0.5  # seconds until the creation of groups is tried again after a temporary error
LEAVING: Final = 1.0  # seconds within which a stopping worker removes its name
BACKOFF: Final = Backoff(first=0.2, most=2.0)  # of the comparison of topics with the server


class Worker:
    """Runs ``processors`` of ``app``, by default all. ``name`` must be unique among the app's running workers; by
    default it consists of host, process ID and a random part.
    """

    def __init__(self, app: AppProtocol, processors: Iterable[str] | None = None, name: str | None = None) -> None:
        self.app = app
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:6]}"
        self.declared: Sequence[Processor] = app.select(processors)
        self.lease = Lease(keys.lease(app.name, self.name), self.name, app.lease, keys.epochs(app.name))
        self.executors: dict[str, ProcessorExecutor] = {}
        self._former: dict[str, Stats] = {}  # of the previous ``run``
        self.ready = asyncio.Event()  # set when all processors have joined
        self._stopping = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the current or last ``run``
        self._running = False
        self._denied: asyncio.Future[None]
        self._link = WorkerConnector(app.access, f"tidelog-worker-{self.name}")
        self._cluster: ClusterConnector | None = None  # of the current ``run``, in cluster mode

    @property
    def stats(self) -> dict[str, Stats]:
        """The counters of each processor in this worker."""
        return {name: executor.stats for name, executor in self.executors.items()}

    def stop(self) -> None:
        """Stop the worker, as SIGTERM does. Thread-safe. Before ``run``, it makes ``run`` return immediately."""
        if self._running and self._loop is not None and self._loop is not _loop_here():
            self._loop.call_soon_threadsafe(self._stopping.set)
        else:
            self._stopping.set()

    async def run(self, signals: bool | None = None) -> None:
        """Run until ``stop`` or a signal. It can then be called again, even in another event loop.

        signals: also stop on SIGTERM, SIGINT and SIGHUP. None: in the main thread, if these have no other handlers.

        Raises AppError if it is already running, or for signals in another thread; TopicError and AppError if the
        declarations don't match the data on the server; redis.ResponseError if the server denies a required permission.
        """
        if self._running:
            raise AppError(f"worker {self.name} is running already: create another Worker")
        if signals and not in_main_thread():
            raise AppError("signals can be handled in the main thread only: use run(signals=False) and stop()")
        self._loop = asyncio.get_running_loop()
        self._denied = self._link.denied = self._loop.create_future()
        self._former, self.executors = self.stats, {}
        numbers = ENDING if signals or (signals is None and unhandled(ENDING)) else ()
        if signals is None and not numbers:
            log.info("worker %s: the signals have other handlers; call stop() to stop the worker", self.name)
        token = logs.enter(worker=self.name)
        self._running = True
        try:
            with handling(numbers, partial(self._signalled, asyncio.current_task())):
                await self._run()
        finally:
            self._running = False
            if not self._denied.cancel():
                self._denied.exception()  # mark it as retrieved
            self.ready, self._stopping = asyncio.Event(), asyncio.Event()  # ``run`` may be called in another loop
            logs.leave(token)

    async def _run(self) -> None:
        self._cluster = None
        if not await self._unless_stopped(self._detect()):
            return
        cluster: ClusterConnector | None = self._cluster
        try:
            await self._run_on(cluster or self._link)
        finally:
            if cluster is not None:
                await cluster.close()

    async def _detect(self) -> None:
        """Determine whether the servers run in cluster mode."""
        connection = self._link.connection()
        try:
            if await in_cluster(connection):
                self._cluster = ClusterConnector(self.app.access, self._link.name, self.app.lease, self._denied)
        finally:
            connection.close()

    async def _groups(self, link: WorkerConnector) -> WorkerGroups:
        """Return the groups that have the partitions. Raises AppError if transactions would need several of them."""
        if self._cluster is None:
            return WorkerGroups(self.lease, link)
        streams = [each.topic.stream(at) for each in self.declared for at in range(each.topic.partitions)]
        groups = await self._cluster.divide(streams)
        found = ClusterGroups(self.app.name, self.app.access, self.lease, self._cluster, groups)
        check_outputs(self.declared, found)
        return found

    async def _run_on(self, link: WorkerConnector) -> None:
        async with _Topics(link, self.app.topics.values()) as topics:
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
                while not self._stopping.is_set():  # repeated after a topic has grown, or slots were assigned
                    groups = await self._unless_stopped_with(self._groups(link))
                    if groups is not None:
                        await self._work(link, groups)
            finally:
                watch.cancel()
                await asyncio.to_thread(keeper.stop)

    async def _work(self, link: WorkerConnector, groups: WorkerGroups) -> None:
        owners: list[PartitionOwnership | UnownedPartitions] = []
        lines = [link.connection(), link.connection()]
        control = ControlStream(keys.control(self.app.name), SUBJECT, lines[0])
        growing = asyncio.create_task(self._growing(lines[1]))
        lease_ends: dict[str, float] = {}
        leading = LeaderTasks(self.app, self.lease, link, lines[1], control, lease_ends)
        moved = asyncio.create_task(groups.moved())
        try:
            await groups.start()
            if not await self._unless_stopped(self._prepare(control, lines[1], groups, owners, lease_ends)):
                return
            control.start()
            for each in owners:
                each.start()
            leading.start()
            self.ready.set()
            log.info("worker %s: %s", self.name, ", ".join([*self.executors, *self.app.timers]))
            await self._wait_for_stop(growing, moved)
            for executor in self.executors.values():
                executor.drop_moved()
            log.info("worker %s: %s", self.name, "stopping" if self._stopping.is_set() else "restarting its processors")
            await _all([leading.stop(self.app.grace), *[each.stop() for each in owners]])
            if self._stopping.is_set():
                await self._leave(lines[1])
        finally:
            await leading.stop(0)
            await _all(executor.stop() for executor in self.executors.values())
            growing.cancel()
            moved.cancel()
            await groups.stop()
            await control.stop()
            for connection in lines:
                connection.close()

    async def _prepare(
        self, control: ControlStream, connection: WorkerConnection, groups: WorkerGroups,
        owners: list[PartitionOwnership | UnownedPartitions], lease_ends: dict[str, float],
    ) -> None:  # fmt: skip
        """Create the executors and ownerships, before the processors join."""
        await _begun(control)
        await self._declare(connection)
        await _protected(connection, self.app.processors.values())
        await _report_undelivered(connection, self.app.topics)
        for declared in self.declared:
            stats = self.stats.get(declared.name) or self._former.get(declared.name)  # continue the counters
            executor = ProcessorExecutor(declared, groups, self.lease, self.app.grace, stats)
            self.executors[declared.name] = executor
            await executor.start()
            control.subscribe(declared.name, lambda _, check=executor.check_pauses: check())  # type: ignore[misc]
            if declared.ordering == "none":
                owners.append(UnownedPartitions(declared, executor, groups))
                continue
            topic = declared.topic
            owner = PartitionOwnership(
                self.app.name, declared.name, declared.topic.partitions, self.lease, connection, executor, control,
                lease_ends=lease_ends, denied=self._link.deny,
                lease_of=lambda at, topic=topic: groups.of(topic.stream(at)).lease,  # type: ignore[misc]
                tag_of=lambda at, topic=topic: groups.tag(topic.stream(at)),  # type: ignore[misc]
            )  # fmt: skip
            executor.recheck_claims = partial(owner.hint, doubt=True)
            owners.append(owner)

    async def _declare(self, connection: WorkerConnection) -> None:
        """Write the app's declaration and its name, for tools that do not have its code."""
        for operation in (
            partial(declaration.write, self.app, self.name), partial(programs.record, "apps", self.app.name),
        ):  # fmt: skip
            try:
                await connection.repeat(operation)
            except (redis.ResponseError, declaration.DeclarationError, programs.ProgramNamesError) as error:
                log.warning("worker %s: the console can't show app %s: %s", self.name, self.app.name, message_of(error))

    async def _leave(self, connection: WorkerConnection) -> None:
        """Remove this worker from the declaration, unless the server is unreachable."""
        with suppress(TimeoutError, redis.ResponseError, declaration.DeclarationError, *LOST):
            async with asyncio.timeout(LEAVING):
                await connection.repeat(partial(declaration.leave, self.app.name, self.name))

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work, even if the server is unreachable for long. Returns False if the worker is stopped first."""
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
            await cancel_and_wait(doing)

    async def _unless_stopped_with(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Do the work like ``_unless_stopped``, and return its result; None if the worker is stopped first."""
        results: list[T] = []

        async def kept() -> None:
            results.append(await work)

        return results[0] if await self._unless_stopped(kept()) else None

    async def _wait_for_stop(self, growing: asyncio.Task[None], moved: asyncio.Task[None]) -> None:
        """Wait until the worker is stopped, a topic has grown, or slots were assigned to other groups.

        Raises the error of a failed processor.
        """
        stopping = asyncio.create_task(self._stopping.wait())
        failures = [self._denied, *(executor.failure for executor in self.executors.values())]
        waited: set[asyncio.Future[Any]] = {stopping, growing, moved, *failures}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if moved.done() and not self._stopping.is_set():
            log.warning("worker %s: slots of its partitions were assigned to other groups", self.name)
        stopping.cancel()
        for failure in failures:
            if failure.done():
                failure.result()

    async def _growing(self, connection: WorkerConnection) -> None:
        """Wait until a topic has more partitions than at the start."""
        begun = {each.topic: each.topic.partitions for each in self.declared}
        summary_of: set[tuple[str, str]] = set()
        while True:
            await asyncio.sleep(GROWTH)
            try:
                texts = await connection.ask(*[strings.get(key_of(topic.name)) for topic in begun])
            except redis.ResponseError as error:
                log.warning("worker %s: topics can't be checked: %s", self.name, error)
                continue
            for (topic, partitions), text in zip(begun.items(), texts, strict=True):
                try:
                    if text is None or (read_settings(topic.name, text).partitions or 0) <= partitions:
                        continue
                    await arun(connection, topic.agree())
                except (TopicError, redis.ResponseError) as error:  # such as another declared number of partitions
                    if (topic.name, str(error)) not in summary_of:
                        log.error("worker %s: topic %s has changed, but is processed as before: %s", self.name,
                                  topic.name, error)  # fmt: skip
                        summary_of.add((topic.name, str(error)))
                    continue
                except LostError:
                    break  # checked again later
                log.warning("worker %s: topic %s has grown to %d partitions", self.name, topic.name, topic.partitions)
                return

    def _signalled(self, task: asyncio.Task[Any] | None, number: signal.Signals) -> None:
        if self._stopping.is_set() and task is not None:
            log.warning("worker %s: %s again: the current events are cancelled", self.name, number.name)
            task.cancel()
        self._stopping.set()

    async def _watch_lag(self) -> None:
        """Log if the event loop was blocked for longer than a quarter of the lease."""
        period = self.lease.ttl / 8
        done: dict[str, int] = {}
        while True:
            before = time.monotonic()
            await asyncio.sleep(period)
            late = time.monotonic() - before - period
            if late > self.lease.ttl / 4:
                busy = [name for name, stats in self.stats.items() if stats.busy or stats.attempts != done.get(name)]
                log.warning(
                    "worker %s: the event loop was blocked for %.2f s (lease: %g s); active processors: %s. Move"
                    " computations to a thread or another process", self.name, late, self.lease.ttl,
                    ", ".join(busy) or "nothing",
                )  # fmt: skip
            done = {name: stats.attempts for name, stats in self.stats.items()}


class UnownedPartitions:
    """The partitions of a processor with ordering "none": each worker reads all of them while its lease lasts."""

    def __init__(self, declared: Processor, executor: ProcessorExecutor, groups: WorkerGroups) -> None:
        self._declared = declared
        self._executor = executor
        self._unwatch: list[Callable[[], None]] = []
        self._tenures: dict[Lease, Tenure] = {}
        self._partitions: dict[Lease, list[int]] = {}
        for number in range(declared.topic.partitions):
            lease = groups.of(declared.topic.stream(number)).lease
            self._partitions.setdefault(lease, []).append(number)

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self._changed)

        self._unwatch = [lease.watch(changed) for lease in self._partitions]
        self._changed()

    async def stop(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        await _all(self._executor.released(number) for number in list(self._executor.partitions))

    def _changed(self) -> None:
        for lease, numbers in self._partitions.items():
            tenure = lease.tenure
            if tenure is self._tenures.get(lease) and tenure.held:
                continue
            for number in numbers:
                self._executor.lost(number)
            if tenure.held:
                self._tenures[lease] = tenure
                for number in numbers:
                    self._executor.begin(Claim("", number, tenure, 0, b""))


class _Topics:
    """The topics of an app while a worker runs: it compares them with the server and enables sending."""

    def __init__(self, connector: WorkerConnector, topics: Iterable[Topic[Any]]) -> None:
        self._topics = list(topics)
        self._connection = connector.connection()
        self._trouble = FailureLog(log)

    async def __aenter__(self) -> Self:
        return self

    async def ready(self) -> None:
        """Compare the topics with the server as soon as possible. Raises TopicError if they don't match."""
        for topic in self._topics:
            if topic.url is None:  # the server can't be expressed by a URL: several servers, Sentinels, TLS files
                topic.use(cast(AsyncClient, self._connection))  # a topic needs only the method ``together``
            delays = Delays(BACKOFF)
            while True:
                try:
                    await topic.ready()
                    break
                except (*LOST, redis.RedisError) as error:
                    if is_denied(error):
                        raise redis.ResponseError(message_of(error)) from None
                    if not is_retryable(error):
                        raise
                    await self._connection.channel()  # waits for the server, and logs the outage
                    if not isinstance(error, LostError):
                        self._trouble.warn(f"topic {topic.name}: {message_of(error)}; trying again")
                    await asyncio.sleep(delays.next())

    async def __aexit__(self, *_: object) -> None:
        for topic in self._topics:
            topic.forget(cast(AsyncClient, self._connection))
            await topic.close()
        self._connection.close()


def _loop_here() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def _begun(control: ControlStream) -> None:
    while True:
        try:
            await control.begin()
        except LostError:
            continue
        return


async def _protected(connection: WorkerConnection, processors: Iterable[Processor]) -> None:
    """Create the groups of all processors of the app."""
    while True:
        if await connection.repeat(lambda: create_protecting_groups(processors)):
            return
        await asyncio.sleep(AGAIN)


async def _report_undelivered(connection: WorkerConnection, topics: Iterable[str]) -> None:
    for name in topics:
        with suppress(redis.ResponseError):  # the user of the worker lacks the permission
            count = await connection.repeat(partial(delayed.undelivered, name))
            if count:
                log.error(
                    "topic %s: the stream %s:delayed has %d records that an earlier version of tidelog delayed. This"
                    " version does not deliver them. Run a worker of the earlier version until it has delivered them",
                    name, name, count,
                )  # fmt: skip


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Wait for all of these; then raise the first error."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
