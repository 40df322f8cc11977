"""``Processor``: a processor as declared, with checked options. ``EachOptions`` lists them with their defaults.

``declare`` checks the options and their combinations.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, Required, TypedDict
from weakref import WeakKeyDictionary

from tidelog.client.entries import StreamId
from tidelog.codecs import CodecError
from tidelog.options.start import EARLIEST, StartPosition
from tidelog.options.structs import nearest
from tidelog.topics import Topic
from tidelog.topics.failureactions import DeadLetter, Park, Pause, is_number
from tidelog.topics.partition import Key, canonical
from tidelog.workers.declare.errors import AppError, EarlyReturnError
from tidelog.workers.declare.events import Event, Events, Take
from tidelog.workers.declare.feed_middleware import MiddlewareFeed, TimedFeed
from tidelog.workers.declare.middleware import CallNext, Middleware, checked, once, onion
from tidelog.workers.declare.policy import Policy
from tidelog.workers.declare.signature import Kind, Wants, check_takes, name_of, wants
from tidelog.workers.declare.timeouts import CallTimeouts

Ordering = Literal["partition", "key", "none"]
Ack = Literal["after", "before", "manual"]
Start = str | StreamId | datetime

PREFETCH: Final = 1000  # events per partition
CONCURRENCY: Final = 100  # concurrent events per worker, with ordering "key" or "none"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ORDERINGS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "each": ("partition", "key", "none"),
    "batch": ("partition", "none"),
    "events": ("partition",),
}
_CALLED: Final[Mapping[Kind, str]] = {"each": "app.each", "batch": "app.batch", "events": "app.processor"}


class ProcessorOptions(TypedDict, total=False):
    """Options of every processor. Comments: the default, the processors that have the option, and its description."""

    name: str
    # the function's name | all | Also part of the group's name: a processor with another name starts from the
    # beginning.
    ordering: Ordering  # `"partition"` | all; `batch`: not `"key"`; `processor`: only this | See [Ordering](#ordering).
    ack: Ack  # `"after"` | all | See [Acknowledgement](#acknowledgement).
    on_error: Sequence[Any] | Policy | None  # the app's | all | See [When a function fails](#when-a-function-fails).
    timeout: float | None  # none | all | Seconds per attempt.
    middleware: Sequence[Middleware]  # none | all | Runs inside the app's middleware.
    transactional: bool
    # `False` | all with an owner of the partition and `ack="after"` | Records of `event.send` are sent in one
    # transaction with the acknowledgement, so each event takes effect exactly once. The function must take events.
    # *Only for topics on the same server.*
    sends: Sequence[Topic[Any]] | None
    # any | with `transactional=True` | All topics to which `event.send` sends. Required in a cluster of several groups,
    # so that the worker can check at its start that they are on the groups of the processor's partitions.
    prefetch: int
    # 1000, at least `take.count` | all | Maximum number of events per partition that a worker holds in memory. With
    # `ordering="none"`, a worker prefetches about one second of work and returns events that it has not started by
    # then. *Large values delay redelivery after a worker dies.*
    start: Start
    # `"earliest"` | all | Where a new processor starts: `"earliest"`, `"latest"` (only records that are sent from then
    # on), an ID (after this entry), or a time such as `"2026-11-21T08:00:00Z"`. *It applies only when the group is
    # created.* Partitions that are added later are read from their beginning.


class EachOptions(ProcessorOptions, total=False):
    """Options of ``app.each``."""

    concurrency: int
    # 100; `batch`: 1 | `each` and `batch` that are not ordered by partition | Concurrent calls per worker. *With `w`
    # workers, a database receives `w` times as many.*
    key: Callable[[Any], Key]
    # the topic's `partition_by` | `each` by `"key"` | A function of the record that returns str, int, bytes or UUID.


class BatchOptions(ProcessorOptions, total=False):
    """Options of ``app.batch``."""

    concurrency: int  # as for ``EachOptions``
    take: Required[Take]  # required | `batch` | The size of a batch: `Take(count, within=0.5)`.


@dataclass(frozen=True)
class Processor:
    """A declared processor. ``declare`` creates it."""

    app: str  # the app's name
    name: str
    topic: Topic[Any]
    kind: Kind
    function: Callable[[Any], Awaitable[None]]
    wants: Wants  # the argument of the function
    ordering: Ordering
    concurrency: int  # concurrent calls per worker; with ordering "partition": 1 per partition
    ack: Ack
    take: Take | None  # for kind "batch"
    policy: Policy
    timeout: float | None  # seconds per attempt
    middleware: tuple[Middleware, ...]  # the app's, then its own; outermost first
    transactional: bool
    sends: tuple[Topic[Any], ...] | None  # the topics to which a transactional processor sends; None: any
    prefetch: int  # events of a partition that are held in memory
    start: StartPosition  # of a new group
    key: Callable[[Any], Key | None]  # of a record; used by ordering "key"

    @property
    def group(self) -> str:
        """The name of the consumer group of this processor, on each partition."""
        return f"{self.app}.{self.name}"

    @cached_property
    def plain(self) -> bool:
        """Whether the function can be called directly with the record or the list of records."""
        return self.kind != "events" and self.wants == "record" and not self.middleware and self.timeout is None

    def key_of(self, record: Any) -> bytes:
        """Return a record's key as bytes, for ordering "key". Raises CodecError if ``key`` returns another type."""
        key = self.key(record)
        try:
            return canonical(key)  # type: ignore[arg-type]  # None is refused with the others
        except TypeError as error:
            raise CodecError(f"processor {self.name!r}: key: {error}") from None

    async def invoke(self, events: Sequence[Event[Any]]) -> None:
        """Call the function of kind "each" or "batch", within the timeout, with the middleware around it.

        Raises the errors of the function and the middleware. A TimeoutError names the processor.
        """
        if self.transactional and self.middleware:
            await once(f"processor {self.name!r}", self.middleware, self._core)(events)
        else:
            await self._layers(events)

    async def invoke_events(self, events: Events[Any]) -> None:
        """Call the function of kind "events" with the events of one partition.

        After a return: if ``events.ended``, no more events will come; if ``events.is_done``, the function wants no
        more; otherwise middleware has suppressed an error, and the function must be called again with new Events.
        Raises the errors of the function and its middleware, and EarlyReturnError. The error concerns
        ``events.in_flight``, which is empty if the function failed before its first event.
        """
        layered = MiddlewareFeed(events, self.middleware)
        timed = None if self.timeout is None else TimedFeed(layered, self._deadlines())
        events.feed = timed or layered
        try:
            try:
                await self.function(events)
            except BaseException as error:
                if timed is not None and timed.end(error):
                    raise self._late() from error
                raise
            if timed is not None:
                timed.end(None)
            if not events.ended and not events.is_done:
                raise EarlyReturnError(
                    f"processor {self.name!r} returned before its events ended. If this is intended, call events.done()"
                    " first"
                )
            await layered.close()
        except Exception as error:  # noqa: BLE001 - all of them pass through the middleware
            await layered.fail(error)
        finally:
            await layered.abandon()

    @cached_property
    def _layers(self) -> CallNext:
        return onion(self.middleware, self._core)

    @property
    def _core(self) -> CallNext:
        return self._each if self.kind == "each" else self._batch

    async def _each(self, events: Sequence[Event[Any]]) -> None:
        for event in events:
            argument = event if self.wants == "event" else event.record
            await self._in_time(self.function(argument))

    async def _batch(self, events: Sequence[Event[Any]]) -> None:
        if events:
            await self._in_time(self.function([e if self.wants == "event" else e.record for e in events]))

    async def _in_time(self, call: Awaitable[None]) -> None:
        if self.timeout is None:
            await call
            return
        deadlines = self._deadlines()
        timed = deadlines.begin()
        try:
            await call
        except BaseException as error:
            if deadlines.end(timed, error):
                raise self._late() from error  # the traceback shows where the time was spent
            raise
        deadlines.end(timed)

    def _late(self) -> TimeoutError:
        return TimeoutError(f"processor {self.name!r} took longer than its timeout, {self.timeout} s")

    def _deadlines(self) -> CallTimeouts:
        """Return the timeouts of the running event loop. Requires a timeout."""
        loop = asyncio.get_running_loop()
        found = self._timing.get(loop)
        if found is None:
            found = self._timing[loop] = CallTimeouts(self.timeout or 0)
        return found

    @cached_property
    def _timing(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, CallTimeouts]:
        return WeakKeyDictionary()


