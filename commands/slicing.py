"""Long commands whose arguments are processed in slices (``context.Slices``), and long arrays as replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

from commands.context import Chunks, Context, Slices, nothing
from commands.parse import raw_ids
from resp import reply
from storage.groups.pending import PendingRow, PendingTable

T = TypeVar("T")
ROW_BYTES: Final = 32  # memory of a pending message in a listing that is not sent yet
# number of arguments in a slice, which takes some milliseconds; a command with fewer arguments has no slices
AT_ONCE: Final = 1000
FEW_GROUPS: Final = 10  # a slice has fewer IDs if more groups than this must be searched for each ID
LONG_NAME: Final = 4096  # bytes; each slice would log such a name again
SLICE_BYTES: Final = 64 * 1024  # size of the names in a slice, if the work depends on their length
PIECE_BYTES: Final = 64 * 1024  # size of the pieces of a streamed array
LONG_VALUE: Final = 16 << 20  # bytes of a string; a longer one is sent in pieces
LONG_PIECE: Final = 256 * 1024  # bytes of such a piece

Handle = Callable[[Context, list[bytes]], int]  # processes some arguments; returns how many of them count
Encode = Callable[[Context, list[bytes]], bytes]  # encodes the part of the reply for some arguments


def _in_slices(names: list[bytes], handle: Handle) -> Callable[[Context], bytes | None]:
    """Return the step of a command whose reply is the number of names that count. Names are processed from the last one
    on, so that each slice frees its own."""
    count = 0

    def step(ctx: Context) -> bytes | None:
        nonlocal count
        part = names[-AT_ONCE:]
        del names[-AT_ONCE:]
        count += handle(ctx, part)
        return None if names else reply.integer(count)

    return step


def ids_at_once(groups: int) -> int:
    """Return how many IDs a slice has if each of ``groups`` groups is searched for each ID."""
    return AT_ONCE if groups <= FEW_GROUPS else max(1, FEW_GROUPS * AT_ONCE // groups)


def slice_end(names: Sequence[bytes], start: int, most_bytes: int = SLICE_BYTES) -> int:
    """Return the end of the slice of names that begins at ``start``. The slice has at least one name."""
    end = min(start + AT_ONCE, len(names))
    while end - start > 1 and sum(map(len, names[start:end])) > most_bytes:
        end = start + (end - start) // 2
    return end


class IdParser:
    """IDs that are all parsed, in slices, before the first of them is processed, so that a malformed ID changes
    nothing."""

    __slots__ = ("_at", "_raws", "_texts")

    def __init__(self, texts: list[bytes]) -> None:
        self._texts = texts
        self._raws: list[bytes] = []  # the IDs parsed so far, 16 bytes each
        self._at = 0  # number of IDs that were returned

    def following(self, most: int = AT_ONCE) -> list[bytes]:
        """Return the next IDs; empty if some were parsed instead. Raises CommandError."""
        at = len(self._raws)
        if at < len(self._texts):
            self._raws += raw_ids(self._texts[at : at + AT_ONCE])
            return []
        start, self._at = self._at, self._at + most
        return self._raws[start : self._at]

    @property
    def done(self) -> bool:
        """Whether following() has returned all IDs."""
        return self._at >= len(self._texts)


def by_name(names: list[bytes], handle: Handle, ctx: Context) -> bytes | Slices:
    """Return the reply to a command for these names. A short list is processed immediately."""
    if len(names) <= AT_ONCE:
        return reply.integer(handle(ctx, names))
    return Slices(_in_slices(names, handle), True)


def in_turn(names: list[bytes], encode: Encode, ctx: Context, head: bytes = b"") -> bytes | Slices:
    """Return the reply to a command that changes nothing and whose reply has a part for each name, after ``head``. A
    short list is processed immediately."""
    if slice_end(names, 0) == len(names):
        return head + encode(ctx, names)
    at, parts = 0, [head]

    def step(ctx: Context) -> bytes | Chunks | None:
        nonlocal at
        start, at = at, slice_end(names, at)
        parts.append(encode(ctx, names[start:at]))
        return None if at < len(names) else in_pieces(parts)

    return Slices(step, False)


def in_parts(
    items: Sequence[T], take: Callable[[Sequence[T]], None], finish: Callable[[Context], bytes | Chunks], ctx: Context,
    at_once: int = AT_ONCE,
) -> bytes | Chunks | Slices:  # fmt: skip
    """Return the result of finish() after take() was called with all items, in slices if there are many."""
    if len(items) <= at_once:
        take(items)
        return finish(ctx)
    at = 0

    def step(ctx: Context) -> bytes | Chunks | None:
        nonlocal at
        take(items[at : at + at_once])
        at += at_once
        return None if at < len(items) else finish(ctx)

    return Slices(step, False)


def array_of(
    items: Sequence[T], encoded: Callable[[T], bytes], ctx: Context, at_once: int = AT_ONCE, head: bytes = b""
) -> bytes | Chunks | Slices:
    """Return an array, after ``head``, of the elements that encoded() returns for the items, in slices if there are
    many. Items for which it returns nothing have no element."""
    parts: list[bytes] = []

    def take(some: Sequence[T]) -> None:
        parts.extend([part for part in map(encoded, some) if part])

    def finish(_: Context) -> bytes | Chunks:
        return in_pieces([head, reply.array_header(len(parts)), *parts])

    return in_parts(items, take, finish, ctx, at_once)


def matching_names(
    names: list[bytes], matching: Callable[[Context, list[bytes]], list[bytes]], ctx: Context
) -> bytes | Slices:
    """Return the array of the names that matching() returns for these names, in slices if there are many."""
    if slice_end(names, 0) == len(names):
        return reply.bulk_array(matching(ctx, names))
    at, found = 0, list[bytes]()

    def step(ctx: Context) -> bytes | Chunks | None:
        nonlocal at
        start, at = at, slice_end(names, at)
        found.extend(matching(ctx, names[start:at]))
        return None if at < len(names) else long_array(found, b"")

    return Slices(step, False)


def by_id(argv: list[bytes], start: int, handle: Handle, ctx: Context) -> bytes | Slices:
    """Return the reply to a command for messages of the group argv[2] of argv[1]: the IDs in argv from ``start`` on.

    All are parsed before the first one is processed, so that a malformed ID changes nothing. Duplicates count once. The
    IDs seen so far are in many small sets, because a large set takes long to grow and to free.
    """
    if len(argv) - start <= AT_ONCE or len(argv[1]) + len(argv[2]) > LONG_NAME:
        return reply.integer(handle(ctx, raw_ids(argv, start)))
    texts, raws = argv[start:], list[bytes]()
    seen: list[set[bytes]] = [set() for _ in range(len(texts) // AT_ONCE)]
    process = _in_slices(raws, handle)

    def step(ctx: Context) -> bytes | None:
        if not texts:
            if seen:
                seen.pop()
            return process(ctx)
        for raw in raw_ids(texts[-AT_ONCE:]):
            found = seen[hash(raw) % len(seen)]
            if raw not in found:
                found.add(raw)
                raws.append(raw)
        del texts[-AT_ONCE:]
        return None

    return Slices(step, True)


def long_array(items: Sequence[bytes | None], null: bytes, head: bytes = b"") -> bytes | Chunks:
    """Return an array of bulk strings, ``null`` for None, after ``head``; it is streamed if it is long.

    Until the array is sent, its memory includes the items, which may leave the keyspace in the meantime. A long item
    that occurs several times counts once.
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
    return Chunks(_pieces(top, items, null), nothing, 8 * len(items) + size)


