"""``chunk``, ``collect``: join several messages. They follow a postprocessor that delimits messages: ``separate``."""

from __future__ import annotations

from tidelog.flows.api.errors import RejectError
from tidelog.options.structs import Struct
from tidelog.options.units import Size


class ChunkOptions(Struct):
    """Options of ``chunk``."""

    max_bytes: Size = Size(4096)  # Maximum size of a joined message.

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError("max_bytes is 0: it must be at least 1")


class Chunk:
    """Joins as many whole messages as fit in ``max_bytes``. A longer message is rejected."""

    Options = ChunkOptions
    collects = True

    def __init__(self, options: ChunkOptions) -> None:
        self._most = options.max_bytes
        self._kept: list[bytes] = []
        self._size = 0

    def process(self, data: bytes) -> list[bytes]:
        if len(data) > self._most:
            raise RejectError(f"a message of {len(data)} bytes: chunk accepts at most {self._most}")
        done = self.end() if self._size + len(data) > self._most else []
        self._kept.append(data)
        self._size += len(data)
        return done

    def end(self) -> list[bytes]:
        kept, self._kept, self._size = self._kept, [], 0
        return [b"".join(kept)] if kept else []


class CollectOptions(Struct):
    """Options of ``collect``."""

    count: int = 100  # Number of messages.

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}: it must be at least 1")


class Collect:
    """Joins ``count`` messages."""

    Options = CollectOptions
    collects = True

    def __init__(self, options: CollectOptions) -> None:
        self._count = options.count
        self._kept: list[bytes] = []

    def process(self, data: bytes) -> list[bytes]:
        self._kept.append(data)
        return self.end() if len(self._kept) >= self._count else []

    def end(self) -> list[bytes]:
        kept, self._kept = self._kept, []
        return [b"".join(kept)] if kept else []
