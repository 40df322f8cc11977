"""``Declared``: a processor as it was declared, complete and checked. Options, their defaults, what can't be combined.

    option         default                      for
    name           the function's               all
    ordering       "partition"                  each: all three; batch: "partition", "none"; processor: "partition"
    concurrency    100 (batch: 1)               each with "key" or "none", batch with "none"
    ack            "after"                      all
    on_error       the app's                    all
    timeout        none                         all: seconds of one attempt
    middleware     ()                           all: inside the app's
    transactional  False                        all, with ordering "partition" or "key" and ack "after"
    prefetch       1000, or a batch's count     all: events of a partition that are held in memory
    start          "oldest"                     all: where a new group begins
    key            the topic's partition_by     each with "key"
    take           needed                       batch
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Final, Literal, TypedDict
from weakref import WeakKeyDictionary

from tidelog.codecs import CodecError
from tidelog.topics import Topic
from tidelog.topics.partition import Key, canonical
from tidelog.workers.declare.errors import AppError, EarlyReturnError
from tidelog.workers.declare.events import Event, Events, Take
from tidelog.workers.declare.feed_middleware import Layered, Timed
from tidelog.workers.declare.middleware import CallNext, Middleware, checked, once, onion
from tidelog.workers.declare.policy import DeadLetter, Park, Pause, Policy, is_number
from tidelog.workers.declare.signature import Kind, Wants, check_takes, name_of, wants
from tidelog.workers.declare.timeouts import Deadlines

Ordering = Literal["partition", "key", "none"]
Ack = Literal["after", "before", "manual"]
Start = Literal["oldest", "newest"]

PREFETCH: Final = 1000  # events of a partition
CONCURRENCY: Final = 100  # events at a time, of a worker; with ordering "key" or "none"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_ORDERINGS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "each": ("partition", "key", "none"),
    "batch": ("partition", "none"),
    "events": ("partition",),
}
_CALLED: Final[Mapping[Kind, str]] = {"each": "app.each", "batch": "app.batch", "events": "app.processor"}


class Options(TypedDict, total=False):
    """The options of every processor."""

    name: str
    ordering: Ordering
    ack: Ack
    on_error: Sequence[Any] | Policy | None
    timeout: float | None
    middleware: Sequence[Middleware]
    transactional: bool
    prefetch: int
    start: Start


class BatchOptions(Options, total=False):
    """Those of ``app.batch``, beside ``take``."""

    concurrency: int


class EachOptions(BatchOptions, total=False):
    """Those of ``app.each``."""

    key: Callable[[Any], Key]


@dataclass(frozen=True)
class Declared:
    """A processor, made by ``declare``."""

    app: str  # the app's name
    name: str
    topic: Topic[Any]
    kind: Kind
    function: Callable[[Any], Awaitable[None]]
    wants: Wants  # what the function is called with
    ordering: Ordering
    concurrency: int  # calls at a time: of a worker; 1 with ordering "partition", for each partition
    ack: Ack
    take: Take | None  # of kind "batch"
    policy: Policy
    timeout: float | None  # seconds of one attempt
    middleware: tuple[Middleware, ...]  # the app's, then its own; outermost first
    transactional: bool
    prefetch: int  # events of a partition that are held in memory
    start: Start
    key: Callable[[Any], Key | None]  # of a record, for ordering "key"

    @property
    def group(self) -> str:
        """The group of readers that this processor is, on each partition."""
        return f"{self.app}.{self.name}"

    @cached_property
    def plain(self) -> bool:
        """Whether the function may be called with the bare record, or the list of them, and nothing else is to do."""
        return self.kind != "events" and self.wants == "record" and not self.middleware and self.timeout is None

    def key_of(self, record: Any) -> bytes:
        """The bytes of a record's key, for ordering "key". CodecError where ``key`` gives something that is none."""
        key = self.key(record)
        try:
            return canonical(key)  # type: ignore[arg-type]  # None is refused with the others
        except TypeError as error:
            raise CodecError(f"processor {self.name!r}: key: {error}") from None

    async def invoke(self, events: Sequence[Event[Any]]) -> None:
        """Call the function of kind "each" or "batch", within the timeout, with the middleware around it.

        Raises what comes out of them: that goes to the policy. TimeoutError names the processor.
        """
        if self.transactional and self.middleware:
            await once(f"processor {self.name!r}", self.middleware, self._core)(events)
        else:
            await self._layers(events)

    async def invoke_events(self, events: Events[Any]) -> None:
        """Call the function of kind "events" with the events of one partition.

        After a return: nothing more will come if ``events.ended``; the processor wants no more if ``events.is_done``;
        otherwise middleware kept an error back, and the processor is to be called again, with new Events. Raises what
        comes out of the function and its middleware, and EarlyReturnError; ``events.in_hand`` is what it is about,
        nothing if the function failed before its first event.
        """
        layered = Layered(events, self.middleware)
        timed = None if self.timeout is None else Timed(layered, self._deadlines())
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
                    f"processor {self.name!r} returned before its events ended. If that is meant, it calls"
                    " events.done() first"
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
                raise self._late() from error  # whose traceback shows where
            raise
        deadlines.end(timed)

    def _late(self) -> TimeoutError:
        return TimeoutError(f"processor {self.name!r} took longer than its timeout, {self.timeout} s")

    def _deadlines(self) -> Deadlines:
        """Those of the running event loop. Only with a timeout."""
        loop = asyncio.get_running_loop()
        found = self._timing.get(loop)
        if found is None:
            found = self._timing[loop] = Deadlines(self.timeout or 0)
        return found

    @cached_property
    def _timing(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, Deadlines]:
        return WeakKeyDictionary()


