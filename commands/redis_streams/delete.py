"""XDEL, XDELEX, XACKDEL: delete single entries.

The options define what happens to references of groups:

    KEEPREF    pending lists retain the ID of a deleted entry
    DELREF     the ID is removed from all pending lists, even if the entry was deleted before
    ACKED      the entry is not deleted if some group has not read it yet or has it pending

The replies of XDELEX and XACKDEL have a number for each ID: -1 not found (XACKDEL: not pending), 1 deleted, 2 groups
still need it. As in Redis, XDELEX with ACKED returns 2 for an ID that groups need even if the entry does not exist, and
the IDs are parsed only if the stream (XACKDEL: and the group) exists; otherwise the reply is -1 for each.
"""

from __future__ import annotations

from functools import partial
from operator import lt
from typing import Final

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, block, command, key, opt, repeat
from commands.parse import integer, raw_ids
from commands.redis_streams.options import REFERENCES
from commands.slicing import AT_ONCE, IdParser, by_id, ids_at_once, in_pieces
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.groups.group import Group
from storage.keyspace import events, groupmutators
from storage.keyspace.keyspace import Keyspace
from storage.model.ids import raw_id
from storage.streams.stream import Stream

MISSING: Final = -1
DELETED: Final = 1
NEEDED: Final = 2

IDS: Final = block("ids", arg("numids", "integer", token="IDS"), repeat(arg("id")))


@command(
    "XDEL", key("RW DELETE"), repeat(arg("id")), flags="write fast", complexity="O(M log N): M IDs, N macro nodes.",
)  # fmt: skip
def xdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries of a stream, wherever they are; return how many existed."""
    if ctx.ks.stream(argv[1], ctx.now) is None:
        return encode.integer(0)  # without parsing the IDs
    return by_id(argv, 2, partial(_delete_raw, argv[1]), ctx)


def _delete_raw(name: bytes, ctx: Context, raws: list[bytes]) -> int:
    stream = ctx.ks.stream(name, ctx.now)
    if stream is None:
        return 0
    ordered = raws if all(map(lt, raws, raws[1:])) else sorted(set(raws))
    return _delete_at(ctx.ks, name, stream, ordered)


def _delete_at(ks: Keyspace, name: bytes, stream: Stream, raws: list[bytes]) -> int:
    """Delete the entries of these IDs of 16 bytes. Returns how many existed."""
    ordinals: list[int] = []
    highest = stream.add_ords(raws, ordinals)
    _delete_found(ks, name, stream, ordinals, highest)
    return len(ordinals)


def _delete_found(ks: Keyspace, name: bytes, stream: Stream, ordinals: list[int], highest: int) -> None:
    """Delete the entries with these ordinals, the last of which has the ID ``highest``."""
    if ordinals:
        ks.delete_entries(name, stream, ordinals, highest)
        ks.notify(events.STREAM, b"xdel", name)


@command(
    "XDELEX", key("RW DELETE"), opt(REFERENCES), IDS, flags="write fast",
    complexity="O(M log N): M IDs, N macro nodes.",
)  # fmt: skip
def xdelex(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries of a stream; an option defines what happens if groups still need them."""
    stream = ctx.ks.stream(argv[1], ctx.now)  # WRONGTYPE is reported before any other error
    return _by_id(ctx, Deletion(argv, False), stream, stream is not None)


