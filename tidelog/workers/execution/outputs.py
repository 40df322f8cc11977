"""``OutputEntry``: an entry that a transaction appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog.topics.sending import Sender, bulk
from tidelog.transport.call import Value


class OutputEntry:
    """An entry to append."""

    __slots__ = ("fields", "partition", "row", "sender", "stream")

    def __init__(
        self, stream: str, fields: Iterable[str | bytes], values: Sequence[Value], sender: Sender | None = None,
        partition: int = 0,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.sender = sender  # set if the topic has a hard limit
        self.partition = partition
        self.fields = tuple(fields)
        self.row = bulk(values)