# -- declaring -----------------------------------------------------------------------------------------------
def declare(
    app: str, kind: Kind, topic: Topic[Any], function: Callable[[Any], Awaitable[None]], options: Mapping[str, Any],
    on_error: Policy, middleware: tuple[Middleware, ...],
) -> Processor:  # fmt: skip
    """Return the processor for the arguments of its decorator. Raises AppError if they are invalid.

    ``on_error`` and ``middleware`` are those of the app.
    """
    _known(kind, options)
    name = options.get("name", name_of(function))
    check_name("a processor", name)
    title = f"processor {name!r}"
    wanted = wants(title, kind, function, topic.codec.shape.type)
    ordering = _one_of(title, "ordering", options.get("ordering", "partition"), ("partition", "key", "none"))
    if ordering not in _ORDERINGS[kind]:
        raise AppError(
            f"{title}: {_CALLED[kind]} does not support ordering={ordering!r}, only {_listed(_ORDERINGS[kind])}."
            " app.each supports all"
        )
    take = _take(title, kind, options)
    policy = on_error if options.get("on_error") is None else Policy.of(options["on_error"])
    declared = Processor(
        app=app,
        name=name,
        topic=topic,
        kind=kind,
        function=function,
        wants=wanted,
        ordering=ordering,
        concurrency=_concurrency(title, kind, ordering, options),
        ack=_one_of(title, "ack", options.get("ack", "after"), ("after", "before", "manual")),
        take=take,
        policy=policy,
        timeout=_timeout(title, options.get("timeout")),
        middleware=(*middleware, *checked(title, options.get("middleware", ()))),
        transactional=_flag(title, "transactional", options.get("transactional", False)),
        sends=_sends(title, options.get("sends")),
        prefetch=_prefetch(title, take, options),
        start=_start(title, options.get("start", EARLIEST)),
        key=_key(title, topic, ordering, options),
    )
    _check_combination(title, declared)
    return declared


