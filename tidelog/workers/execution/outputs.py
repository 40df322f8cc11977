"""``OutputEntry``: an entry that a transaction appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidelog.topics.sending import PartitionBatch, Sender, bulk
from tidelog.transport.call import Call, Value


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

    def append(self) -> Call[Any]:
        """Return the call that appends only this entry."""
        batch = PartitionBatch(self.fields)
        batch.add(self.row)
        return batch.append(self.stream)
