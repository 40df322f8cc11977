"""``chunk``, ``collect``: join several messages. They follow a postprocessor that delimits messages: ``separate``."""

from __future__ import annotations

from tidelog.flows.api.errors import RejectError
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveSize


class _Joined:
    """Joins the messages that it retains."""

    collects = True

    def __init__(self, options: Struct) -> None:
        self._options = options
        self._kept: list[bytes] = []
        self._size = 0  # bytes

    def _add(self, data: bytes) -> None:
        self._kept.append(data)
        self._size += len(data)

    def end(self) -> list[bytes]:
        kept, self._kept, self._size = self._kept, [], 0
        return [b"".join(kept)] if kept else []


class ChunkOptions(Struct):
    """Options of ``chunk``."""

    max_bytes: PositiveSize = PositiveSize(4096)  # Maximum size of a joined message.


class Chunk(_Joined):
    """Joins as many whole messages as fit in ``max_bytes``. A longer message is rejected."""

    Options = ChunkOptions
    _options: ChunkOptions

    def process(self, data: bytes) -> list[bytes]:
        most = self._options.max_bytes
        if len(data) > most:
            raise RejectError(f"a message of {len(data)} bytes: chunk accepts at most {most}")
        done = self.end() if self._size + len(data) > most else []
        self._add(data)
        return done


class CollectOptions(Struct):
    """Options of ``collect``."""

    count: AtLeastOne = 100  # Number of messages.


class Collect(_Joined):
    """Joins ``count`` messages."""

    Options = CollectOptions
    _options: CollectOptions

    def process(self, data: bytes) -> list[bytes]:
        self._add(data)
        return self.end() if len(self._kept) >= self._options.count else []