def check_name(what: str, name: Any) -> None:
    """Raise AppError unless the name can be part of keys and of a group's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        way_out = "" if what == "an app" else ". Specify name='...'"
        raise AppError(f"{what} can't have the name {name!r}: 1 to 100 letters, digits, - and _{way_out}")


def _known(kind: Kind, options: Mapping[str, Any]) -> None:
    known = {"each": EachOptions, "batch": BatchOptions, "events": ProcessorOptions}[kind].__annotations__.keys()
    for name in options:
        if name not in known:
            raise AppError(f"{_CALLED[kind]} has no option {name!r}: {nearest(name, known)}")


def _take(title: str, kind: Kind, options: Mapping[str, Any]) -> Take | None:
    if kind != "batch":
        return None
    take = options.get("take")
    if not isinstance(take, Take):
        raise AppError(f"{title}: app.batch needs take=Take(count, within=seconds): {take!r}")
    return take


def _concurrency(title: str, kind: Kind, ordering: str, options: Mapping[str, Any]) -> int:
    value = options.get("concurrency")
    if ordering == "partition":
        if value not in (None, 1):
            other = "ordering='key' or 'none'" if kind == "each" else "ordering='none'"
            raise AppError(f"{title}: with ordering='partition' each partition has one call at a time. Use {other}")
        return 1
    default = CONCURRENCY if kind == "each" else 1
    return _whole(title, "concurrency", default if value is None else value)


def _prefetch(title: str, take: Take | None, options: Mapping[str, Any]) -> int:
    least = take.count if take is not None else 1
    if options.get("prefetch") is None:
        return max(PREFETCH, least)
    value = _whole(title, "prefetch", options["prefetch"])
    if value < least:
        raise AppError(
            f"{title}: prefetch={value} is less than the {least} events of a batch, which would never be full"
        )
    return value


def _key(title: str, topic: Topic[Any], ordering: str, options: Mapping[str, Any]) -> Callable[[Any], Key | None]:
    function = options.get("key")
    if function is None:
        if ordering == "key" and topic.declared.partition_by is None:
            raise AppError(
                f"{title}: ordering='key' needs a key, and topic {topic.name!r} has no partition_by. Declare one,"
                " or specify key=function of a record"
            )
        return topic.key
    if ordering != "key":
        raise AppError(f"{title}: key requires ordering='key', but ordering is {ordering!r}")
    check_takes(f"{title}: key", function, "key=lambda record: record.customer")
    checked_key: Callable[[Any], Key | None] = function
    return checked_key


def _sends(title: str, value: Any) -> tuple[Topic[Any], ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple | set | frozenset) or not all(isinstance(each, Topic) for each in value):
        raise AppError(f"{title}: sends must be a list of topics from app.topic(...): {value!r}")
    return tuple(value)


def _start(title: str, value: Start) -> StartPosition:
    try:
        return StartPosition(value)
    except ValueError as error:
        raise AppError(f"{title}: {error}") from None


def _timeout(title: str, value: Any) -> float | None:
    if value is not None and (not is_number(value) or value <= 0):
        raise AppError(f"{title}: timeout must be a positive number of seconds: {value!r}. Leave it out for no timeout")
    return None if value is None else float(value)


def _check_combination(title: str, declared: Processor) -> None:
    """Check options that are valid individually, but not in combination."""
    final = declared.policy.final
    if declared.sends is not None and not declared.transactional:
        raise AppError(f"{title}: sends requires transactional=True. Other processors can send to any topic")
    if declared.transactional and declared.ordering == "none":
        raise AppError(f"{title}: transactional requires an owner of the partition: ordering='partition' or 'key'")
    if declared.transactional and declared.ack != "after":
        raise AppError(f"{title}: transactional=True acknowledges in its transaction: remove ack={declared.ack!r}")
    if declared.transactional and declared.kind != "events" and declared.wants == "record" and not declared.middleware:
        raise AppError(f"{title}: transactional requires event.send(...), so its function must take an Event")
    if declared.ack == "manual" and declared.kind != "events" and declared.wants == "record":
        raise AppError(f"{title}: ack='manual' requires event.ack(), so its function must take an Event")
    if isinstance(final, Park) and declared.ordering != "key":
        raise AppError(f"{title}: Park() retains a key, so it requires ordering='key'. Pause() retains a partition")
    if isinstance(final, Pause) and declared.ordering == "none":
        raise AppError(
            f"{title}: Pause() requires an owner of the partition: ordering='partition' or 'key'. Or use Halt()"
        )
    if isinstance(final, Park | Pause) and declared.ack == "before":
        raise AppError(
            f"{title}: {type(final).__name__}() requires ack='after' or 'manual', because ack='before' has acknowledged"
            " the event already. Or use Skip() or DeadLetter()"
        )
    if isinstance(final, DeadLetter) and final.target(declared.topic.name) == declared.topic.name:
        raise AppError(f"{title}: DeadLetter({final.topic!r}) is the topic itself: its dead letters would never end")


def _whole(title: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise AppError(f"{title}: {name} must be a whole number from 1: {value!r}")
    return value


def _flag(title: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise AppError(f"{title}: {name} must be True or False: {value!r}")
    return value


def _one_of(title: str, name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise AppError(f"{title}: {name} must be {_listed(known)}: {value!r}")
    return value


def _listed(words: Sequence[str]) -> str:
    return " or ".join(map(repr, words))
