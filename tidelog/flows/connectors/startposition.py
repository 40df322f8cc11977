"""The option ``start`` of sources that read a log: ``earliest``, ``latest``, an ID, or a time in ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from tidelog.client.entries import SEQ_MAX, StreamId

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


def start_after(start: str) -> StreamId | None:
    """Return the ID after which reading starts; None: after the last entry. Raises ValueError if ``start`` is invalid.

    An ID itself is not read; from a time on, the entries of that millisecond are. A time without a zone is in UTC.
    """
    if start == LATEST:
        return None
    if start == EARLIEST:
        return StreamId(0)
    try:
        return StreamId.parse(start)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(start)
    except ValueError:
        raise ValueError(f"start is {start!r}: it must be earliest, latest, an ID or a time in ISO 8601") from None
    ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    return StreamId(ms - 1, SEQ_MAX) if ms > 0 else StreamId(0)
