"""XDEL, XDELEX, XACKDEL: entries deleted one by one.

What groups have of a deleted entry:

    KEEPREF    their pending lists keep its ID
    DELREF     its ID leaves all pending lists, too; also if the entry was gone before
    ACKED      the entry stays if some group has not read it yet, or has it pending

The replies of XDELEX and XACKDEL have a number for each ID: -1 it is not there (XACKDEL: not pending), 1 it is deleted,
2 groups still need it. As in Redis, XDELEX with ACKED answers 2 for an ID that groups need whether or not there is such
an entry, and the IDs are read only if there is a stream (XACKDEL: and a group): otherwise the reply is -1 for each.
"""

from __future__ import annotations

from functools import partial
from operator import lt
from typing import Final

from commands.context import Chunks, Context, Reply, Slices
from commands.declare import arg, block, command, key, opt, repeat
from commands.parse import integer, raw_ids
from commands.redis_streams.options import REFERENCES
from commands.slicing import AT_ONCE, Ids, by_id, ids_at_once, in_pieces
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
    "XDEL", key("RW DELETE"), repeat(arg("id")),
    flags="write fast", group="stream", since="0.1.0", complexity="O(M log N): M IDs, N macro nodes.",
)  # fmt: skip
def xdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries of a stream, wherever they are; return how many were there."""
    if ctx.ks.stream(argv[1], ctx.now) is None:
        return encode.integer(0)  # whatever the IDs are
    return by_id(argv, 2, partial(_delete_raw, argv[1]), ctx)


def _delete_raw(name: bytes, ctx: Context, raws: list[bytes]) -> int:
    stream = ctx.ks.stream(name, ctx.now)
    if stream is None:
        return 0
    ordered = raws if all(map(lt, raws, raws[1:])) else sorted(set(raws))
    return _delete_at(ctx.ks, name, stream, ordered)


def _delete(ks: Keyspace, name: bytes, stream: Stream, ids: list[int]) -> None:
    """Delete the entries with these IDs, which ascend, those that are there."""
    _delete_at(ks, name, stream, [raw_id(entry_id) for entry_id in ids])


def _delete_at(ks: Keyspace, name: bytes, stream: Stream, raws: list[bytes]) -> int:
    """The same, of IDs of 16 bytes; returns how many there were."""
    ordinals: list[int] = []
    highest = stream.add_ords(raws, ordinals)
    if ordinals:
        ks.delete_entries(name, stream, ordinals, highest)
        ks.notify(events.STREAM, b"xdel", name)
    return len(ordinals)


@command(
    "XDELEX", key("RW DELETE"), opt(REFERENCES), IDS,
    flags="write fast", group="stream", since="0.1.0", complexity="O(M log N): M IDs, N macro nodes.",
)  # fmt: skip
def xdelex(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries of a stream; say what becomes of the groups that still need them."""
    stream = ctx.ks.stream(argv[1], ctx.now)  # raises WRONGTYPE, which comes before any other error
    return _by_id(ctx, Deletion(argv, False), stream, stream is not None)


@command(
    "XACKDEL", key("RW DELETE"), arg("group"), opt(REFERENCES), IDS,
    flags="write fast", traits="sign_of_life", group="stream", since="0.1.0",
    complexity="O(M log N + M log P): M IDs, N macro nodes, P pending messages.",
)  # fmt: skip
def xackdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge messages of a group and delete their entries; say what becomes of other groups that need them."""
    stream = ctx.ks.stream(argv[1], ctx.now)
    return _by_id(ctx, Deletion(argv, True), stream, stream is not None and argv[2] in stream.groups)


def _by_id(ctx: Context, deletion: Deletion, stream: Stream | None, there: bool) -> Reply:
    """``there``: whether there is a stream, and a group, whose entries can be deleted."""
    if not there:
        return encode.array_header(len(deletion.texts)) + encode.integer(MISSING) * len(deletion.texts)
    if len(deletion.texts) > deletion.at_once(stream):
        return Slices(deletion.step, True)
    return encode.array_header(len(deletion.texts)) + deletion.delete(ctx, raw_ids(deletion.texts))


class Deletion:
    """A call of XDELEX or, with ``acks``, of XACKDEL. Raises CommandError."""

    __slots__ = ("_acks", "_at", "_group", "_ids", "_key", "_parsed", "_parts", "_references", "texts")

    def __init__(self, argv: list[bytes], acks: bool) -> None:
        self.texts: list[bytes] = []  # the IDs, not parsed yet
        self._key = argv[1]
        self._acks = acks
        self._group = argv[2] if acks else b""
        self._references = b""
        at = 3 if acks else 2
        while at < len(argv):
            at += self._option(argv, at)
        if not self.texts:
            raise errors.syntax()
        self._ids = Ids(self.texts)
        self._parsed = False
        self._at = 0  # how many IDs have been handled
        self._parts: list[bytes] = []  # of the reply

    def _option(self, argv: list[bytes], at: int) -> int:
        """Read the option at ``at``; returns how many words it has."""
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
        """How many IDs a slice has."""
        if stream is None or self._references not in (b"DELREF", b"ACKED"):
            return AT_ONCE
        return ids_at_once(len(stream.groups))

    def step(self, ctx: Context) -> bytes | Chunks | None:
        """Handle the next IDs; each is what one call for it would be."""
        if not self._parsed:
            self._parsed = not self._ids.parse()
            return None
        raws = self._ids.raws
        most = self.at_once(ctx.ks.stream(self._key, ctx.now))
        self._parts.append(self.delete(ctx, raws[self._at : self._at + most]))
        self._at += most
        if self._at < len(raws):
            return None
        return in_pieces([encode.array_header(len(raws)), *self._parts])

    def delete(self, ctx: Context, raws: list[bytes]) -> bytes:
        """Handle these IDs; returns what the reply has of them."""
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
            groupmutators.ack(ks, key, stream, group, [raw_id(entry_id) for entry_id in wanted])
        else:
            left = set(stream.ids_of(stream.ords_of(wanted)))
        kept = _needed(stream, wanted) if references == b"ACKED" else set()
        _delete(ks, key, stream, [entry_id for entry_id in wanted if entry_id not in kept])
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
                left.discard(entry_id)  # if it comes again, it is gone
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
    """Those of the IDs, which ascend, that the group has pending."""
    if not len(group.pending):
        return []
    found = group.pending.present([raw_id(entry_id) for entry_id in ids])
    return [int.from_bytes(raw, "big") for raw in found]


def _needed(stream: Stream, ids: list[int]) -> set[int]:
    """Those of the IDs that some group has not read yet, or has pending."""
    needed: set[int] = set()
    for group in stream.groups.values():
        if not ids or ids[-1] > group.offset:
            needed.update([entry_id for entry_id in ids if entry_id > group.offset])
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
