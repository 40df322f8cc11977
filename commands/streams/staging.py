"""TSTAGE, TPERSIST, TPUBLISH, TDROP, TFENCE: entries are staged, then appended in one step, exactly once [32].

The names of stages and fences are declared as keys, although the keyspace does not contain them: users need permission
for the names [45], and clients with CLIENT TRACKING that have read a fence are notified of its changes.
"""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply, Slices
from commands.declare import arg, command, key, opt, repeat
from commands.parse import positive, span
from commands.slicing import by_name
from commands.streams.rows import FieldRows, parsed_rows
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.keyspace import events, stagemutators
from storage.keyspace.keyspace import Keyspace
from storage.model.ids import MASK64
from storage.model.timers import NEVER

PUBLISHED: Final = encode.bulk(b"published")
SKIPPED: Final = encode.bulk(b"skipped")
VALUES_AT_ONCE: Final = 10_000  # number of values staged in one slice
CHECK_BYTES: Final = 64  # limited, since fences store it permanently, in memory
# Maximum size of the name of a stage or fence. A fence is not refused beyond ``maxmemory``, since it takes about as
# much memory as the stage that is deleted with its publication.
NAME_BYTES: Final = 1024


def _staged_keys(ks: Keyspace, names: list[bytes]) -> set[bytes]:
    """Return the keys of the streams for which the stages hold entries: publishing or dropping a stage changes them."""
    by_name = ks.stages.by_name
    return {piece.key for name in names if name in by_name for piece in by_name[name].pieces}


@command(
    "TSTAGE", key("RW INSERT", "stage"), arg("ttl", "integer"), key("RW INSERT"), arg("n", "integer", token="FIELDS"),
    repeat(arg("field")), arg("value", token="VALUES"), opt(repeat(arg("more-values"))), flags="write denyoom",
    traits="sign_of_life", complexity="O(N): N values.",
)  # fmt: skip
def tstage(ctx: Context, argv: list[bytes]) -> Reply:
    """Stage entries for a stream until TPUBLISH appends them; return the number of entries in the stage."""
    ks, name, target = ctx.ks, argv[1], argv[3]
    ttl = span(argv[2])
    rows = parsed_rows(ctx, argv[4:], "tstage")
    ks.stream(target, ctx.now)  # raises WRONGTYPE now, not when the stage is published
    if stagemutators.live(ks, name, ctx.served()) is None:
        _check_name("stage", name)
    at_once = max(1, VALUES_AT_ONCE // rows.width)
    if rows.total <= at_once or ctx.in_exec:
        return _stage_some(ctx, name, target, ttl, rows, 0, rows.total)
    at = 0

    def step(ctx: Context) -> bytes | None:
        nonlocal at
        start, at = at, min(at + at_once, rows.total)
        answer = _stage_some(ctx, name, target, ttl, rows, start, at)
        return answer if at == rows.total else None

    return Slices(step, True)


def _stage_some(
    ctx: Context, name: bytes, target: bytes, ttl: int, rows: FieldRows, start: int, stop: int
) -> bytes:  # fmt: skip
    served = ctx.served()
    stagemutators.live(ctx.ks, name, served)
    stage = stagemutators.stage(ctx.ks, name, target, ttl, served + ttl if ttl else NEVER, *rows.bare(start, stop))
    return encode.integer(stage.entries)


@command(
    "TPUBLISH", key("RW ACCESS UPDATE", "fence"), arg("epoch", "integer"), opt(arg("check", token="CHECK")),
    key("RM DELETE", "stage", multiple=True), flags="write",
    complexity="O(M + K): M macro nodes' worth of staged entries, for K streams.",
    reaches=lambda ks, argv: _staged_keys(ks, argv[5 if argv[3].upper() == b"CHECK" else 3 :]),
)  # fmt: skip
def tpublish(ctx: Context, argv: list[bytes]) -> Reply:
    """Append all staged entries in one step and drop the stages; only once for each epoch of the fence."""
    ks, fence, now = ctx.ks, argv[1], ctx.now
    epoch = positive(argv[2])
    check, names = _check(argv)
    done = ks.stages.fences.get(fence, -1)
    if done < 0:
        _check_name("fence", fence)
    if epoch < done:
        raise errors.stale(fence, epoch, done)
    if epoch == done:
        before = ks.stages.checks.get(fence, b"")
        if check and before and check != before:
            raise errors.conflict(fence, epoch, before, check)
        stagemutators.unstage(ks, names)
        ctx.server.writes.repeated(ctx.session)
        return encode.array_header(2) + SKIPPED + encode.integer(0)
    served = ctx.served()
    for name in names:
        if stagemutators.live(ks, name, served) is None:
            raise errors.quoting(errors.NO_STAGE, name)
    firsts: list[stagemutators.First] = []
    total = 0
    content = stagemutators.gathered(ks, names)
    for target, held in content.items():
        count = held.count
        ms, seq = ks.next_id(ks.stream(target, now), now)
        if ms == MASK64 and MASK64 - seq < count - 1:
            raise CommandError(errors.ID_EXHAUSTED)
        firsts.append((target, ms, seq))
        total += count
    stagemutators.publish(ks, fence, epoch, check, names, content, firsts)
    if ks.event_classes:
        for target in content:
            ks.notify(events.STREAM, b"tpublish", target)
    return encode.array_header(2) + PUBLISHED + encode.integer(total)


def _check_name(what: str, name: bytes) -> None:
    """Raise CommandError if the name of a new stage or fence is too long. An existing one may have such a name."""
    if len(name) > NAME_BYTES:
        raise errors.long_name(what, len(name), NAME_BYTES)


def _check(argv: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Return TPUBLISH's check (empty: none) and the names of its stages without duplicates."""
    if argv[3].upper() != b"CHECK":
        return b"", list(dict.fromkeys(argv[3:]))
    if len(argv) < 6:
        raise CommandError(errors.SYNTAX)
    if not 1 <= len(argv[4]) <= CHECK_BYTES:
        raise CommandError(f"ERR CHECK must be 1 to {CHECK_BYTES} bytes")
    return argv[4], list(dict.fromkeys(argv[5:]))


@command(
    "TDROP", key("RM DELETE", "stage", multiple=True), flags="write fast", complexity="O(S): S stages.",
    reaches=lambda ks, argv: _staged_keys(ks, argv[1:]),
)  # fmt: skip
def tdrop(ctx: Context, argv: list[bytes]) -> Reply:
    """Drop stages and their entries; return how many existed."""
    return by_name(argv[1:], _drop, ctx)


def _drop(ctx: Context, names: list[bytes]) -> int:
    for name in names:
        stagemutators.live(ctx.ks, name, ctx.served())
    return stagemutators.unstage(ctx.ks, names)


@command("TPERSIST", key("RW UPDATE", "stage", multiple=True), flags="write fast", complexity="O(S): S stages.")
def tpersist(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove the time to live of stages; return how many existed."""
    return by_name(argv[1:], _persist, ctx)


def _persist(ctx: Context, names: list[bytes]) -> int:
    there = [name for name in dict.fromkeys(names) if stagemutators.live(ctx.ks, name, ctx.served()) is not None]
    for name in there:
        stagemutators.persist(ctx.ks, name)
    return len(there)


@command("TFENCE", key("RO ACCESS", "fence"), flags="readonly fast")
def tfence(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the epoch that was last published under a fence, or null if there is none."""
    epoch = ctx.ks.stages.fences.get(argv[1])
    return encode.null(ctx.session.proto) if epoch is None else encode.integer(epoch)