@command(
    "XACKDEL", key("RW DELETE"), arg("group"), opt(REFERENCES), IDS, flags="write fast", traits="sign_of_life",
    complexity="O(M log N + M log P): M IDs, N macro nodes, P pending messages.",
)  # fmt: skip
def xackdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge messages of a group and delete their entries; an option defines what happens if groups need them."""
    stream = ctx.ks.stream(argv[1], ctx.now)
    return _by_id(ctx, Deletion(argv, True), stream, stream is not None and argv[2] in stream.groups)


def _by_id(ctx: Context, deletion: Deletion, stream: Stream | None, there: bool) -> Reply:
    """Return the reply. ``there``: whether the stream, and the group, exist."""
    if not there:
        return encode.array_header(len(deletion.texts)) + encode.integer(MISSING) * len(deletion.texts)
    if len(deletion.texts) > deletion.at_once(stream):
        return Slices(deletion.step, True)
    return encode.array_header(len(deletion.texts)) + deletion.delete(ctx, raw_ids(deletion.texts))


class Deletion:
    """A call of XDELEX or, with ``acks``, of XACKDEL. Raises CommandError."""

    __slots__ = ("_acks", "_group", "_ids", "_key", "_parts", "_references", "texts")

    def __init__(self, argv: list[bytes], acks: bool) -> None:
        self.texts: list[bytes] = []  # the IDs
        self._key = argv[1]
        self._acks = acks
        self._group = argv[2] if acks else b""
        self._references = b""
        at = 3 if acks else 2
        while at < len(argv):
            at += self._option(argv, at)
        if not self.texts:
            raise errors.syntax()
        self._ids = IdParser(self.texts)
        self._parts: list[bytes] = []  # parts of the reply

    def _option(self, argv: list[bytes], at: int) -> int:
        """Parse the option at ``at``. Returns how many words it has."""
        word = argv[at].upper()
        if word in (b"KEEPREF", b"DELREF", b"ACKED") and not self._references:
            self._references = word
            return 1
        if word != b"IDS" or self.texts or at + 1 == len(argv):
            raise errors.syntax()
        count = _count(argv[at + 1])
        if count > len(argv) - at - 2:
            raise CommandError(errors.NUMIDS)
        self.texts = argv[at + 2 : at + 2 + count]
        return 2 + count

    def at_once(self, stream: Stream | None) -> int:
        """Return the number of IDs in a slice."""
        if stream is None or self._references not in (b"DELREF", b"ACKED"):
            return AT_ONCE
        return ids_at_once(len(stream.groups))

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Process the next IDs. Each has the effect of a separate call."""
        raws = self._ids.following(self.at_once(ctx.ks.stream(self._key, ctx.now)))
        if raws:
            self._parts.append(self.delete(ctx, raws))
        return in_pieces([encode.array_header(len(self.texts)), *self._parts]) if self._ids.done else None

    def delete(self, ctx: Context, raws: list[bytes]) -> bytes:
        """Process these IDs. Returns their part of the reply."""
        ids = [int.from_bytes(raw, "big") for raw in raws]
        ks, key, references = ctx.ks, self._key, self._references
        stream = ks.stream(key, ctx.now)
        group = stream.groups.get(self._group) if stream is not None else None
        if stream is None or (self._acks and group is None):
            return _numbers([MISSING] * len(ids))
        wanted = sorted(set(ids))
        if self._acks and group is not None:
            ctx.touch(group)
            wanted = _pending_of(group, wanted)
            left = set(wanted)
        else:
            left = set(stream.ids_of(stream.ords_of(wanted)))
        kept = _needed(stream, wanted, group if self._acks else None) if references == b"ACKED" else set()
        ordinals: list[int] = []  # found first, since a node may be damaged
        highest = stream.add_ords([raw_id(entry_id) for entry_id in wanted if entry_id not in kept], ordinals)
        if self._acks and group is not None:
            groupmutators.ack(ks, key, stream, group, [raw_id(entry_id) for entry_id in wanted])
        _delete_found(ks, key, stream, ordinals, highest)
        if references == b"DELREF":
            _drop_references(ks, key, stream, wanted)
        results: list[int] = []
        for entry_id in ids:
            if not self._acks and entry_id in kept:
                results.append(NEEDED)
            elif entry_id not in left:
                results.append(MISSING)
            else:
                results.append(NEEDED if entry_id in kept else DELETED)
                left.discard(entry_id)  # a duplicate is not found
        return _numbers(results)


def _count(text: bytes) -> int:
    try:
        count = integer(text)
    except CommandError:
        count = 0
    if count < 1:
        raise CommandError(errors.BAD_NUMIDS)
    return count


def _pending_of(group: Group, ids: list[int]) -> list[int]:
    """Return which of the IDs, which ascend, are pending in the group."""
    if not len(group.pending):
        return []
    found = group.pending.present([raw_id(entry_id) for entry_id in ids])
    return [int.from_bytes(raw, "big") for raw in found]


def _needed(stream: Stream, ids: list[int], acking: Group | None) -> set[int]:
    """Return which of the IDs some group has not read yet, or has pending. ``acking``: the group that acknowledges
    them, for XACKDEL."""
    needed: set[int] = set()
    for group in stream.groups.values():
        if not ids or ids[-1] > group.offset:
            needed.update([entry_id for entry_id in ids if entry_id > group.offset])
        if group is not acking:
            needed.update(_pending_of(group, ids))
    return needed


def _drop_references(ks: Keyspace, name: bytes, stream: Stream, ids: list[int]) -> None:
    """Remove the IDs from the pending lists of all groups."""
    for group in stream.groups.values():
        pending = _pending_of(group, ids)
        if pending:
            groupmutators.ack(ks, name, stream, group, [raw_id(entry_id) for entry_id in pending])


def _numbers(results: list[int]) -> bytes:
    return b"".join([encode.integer(result) for result in results])
