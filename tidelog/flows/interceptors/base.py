"""Interceptors: process bytes before a codec decodes them, and after it encoded them.

Rule 1: A preprocessor that splits a stream into messages accepts bytes in portions of any size. All others accept whole
        messages. They must follow a splitter, unless the transport delivers whole messages (datagrams, bodies).
Rule 2: An invalid message is returned as a ``BadMessage`` among the others. ``BrokenStreamError`` means that the rest
        of the stream can't be read, because the beginning of the next message is unknown.
Rule 3: ``most``, the maximum size of one message in bytes, packed or unpacked, limits all memory that a peer can use.
Rule 4: Postprocessors that collect messages return them at each ``end``. A sink calls ``end`` before it returns from a
        batch, so no event is settled while its bytes are still in a postprocessor.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from tidelog.flows.registry import Named, component
from tidelog.options.structs import Struct

_HERE: Final = "tidelog.flows.interceptors"
PREPROCESSORS: Final[dict[str, str]] = {  # name: module:class
    "separate": f"{_HERE}.framing:Separate",
    "length_prefixed": f"{_HERE}.framing:LengthPrefixed",
    "textual_length_prefixed": f"{_HERE}.framing:TextualLengthPrefixed",
    "multiline": f"{_HERE}.multiline:Multiline",
    "syslog_framing": f"{_HERE}.syslogframing:SyslogFraming",
    "gzip": f"{_HERE}.compression:Gunzip",
    "zlib": f"{_HERE}.compression:Unzlib",
    "zstd": f"{_HERE}.compression:Unzstd",
    "lz4": f"{_HERE}.compression:Unlz4",
    "decompress": f"{_HERE}.compression:Decompress",
    "base64": f"{_HERE}.plain:FromBase64",
    "remove_empty": f"{_HERE}.plain:RemoveEmpty",
    "ingest_timestamp": f"{_HERE}.plain:TakeTimestamp",
    "gelf": f"{_HERE}.gelf:GelfChunks",
}
POSTPROCESSORS: Final[dict[str, str]] = {
    "separate": f"{_HERE}.framing:AddSeparator",
    "length_prefixed": f"{_HERE}.framing:AddLengthPrefix",
    "textual_length_prefixed": f"{_HERE}.framing:AddTextualLengthPrefix",
    "gzip": f"{_HERE}.compression:Gzip",
    "zlib": f"{_HERE}.compression:Zlib",
    "zstd": f"{_HERE}.compression:Zstd",
    "lz4": f"{_HERE}.compression:Lz4",
    "base64": f"{_HERE}.plain:ToBase64",
    "remove_empty": f"{_HERE}.plain:RemoveEmptyAfter",
    "ingest_timestamp": f"{_HERE}.plain:AddTimestamp",
    "chunk": f"{_HERE}.collecting:Chunk",
    "collect": f"{_HERE}.collecting:Collect",
}


class BadMessage(bytes):
    """A message that can't be read: its bytes, or the first of them. It bypasses all later preprocessors."""

    error: str

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, error: str) -> BadMessage:
        made = cls(data)
        made.error = error
        return made


class BrokenStreamError(ValueError):
    """The rest of the stream can't be read. ``pieces`` are the messages that were complete before the error."""

    def __init__(self, text: str, pieces: list[bytes] | None = None) -> None:
        super().__init__(text)
        self.pieces = pieces or []


class TimestampedMessage(bytes):
    """A message with its ingest time. The time is used only if no preprocessor follows."""

    ingest_ns: int  # since 1970


class Preprocessor(Protocol):
    """Processes bytes before a codec decodes them.

    A preprocessor that splits a stream has ``sizes: list[int]``: for each message that the last ``feed`` or ``end``
    returned, the number of bytes of the stream that it occupied. One whose messages end by time has ``waits: float |
    None``, the seconds without new data after which ``idle()`` returns the messages that have not ended.
    """

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are complete. Raises BrokenStreamError if the rest of the stream can't be read."""

    def end(self) -> list[bytes]:
        """Return the remaining messages at the end of the stream. After this, ``feed`` starts a new stream."""


class Postprocessor(Protocol):
    """Processes bytes after a codec encoded them."""

    def process(self, data: bytes) -> list[bytes]:
        """Return what is to be written, or nothing while it collects. Raises RejectError if ``data`` is not valid."""

    def end(self) -> list[bytes]:
        """Return what was collected."""


class MessagePreprocessor:
    """The base of preprocessors of whole messages without options."""

    Options = Struct

    def __init__(self, _: Struct, most: int) -> None: ...

    def end(self) -> list[bytes]:
        return []


class MessagePostprocessor:
    """The base of postprocessors that do not collect messages."""

    Options: type[Struct] = Struct

    def __init__(self, _: Any) -> None: ...

    def end(self) -> list[bytes]:
        return []


def preprocessor(given: Named, most: int) -> Preprocessor:
    """Return a preprocessor by its name, or by {name: options}. Raises ValueError if either is not valid.

    ``most``: the maximum size of a message in bytes.
    """
    kind, options = component("preprocessor", PREPROCESSORS, given)
    made: Preprocessor = kind(options, most)
    return made


def postprocessor(given: Named) -> Postprocessor:
    """Return a postprocessor by its name, or by {name: options}. Raises ValueError if either is not valid."""
    kind, options = component("postprocessor", POSTPROCESSORS, given)
    made: Postprocessor = kind(options)
    return made


def splits_streams(preprocessor: Any) -> bool:
    return hasattr(preprocessor, "sizes")
