"""A copy with nodes instead of references. No server."""

from __future__ import annotations

import asyncio

import pytest

from persistence.layout import CODED, TIERED, U64, signed
from persistence.storecopy import ENTRY, META, NODES, STRINGS, entries
from replication.wholecopy import VERSION, whole
from resp.errors import CorruptError
from storage.nodes.reference import Reference

SIZE = 1000
BLOB = b"b" * 300


def reference_of(number: int) -> bytes:
    return Reference(1, 1, number, number, bytes(16), 0, bytes(16), 0, 1, 0).pack()


def piece_of(*items: tuple[int, bytes, bytes]) -> bytes:
    return b"".join(ENTRY.pack(db, len(key), len(value)) + key + value for db, key, value in items)


def test_references_become_nodes_in_pieces_of_limited_size() -> None:
    """The next nodes are read only when the connection has room again."""
    keys = [b"%03d" % number for number in range(50)]
    given = [
        (META, VERSION, signed(VERSION, U64.pack(TIERED))),
        *[(NODES, key, reference_of(int(key)) if int(key) % 5 else b"whole") for key in keys],
        (STRINGS, b"s", reference_of(7)),
    ]  # fmt: skip
    wanted = [
        (META, VERSION, signed(VERSION, U64.pack(CODED))),
        *[(NODES, key, key + BLOB if int(key) % 5 else b"whole") for key in keys],
        (STRINGS, b"s", reference_of(7)),
    ]  # fmt: skip
    read: list[bytes] = []

    async def node(key: bytes, raw: bytes) -> bytes:
        assert raw == reference_of(int(key))
        read.append(key)
        return key + BLOB

    async def main() -> list[bytes]:
        room = asyncio.Event()
        pieces: list[bytes] = []

        async def collect() -> None:
            async for part in whole(piece_of(*given), SIZE, node, room):
                pieces.append(part)  # noqa: PERF401 - each one when it is there

        task = asyncio.ensure_future(collect())
        for number in range(1, 4):
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(pieces) == number, "the connection has no room"
            assert len(read) <= 4 * number
            room.set()
            await asyncio.sleep(0)
            room.clear()
        room.set()
        await task
        return pieces

    pieces = asyncio.run(main())
    assert [entry for part in pieces for entry in entries(part)] == wanted
    assert max(map(len, pieces)) < SIZE + len(BLOB) + 100
    assert len(pieces) > 10


def test_a_node_that_cannot_be_read_ends_the_copy() -> None:
    async def node(_key: bytes, _raw: bytes) -> bytes:
        raise CorruptError("lost")

    async def main() -> None:
        async for _ in whole(piece_of((NODES, b"0", reference_of(0))), SIZE, node, asyncio.Event()):
            pass

    with pytest.raises(CorruptError, match="lost"):
        asyncio.run(main())
