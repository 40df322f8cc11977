"""The names of the files of an export.

    ts_day=2026-11-27/shop%3Aorders%3A3.1795737600000-0.1795740000000-4.parquet
    the UTC day       the key           the ID of the first entry, and that of the last one

A file contains every entry that its stream had between these two IDs when it was written, all of one day.

Decision: the day is not named ``day`` or ``date``, since readers add it as a column, and fields often have these names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote, unquote

from tidelog.client.entries import StreamId

SUFFIX: Final = ".parquet"
NO_DAY: Final = "__HIVE_DEFAULT_PARTITION__"  # of an entry after the year 9999, as Spark and Hive name it
LONGEST_KEY: Final = 150  # characters of a quoted key; names of files have at most 255


class ExportError(Exception):
    """An export can't begin or continue. The text contains the remedy."""


@dataclass(frozen=True, order=True)
class ExportedFile:
    """A file of an export."""

    key: str
    first: StreamId
    last: StreamId

    @property
    def name(self) -> str:
        """The name in the target, with the directory of the day."""
        ids = f"{self.first.ms}-{self.first.seq}.{self.last.ms}-{self.last.seq}"
        return f"ts_day={_day(self.first)}/{quote(self.key, safe='')}.{ids}{SUFFIX}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the file with a name in the target; None if it is not a file of an export."""
        parts = name.removesuffix(SUFFIX).rpartition("/")[2].rsplit(".", 2)
        if len(parts) != 3 or not name.endswith(SUFFIX):
            return None
        try:
            found = cls(unquote(parts[0]), StreamId.parse(parts[1]), StreamId.parse(parts[2]))
        except ValueError:
            return None
        return found if found.name == name else None


def check_key(key: str) -> None:
    """Raise ExportError for a key that is too long for the name of a file."""
    if len(quote(key, safe="")) > LONGEST_KEY:
        raise ExportError(
            f"the name {key[:50]!r}... is too long for a file: a key can have {LONGEST_KEY} characters, and special"
            " characters count three times"
        )


def _day(id: StreamId) -> str:  # noqa: A002
    try:
        return f"{id.time:%Y-%m-%d}"
    except (OverflowError, ValueError):
        return NO_DAY
