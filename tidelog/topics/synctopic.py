"""``SyncTopic``: the operations of a topic for threads, blocking."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

from tidelog.client import steps
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps
from tidelog.topics import delayed
from tidelog.topics.producer import Home, SyncProducer
from tidelog.topics.sending import RecordWindow
from tidelog.topics.settings import TopicSettings

R = TypeVar("R")


class SendingTopic(Home, Protocol):
    """The operations of a topic, without I/O."""

    def sending(self, record: Any, due: delayed.Due | None) -> Steps[StreamId]: ...
    def sending_window(self, collected: RecordWindow, due: delayed.Due | None) -> Steps[int]: ...
    def close_sync(self) -> None: ...


class SyncTopic(Generic[R]):
    """``topic.sync``: the operations of a topic, blocking. Threads may share it."""

    def __init__(self, topic: SendingTopic) -> None:
        self.topic = topic

    def ready(self) -> TopicSettings:
        """See ``Topic.ready``."""
        if not self.topic.agreed:
            steps.run(self.topic.client, self.topic.agree())
        return self.topic.settings

    def send(
        self, record: R, *, delay: timedelta | float | None = None, at: datetime | None = None
    ) -> StreamId:  # fmt: skip
        """See ``Topic.send``."""
        due = delayed.due_of(self.topic.name, delay, at)
        self.ready()
        return steps.run(self.topic.client, self.topic.sending(record, due))

    def send_many(
        self, records: Iterable[R], *, delay: timedelta | float | None = None, at: datetime | None = None
    ) -> int:  # fmt: skip
        """See ``Topic.send_many``."""
        due = delayed.due_of(self.topic.name, delay, at)
        sent, left = 0, iter(records)
        self.ready()
        with ThreadPoolExecutor(1, f"send to {self.topic.name}") as pool:
            under_way: Future[int] | None = None  # the previous window, which the server appends at the same time
            while True:
                sender = self.topic.sender()
                collected = sender.gathered(left)
                if under_way is not None:
                    sent += under_way.result()
                if not collected.rows:
                    return sent
                self.ready()
                if self.topic.sender() is not sender:  # the topic has grown since the first record
                    sender = self.topic.sender()
                    collected = sender.gathered(collected.records)
                window = self.topic.sending_window(collected, due)
                if collected.wanted():  # the last window
                    return sent + steps.run(self.topic.client, window)
                under_way = pool.submit(steps.run, self.topic.client, window)

    def producer(self, name: str) -> SyncProducer[R]:
        """See ``Topic.producer``."""
        return SyncProducer(self.topic, name)

    def close(self) -> None:
        """Close the connections that the topic opened for this object."""
        self.topic.close_sync()
