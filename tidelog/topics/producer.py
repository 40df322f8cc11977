"""Sending exactly once: records are staged, then published under the fence of a named producer.

    TSTAGE producer:orders:<id>:import:<random> ...            nobody sees the records
    TPUBLISH producer:orders:<id>:import 17 CHECK <token> ...  all of them appear; the server remembers 17 and the token

Rule 1: the name of a stage is never used twice. Without a reply it is unknown what a stage holds, so the next attempt
        stages everything again under another name.
Rule 2: the server publishes a number once. After a lost reply, also one of an earlier call, it is asked first whether
        that batch had come through.
Rule 3: each batch has a token of its own, which the fence keeps as the check of its number. So two programs that use
        one name, and one number, are told: the second one gets ConflictError, and nothing of its batch is appended.
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
from tidelog.topics.pipeline import CallPipeline
from tidelog.topics.sending import Gather, Sender
from tidelog.topics.settings import TopicError, TopicSettings
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.errors import ConflictError, NoStageError, StaleEpochError, is_retryable

R = TypeVar("R")
STAGE_MS: Final = 600_000  # after so long without a row, what was staged and not published is gone
PATIENCE: Final = 60.0  # seconds of attempts while the server does not answer
BACKOFF: Final = Backoff(first=0.1, most=0.5, jitter=0.5)
log = logging.getLogger(__name__)


class Home(Protocol):
    """The topic of a producer."""

    @property
    def name(self) -> str: ...
    @property
    def agreed(self) -> bool: ...
    @property
    def lane(self) -> CallPipeline: ...
    @property
    def client(self) -> Client: ...
    def agree(self) -> Steps[Any]: ...
    @property
    def facts(self) -> TopicSettings: ...
    def sender(self) -> Sender: ...


class _Batches(Generic[R]):
    """What both producers share: the number of the last batch, and the steps of one attempt."""

    def __init__(self, topic: Home, name: str) -> None:
        if not name or any(letter.isspace() for letter in name):
            raise TopicError(f"topic {topic.name!r}: the name of a producer is not empty and has no spaces: {name!r}")
        self.topic = topic
        self.name = name
        self._last: int | None = None  # None: not asked yet
        self._open: tuple[int, str] | None = None  # number and token of a batch whose TPUBLISH has no reply

    @property
    def fence(self) -> str:
        """The fence. Another topic of the same name, made after this one was deleted, has other fences."""
        return f"producer:{self.topic.name}:{self.topic.facts.id}:{self.name}"

    def _begin(self) -> Steps[int]:
        """The number of the last batch that was published, 0 if none was."""
        yield from self._settle()
        if not self.topic.agreed:
            yield from self.topic.agree()
        if self._last is None:
            self._last = (yield from steps.single(calls.tfence(self.fence))) or 0
        return self._last

    def _settle(self) -> Steps[int]:
        """Find out what became of a batch whose call got no reply. Returns its number if it was published, else 0.

        The server compares number and token before it looks at the stages: one that does not exist will do.
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

    def _attempt(self, windows: list[Gather], number: int, token: str) -> Steps[Published]:
        sender = self.topic.sender()
        touched = sorted({at for window in windows for at, _ in window.runs})
        yield from sender.room(touched)
        stage = f"{self.fence}:{uuid4().hex}"
        staged = total = 0
        for window in windows:
            staged = checked((yield [run.stage(stage, STAGE_MS, sender.streams[at]) for at, run in window.runs]))[-1]
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

    def _publishing(self, records: Iterable[R], number: int | None) -> Callable[[], Steps[Published]]:
        """Steps that publish a batch; they may be run again where the connection failed."""
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise TopicError(f"producer {self.name!r}: a batch's number is a whole number from 1: {number!r}")
        token = uuid4().hex
        gathered: tuple[Sender, list[Gather]] | None = None  # whose partitions they are for

        def publishing() -> Steps[Published]:
            nonlocal number, gathered
            settled = yield from self._settle()
            if gathered is None:
                last = yield from self._begin()
                number = number or last + 1
                if number <= last:
                    return Published(False, 0)
                sender = self.topic.sender()
                gathered = sender, _windows(sender, records)
            elif settled == number:
                return Published(True, sum(window.rows for window in gathered[1]))
            if not self.topic.agreed:
                yield from self.topic.agree()
            sender = self.topic.sender()
            if sender is not gathered[0]:  # the topic has grown since the attempt before
                gathered = sender, _windows(sender, [record for window in gathered[1] for record in window.records])
            if not gathered[1] or number is None:
                return Published(False, 0)
            return (yield from self._attempt(gathered[1], number, token))

        return publishing

    def _delay(self, delays: Delays, error: BaseException) -> float:
        """Return the seconds until the next attempt. The first failure of an outage is logged."""
        if not delays.failures:
            log.warning("producer %s: %s; retrying for %g s", self.name, summary_of(error), PATIENCE)
        return delays.next()


def _windows(sender: Sender, records: Iterable[Any]) -> list[Gather]:
    """All records, window by window."""
    made, left = [], iter(records)
    while (gather := sender.gathered(left)).rows:
        made.append(gather)
    return made


class Producer(_Batches[R]):
    """Sends batches of records exactly once. Made by ``topic.producer(name)``; not for several tasks at a time.

    >>> producer = orders.producer("import")
    >>> for number, batch in enumerate(batches, 1):
    ...     await producer.send_many(batch, number)     # after a restart, what was sent is skipped
    """

    async def last(self) -> int:
        """The number of the last batch that was published, 0 if none was."""
        return await self.topic.lane.run(self._begin())

    async def send_many(self, records: Iterable[R], number: int | None = None) -> Published:
        """Append the records of one batch, all or nothing. They are held in memory until that is done.

        ``number``: of the batch; a batch whose number was published before, or a higher one, is skipped (``now`` is
        False in the result). None: the next number; after a call that raised, ``last`` tells whether its batch is
        there. While the server does not answer, or refuses what passes, it is tried again for PATIENCE seconds, then
        its last error is raised: send the batch again with its number. StaleEpochError or ConflictError if another
        program publishes under this name. Other errors as ``Topic.send``.
        """
        publishing = self._publishing(records, number)
        until, delays = time.monotonic() + PATIENCE, Delays(BACKOFF)
        while True:
            try:
                return await self.topic.lane.run(publishing())
            except (redis.RedisError, OSError) as error:
                if not is_retryable(error) or time.monotonic() >= until:
                    raise
                await asyncio.sleep(self._delay(delays, error))


class SyncProducer(_Batches[R]):
    """``Producer``, blocking. Not for several threads at a time."""

    def last(self) -> int:
        """See ``Producer.last``."""
        return steps.run(self.topic.client, self._begin())

    def send_many(self, records: Iterable[R], number: int | None = None) -> Published:
        """See ``Producer.send_many``."""
        publishing = self._publishing(records, number)
        until, delays = time.monotonic() + PATIENCE, Delays(BACKOFF)
        while True:
            try:
                return steps.run(self.topic.client, publishing())
            except (redis.RedisError, OSError) as error:
                if not is_retryable(error) or time.monotonic() >= until:
                    raise
                time.sleep(self._delay(delays, error))
