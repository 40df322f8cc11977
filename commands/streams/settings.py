"""TCFG: the settings of a stream: its retention policy, and how much of it stays local. Semantics [103]."""

from __future__ import annotations

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, oneof, opt, token
from commands.streams.policy import policy_of, tier_after_of
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.keyspace import events, retaining


def _writes(argv: list[bytes]) -> bool:
    return len(argv) > 2 and argv[-1].upper() != b"DRY"


@command(
    "TCFG", key("RW ACCESS UPDATE DELETE"),
    opt(oneof("setting", block(
        "retain", token("RETAIN"),
        oneof(
            "policy", token("NONE"),
            block(
                "limits", opt(arg("count", "integer", token="COUNT")), opt(arg("ms", "integer", token="AGE")),
                opt(arg("bytes", "integer", token="BYTES")),
                opt(block("groups", token("GROUPS"), opt(arg("limit", "integer", token="LIMIT")))),
                opt(oneof("how", token("EXACT"), token("~", "approximately"))), opt(token("DRY")),
            ),
        ),
    ), block(
        "tier", token("TIER"),
        oneof("after", token("DEFAULT"), arg("ms", "integer", token="AGE"), arg("bytes", "integer", token="BYTES")),
    ))),
    flags="write denyoom", writes=_writes, complexity="O(G): G groups, with GROUPS.",
)  # fmt: skip
def tcfg(ctx: Context, argv: list[bytes]) -> Reply:
    """Set or show a stream's retention policy, and how much of it stays local. RETAIN returns how many it evicts."""
    ks, name = ctx.ks, argv[1]
    if len(argv) == 2:
        stream = ks.read_stream(name, ctx.now)
        if stream is None:
            raise CommandError(errors.NO_SUCH_KEY)
        kept = stream.retention
        after = stream.tier_after
        return encode.encode(ctx.session.proto, {
            "retain": None if kept is None else kept.words(), "tier": None if after is None else after.words(),
        })  # fmt: skip
    if argv[2].upper() == b"TIER":
        return _tier(ctx, argv)
    if argv[2].upper() != b"RETAIN":
        raise errors.syntax()
    if len(argv) == 4 and argv[3].upper() == b"NONE":
        stream = ks.stream(name, ctx.now)
        if stream is None:
            raise CommandError(errors.NO_SUCH_KEY)
        if stream.retention is not None:
            ks.set_retention(name, stream, None)
            ks.notify(events.STREAM, b"tcfg", name)
        return encode.integer(0)
    policy = policy_of(argv, 3)
    stream = ks.stream(name, ctx.now)
    evicts = 0 if stream is None else retaining.excess(stream, policy, ctx.now)
    if argv[-1].upper() != b"DRY":
        if stream is None:
            stream = ks.create_stream(name)
        if stream.retention is None or stream.retention.words() != policy.words():  # else nothing is logged
            ks.set_retention(name, stream, policy)
            ks.notify(events.STREAM, b"tcfg", name)
    return encode.integer(evicts)


def _tier(ctx: Context, argv: list[bytes]) -> Reply:
    ks, name, after = ctx.ks, argv[1], tier_after_of(argv, 3)
    stream = ks.stream(name, ctx.now)
    if stream is None:
        if after is None:
            raise CommandError(errors.NO_SUCH_KEY)
        stream = ks.create_stream(name)
    before = stream.tier_after
    if (None if before is None else before.words()) != (None if after is None else after.words()):
        ks.set_tier_after(name, stream, after)
        ks.notify(events.STREAM, b"tcfg", name)
    return encode.OK
