"""Text for status displays: tables, pairs, sizes and durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from tidelog.operating.terminal import echo


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in [head, *rows]:
        echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


LAG: Final = ("lag", "age")  # headings of ``lag_cells``


def lag_cells(lag: int, lag_ms: int) -> list[str]:
    """Return the cells about unread entries: how many there are, and the age of the oldest."""
    return [f"{lag:,}", duration(lag_ms)]


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print a name and a value per line."""
    width = max(10, *map(len, pairs)) + 2
    for name, value in pairs.items():
        echo(f"{name:<{width}}{value}")


def size(count: int) -> str:
    """Return a number of bytes with its unit."""
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def duration(ms: int) -> str:
    """Return a number of milliseconds with a unit, "-" if it is 0 or less."""
    seconds = ms / 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s" if ms > 0 else "-"


def utc(ms: int) -> str:
    """Return a time in ms since 1970 as text."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{ms} ms"


def counted(count: int, what: str) -> str:
    """Return a number with its noun: ``1 entry``, ``2 entries``."""
    if count != 1:
        what = f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"
    return f"{count:,} {what}"
