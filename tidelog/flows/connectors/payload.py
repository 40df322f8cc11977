"""Connectors that carry bytes: from what is read to events, and from events to what is written.

    bytes -> preprocessors, one after the other -> codec -> event
    event -> codec -> postprocessors, one after the other -> bytes

Preprocessors cut a stream into messages and undo what was done to each; postprocessors are their opposites.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import field

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT
from tidelog.flows.codecs.base import NOTHING, MessageCodec, codec
from tidelog.flows.interceptors.base import (
    BadMessage,
    BrokenStreamError,
    Postprocessor,
    Preprocessor,
    postprocessor,
    preprocessor,
    splits_streams,
)
from tidelog.options.units import Size

PORTION: Final = 4096  # bytes that a stream's reader is given at a time, by those who count events

NameOrOptions = str | dict[str, Any]  # "json", or {"csv": {"delimiter": ";"}}


class PayloadOptions(ConnectorOptions):
    """Options of connectors that carry bytes. The first two lists are in the order in which data passes."""

    codec: NameOrOptions = "json"
    preprocessors: list[NameOrOptions] = field(default_factory=list)
    postprocessors: list[NameOrOptions] = field(default_factory=list)
    max_bytes: Size = Size(1 << 20)  # of one message, packed or unpacked: a longer one is an error

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_bytes < 1:
            raise ValueError("max_bytes is 0: it must be at least 1")
        codec(self.codec)  # ValueError: what is wrong
        for each in self.preprocessors:
            preprocessor(each, self.max_bytes)
        for each in self.postprocessors:
            postprocessor(each)


class LinePayloadOptions(PayloadOptions):
    """Of connectors whose bytes are a stream: lines, unless told otherwise."""

    preprocessors: list[NameOrOptions] = field(default_factory=lambda: ["separate"])
    postprocessors: list[NameOrOptions] = field(default_factory=lambda: ["separate"])


class PayloadReader:
    """One stream of bytes: of a file, of a connection. Not shared: preprocessors keep beginnings of messages."""

    def __init__(self, options: PayloadOptions) -> None:
        self._codec: MessageCodec = codec(options.codec)
        self._options = options
        self._before: list[Preprocessor] = [self._made(each) for each in options.preprocessors]
        self._most = options.max_bytes
        self.broken = ""  # why the stream can't be read on
        self._told = False  # that was raised

    def _made(self, each: NameOrOptions) -> Preprocessor:
        """A codec that knows where its messages end cuts them where ``separate`` without options would."""
        cutter = getattr(self._codec, "cutter", None)
        if each == "separate" and cutter is not None:
            made: Preprocessor = cutter(self._options.max_bytes)
            return made
        return preprocessor(each, self._options.max_bytes)

    @property
    def cuts(self) -> bool:
        """Whether a preprocessor cuts the stream into messages. If not, each ``feed`` is a message."""
        return any(splits_streams(each) for each in self._before)

    @property
    def cuts_first(self) -> bool:
        """Whether it is the first one, so that ``cut`` can tell where each message ended."""
        return bool(self._before) and splits_streams(self._before[0])

    def portions(self, data: bytes) -> Iterable[bytes]:
        """Data in such parts for ``feed`` that no part brings many events: each byte may be one. Where the first
        preprocessor does not cut, the whole: it takes messages, not parts of them.
        """
        if len(data) <= PORTION or not self.cuts_first:
            return (data,)
        return (data[at : at + PORTION] for at in range(0, len(data), PORTION))

    @property
    def header(self) -> bool:
        """Whether the codec needs the stream's first message, also where reading goes on in its middle."""
        return bool(getattr(self._codec, "header", False))

    def prime(self, beginning: bytes) -> None:
        """Show the codec the stream's first message. beginning: bytes of the stream, the first preprocessor cuts."""
        first = self._made(self._options.preprocessors[0]).feed(beginning)[:1]
        self._events(self._through(1, first), None)

    def feed(self, data: bytes, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """Events that are complete now. One that can't be read has the path ``err``, its bytes as value, and
        ``meta["error"]``.

        The stream itself may be broken (a length that can't be): then ``broken`` says why, and events that came before
        are returned. Where there are none, and from then on, ValueError is raised. Close it.
        """
        self._check()
        events = self._events(self._through(0, [data]), meta)
        if not events:
            self._check()
        return events

    def end(self, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """The stream has ended: what is left. After this another stream may begin.

        Where ``feed`` found it broken and has not raised that yet, it is an event with the path ``err``.
        """
        pieces = self._end(0)
        broken, told, self.broken, self._told = self.broken, self._told, "", False
        if not broken:
            return self._events(pieces, meta)
        return [] if told else [Event(b"", {**(meta or {}), "error": broken}, path="err")]

    def cut(self, data: bytes, meta: Mapping[str, Any] | None = None) -> list[tuple[int, list[Event]]]:
        """For streams whose first preprocessor is a cutter: (bytes that a message took, its events). Events may be
        none, bytes may be 0 (a message that is too long is told of before it has ended).
        """
        self._check()
        cutter: Any = self._before[0]
        try:
            pieces = cutter.feed(data)
        except BrokenStreamError as error:
            self.broken = str(error)
            pieces = error.pieces
        if not pieces:
            self._check()
        return self._sized(pieces, cutter.sizes, meta)

    def cut_end(self, meta: Mapping[str, Any] | None = None) -> list[tuple[int, list[Event]]]:
        """The same for the end of the stream."""
        cutter: Any = self._before[0]
        pieces = cutter.end()
        found = self._sized(pieces, cutter.sizes, meta)
        if more := self._events(self._end(1), meta):
            found.append((0, more))
        self.broken, self._told = "", False
        return found

    def _check(self) -> None:
        if self.broken:
            self._told = True
            raise ValueError(self.broken)

    def _sized(
        self, pieces: list[bytes], sizes: Sequence[int], meta: Mapping[str, Any] | None
    ) -> list[tuple[int, list[Event]]]:
        if len(self._before) == 1:
            each = zip(sizes, (self._event(piece, meta) for piece in pieces), strict=True)
            return [(size, [] if event is None else [event]) for size, event in each]
        return [
            (size, self._events(self._through(1, [piece]), meta)) for size, piece in zip(sizes, pieces, strict=True)
        ]

    def _through(self, place: int, pieces: list[bytes]) -> list[bytes]:
        """Pieces after the preprocessors from a place on."""
        for each in self._before[place:]:
            made: list[bytes] = []
            for one in pieces:
                if type(one) is BadMessage:
                    made.append(one)
                    continue
                try:
                    made += each.feed(one)
                except BrokenStreamError as error:
                    made += error.pieces
                    self.broken = str(error)
                    break
            pieces = made
        return pieces

    def _end(self, place: int) -> list[bytes]:
        pieces: list[bytes] = []
        for number in range(place, len(self._before)):
            pieces += self._through(number + 1, self._before[number].end())
        return pieces

    def _events(self, pieces: list[bytes], meta: Mapping[str, Any] | None) -> list[Event]:
        return [event for piece in pieces if (event := self._event(piece, meta)) is not None]

    def _event(self, piece: bytes, meta: Mapping[str, Any] | None) -> Event | None:
        about = dict(meta) if meta else {}
        try:
            if len(piece) > self._most:
                raise ValueError(f"a message of {len(piece)} bytes: max_bytes is {self._most}")
            if type(piece) is bytes:
                value = self._codec.decode(piece, about)
                return None if value is NOTHING else Event(value, about)
            if isinstance(piece, BadMessage):
                raise ValueError(piece.error)
            value = self._codec.decode(bytes(piece), about)
            return None if value is NOTHING else Event(value, about, ingest_ns=getattr(piece, "ingest_ns", 0))
        except ValueError as error:
            about["error"] = str(error)
            return Event(bytes(piece[: self._most]), about, path="err")


class CollectedError(RejectError):
    """Several events that were collected can't be written."""


class PayloadWriter:
    """One stream of bytes that is written. begun: its first line is there already, as in a file that is appended to."""

    def __init__(self, options: PayloadOptions, *, begun: bool = False) -> None:
        self._codec: MessageCodec = codec(options.codec)
        self._after: list[Postprocessor] = [
            postprocessor(each)
            for place, each in enumerate(options.postprocessors)
            if not (place == 0 and each == "separate" and self._codec.delimited)  # its lines have their ends
        ]
        if begun and hasattr(self._codec, "begun"):
            self._codec.begun()

    def encode(self, event: Event) -> list[bytes]:
        """Pieces to write, in order; none where a postprocessor collects. RejectError: it can't be written."""
        pieces = [self._codec.encode(event.value, event.meta)]
        collected = False
        for each in self._after:
            if hasattr(each, "ingest_ns"):
                each.ingest_ns = event.ingest_ns
            try:
                pieces = [piece for one in pieces for piece in each.process(one)]
            except RejectError as error:
                if collected:  # what can't be written was made of earlier events as well
                    raise CollectedError(str(error)) from error
                raise
            collected = collected or hasattr(each, "collects")
        return pieces

    def end(self) -> list[bytes]:
        """What postprocessors have collected."""
        pieces: list[bytes] = []
        for each in self._after:
            pieces = [piece for one in pieces for piece in each.process(one)] + each.end()
        return pieces

    def batch(self, events: Sequence[Event]) -> tuple[list[bytes], list[Outcome]]:
        """(pieces to write, an outcome for each event once they are written). Nothing stays collected. RejectError:
        none can be written.
        """
        pieces: list[bytes] = []
        outcomes: list[Outcome] = []
        for event in events:
            try:
                pieces += self.encode(event)
            except CollectedError:
                self._forget()
                raise
            except RejectError as error:
                outcomes.append((REJECT, str(error)))
            else:
                outcomes.append(OK)
        try:
            return pieces + self.end(), outcomes
        except RejectError:
            self._forget()
            raise

    def _forget(self) -> None:
        for each in self._after:
            each.end()
