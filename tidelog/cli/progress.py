"""A progress bar on standard error, if that is a terminal: how far a load is, and how fast."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

EVERY = 0.1  # seconds between two updates of the bar
WIDTH = 30  # characters of the bar


class Progress:
    """The bar, as a context manager. Calling ``show`` for each row is cheap."""

    def __init__(self, total: int | None) -> None:
        self.total = total  # bytes of the file; None if unknown
        self.started = time.monotonic()
        self._next = 0.0
        self._stream = sys.stderr
        self._visible = self._stream.isatty()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def show(self, rows: int, position: int) -> None:
        """Update the bar, at most once every EVERY seconds. ``position`` is bytes read."""
        if not self._visible or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY
        bar = ""
        if self.total:
            share = min(1.0, position / self.total)
            bar = f"{share:4.0%} {'█' * round(share * WIDTH):░<{WIDTH}}  "
        self._stream.write(f"\r{bar}{rows:,} rows  {rows / max(self.seconds, 1e-9):,.0f}/s\x1b[K")
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
