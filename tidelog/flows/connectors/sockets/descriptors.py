"""Waits for file descriptors, and writes to them, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Iterable
from typing import Final

PIPE: Final = select.PIPE_BUF  # bytes that a writable pipe accepts at once


def ready(descriptor: int, *, to_write: bool = False) -> asyncio.Future[None] | None:
    """Return a future that is done when the descriptor is readable (or writable). Call ``forget`` after waiting.

    Returns None if the descriptor never blocks, such as files and /dev/null.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def call() -> None:
        if not future.done():
            future.set_result(None)

    try:
        if to_write:
            loop.add_writer(descriptor, call)
        else:
            loop.add_reader(descriptor, call)
    except PermissionError:
        return None
    return future


def forget(descriptor: int, *, to_write: bool = False) -> None:
    loop = asyncio.get_running_loop()
    if to_write:
        loop.remove_writer(descriptor)
    else:
        loop.remove_reader(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data. Blocks."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class PipeWriter:
    """Writes whole messages to a pipe, a terminal or a file.

    If a write is cancelled in the middle of a message, the rest of the message is written before the next one.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    async def write(self, pieces: Iterable[bytes]) -> None:
        for piece in (self._rest, *pieces):
            self._rest = piece
            while self._rest:
                await self._some()

    async def _some(self) -> None:
        waiting = ready(self._descriptor, to_write=True)
        if waiting is None:
            data, self._rest = self._rest, b""
            await asyncio.to_thread(write_all, self._descriptor, data)
            return
        try:
            await waiting
        finally:
            forget(self._descriptor, to_write=True)
        try:
            self._rest = self._rest[os.write(self._descriptor, self._rest[:PIPE]) :]
        except BlockingIOError:
            pass
