"""``multiline``: joins the lines of one message, such as a stack trace.

Rule 1: A line that does not continue a message begins one. The first line of a stream always does.
Rule 2: No line is lost. A message that reaches a limit ends, and the next line begins another one.
"""

from __future__ import annotations

from typing import Final

from tidelog.flows.expressions.patterns import TextPattern, compiled
from tidelog.flows.interceptors.base import BadMessage
from tidelog.flows.interceptors.framing import Separate, SeparateOptions
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveDuration

INDENTED: Final = r"^\s"
_BREAK: Final = b"\n"


class MultilineOptions(Struct):
    """Options of the preprocessor ``multiline``."""

    start: str | None = None
    # A regular expression that matches the first line of each message, such as `^\d{4}-`. Use either this or
    # `continuation`.
    continuation: str | None = None
    # A regular expression that matches all other lines of a message. `null`, if there is no `start`: `^\s`.
    max_lines: AtLeastOne = 1000  # Maximum number of lines of a message. `max_bytes` of the connector also limits it.
    timeout: PositiveDuration | None = PositiveDuration(5)
    # Time without new data after which a message ends. `null`: it ends with the next one, or with the stream.

    def __post_init__(self) -> None:
        if self.start is not None and self.continuation is not None:
            raise ValueError("multiline: start and continuation exclude each other")
        compiled(self.pattern)  # raises ValueError if it is not valid

    @property
    def pattern(self) -> str:
        return self.start if self.start is not None else self.continuation or INDENTED


class Multiline:
    """Splits a stream at lines that begin a message."""

    Options = MultilineOptions

    def __init__(self, options: MultilineOptions, most: int) -> None:
        self._pattern: TextPattern = compiled(options.pattern)
        self._starts = options.start is not None  # what a match means
        self._most = most
        self._max_lines = options.max_lines
        self._timeout = options.timeout
        self._lines = Separate(SeparateOptions(), most)
        self._group: list[bytes] = []
        self._length = 0  # of the message, in bytes
        self._size = 0  # of the message in the stream
        self.sizes: list[int] = []

    @property
    def waits(self) -> float | None:
        """The time in seconds after which ``idle`` ends the current message. None: there is no message, or no limit."""
        return self._timeout if self._group else None

    def feed(self, data: bytes) -> list[bytes]:
        pieces: list[bytes] = []
        self.sizes = []
        self._add(self._lines.feed(data), pieces)
        return pieces

    def idle(self) -> list[bytes]:
        """Return the message that has not ended. An incomplete line is not part of it."""
        pieces: list[bytes] = []
        self.sizes = []
        self._end_message(pieces)
        return pieces

    def end(self) -> list[bytes]:
        pieces: list[bytes] = []
        self.sizes = []
        self._add(self._lines.end(), pieces)
        self._end_message(pieces)
        return pieces

    def _add(self, lines: list[bytes], pieces: list[bytes]) -> None:
        search, starts = self._pattern.regex.search, self._starts
        for line, size in zip(lines, self._lines.sizes, strict=True):
            if isinstance(line, BadMessage):  # longer than the limit
                self._end_message(pieces)
                pieces.append(line)
                self.sizes.append(size)
                continue
            full = len(self._group) >= self._max_lines or self._length + len(line) > self._most
            if self._group and (full or (search(line) is not None) is starts):
                self._end_message(pieces)
            self._group.append(line)
            self._length += len(line) + 1
            self._size += size

    def _end_message(self, pieces: list[bytes]) -> None:
        if self._group:
            pieces.append(_BREAK.join(self._group))
            self.sizes.append(self._size)
            self._group, self._length, self._size = [], 0, 0
