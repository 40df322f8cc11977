"""Waits for file descriptors, and writes to them, without blocking the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
from collections.abc import Iterable, Iterator
from typing import Final

PIPE: Final = select.PIPE_BUF  # bytes that a writable pipe accepts at once


@contextlib.contextmanager
def watching(descriptor: int, *, to_write: bool = False) -> Iterator[asyncio.Future[None] | None]:
    """Watch a descriptor. The future is done when it is readable (or writable).

    The future is None if the descriptor never blocks, such as files and /dev/null.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    try:
        add(descriptor, lambda: None if future.done() else future.set_result(None))
    except PermissionError:
        yield None
        return
    try:
        yield future
    finally:
        remove(descriptor)


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
        with watching(self._descriptor, to_write=True) as writable:
            if writable is None:
                data, self._rest = self._rest, b""
                await asyncio.to_thread(write_all, self._descriptor, data)
                return
            await writable
        with contextlib.suppress(BlockingIOError):
            self._rest = self._rest[os.write(self._descriptor, self._rest[:PIPE]) :]