# -- declaring -----------------------------------------------------------------------------------------------
def declare(
    app: str, kind: Kind, topic: Topic[Any], function: Callable[[Any], Awaitable[None]], options: Mapping[str, Any],
    on_error: Policy, middleware: tuple[Middleware, ...],
) -> Declared:  # fmt: skip
    """A processor from what its decorator was given. AppError where that makes no sense.

    ``on_error`` and ``middleware`` are the app's.
    """
    _known(kind, options)
    given = dict(options)
    name = given.get("name", name_of(function))
    check_name("a processor", name)
    title = f"processor {name!r}"
    wanted = wants(title, kind, function, topic.codec.shape.type)
    ordering = _one_of(title, "ordering", given.get("ordering", "partition"), ("partition", "key", "none"))
    if ordering not in _ORDERINGS[kind]:
        raise AppError(
            f"{title}: {_CALLED[kind]} has no ordering={ordering!r}, only {_listed(_ORDERINGS[kind])}: app.each has all"
        )
    take = _take(title, kind, given)
    policy = on_error if given.get("on_error") is None else Policy.of(given["on_error"])
    declared = Declared(
        app=app,
        name=name,
        topic=topic,
        kind=kind,
        function=function,
        wants=wanted,
        ordering=ordering,
        concurrency=_concurrency(title, kind, ordering, given),
        ack=_one_of(title, "ack", given.get("ack", "after"), ("after", "before", "manual")),
        take=take,
        policy=policy,
        timeout=_timeout(title, given.get("timeout")),
        middleware=(*middleware, *checked(title, given.get("middleware", ()))),
        transactional=_flag(title, "transactional", given.get("transactional", False)),
        prefetch=_prefetch(title, take, given),
        start=_one_of(title, "start", given.get("start", "oldest"), ("oldest", "newest")),
        key=_key(title, topic, ordering, given),
    )
    _check_combination(title, declared)
    return declared


