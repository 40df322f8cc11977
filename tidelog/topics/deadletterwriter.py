"""``DeadLetterWriter``: writes dead letters of an engine to one dead-letter queue. Operations without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import redis

from tidelog.client import calls
from tidelog.client.steps import Steps, checked, transaction
from tidelog.topics import deadletters
from tidelog.transport.call import Call
from tidelog.transport.errors import CrossGroupError

DeadLetterFields = list[tuple[bytes, bytes]]  # see ``deadletters.fields_of``


class DeadLetterWriter:
    """Writes to the queue ``topic``, and creates it before the first dead letter."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._ready = False
        self._homes: set[str] = set()  # the origins in the topic's settings

    def ready(self, homes: Iterable[str]) -> Steps[None]:
        """Create the queue unless it exists, and add the origins to it (``deadletters.ready``)."""
        new = set(homes) - self._homes
        if new or not self._ready:
            yield from deadletters.ready(self.topic, *sorted(new))
            self._ready = True
            self._homes |= new

    def write(self, letters: Sequence[DeadLetterFields], acks: Sequence[Call[Any]] = ()) -> Steps[None]:
        """Append dead letters of streams, and execute ``acks``, in one step.

        If they are on several groups of a cluster, the dead letters are appended first. If the connection is lost
        before ``acks``, the caller repeats both, which appends the dead letters twice.
        Raises redis.ResponseError if the server rejects it, and TopicError if the topic has another purpose.
        """
        origins = {stream.decode() for (_, stream), *_ in letters if stream}
        yield from self.ready(deadletters.home(stream, deadletters.NO_PARTITION) for stream in origins)
        checked((yield [calls.tlen(deadletters.stream_of(self.topic))]))  # raises for another type
        appends = [deadletters.append(self.topic, each) for each in letters]
        try:
            yield from self._executed([*appends, *acks])
        except CrossGroupError:
            yield from self._executed(appends)
            checked((yield acks))

    @staticmethod
    def _executed(made: Sequence[Call[Any]]) -> Steps[None]:
        for reply in (yield from transaction(made)) or ():
            if isinstance(reply, Exception):
                raise redis.ResponseError(str(reply))
