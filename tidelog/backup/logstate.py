"""The state file of a log: how far the log is known to be complete.

    logs/<log>/state.json    {"offset": 4711, "ms": 1795248000123, "last": "<name of the last chunk>"}

The process of a continuous backup replaces it once a minute and at its end. While nothing is logged, it extends the
range of times that can be restored. It also shows whether the last chunk is missing.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from tidelog.backup.logchunks import FOLDER
from tidelog.backup.manifest import Number
from tidelog.backup.targets import BackupError, BackupTarget

NAME = "state.json"
LONGEST = 4096  # bytes


class LogState(Struct, frozen=True):
    """The content of the file."""

    offset: Number  # the end of the log
    ms: Number  # time at which the log ended there; 0: unknown
    last: str  # name of the last chunk; "": there is none


def state_file(log: str) -> str:
    """Return the name of the file of a log."""
    return f"{FOLDER}/{log}/{NAME}"


def write(place: BackupTarget, log: str, state: LogState) -> None:
    """Replace the file. Raises BackupError."""
    place.write(state_file(log), msgspec.json.encode(state))


def read(place: BackupTarget, log: str) -> LogState:
    """Read the file. Raises BackupError if it is damaged or can't be read."""
    try:
        return msgspec.json.decode(place.read(state_file(log), LONGEST), type=LogState)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise BackupError(f"{place.shown}/{state_file(log)} is damaged: remove it") from None
