"""Interceptors: what is done to bytes before a codec reads them, and after it wrote them.

Rule 1: a preprocessor that cuts a stream into messages (a cutter) takes bytes in any portions. All others take whole
        messages, so they stand behind a cutter, or where messages come whole (datagrams, bodies).
Rule 2: what is wrong with one message is a ``Bad`` piece among the others. ``BrokenStreamError`` is for a stream that
        can't be read on, because nobody knows where the next message begins.
Rule 3: what a peer can make grow is limited by ``most``, the bytes of one message, packed or unpacked.
Rule 4: postprocessors that collect give out what they have at each ``end``, which a sink calls before it answers for a
        batch: nothing is settled whose bytes are still here.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from tidelog.flows.named import Named, find
from tidelog.flows.options import Struct

_HERE: Final = "tidelog.flows.interceptors"
PREPROCESSORS: Final[dict[str, str]] = {  # name: module:class
    "separate": f"{_HERE}.framing:Separate",
    "length_prefixed": f"{_HERE}.framing:LengthPrefixed",
    "textual_length_prefixed": f"{_HERE}.framing:TextualLengthPrefixed",
    "gzip": f"{_HERE}.compression:Gunzip",
    "zlib": f"{_HERE}.compression:Unzlib",
    "zstd": f"{_HERE}.compression:Unzstd",
    "lz4": f"{_HERE}.compression:Unlz4",
    "decompress": f"{_HERE}.compression:Decompress",
    "base64": f"{_HERE}.plain:FromBase64",
    "remove_empty": f"{_HERE}.plain:RemoveEmpty",
    "ingest_timestamp": f"{_HERE}.plain:TakeTimestamp",
    "gelf": f"{_HERE}.gelf:Gelf",
}
POSTPROCESSORS: Final[dict[str, str]] = {
    "separate": f"{_HERE}.framing:AddSeparator",
    "length_prefixed": f"{_HERE}.framing:AddLength",
    "textual_length_prefixed": f"{_HERE}.framing:AddTextualLength",
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


class Bad(bytes):
    """A message that can't be read: its bytes, or their beginning. Later preprocessors don't see it."""

    error: str

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, error: str) -> Bad:
        made = cls(data)
        made.error = error
        return made


class BrokenStreamError(ValueError):
    """The stream can't be read on. ``pieces`` were complete before that."""

    def __init__(self, text: str, pieces: list[bytes] | None = None) -> None:
        super().__init__(text)
        self.pieces = pieces or []


class Stamped(bytes):
    """A message that says when it came in. Known to the codec's caller if no preprocessor follows."""

    ingest_ns: int  # since 1970


class NoOptions(Struct):
    """Of an interceptor that has none."""


class Preprocessor(Protocol):
    """What is done to bytes before a codec reads them."""

    def feed(self, data: bytes) -> list[bytes]:
        """Pieces that are complete. BrokenStreamError: the stream can't be read on."""

    def end(self) -> list[bytes]:
        """The stream has ended: what is left. It may be fed again, from the beginning of a stream."""


class Cutter(Preprocessor, Protocol):
    """Cuts a stream into messages, and knows where each ended."""

    sizes: list[int]  # of the last ``feed`` or ``end``: bytes of the stream that each of its pieces took


class Postprocessor(Protocol):
    """What is done to bytes after a codec wrote them."""

    def process(self, data: bytes) -> list[bytes]:
        """Pieces to write; none: it collects. RejectError: it can't be written."""

    def end(self) -> list[bytes]:
        """What it has collected."""


def preprocessor(given: Named, most: int) -> Preprocessor:
    """By name, or {name: options}. most: bytes of one message. ValueError: what is wrong."""
    kind, options = find("preprocessor", PREPROCESSORS, given)
    made: Preprocessor = kind(options, most)
    return made


def postprocessor(given: Named) -> Postprocessor:
    """By name, or {name: options}. ValueError: what is wrong."""
    kind, options = find("postprocessor", POSTPROCESSORS, given)
    made: Postprocessor = kind(options)
    return made


def is_cutter(one: Any) -> bool:
    return hasattr(one, "sizes")