def row_pages(pending: PendingTable, start: int, end: int, total: int, owner: int = 0) -> Iterator[list[PendingRow]]:
    """Yield ``total`` messages with IDs from ``start`` to ``end``, in parts. ``owner``: a consumer; 0: anyone."""
    while total > 0:
        most = min(total, AT_ONCE)
        rows = pending.rows_of(owner, start, end, most) if owner else pending.rows(start, end, most)
        yield rows
        total -= len(rows)
        start = rows[-1].id + 1


def rows_reply(
    pending: PendingTable, start: int, end: int, count: int, encoded: Callable[[list[PendingRow]], bytes]
) -> bytes | Chunks:
    """Return an array of at most ``count`` messages with IDs from ``start`` to ``end``, streamed if it is long."""
    total = min(count, pending.between(start, end))
    head = reply.array_header(total)
    if total <= AT_ONCE:
        return head + encoded(pending.rows(start, end, total))
    pages = row_pages(pending.freeze(), start, end, total)
    return Chunks(chain((head,), map(encoded, pages)), nothing, ROW_BYTES * total)


def long_bulk(value: bytes, start: int = 0, stop: int = -1) -> bytes | Chunks:
    """Return the bytes from ``start`` to before ``stop`` (-1: the end) as a bulk string. A long one is streamed,
    because copying it in one step would delay other clients."""
    end = len(value) if stop < 0 else stop
    if end - start <= LONG_VALUE:
        return reply.bulk(value if end - start == len(value) else value[start:end])
    return Chunks(_cut(value, start, end), nothing, end - start)


def _cut(value: bytes, start: int, end: int) -> Iterator[bytes]:
    yield reply.bulk_header(end - start)
    for at in range(start, end, LONG_PIECE):
        yield value[at : min(at + LONG_PIECE, end)]
    yield b"\r\n"


def in_pieces(parts: list[bytes]) -> bytes | Chunks:
    """Return a reply of these parts, streamed if it is long."""
    size = sum(map(len, parts))
    return b"".join(parts) if size <= PIECE_BYTES else Chunks(gathered(iter(parts)), nothing, size)


def gathered(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the parts in order, several short ones at a time. An empty one, at which the reader may have to wait, is
    yielded alone."""
    some, size = list[bytes](), 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size > PIECE_BYTES or not part:
            if size:
                yield b"".join(some)
            some, size = [], 0
            if not part:
                yield part
    if some:
        yield b"".join(some)


def _pieces(head: bytes, items: Sequence[bytes | None], null: bytes) -> Iterator[bytes]:
    parts, size = [head], 0
    for item in items:
        if item is not None and len(item) > LONG_VALUE:
            yield b"".join(parts)
            yield from _cut(item, 0, len(item))
            parts, size = [], 0
            continue
        bulk = null if item is None else reply.bulk(item)
        parts.append(bulk)
        size += len(bulk)
        if size > PIECE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
