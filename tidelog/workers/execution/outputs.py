"""``Output``: an entry that a transaction appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidelog.topics.sending import Sender, bulk
from tidelog.transport.call import Value


class Output:
    """An entry that is to be appended."""

    __slots__ = ("fields", "partition", "row", "sender", "stream")

    def __init__(
        self, stream: str, fields: Iterable[str | bytes], values: Sequence[Value], sender: Sender | None = None,
        partition: int = 0,
    ) -> None:  # fmt: skip
        self.stream = stream
        self.sender = sender  # of a topic whose partitions are looked at after each append: they are kept short
        self.partition = partition
        self.fields = tuple(fields)
        self.row = bulk(values)
