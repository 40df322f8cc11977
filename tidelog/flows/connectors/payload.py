"""The payload of connectors that carry bytes: decodes bytes to events, and encodes events as bytes.

    bytes -> preprocessors, one after the other -> codec -> event
    event -> codec -> postprocessors, one after the other -> bytes

Preprocessors split a stream into messages and decode each message, for example decompress it. Postprocessors do the
opposite.
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
from tidelog.options.units import PositiveSize

PORTION: Final = 4096  # bytes that ``portions`` returns at a time

NameOrOptions = str | dict[str, Any]  # "json", or {"csv": {"delimiter": ";"}}


class PayloadOptions(ConnectorOptions):
    """Options of connectors that carry bytes."""

    codec: NameOrOptions = "json"  # Decodes and encodes each message.
    preprocessors: list[NameOrOptions] = field(default_factory=list)  # Steps before the codec decodes, in this order.
    postprocessors: list[NameOrOptions] = field(default_factory=list)
    # Steps after the codec has encoded, in this order.
    max_bytes: PositiveSize = PositiveSize(1 << 20)  # Maximum size of a message, compressed or decompressed.

    def __post_init__(self) -> None:
        super().__post_init__()
        codec(self.codec)  # raises ValueError if it is not valid
        for each in self.preprocessors:
            preprocessor(each, self.max_bytes)
        for each in self.postprocessors:
            postprocessor(each)


class LinePayloadOptions(PayloadOptions):
    """Options of connectors whose bytes are a stream. By default, messages are lines."""

    preprocessors: list[NameOrOptions] = field(default_factory=lambda: ["separate"])
    postprocessors: list[NameOrOptions] = field(default_factory=lambda: ["separate"])


class PayloadReader:
    """Decodes one stream of bytes, such as a file or a connection. Preprocessors keep state, so it can't be shared."""

    def __init__(self, options: PayloadOptions) -> None:
        self._codec: MessageCodec = codec(options.codec)
        self._options = options
        self._before: list[Preprocessor] = [self._made(each) for each in options.preprocessors]
        self._most = options.max_bytes
        self.broken = ""  # why the rest of the stream can't be read
        self._raised = False  # the error was raised

    def _made(self, each: NameOrOptions) -> Preprocessor:
        """Return a preprocessor. A codec with its own splitter replaces ``separate`` without options."""
        splitter = getattr(self._codec, "splitter", None)
        if each == "separate" and splitter is not None:
            made: Preprocessor = splitter(self._options.max_bytes)
            return made
        return preprocessor(each, self._options.max_bytes)

    @property
    def splits(self) -> bool:
        """Return whether a preprocessor splits the stream into messages. If not, each ``feed`` is a message."""
        return any(splits_streams(each) for each in self._before)

    @property
    def splits_first(self) -> bool:
        """Return whether the first preprocessor splits, so that ``split`` knows the size of each message."""
        return bool(self._before) and splits_streams(self._before[0])

    def portions(self, data: bytes) -> Iterable[bytes]:
        """Return data in portions for ``feed`` that limit the number of events, of which each byte may be one.

        If the first preprocessor does not split, it needs whole messages: the only portion is ``data``.
        """
        if len(data) <= PORTION or not self.splits_first:
            return (data,)
        return (data[at : at + PORTION] for at in range(0, len(data), PORTION))

    @property
    def header(self) -> bool:
        """Return whether the codec needs the first message even if reading continues in the middle of the stream."""
        return bool(getattr(self._codec, "header", False))

    def prime(self, beginning: bytes) -> None:
        """Pass the first message to the codec. beginning: bytes at the beginning of a stream that is split."""
        first = self._made(self._options.preprocessors[0]).feed(beginning)[:1]
        self._events(self._through(1, first), None)

    def feed(self, data: bytes, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """Return the events that are complete. An invalid message is an event with the path ``err``, the bytes as
        value, and ``meta["error"]``.

        If the rest of the stream can't be read, ``broken`` is the reason, and the events before the error are returned.
        If there are none, and in later calls, ValueError is raised. Close the connection in that case.
        """
        self._check()
        events = self._events(self._through(0, [data]), meta)
        if not events:
            self._check()
        return events

    def end(self, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """Return the remaining events at the end of the stream. After this, another stream may begin.

        An error that ``feed`` found and did not raise yet becomes an event with the path ``err``.
        """
        pieces = self._end(0)
        broken, raised, self.broken, self._raised = self.broken, self._raised, "", False
        if not broken:
            return self._events(pieces, meta)
        return [] if raised else [Event(b"", {**(meta or {}), "error": broken}, path="err")]

    def split(self, data: bytes, meta: Mapping[str, Any] | None = None) -> list[tuple[int, list[Event]]]:
        """Return (size in the stream, events) of each message, if the first preprocessor splits the stream.

        A message may have no events. The size is 0 for a message that is too long and has not ended yet.
        """
        self._check()
        splitter: Any = self._before[0]
        try:
            pieces = splitter.feed(data)
        except BrokenStreamError as error:
            self.broken = str(error)
            pieces = error.pieces
        if not pieces:
            self._check()
        return self._sized(pieces, splitter.sizes, meta)

    def split_end(self, meta: Mapping[str, Any] | None = None) -> list[tuple[int, list[Event]]]:
        """Return the same as ``split`` for the end of the stream."""
        splitter: Any = self._before[0]
        pieces = splitter.end()
        found = self._sized(pieces, splitter.sizes, meta)
        if more := self._events(self._end(1), meta):
            found.append((0, more))
        self.broken, self._raised = "", False
        return found

    @property
    def waits(self) -> float | None:
        """The time in seconds without new data after which ``idle`` or ``split_idle`` ends a message. None: no limit.

        Only the time in which the connector waits for data counts. Data that it has not read can continue a message.
        """
        waiting = self._waiting()
        return None if waiting is None else waiting[1].waits

    def _waiting(self) -> tuple[int, Any] | None:
        """Return (index, preprocessor) of the first one that has a message that ends by time."""
        found = ((number, each) for number, each in enumerate(self._before) if getattr(each, "waits", None) is not None)
        return next(found, None)

    def idle(self, meta: Mapping[str, Any] | None = None) -> list[Event]:
        """Return the same as ``feed`` for a message that ends because no data has arrived."""
        waiting = self._waiting()
        return [] if waiting is None else self._events(self._through(waiting[0] + 1, waiting[1].idle()), meta)

    def split_idle(self, meta: Mapping[str, Any] | None = None) -> list[tuple[int, list[Event]]]:
        """Return the same as ``split`` for a message that ends because no data has arrived."""
        splitter: Any = self._before[0]
        return self._sized(splitter.idle(), splitter.sizes, meta)

    def _check(self) -> None:
        if self.broken:
            self._raised = True
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

    def _through(self, start: int, pieces: list[bytes]) -> list[bytes]:
        """Return the output of the preprocessors from index ``start`` on."""
        for each in self._before[start:]:
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

    def _end(self, start: int) -> list[bytes]:
        pieces: list[bytes] = []
        for number in range(start, len(self._before)):
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


class MessageReader:
    """Decodes whole messages, such as those of Kafka. State of a preprocessor never reaches the next message."""

    def __init__(self, options: PayloadOptions) -> None:
        self._options = options
        self._plain = None if options.preprocessors else PayloadReader(options)

    def read(self, raw: bytes, meta: dict[str, Any]) -> list[Event]:
        reader = self._plain or PayloadReader(self._options)
        try:
            events = reader.feed(raw, meta)
            return events if reader is self._plain else events + reader.end(meta)
        except ValueError as error:
            return [Event(raw, {**meta, "error": str(error)}, path="err")]


class CollectedError(RejectError):
    """Several events that were collected can't be encoded."""


class PayloadWriter:
    """Encodes events for one stream of bytes. begun: the stream already has a first line, such as an existing file."""

    def __init__(self, options: PayloadOptions, *, begun: bool = False) -> None:
        self._codec: MessageCodec = codec(options.codec)
        self._after: list[Postprocessor] = [
            postprocessor(each)
            for number, each in enumerate(options.postprocessors)
            if not (number == 0 and each == "separate" and self._codec.delimited)  # the lines already have line breaks
        ]
        self._collects = any(hasattr(each, "collects") for each in self._after)
        if begun and hasattr(self._codec, "begun"):
            self._codec.begun()

    def encode(self, event: Event) -> list[bytes]:
        """Return the bytes to write, or nothing if a postprocessor collects. Raises RejectError if that fails."""
        pieces = [self._codec.encode(event.value, event.meta)]
        collected = False
        for each in self._after:
            if hasattr(each, "ingest_ns"):
                each.ingest_ns = event.ingest_ns
            try:
                pieces = [piece for one in pieces for piece in each.process(one)]
            except RejectError as error:
                if collected:  # the error concerns earlier events too
                    raise CollectedError(str(error)) from error
                raise
            collected = collected or hasattr(each, "collects")
        return pieces

    def end(self) -> list[bytes]:
        """Return the bytes that postprocessors have collected."""
        pieces: list[bytes] = []
        for each in self._after:
            pieces = [piece for one in pieces for piece in each.process(one)] + each.end()
        return pieces

    def batch(self, events: Sequence[Event]) -> tuple[list[bytes], list[Outcome]]:
        """Return (the bytes to write, an outcome for each event after writing). Postprocessors are emptied.

        Raises RejectError if no event can be encoded.
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

    def messages(self, events: Sequence[Event]) -> tuple[list[tuple[list[int], bytes]], list[Outcome]]:
        """Like ``batch``, for peers with messages. Return (indexes of its events, message) of each message."""
        messages: list[tuple[list[int], bytes]] = []
        outcomes: list[Outcome] = [OK] * len(events)
        collected: list[int] = []  # events that may be in the next message
        for at, event in enumerate(events):
            try:
                pieces = self.encode(event)
            except CollectedError:
                self._forget()
                raise
            except RejectError as error:
                outcomes[at] = (REJECT, str(error))
                continue
            indexes = [at]
            if self._collects:
                collected.append(at)
                indexes = collected
                if pieces:
                    collected = [at]
            messages += [(indexes, piece) for piece in pieces]
        try:
            return messages + [(collected, piece) for piece in self.end()], outcomes
        except RejectError:
            self._forget()
            raise

    def _forget(self) -> None:
        for each in self._after:
            each.end()
