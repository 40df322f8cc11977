"""A copy of the store without references: their nodes are read from the object store while the copy is sent.

A backup that announces ``capa whole`` gets it, and then needs no object store. The reads are those of other commands,
with their read-ahead and disk cache (``respserver.tiering.historyreads``).

Rule 1: at most one piece of the copy, as many bytes of nodes, and the buffer of the connection are in memory: the next
nodes are read when the connection has room again.
Rule 2: after each piece that is sent, the event loop runs once. The nodes of one piece of references are several MB.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from persistence.layout import CODED, U64, signed
from persistence.storecopy import ENTRY, META, NODES, entries
from storage.nodes.reference import is_reference

WHOLE = b"whole"  # a capability
VERSION = b"nodes"  # in the database META: the highest version of a node

#: Returns the blob of the node with a key, whose reference is in the store.
ReadNode = Callable[[bytes, bytes], Awaitable[bytes]]


async def whole(piece: bytes, size: int, read: ReadNode, room: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield the entries of a piece with nodes instead of references, in pieces of about ``size`` bytes.

    ``room``: set while the connection can take more. Raises CorruptError, or what ``read`` raises.
    """
    parts: list[bytes] = []
    length = 0
    for db, key, value in entries(piece):
        if db == NODES and is_reference(value):
            value = await read(key, value)
        elif db == META and key == VERSION:
            value = signed(VERSION, U64.pack(CODED))
        parts += (ENTRY.pack(db, len(key), len(value)), key, value)
        length += len(key) + len(value)
        if length >= size:
            yield b"".join(parts)
            parts, length = [], 0
            await asyncio.sleep(0)
            await room.wait()
    if parts:
        yield b"".join(parts)
