"""``StartPosition``: the option ``start``, which has the same values in all engines.

start = StartPosition("2026-01-31T12:00:00Z")       in Python; raises ValueError with a text for users
start: StartPosition = EARLIEST                     as a field of an options structure (``structs``)

calls.tread(stream, start.last_id, group=group)     where a new group begins
start.after                                         the ID after which to read; None for ``latest``
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from tidelog.client.entries import SEQ_MAX, StreamId
from tidelog.options.units import excerpt

ZERO: Final = StreamId(0, 0)


class StartPosition(str):
    """Where reading begins: at the first entry, after the last entry, after an ID, or at a time.

    It is a string: ``earliest``, ``latest``, ``ms.seq``, or a time in ISO 8601 with its zone. It is constructed from
    such a string, a StreamId or a datetime. Raises ValueError for other values. Encode ``str(start)`` with msgspec.
    """

    __slots__ = ("after",)

    after: StreamId | None  # entries after this ID are read; None: only new entries

    def __new__(cls, value: object) -> StartPosition:
        text, after = _parsed(value)
        self = super().__new__(cls, text)
        self.after = after
        return self

    @property
    def last_id(self) -> str:
        """The last ID for TREAD. It is empty for ``latest``, so only new entries are read."""
        return "" if self.after is None else str(self.after)


def _parsed(value: object) -> tuple[str, StreamId | None]:
    if isinstance(value, StreamId):
        return str(value), value
    if isinstance(value, datetime):
        return _at(value, value.isoformat())
    if not isinstance(value, str):
        raise _wrong(value)
    if value == "earliest":
        return value, ZERO
    if value == "latest":
        return value, None
    try:
        after = StreamId.parse(value)
    except ValueError:
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            raise _wrong(value) from None
        return _at(time, value)
    return str(after), after


def _at(time: datetime, text: str) -> tuple[str, StreamId]:
    if time.tzinfo is None or time.timestamp() < 0:
        raise _wrong(text)
    ms = round(time.timestamp() * 1000)
    return text, StreamId(ms - 1, SEQ_MAX) if ms else ZERO


def _wrong(value: object) -> ValueError:
    return ValueError(
        "start must be earliest, latest, an ID such as 1700000000000.0, or a time with its zone such as "
        f"2026-01-31T12:00:00Z: {excerpt(value)}"
    )


EARLIEST: Final = StartPosition("earliest")
LATEST: Final = StartPosition("latest")
