"""Connectors that carry bytes: from what is read to events, and from events to what is written.

    bytes -> preprocessors, one after the other -> codec -> event
    event -> codec -> postprocessors, one after the other -> bytes

Preprocessors cut a stream into messages and undo what was done to each; postprocessors are their opposites.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog.flows.codecs.base import Codec, codec
from tidelog.flows.connectors.options import ConnectorOptions
from tidelog.flows.event import Event
from tidelog.flows.interceptors.base import Postprocessor, Preprocessor, postprocessor, preprocessor
from tidelog.flows.options import Size

NameOrOptions = str | dict[str, Any]  # "json", or {"csv": {"delimiter": ";"}}


class WireOptions(ConnectorOptions):
    """Options of connectors that carry bytes. The first two lists are in the order in which data passes."""

    codec: NameOrOptions = "json"
    preprocessors: list[NameOrOptions] = []
    postprocessors: list[NameOrOptions] = []
    max_bytes: Size = Size(1 << 20)  # of one message, packed or unpacked: a longer one is an error

    def __post_init__(self) -> None:
        super().__post_init__()
        codec(self.codec)  # ValueError: what is wrong
        for each in self.preprocessors:
            preprocessor(each, self.max_bytes)
        for each in self.postprocessors:
            postprocessor(each)


class Reading:
    """One stream of bytes: of a file, of a connection. Not shared: preprocessors keep beginnings of messages."""

    def __init__(self, options: WireOptions) -> None:
        self._codec: Codec = codec(options.codec)
        self._before: list[Preprocessor] = [preprocessor(each, options.max_bytes) for each in options.preprocessors]
        self._most = options.max_bytes

    def feed(self, data: bytes, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """Events that are complete now. One that can't be read has the path ``err``, its bytes as value, and
        ``meta["error"]``. ValueError: the stream itself is broken (a message without an end), close it.
        """
        pieces = [data]
        for each in self._before:
            pieces = [piece for one in pieces for piece in each.feed(one)]
        return self._events(pieces, meta)

    def end(self, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """The stream has ended: what is left."""
        pieces: list[bytes] = []
        for each in self._before:
            pieces = [piece for one in pieces for piece in each.feed(one)] + each.end()
        return self._events(pieces, meta)

    def _events(self, pieces: list[bytes], meta: Mapping[str, Any] | None) -> list[Event]:
        events = []
        for piece in pieces:
            about = dict(meta) if meta else {}
            try:
                if len(piece) > self._most:
                    raise ValueError(f"a message of {len(piece)} bytes: max_bytes is {self._most}")
                events.append(Event(self._codec.decode(piece, about), about))
            except ValueError as error:
                about["error"] = str(error)
                events.append(Event(piece, about, path="err"))
        return events


class Writing:
    """One stream of bytes that is written."""

    def __init__(self, options: WireOptions) -> None:
        self._codec: Codec = codec(options.codec)
        self._after: list[Postprocessor] = [postprocessor(each) for each in options.postprocessors]

    def encode(self, event: Event) -> list[bytes]:
        """Pieces to write, in order; none where a postprocessor collects. RejectError: it can't be written."""
        pieces = [self._codec.encode(event.value, event.meta)]
        for each in self._after:
            pieces = [piece for one in pieces for piece in each.process(one)]
        return pieces

    def end(self) -> list[bytes]:
        """What postprocessors have collected."""
        pieces: list[bytes] = []
        for each in self._after:
            pieces = [piece for one in pieces for piece in each.process(one)] + each.end()
        return pieces
