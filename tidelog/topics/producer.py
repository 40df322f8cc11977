"""Sending exactly once: records are staged, then published under the fence of a named producer.

    TSTAGE producer:orders:<id>:import:<random> ...            the records are invisible
    TPUBLISH producer:orders:<id>:import 17 CHECK <token> ...  all of them appear; the server stores 17 and the token

Rule 1: the name of a stage is never used twice. Without a reply, the content of a stage is unknown, so the next attempt
        stages everything again under another name.
Rule 2: the server publishes a number once. After a lost reply, even of an earlier call, the producer first checks
        whether that batch was published.
Rule 3: each batch has its own token, which the fence stores as the check of its number. If two programs use one name
        and the same number, the second one gets ConflictError, and nothing of its batch is appended.
Rule 4: if the servers are a cluster of several groups, a batch is published partition by partition (``dividedbatch``).
        A producer that has done so once continues to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import uuid4

import redis

from tidelog.client import calls, steps
from tidelog.client.client import Client
from tidelog.client.entries import Published
from tidelog.client.steps import Steps, checked
from tidelog.operating.errortexts import summary_of
from tidelog.topics.dividedbatch import STAGE_MS, DividedBatch, read_record
from tidelog.topics.pipeline import CallPipeline
from tidelog.topics.sending import RecordWindow, Sender
from tidelog.topics.settings import TopicError, TopicSettings
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.errors import (
    ConflictError,
    CrossGroupError,
    NoStageError,
    StaleEpochError,
    is_retryable,
)

R = TypeVar("R")
PATIENCE: Final = 60.0  # seconds of retries while the server does not answer
BACKOFF: Final = Backoff(first=0.1, most=0.5, jitter=0.5)
log = logging.getLogger(__name__)


class Home(Protocol):
    """The topic of a producer."""

    @property
    def name(self) -> str: ...
    @property
    def agreed(self) -> bool: ...
    @property
    def pipeline(self) -> CallPipeline: ...
    @property
    def client(self) -> Client: ...
    def agree(self) -> Steps[Any]: ...
    @property
    def settings(self) -> TopicSettings: ...
    def sender(self) -> Sender: ...


class _Batches(Generic[R]):
    """The common part of both producers: the number of the last batch, and the operation of one attempt."""

    def __init__(self, topic: Home, name: str) -> None:
        if not name or any(letter.isspace() for letter in name):
            raise TopicError(f"topic {topic.name!r}: the name of a producer is not empty and has no spaces: {name!r}")
        self.topic = topic
        self.name = name
        self._last: int | None = None  # None: not read yet
        self._open: tuple[int, str] | None = None  # number and token of a batch whose TPUBLISH has no reply
        self._divides = False  # whether batches are published partition by partition

    @property
    def fence(self) -> str:
        """The fence. A topic that is created with the same name after this one was deleted has other fences."""
        return f"producer:{self.topic.name}:{self.topic.settings.id}:{self.name}"

    def _begin(self) -> Steps[int]:
        """Return the number of the last published batch, 0 if there is none."""
        yield from self._settle()
        if not self.topic.agreed:
            yield from self.topic.agree()
        if self._last is None or self._divides:
            if self._last is None:
                self._last = (yield from steps.single(calls.tfence(self.fence))) or 0
            record, text = yield from read_record(self.fence)
            self._divides |= text is not None
            self._last = max(self._last, record.last)
        return self._last

    def _settle(self) -> Steps[int]:
        """Determine whether a batch without a reply was published. Returns its number if it was, otherwise 0.

        The server compares number and token before it checks the stages, so a stage that does not exist is sufficient.
        """
        number, token = self._open or (0, "")
        if not number:
            return 0
        (reply,) = yield [calls.tpublish(self.fence, number, f"{self.fence}:{uuid4().hex}", check=token)]
        if isinstance(reply, Exception) and not isinstance(reply, (NoStageError, ConflictError, StaleEpochError)):
            raise reply
        self._open = None
        if isinstance(reply, Exception):
            return 0
        self._last = number
        return number

    def _attempt(self, windows: list[RecordWindow], number: int, token: str) -> Steps[Published]:
        sender = self.topic.sender()
        touched = sorted({at for window in windows for at, _ in window.batches})
        yield from sender.room(touched)
        stage = f"{self.fence}:{uuid4().hex}"
        staged = total = 0
        for window in windows:
            rows = [batch.stage(stage, STAGE_MS, sender.streams[at]) for at, batch in window.batches]
            staged = checked((yield rows))[-1]
            total += window.rows
        if staged != total:
            raise AssertionError(f"stage {stage} holds {staged} rows of {total}")
        self._open = number, token
        (reply,) = yield [calls.tpublish(self.fence, number, stage, check=token)]
        self._open = None
        checked([reply])
        self._last = number
        yield from sender.settled(touched)
        return Published(True, total)

    def publishing(self, records: Iterable[R], number: int | None) -> Callable[[], Steps[Published]]:
        """Return a function for the operation that publishes a batch. It may be called again if it failed."""
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise TopicError(f"producer {self.name!r}: a batch's number is a whole number from 1: {number!r}")
        token = uuid4().hex
        gathered: tuple[Sender, list[RecordWindow]] | None = None  # with the sender for which they were collected
        divided: DividedBatch | None = None

        def publish() -> Steps[Published]:
            nonlocal number, gathered, divided, records
            settled = yield from self._settle()
            if gathered is not None and settled == number:
                return Published(True, sum(window.rows for window in gathered[1]))
            last = yield from self._begin()
            if number is not None and number <= last and gathered is None and divided is None:
                return Published(False, 0)
            if not self.topic.agreed:
                yield from self.topic.agree()
            sender = self.topic.sender()
            if gathered is not None and (self._divides or sender is not gathered[0]):
                records = [record for window in gathered[1] for record in window.records]
                gathered = None
            if self._divides:
                divided = divided or DividedBatch(self.topic, self.topic.settings.id, self.name, self.fence, records)
                return (yield from divided.publish(number, last))
            if number is None:
                number = last + 1
            if gathered is None:
                gathered = sender, _windows(sender, records)
            if not gathered[1]:
                return Published(False, 0)
            try:
                return (yield from self._attempt(gathered[1], number, token))
            except CrossGroupError:  # slots were assigned to another group meanwhile; nothing was published
                self._divides = True
                return (yield from publish())

        return publish

    def _delay(self, delays: Delays, error: BaseException) -> float:
        """Return the seconds until the next attempt. The first failure of an outage is logged."""
        if not delays.failures:
            log.warning("producer %s: %s; retrying for %g s", self.name, summary_of(error), PATIENCE)
        return delays.next()


def _windows(sender: Sender, records: Iterable[Any]) -> list[RecordWindow]:
    """Collect all records in windows."""
    made, left = [], iter(records)
    while (window := sender.gathered(left)).rows:
        made.append(window)
    return made


class Producer(_Batches[R]):
    """Sends batches of records exactly once. ``topic.producer(name)`` returns it. It must not be used concurrently.

    >>> producer = orders.producer("import")
    >>> for number, batch in enumerate(batches, 1):
    ...     await producer.send_many(batch, number)     # after a restart, batches that were sent are skipped
    """

    async def last(self) -> int:
        """Return the number of the last published batch, 0 if there is none."""
        return await self.topic.pipeline.run(self._begin())

    async def send_many(self, records: Iterable[R], number: int | None = None) -> Published:
        """Append the records of one batch, all or nothing. They are buffered in memory until then.

        ``number`` is that of the batch. A batch is skipped if its number or a higher one was published before (``now``
        is False in the result). None: the next number; after a call that raised an error, ``last`` tells whether its
        batch was published. While the server does not answer or has a temporary error, the call is retried for PATIENCE
        seconds. Then the last error is raised: send the batch again with its number. Raises StaleEpochError or
        ConflictError if another program publishes under this name. Other errors are those of ``Topic.send``.
        """
        publishing = self.publishing(records, number)
        until, delays = time.monotonic() + PATIENCE, Delays(BACKOFF)
        while True:
            try:
                self._divides |= await self.topic.pipeline.several_groups()
                return await self.topic.pipeline.run(publishing())
            except (redis.RedisError, OSError) as error:
                if not is_retryable(error) or time.monotonic() >= until:
                    raise
                await asyncio.sleep(self._delay(delays, error))


class SyncProducer(_Batches[R]):
    """``Producer``, blocking. Not thread-safe."""

    def last(self) -> int:
        """See ``Producer.last``."""
        return steps.run(self.topic.client, self._begin())

    def send_many(self, records: Iterable[R], number: int | None = None) -> Published:
        """See ``Producer.send_many``."""
        publishing = self.publishing(records, number)
        until, delays = time.monotonic() + PATIENCE, Delays(BACKOFF)
        while True:
            try:
                self._divides |= self.topic.client.several_groups()
                return steps.run(self.topic.client, publishing())
            except (redis.RedisError, OSError) as error:
                if not is_retryable(error) or time.monotonic() >= until:
                    raise
                time.sleep(self._delay(delays, error))
