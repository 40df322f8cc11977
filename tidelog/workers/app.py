"""``App``: topics, processors and timers. It is a declaration: nothing runs before a worker runs the app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, overload

from tidelog.codecs import CodecError
from tidelog.topics import Topic, TopicError
from tidelog.topics.failureactions import DeadLetter, is_number
from tidelog.transport.access import DEFAULT_URL, Access
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.middleware import Middleware, checked
from tidelog.workers.declare.policy import Policy
from tidelog.workers.declare.processor import (
    BatchOptions,
    EachOptions,
    Processor,
    ProcessorOptions,
    check_name,
    declare,
)
from tidelog.workers.declare.schedule import CronSchedule, IntervalSchedule, ScheduledFunction
from tidelog.workers.declare.signature import Kind, check_takes, name_of, wants_time

if TYPE_CHECKING:
    from tidelog.testing import Server
    from tidelog.workers.operate.testing import AppTest

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Awaitable[None]])

LEAST_LEASE: Final = 0.2  # seconds; a shorter lease would be renewed faster than a busy server replies


class App:
    """The declaration of an app: its topics, processors, timers and crons.

    >>> app = App("shop", url="redis://localhost:6379")
    >>> orders = app.topic("orders", Order, partition_by="id", partitions=16)
    >>> @app.each(orders)
    ... async def bill(order: Order) -> None: ...

    name: 1 to 100 letters, digits, ``-``, ``_``. It is part of the app's keys and groups: an app with another name
        starts from the beginning.
    url: The server, several servers, or Sentinels: [URL syntax](topics.md#the-server). None: localhost. The app's
        topics use the same server, even without a worker.
    access: A ``tidelog.Access`` with several servers, Sentinels or certificates; replaces ``url``.
    lease: Seconds that a worker can be silent before the other workers consider it dead. *With a short lease, dead
        workers are detected sooner, but a process that is stopped or swapped out for longer loses its partitions.*
    grace: Seconds that a stopping worker may take to finish the current events; at least ``lease``. *A supervisor such
        as Kubernetes or systemd must wait longer than this before it kills the worker.*
    middleware: Middleware for all processors, outermost first.
    on_error: The failure policy of processors without their own. None: ``[Retry(3), DeadLetter()]``.

    Raises AppError, here and in all methods, if a declaration is invalid.
    """

    def __init__(
        self,
        name: str,
        url: str | None = None,
        *,
        access: Access | None = None,
        lease: float = 10.0,
        grace: float = 30.0,
        middleware: Sequence[Middleware] = (),
        on_error: Sequence[Any] | Policy | None = None,
    ) -> None:
        check_name("an app", name)
        title = f"app {name!r}"
        if url is not None and access is not None:
            raise AppError(f"{title}: url and access both specify the server: use one of them")
        for what, value in (("lease", lease), ("grace", grace)):
            if not is_number(value) or value < LEAST_LEASE:
                raise AppError(f"{title}: {what} must be a number of seconds, at least {LEAST_LEASE}: {value!r}")
        if lease > grace:
            raise AppError(
                f"{title}: lease ({lease} s) is longer than grace ({grace} s), so a worker that stops would release its"
                " partitions later than one that dies. Shorten lease, or extend grace"
            )
        try:
            self.access = access or Access.of(url or DEFAULT_URL)
        except ValueError as error:
            raise AppError(f"{title}: {error}") from None
        self.name = name
        self.lease = float(lease)
        self.grace = float(grace)
        self.middleware = checked(title, middleware)
        self.policy = Policy.of(on_error)
        self.topics: dict[str, Topic[Any]] = {}
        self.processors: dict[str, Processor] = {}
        self.timers: dict[str, ScheduledFunction] = {}  # timers and crons
        self.url = None if access is not None else url or DEFAULT_URL  # None: the app was declared with an Access

    def __repr__(self) -> str:
        return f"App({self.name!r})"

    @overload
    def topic(self, name: str, record_type: type[R], **options: Any) -> Topic[R]: ...
    @overload
    def topic(self, name: str, record_type: Any = ..., **options: Any) -> Topic[Any]: ...
    def topic(self, name: str, record_type: Any = dict, **options: Any) -> Topic[Any]:
        """Declare a topic on the app's server. The arguments are those of ``Topic``."""
        if callable(options.get("partition_by")):
            example = "partition_by=lambda record: record.id"
            check_takes(f"topic {name!r}: partition_by", options["partition_by"], example)
        try:
            where: dict[str, Any] = {"url": self.url, "access": self.access if self.url is None else None}
            if options.keys() & {"url", "access"}:
                where = {}
            topic: Topic[Any] = Topic(name, record_type, **where, **options)
        except TypeError as error:
            if isinstance(error, CodecError):
                raise AppError(f"topic {name!r}: {error}") from None
            raise AppError(f"topic {name!r}: {str(error).removeprefix('Topic.__init__() ')}") from None
        except TopicError as error:
            raise AppError(str(error)) from None
        self._add_topic(topic)
        return topic

    def each(self, topic: Topic[Any], **options: Unpack[EachOptions]) -> Callable[[F], F]:
        """Declare a function that takes one record (or Event) at a time.

        ``EachOptions`` lists the options with their defaults.
        """
        return self._declaring("each", topic, options)

    def batch(self, topic: Topic[Any], **options: Unpack[BatchOptions]) -> Callable[[F], F]:
        """Declare a function that takes a list of records (or Events), whose size ``take`` determines.

        The options are those of ``each``, without ``key``. An exception is a failure of the whole batch.
        """
        return self._declaring("batch", topic, options)

    def processor(self, topic: Topic[Any], **options: Unpack[ProcessorOptions]) -> Callable[[F], F]:
        """Declare a function that is called once per partition, with its ``Events``.

        The options are those of ``each``, without ``concurrency`` and ``key``; the ordering is "partition".
        """
        return self._declaring("events", topic, options)

    def timer(
        self, interval: float, *, name: str | None = None, on_leader: bool = False, catch_up: bool = False
    ) -> Callable[[F], F]:
        """Declare a function that is called every ``interval`` seconds, without arguments or with the scheduled time.

        on_leader: only on the leader. The last execution is stored on the server, so that a new leader continues from
            there. False: in each worker, from its start.
        catch_up: call the function once for each missed interval; False: once for all of them.
        """
        return self._scheduling(name, "timer", lambda: IntervalSchedule(interval), on_leader, catch_up)

    def cron(
        self, expression: str, *, timezone: str = "UTC", name: str | None = None, on_leader: bool = True,
        catch_up: bool = False,
    ) -> Callable[[F], F]:  # fmt: skip
        """Declare a function that is called at the times of a cron expression, without arguments or with the time.

        expression: five fields, or six with seconds first; see ``CronSchedule``. Requires ``tidelog[workers]``.
        timezone: a name such as ``Europe/Oslo``.
        on_leader: as for ``timer``.
        catch_up: call the function once for each time that passed while no worker ran; False: skip them.
        """
        return self._scheduling(name, "cron", lambda: CronSchedule(expression, timezone), on_leader, catch_up)

    def select(self, names: Iterable[str] | None = None) -> list[Processor]:
        """Return the processors with these names, or all of them. Raises AppError if a name is unknown."""
        if names is None:
            return list(self.processors.values())
        found = []
        for name in names:
            if name not in self.processors:
                known = ", ".join(self.processors) or "none"
                raise AppError(f"app {self.name!r} has no processor {name!r}: it has {known}")
            found.append(self.processors[name])
        return found

    def test(
        self, *, workers: int = 1, processors: Iterable[str] | None = None, lease: float = 1.0, grace: float = 5.0,
        server: Server | None = None,
    ) -> AppTest:  # fmt: skip
        """Run the app in this process with this many workers, on its own server: ``async with app.test() as test``.

        Until the end, the app's topics are on that server, regardless of their declaration. ``processors``: run only
        these. ``server``: a running server of ``tidelog.testing``, such as the fixture; it should be empty.
        """
        from tidelog.workers.operate.testing import AppTest  # it imports pytest if that is installed

        return AppTest(self, workers, processors, lease, grace, server)

    def _declaring(self, kind: Kind, topic: Any, options: Any) -> Callable[[F], F]:
        if not isinstance(topic, Topic):
            way = "app.each(orders), app.batch(orders, take=Take(100)) or app.processor(orders)"
            raise AppError(f"a processor needs a topic from app.topic(...), not {topic!r}. Write {way}")

        def decorate(function: F) -> F:
            self._add_topic(topic)
            declared = declare(self.name, kind, topic, function, options, self.policy, self.middleware)
            self._check_free(declared.name)
            for each in declared.sends or ():
                self._add_topic(each)
            self._check_dead_letter_topic(declared)
            self.processors[declared.name] = declared
            return function

        return decorate

    def _scheduling(
        self,
        name: str | None,
        kind: str,
        timing: Callable[[], IntervalSchedule | CronSchedule],
        on_leader: bool,
        catch_up: bool,
    ) -> Callable[[F], F]:
        if name is not None:
            check_name(f"a {kind}", name)
        for what, value in (("on_leader", on_leader), ("catch_up", catch_up)):
            if not isinstance(value, bool):
                raise AppError(f"app.{kind}: {what} must be True or False: {value!r}")
        try:
            schedule = timing()
        except AppError as error:
            raise AppError(f"app.{kind}: {error}") from None

        def decorate(function: F) -> F:
            called = name_of(function) if name is None else name
            check_name(f"a {kind}", called)
            takes_time = wants_time(f"{kind} {called!r}", function)
            self._check_free(called)
            self.timers[called] = ScheduledFunction(called, function, schedule, on_leader, catch_up, takes_time)
            return function

        return decorate

    def _add_topic(self, topic: Topic[Any]) -> None:
        if topic.access is not None and not self.access.has(topic.access):
            raise AppError(
                f"topic {topic.name!r} is on {topic.access.places}, but app {self.name!r} on {self.access.places}: an"
                " app's topics must be on its server. Leave url and access out of the topic, or use the same for both"
            )
        known = self.topics.setdefault(topic.name, topic)
        if known is not topic:
            raise AppError(f"app {self.name!r} has a topic {topic.name!r} already: declare it once and reuse it")

    def _check_dead_letter_topic(self, declared: Processor) -> None:
        """Raise AppError if the dead-letter queue is a topic of the app with other records."""
        final = declared.policy.final
        if isinstance(final, DeadLetter):
            topic = self.topics.get(final.target(declared.topic.name))
            if topic is not None and topic.codec.shape.fields:
                raise AppError(
                    f"processor {declared.name!r}: its dead letters would go to topic {topic.name!r}, which contains"
                    f" {topic.codec.shape.title}. Specify another topic: DeadLetter('...')"
                )

    def _check_free(self, name: str) -> None:
        for what, known in (("processor", self.processors), ("timer", self.timers)):
            if name in known:
                raise AppError(f"app {self.name!r} has a {what} {name!r} already: specify another name='...'")
