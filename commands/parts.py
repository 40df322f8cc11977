"""Long commands whose arguments are handled some at a time (``context.Slices``), and long arrays as replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from commands.context import Chunks, Context, Slices
from commands.parse import raw_ids
from resp import reply

ROW_BYTES: Final = 32  # memory of a pending message that a listing has yet to send
AT_ONCE: Final = 1000  # arguments in a slice: some milliseconds; a command with no more than these has no slices
LONG_NAME: Final = 4096  # bytes; names that each slice would log again
PIECE_BYTES: Final = 64 * 1024  # of a streamed array

Handle = Callable[[Context, list[bytes]], int]  # of some arguments; returns how many of them count


class Parts:
    """Names that are handled independently, from the last one on, so that each slice frees its own. The reply is how
    many of them count."""

    __slots__ = ("_count", "_handle", "_names")

    def __init__(self, names: list[bytes], handle: Handle) -> None:
        self._names = names  # is emptied
        self._handle = handle
        self._count = 0

    def step(self, ctx: Context) -> bytes | None:
        names = self._names
        part = names[-AT_ONCE:]
        del names[-AT_ONCE:]
        self._count += self._handle(ctx, part)
        return None if names else reply.integer(self._count)


class IdParts:
    """IDs: all are parsed before the first is handled, so a malformed one changes nothing. One given twice counts once.

    What was seen is in many small sets: a large one takes long to grow and to free.
    """

    __slots__ = ("_parts", "_raws", "_seen", "_texts")

    def __init__(self, texts: list[bytes], handle: Handle) -> None:
        self._texts = texts  # is emptied
        self._raws: list[bytes] = []
        self._seen: list[set[bytes]] = [set() for _ in range(max(1, len(texts) // AT_ONCE))]
        self._parts = Parts(self._raws, handle)

    def step(self, ctx: Context) -> bytes | None:
        texts, seen = self._texts, self._seen
        if not texts:
            if seen:
                seen.pop()
            return self._parts.step(ctx)
        sets, add = len(seen), self._raws.append
        for raw in raw_ids(texts[-AT_ONCE:]):
            found = seen[hash(raw) % sets]
            if raw not in found:
                found.add(raw)
                add(raw)
        del texts[-AT_ONCE:]
        return None


class Ids:
    """IDs that are parsed some at a time, before the first of them is handled."""

    __slots__ = ("_texts", "raws")

    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts
        self.raws: list[bytes] = []  # those parsed so far, 16 bytes each

    def parse(self) -> bool:
        """Parse the next ones; False if all are parsed. Raises CommandError."""
        at = len(self.raws)
        self.raws += raw_ids(self._texts[at : at + AT_ONCE])
        return len(self.raws) < len(self._texts)


def by_name(names: list[bytes], handle: Handle, ctx: Context) -> bytes | Slices:
    """The reply to a command for these names: at once if they are few."""
    if len(names) <= AT_ONCE:
        return reply.integer(handle(ctx, names))
    return Slices(Parts(names, handle).step, True)


def by_id(argv: list[bytes], start: int, handle: Handle, ctx: Context) -> bytes | Slices:
    """The reply to a command for a group's messages: the IDs in argv from ``start`` on; argv[1] and argv[2] name it."""
    if len(argv) - start <= AT_ONCE or len(argv[1]) + len(argv[2]) > LONG_NAME:
        return reply.integer(handle(ctx, raw_ids(argv, start)))
    return Slices(IdParts(argv[start:], handle).step, True)


def long_array(items: Sequence[bytes | None], null: bytes, head: bytes = b"") -> bytes | Chunks:
    """An array of bulk strings, ``null`` for None, after ``head``: streamed if it is long.

    Until it is sent, it takes the items, which may leave the keyspace meanwhile; a long one that is in it many times
    counts once.
    """
    top = head + reply.array_header(len(items))
    size = 0
    for item in items:
        if item is not None:
            size += len(item)
    if size <= PIECE_BYTES and len(items) <= AT_ONCE:
        return top + b"".join([null if item is None else reply.bulk(item) for item in items])
    long = [len(item) for item in items if item is not None and len(item) > LONG_NAME]
    if len(long) > 1:
        size += sum({id(item): len(item) for item in items if item is not None and len(item) > LONG_NAME}.values())
        size -= sum(long)
    return Chunks(_pieces(top, items, null), _nothing, 8 * len(items) + size)


def in_pieces(parts: list[bytes]) -> bytes | Chunks:
    """A reply of these parts, streamed if it is long."""
    size = sum(map(len, parts))
    return b"".join(parts) if size <= PIECE_BYTES else Chunks(iter(parts), _nothing, size)


def _pieces(head: bytes, items: Sequence[bytes | None], null: bytes) -> Iterator[bytes]:
    parts, size = [head], 0
    for item in items:
        bulk = null if item is None else reply.bulk(item)
        parts.append(bulk)
        size += len(bulk)
        if size > PIECE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _nothing() -> None:
    """Nothing is held that has to be released."""