def check_name(what: str, name: Any) -> None:
    """AppError unless it can be part of keys and of a group's name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        way_out = "" if what == "an app" else ": give it one, name='...'"
        raise AppError(f"{what} can't have the name {name!r}: 1 to 100 letters, digits, - and _{way_out}")


def _known(kind: Kind, options: Mapping[str, Any]) -> None:
    known = {"each": EachOptions, "batch": BatchOptions, "events": Options}[kind].__annotations__.keys()
    allowed = {*known, "take"} if kind == "batch" else {*known}
    for name in options:
        if name not in allowed:
            close = get_close_matches(name, allowed, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(allowed))}"
            raise AppError(f"{_CALLED[kind]} has no option {name!r}: {meant}")


def _take(title: str, kind: Kind, given: Mapping[str, Any]) -> Take | None:
    if kind != "batch":
        return None
    take = given.get("take")
    if not isinstance(take, Take):
        raise AppError(f"{title}: app.batch needs take=Take(count, within=seconds): {take!r}")
    return take


def _concurrency(title: str, kind: Kind, ordering: str, given: Mapping[str, Any]) -> int:
    value = given.get("concurrency")
    if ordering == "partition":
        if value not in (None, 1):
            other = "ordering='key' or 'none'" if kind == "each" else "ordering='none'"
            raise AppError(f"{title}: with ordering='partition' each partition has one call at a time: {other}")
        return 1
    default = CONCURRENCY if kind == "each" else 1
    return _whole(title, "concurrency", default if value is None else value)


def _prefetch(title: str, take: Take | None, given: Mapping[str, Any]) -> int:
    least = take.count if take is not None else 1
    if given.get("prefetch") is None:
        return max(PREFETCH, least)
    value = _whole(title, "prefetch", given["prefetch"])
    if value < least:
        raise AppError(f"{title}: prefetch={value} is below the {least} events of a batch, which could never be full")
    return value


def _key(title: str, topic: Topic[Any], ordering: str, given: Mapping[str, Any]) -> Callable[[Any], Key | None]:
    function = given.get("key")
    if function is None:
        if ordering == "key" and topic.declared.partition_by is None:
            raise AppError(
                f"{title}: ordering='key' needs a key, and topic {topic.name!r} has no partition_by. Declare one,"
                " or give key=function of a record"
            )
        return topic.key
    if ordering != "key":
        raise AppError(f"{title}: key is for ordering='key', and ordering is {ordering!r}")
    check_takes(f"{title}: key", function, "key=lambda record: record.customer")
    checked_key: Callable[[Any], Key | None] = function
    return checked_key


def _timeout(title: str, value: Any) -> float | None:
    if value is not None and (not is_number(value) or value <= 0):
        raise AppError(f"{title}: timeout is a positive number of seconds: {value!r}. Without a limit: leave it out")
    return None if value is None else float(value)


def _check_combination(title: str, declared: Declared) -> None:
    """Options that are fine by themselves, but not together."""
    ending = declared.policy.ending
    if declared.transactional and declared.ordering == "none":
        raise AppError(f"{title}: transactional needs an owner of the partition: ordering='partition' or 'key'")
    if declared.transactional and declared.ack != "after":
        raise AppError(f"{title}: transactional=True acknowledges in its transaction: leave ack={declared.ack!r} out")
    if declared.transactional and declared.kind != "events" and declared.wants == "record" and not declared.middleware:
        raise AppError(f"{title}: transactional sends by event.send(...), so its function takes an Event, not a record")
    if declared.ack == "manual" and declared.kind != "events" and declared.wants == "record":
        raise AppError(f"{title}: ack='manual' is event.ack(), so its function takes an Event, not a record")
    if isinstance(ending, Park) and declared.ordering != "key":
        raise AppError(f"{title}: Park() holds back a key, so it needs ordering='key'; or Pause(), for a partition")
    if isinstance(ending, Pause) and declared.ordering == "none":
        raise AppError(f"{title}: Pause() needs an owner of the partition: ordering='partition' or 'key'; or Halt()")
    if isinstance(ending, Park | Pause) and declared.ack == "before":
        raise AppError(
            f"{title}: {type(ending).__name__}() keeps an event, and with ack='before' it is gone: Skip(), DeadLetter()"
        )
    if isinstance(ending, DeadLetter) and ending.target(declared.topic.name) == declared.topic.name:
        raise AppError(f"{title}: DeadLetter({ending.topic!r}) is its own topic, so it would get its letters for ever")


def _whole(title: str, name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise AppError(f"{title}: {name} must be a whole number from 1: {value!r}")
    return value


def _flag(title: str, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise AppError(f"{title}: {name} is True or False: {value!r}")
    return value


def _one_of(title: str, name: str, value: Any, known: tuple[str, ...]) -> Any:
    if value not in known:
        raise AppError(f"{title}: {name} is {_listed(known)}: {value!r}")
    return value


def _listed(words: Sequence[str]) -> str:
    return " or ".join(map(repr, words))
