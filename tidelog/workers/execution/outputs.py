"""``Output``: an entry that a transaction appends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import hiredis

from tidelog.topics.sending import Sender
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
        packed: bytes = hiredis.pack_command(tuple(values))  # type: ignore[arg-type]  # its annotation is wrong
        self.row = packed[packed.index(b"\r\n") + 2 :]  # the values as RESP bulk strings
