"""TCFG: the settings of a stream. The only one is its retention policy. Semantics [97]."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import arg, block, command, key, oneof, opt, token
from commands.parse import each_option, integer
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.keyspace import events, retaining
from storage.streams.retention import MOST, RetentionPolicy

_LIMITS: Final = (b"COUNT", b"AGE", b"BYTES", b"LIMIT")
_SIZES: Final = dict.fromkeys(_LIMITS, 1) | {b"GROUPS": 0, b"EXACT": 0, b"~": 0, b"DRY": 0}


def _writes(argv: list[bytes]) -> bool:
    return len(argv) > 2 and argv[-1].upper() != b"DRY"


@command(
    "TCFG", key("RW ACCESS UPDATE DELETE"),
    opt(block(
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
    )),
    flags="write denyoom", writes=_writes, complexity="O(G): G groups, with GROUPS.",
)  # fmt: skip
def tcfg(ctx: Context, argv: list[bytes]) -> Reply:
    """Set or remove a stream's retention policy and return how many entries it evicts at once, or show the settings."""
    ks, name = ctx.ks, argv[1]
    if len(argv) == 2:
        stream = ks.read_stream(name, ctx.now)
        if stream is None:
            raise CommandError(errors.NO_SUCH_KEY)
        kept = stream.retention
        return encode.encode(ctx.session.proto, {"retain": None if kept is None else kept.words()})
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
        ks.set_retention(name, stream, policy)
        ks.notify(events.STREAM, b"tcfg", name)
    return encode.integer(evicts)


def policy_of(argv: list[bytes], at: int) -> RetentionPolicy:
    """Return the policy in argv from ``at`` on. Raises CommandError if it is invalid."""
    numbers = dict.fromkeys(_LIMITS, 0)
    words: set[bytes] = set()
    for word, value_at in each_option(argv, at, _SIZES, _refused):
        if word in words:
            raise CommandError(f"ERR RETAIN: {word.decode()} is given twice")
        words.add(word)
        if word in numbers:
            numbers[word] = number = integer(argv[value_at])
            if not 0 < number <= MOST:
                raise CommandError(f"ERR RETAIN: {word.decode()} must be between 1 and {MOST}; NONE removes the policy")
        elif word == b"DRY" and value_at != len(argv):
            raise CommandError("ERR RETAIN: DRY must be the last word, as in RETAIN COUNT 1000 DRY")
    count, limit = numbers[b"COUNT"], numbers[b"LIMIT"]
    if not (count or numbers[b"AGE"] or numbers[b"BYTES"]):
        raise CommandError("ERR RETAIN needs a limit: COUNT, AGE or BYTES, as in RETAIN COUNT 1000, or NONE")
    if limit and b"GROUPS" not in words:
        raise CommandError("ERR RETAIN: LIMIT belongs to GROUPS, as in RETAIN COUNT 1000 GROUPS LIMIT 5000")
    if limit and limit < count:
        raise CommandError("ERR RETAIN: LIMIT must not be below COUNT, as in RETAIN COUNT 1000 GROUPS LIMIT 5000")
    if b"EXACT" in words and b"~" in words:
        raise CommandError("ERR RETAIN: EXACT and ~ exclude each other; ~ is the default")
    return RetentionPolicy(count, numbers[b"AGE"], numbers[b"BYTES"], b"GROUPS" in words, limit, b"EXACT" in words)


def _refused(word: bytes) -> CommandError:
    if word.upper() == b"NONE":
        return CommandError("ERR RETAIN: NONE removes the policy and stands alone, as in TCFG key RETAIN NONE")
    return errors.syntax()
