"""TSTAGE, TPUBLISH, TDROP: entries that are kept aside, then appended all at once, exactly once. Semantics [32]."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, command, key, opt, repeat
from commands.parse import positive, span
from commands.streams.rows import Rows
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.ids import MASK64
from storage.stages import publish
from storage.timers import NEVER

PUBLISHED: Final = encode.bulk(b"published")
SKIPPED: Final = encode.bulk(b"skipped")


@command(
    "TSTAGE", arg("stage"), arg("ttl", "integer"), key("RW"), arg("n", "integer", token="FIELDS"),
    repeat(arg("field")), arg("value", token="VALUES"), opt(repeat(arg("more-values"))),
    flags="write denyoom", group="stream", since="0.1.0", complexity="O(N): N values.",
)  # fmt: skip
def tstage(ctx: Context, argv: list[bytes]) -> Reply:
    """Keep entries for a stream aside until TPUBLISH appends them; return how many the stage holds."""
    ks, name, target = ctx.ks, argv[1], argv[3]
    ttl = span(argv[2])
    rows = Rows(argv[4:], "tstage")
    ks.stream(target, ctx.now)  # raises WRONGTYPE: what can't be appended is refused now, not when it is published
    publish.live(ks, name, ctx.now)
    stage = publish.stage(ks, name, target, ttl, ctx.now + ttl if ttl else NEVER, *rows.bare())
    return encode.integer(stage.entries)


@command(
    "TPUBLISH", arg("fence"), arg("epoch", "integer"), repeat(arg("stage")),
    flags="write", group="stream", since="0.1.0",
    complexity="O(M + K): M macro nodes' worth of staged entries, for K streams.",
)  # fmt: skip
def tpublish(ctx: Context, argv: list[bytes]) -> Reply:
    """Append all staged entries at once and drop the stages; only once for each epoch of the fence."""
    ks, fence, now = ctx.ks, argv[1], ctx.now
    epoch = positive(argv[2])
    names = list(dict.fromkeys(argv[3:]))
    done = ks.stages.fences.get(fence, -1)
    if epoch < done:
        raise errors.stale(fence, epoch, done)
    if epoch == done:
        publish.unstage(ks, names)
        return encode.array_header(2) + SKIPPED + encode.integer(0)
    for name in names:
        if publish.live(ks, name, now) is None:
            raise errors.no_stage(name)
    firsts: list[publish.First] = []
    total = 0
    content = publish.gathered(ks, names)
    for target, held in content.items():
        count = held.count
        ms, seq = ks.next_id(ks.stream(target, now), now)
        if ms == MASK64 and MASK64 - seq < count - 1:
            raise CommandError(errors.ID_EXHAUSTED)
        firsts.append((target, ms, seq))
        total += count
    publish.publish(ks, fence, epoch, names, content, firsts)
    return encode.array_header(2) + PUBLISHED + encode.integer(total)


@command("TDROP", repeat(arg("stage")), flags="write fast", group="stream", since="0.1.0", complexity="O(S): S stages.")
def tdrop(ctx: Context, argv: list[bytes]) -> Reply:
    """Drop stages with all that they hold; return how many there were."""
    for name in argv[1:]:
        publish.live(ctx.ks, name, ctx.now)
    return encode.integer(publish.unstage(ctx.ks, argv[1:]))
