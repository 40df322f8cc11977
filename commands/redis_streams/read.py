"""XREAD.

A waiting call reads all its keys when one of them has new entries, and returns every key that has some, because one
transaction can append to several keys. ``$`` is the last ID when the call was made; ``+`` is evaluated again each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from commands.context import Block, Chunks, Context, Reply, Slices
from commands.declare import arg, block, command, key, opt
from commands.parse import integer, keys_of, position_after, timeout_ms
from commands.redis_streams.ids import strict_id
from commands.redis_streams.limits import ReplyLimits, check_maxcount, limits_of, positive_limit
from commands.redis_streams.replies import KeyPart, keys_reply
from commands.redis_streams.sizedread import SizedRead, is_long
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.model.timers import NEVER
from storage.streams.position import StreamPosition
from storage.streams.stream import Stream

NEWEST: Final = -1  # instead of an ID: just before the newest entry (+)

# number of words of an option of XREAD or XREADGROUP, including itself
WORDS: Final = {
    b"COUNT": 2, b"MAXCOUNT": 2, b"MAXSIZE": 2, b"BLOCK": 2, b"GROUP": 3, b"NOACK": 1, b"CLAIM": 2,
}  # fmt: skip


def streams_at(argv: Sequence[bytes]) -> int:
    """Return the position of the first key in an XREAD or XREADGROUP; 0 if its options can't be parsed."""
    return position_after(b"STREAMS", argv, 1, WORDS)


@command(
    "XREAD", opt(arg("count", "integer", token="COUNT")), opt(arg("maxcount", "integer", token="MAXCOUNT")),
    opt(arg("maxsize", "integer", token="MAXSIZE")), opt(arg("milliseconds", "integer", token="BLOCK")),
    block("streams", key("RO ACCESS", multiple=True), arg("id", multiple=True), token="STREAMS"),
    flags="readonly blocking movablekeys", complexity="O(K log N + M): K keys with N macro nodes, M entries returned.",
    key_after_token=streams_at,
)  # fmt: skip
def xread(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the entries after an ID in each of many streams; can wait for them, and limit the reply as a whole."""
    options = ReadWords(argv)
    keys, texts = options.keys, options.ids
    ids = [_position(ctx, keys[at], texts[at]) for at in range(len(keys))]
    parts = _parts(ctx, keys, ids, options.count)
    if parts:
        limits = options.limits(ctx.session.proto)
        if limits is not None and is_long(parts, options.maxsize):
            sized = SizedRead(parts, limits)
            return Slices(sized.step, False, sized.close, resumes=True)
        return _reply(ctx, parts, limits)
    null = encode.null_array(ctx.session.proto)
    if options.block < 0 or ctx.in_exec:
        return null
    deadline = ctx.now + options.block if options.block else NEVER
    return StreamsRead(options, ids, deadline, null)


class ReadWords:
    """The arguments of XREAD."""

    __slots__ = ("block", "count", "ids", "keys", "maxcount", "maxsize")

    def __init__(self, argv: list[bytes]) -> None:
        """Parse the arguments. Raises CommandError."""
        self.count = 0  # maximum number of entries of each key; 0: all
        self.maxcount = self.maxsize = 0  # entries and bytes of the whole reply; 0: no limit
        self.block = -1  # ms; -1: don't wait; 0: no timeout
        at, end = 1, len(argv)
        while at + 1 < end:
            word = argv[at].upper()
            if word == b"STREAMS":
                break
            if word == b"BLOCK":
                self.block = timeout_ms(argv[at + 1])
            elif word == b"COUNT":
                self.count = max(0, integer(argv[at + 1]))
            elif word == b"MAXCOUNT":
                self.maxcount = positive_limit(argv[at + 1], errors.BAD_MAXCOUNT)
            elif word == b"MAXSIZE":
                self.maxsize = positive_limit(argv[at + 1], errors.BAD_MAXSIZE)
            elif word == b"GROUP" and at + 2 < end:
                raise CommandError(errors.GROUP_OF_XREAD)
            elif word == b"NOACK":
                raise CommandError(errors.NOACK_OF_XREAD)
            elif word == b"CLAIM":
                raise CommandError(errors.CLAIM_OF_XREAD)
            else:
                raise errors.syntax()
            at += 2
        else:
            if at < end and argv[at].upper() == b"NOACK":
                raise CommandError(errors.NOACK_OF_XREAD)
            raise errors.syntax()
        self.keys = keys_of(argv, at + 1, "xread", "ID, '+', or '$'")
        check_maxcount(self.maxcount, self.count)
        self.ids = argv[at + 1 + len(self.keys) :]

    def limits(self, proto: int) -> ReplyLimits | None:
        return limits_of(self.maxcount, self.maxsize, proto)


def _position(ctx: Context, name: bytes, text: bytes) -> int:
    """Return the ID after which a key is read. Raises CommandError."""
    stream = ctx.ks.stream(name, ctx.now)
    if text == b"$":
        return stream.last_id if stream is not None else 0
    if text == b"+":
        return NEWEST
    if text == b">":
        raise CommandError(errors.NEW_OF_XREAD)
    return strict_id(text)


def _reply(ctx: Context, parts: list[KeyPart], limits: ReplyLimits | None) -> bytes | Chunks:
    return keys_reply(ctx.session.proto, parts if limits is None else limits.applied(parts))


def _parts(ctx: Context, keys: list[bytes], ids: list[int], count: int) -> list[KeyPart]:
    """Return the entries of the keys after the IDs; only keys that have some."""
    parts: list[KeyPart] = []
    for at in range(len(keys)):
        stream = ctx.ks.read_stream(keys[at], ctx.now)
        if stream is None or not stream.length:
            continue
        position = _after(stream, ids[at])
        if position is not None:
            hi = stream.after(position.ordinal, count) if count else stream.next_ord
            parts.append(KeyPart(keys[at], stream, position.ordinal, hi, position))
    return parts


def _after(stream: Stream, id: int) -> StreamPosition | None:  # noqa: A002
    """Return the first living entry after an ID, or the newest one for NEWEST; None if there is none."""
    if id == NEWEST:
        return stream.position_of(stream.ahead(stream.next_ord, 1))
    if id >= stream.last_id:
        return None
    position = stream.seek(id + 1)
    return position if position.ordinal < stream.next_ord else None


class StreamsRead(Block):
    """A client that waits for entries after an ID, in one of many streams."""

    __slots__ = ("_ids", "_options")

    def __init__(self, options: ReadWords, ids: list[int], deadline: int, null: bytes) -> None:
        super().__init__(list(dict.fromkeys(options.keys)), None, False, deadline, null)
        self._options = options  # its keys are as in the call, where a key can be repeated
        self._ids = ids

    def serve(self, ctx: Context, key: bytes) -> bytes | Chunks | None:
        stream = ctx.ks.live(key, ctx.now)
        if not isinstance(stream, Stream) or not stream.length:
            return None
        options = self._options
        for at in range(len(options.keys)):
            if options.keys[at] == key and _after(stream, self._ids[at]) is not None:
                parts = _parts(ctx, options.keys, self._ids, options.count)
                return _reply(ctx, parts, options.limits(ctx.session.proto))
        return None

    def same(self, other: Block) -> bool:
        if not isinstance(other, StreamsRead):
            return False
        mine, its = self._options, other._options
        return (
            self._ids == other._ids and mine.count == its.count and mine.maxcount == its.maxcount
            and mine.maxsize == its.maxsize and mine.keys == its.keys
        )  # fmt: skip
