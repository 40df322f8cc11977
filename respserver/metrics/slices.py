"""Generators that the event loop runs in slices.

A generator yields after each step. Steps run until a slice has taken SLICE seconds. Then the loop reads its sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

SLICE: Final = 0.0005  # seconds. A slice is at most this and one step, which must stay below 2 ms together
PAUSE: Final = 0.001  # seconds between slices, so that at least half of the time remains for clients


class SlicedRun:
    """One generator in progress. ``on_end`` is called with the exception that ended it, or None."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, steps: Iterator[None], on_end: Callable[[Exception | None], None]
    ) -> None:
        self._loop = loop
        self._steps = steps
        self._on_end = on_end
        self.seconds = 0.0  # of the event loop
        self.longest = 0.0  # seconds of the longest slice
        self._handle: asyncio.Handle | None = loop.call_soon(self._slice)

    def _slice(self) -> None:
        self._handle = None
        began = perf_counter()
        ended: Exception | None = None
        try:
            while more := next(self._steps, self) is not self:
                if perf_counter() - began >= SLICE:
                    break
        except Exception as error:  # noqa: BLE001 - passed to the owner
            ended, more = error, False
        took = perf_counter() - began
        self.seconds += took
        self.longest = max(self.longest, took)
        if more:
            self._handle = self._loop.call_later(PAUSE, self._slice)
        else:
            self._on_end(ended)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
