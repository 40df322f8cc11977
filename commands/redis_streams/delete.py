"""XDEL, XDELEX, XACKDEL: entries deleted one by one.

What groups have of a deleted entry:

    KEEPREF    their pending lists keep its ID
    DELREF     its ID leaves all pending lists, too; also if the entry was gone before
    ACKED      the entry stays if some group has not read it yet, or has it pending

The replies of XDELEX and XACKDEL have a number for each ID: -1 it is not there (XACKDEL: not pending), 1 it is deleted,
2 it stays, because groups still need it.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, opt, repeat
from commands.parse import integer
from commands.parts import by_id
from commands.redis_streams.ids import strict_id
from commands.redis_streams.options import REFERENCES
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage import events
from storage.groups import effects
from storage.groups.group import Group
from storage.ids import raw_id
from storage.keyspace import Keyspace
from storage.stream import Stream

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
    return len(_delete(ctx.ks, name, stream, sorted({int.from_bytes(raw, "big") for raw in raws})))


def _delete(ks: Keyspace, name: bytes, stream: Stream, ids: list[int]) -> list[int]:
    """Delete the entries with these IDs, which ascend; returns the IDs of those that were there."""
    ordinals = stream.ords_of(ids)
    if not ordinals:
        return []
    found = stream.ids_of(ordinals)
    ks.delete_entries(name, stream, ordinals, found[-1])
    ks.notify(events.STREAM, b"xdel", name)
    return found


@command(
    "XDELEX", key("RW DELETE"), opt(REFERENCES), IDS,
    flags="write fast", group="stream", since="0.1.0", complexity="O(M log N): M IDs, N macro nodes.",
)  # fmt: skip
def xdelex(ctx: Context, argv: list[bytes]) -> Reply:
    """Delete entries of a stream; say what becomes of the groups that still need them."""
    references, ids = _parsed(argv, 2)
    stream = ctx.ks.stream(argv[1], ctx.now)
    if stream is None:
        return _numbers([MISSING] * len(ids))
    wanted = sorted(set(ids))
    there = set(stream.ids_of(stream.ords_of(wanted)))
    kept = _needed(stream, wanted) if references == b"ACKED" else set()
    _delete(ctx.ks, argv[1], stream, [entry_id for entry_id in wanted if entry_id not in kept])
    if references == b"DELREF":
        _drop_references(ctx.ks, argv[1], stream, wanted)
    results: list[int] = []
    for entry_id in ids:
        if entry_id not in there:
            results.append(MISSING)
        elif entry_id in kept:
            results.append(NEEDED)
        else:
            results.append(DELETED)
            there.discard(entry_id)  # if it comes again, it is gone
    return _numbers(results)


@command(
    "XACKDEL", key("RW DELETE"), arg("group"), opt(REFERENCES), IDS,
    flags="write fast", group="stream", since="0.1.0",
    complexity="O(M log N + M log P): M IDs, N macro nodes, P pending messages.",
)  # fmt: skip
def xackdel(ctx: Context, argv: list[bytes]) -> Reply:
    """Acknowledge messages of a group and delete their entries; say what becomes of other groups that need them."""
    references, ids = _parsed(argv, 3)
    stream = ctx.ks.stream(argv[1], ctx.now)
    group = stream.groups.get(argv[2]) if stream is not None else None
    if stream is None or group is None:
        return _numbers([MISSING] * len(ids))
    group.touch(ctx.now)
    pending = _pending_of(group, sorted(set(ids)))
    effects.ack(ctx.ks, argv[1], stream, group, [raw_id(entry_id) for entry_id in pending])
    kept = _needed(stream, pending) if references == b"ACKED" else set()
    _delete(ctx.ks, argv[1], stream, [entry_id for entry_id in pending if entry_id not in kept])
    if references == b"DELREF":
        _drop_references(ctx.ks, argv[1], stream, pending)
    left = set(pending)
    results: list[int] = []
    for entry_id in ids:
        if entry_id in left:
            results.append(NEEDED if entry_id in kept else DELETED)
            left.discard(entry_id)
        else:
            results.append(MISSING)
    return _numbers(results)


def _parsed(argv: list[bytes], at: int) -> tuple[bytes, list[int]]:
    """What to do with references (KEEPREF if nothing is said), and the IDs. Raises CommandError."""
    references = b""
    ids: list[int] | None = None
    while at < len(argv):
        word = argv[at].upper()
        if word in (b"KEEPREF", b"DELREF", b"ACKED") and not references:
            references = word
            at += 1
        elif word == b"IDS" and ids is None and at + 1 < len(argv):
            count = _count(argv[at + 1])
            if count > len(argv) - at - 2:
                raise CommandError(errors.NUMIDS)
            ids = [strict_id(text) for text in argv[at + 2 : at + 2 + count]]
            at += 2 + count
        else:
            raise errors.syntax()
    if ids is None:
        raise errors.syntax()
    return references or b"KEEPREF", ids


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
    found = group.pending.present([raw_id(entry_id) for entry_id in ids])
    return [int.from_bytes(raw, "big") for raw in found]


def _needed(stream: Stream, ids: list[int]) -> set[int]:
    """Those of the IDs that some group has not read yet, or has pending."""
    needed: set[int] = set()
    for group in stream.groups.values():
        needed.update([entry_id for entry_id in ids if entry_id > group.offset])
        needed.update(_pending_of(group, ids))
    return needed


def _drop_references(ks: Keyspace, name: bytes, stream: Stream, ids: list[int]) -> None:
    """Remove the IDs from the pending lists of all groups."""
    for group in stream.groups.values():
        pending = _pending_of(group, ids)
        if pending:
            effects.ack(ks, name, stream, group, [raw_id(entry_id) for entry_id in pending])


def _numbers(results: list[int]) -> bytes:
    return encode.array_header(len(results)) + b"".join([encode.integer(result) for result in results])
