"""TWAIT: waits for new entries in many streams, without reading them. Semantics [53].

A call checks all its keys, which costs O(keys). While it waits, a change of one key makes it check only that key. If
there is something to read, it checks the others to complete the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from commands.context import Block, Context, Reply
from commands.declare import arg, block, command, key, oneof, repeat
from commands.parse import timeout_ms
from commands.streams.groupread import has_messages
from commands.streams.lookup import need_group
from commands.streams.readargs import ReadPosition
from resp import errors
from resp import reply as encode
from resp.errors import CommandError
from storage.model.timers import NEVER
from storage.streams.stream import Stream

MOST_KEYS: Final = 10_000  # maximum keys of one call, each of which takes up to 800 bytes while the client waits


def _for_group(argv: Sequence[bytes]) -> bool:
    """Return whether the call has the form with GROUP. With only four words, GROUP is the name of a key."""
    return len(argv) > 4 and argv[2].upper() == b"GROUP"


@command(
    "TWAIT", arg("milliseconds", "integer"),
    oneof(
        "streams",
        repeat(block("position", key("RO ACCESS incomplete"), arg("last-id"))),
        block("of-group", arg("group", token="GROUP"), key("RW ACCESS UPDATE incomplete", multiple=True)),
    ),
    flags="write blocking movablekeys", traits="sign_of_life",
    complexity="O(N): N keys. While it waits, O(1) for each change of a key.", writes=_for_group,
    key_spec_of=lambda argv: int(_for_group(argv)),
)  # fmt: skip
def twait(ctx: Context, argv: list[bytes]) -> Reply:
    """Wait until at least one of many streams has something to read; return the keys of those that have."""
    timeout = timeout_ms(argv[1])
    wait = _group_wait(argv) if _for_group(argv) else _stream_wait(argv)
    reply = wait.begin(ctx)
    if reply is not None:
        return reply
    wait.timeout_reply = encode.null_array(ctx.session.proto)
    if ctx.in_exec:
        return wait.timeout_reply
    wait.deadline = ctx.now + timeout if timeout else NEVER
    return wait


class StreamWait(Block):
    """A client that waits for entries after an ID, in each of many streams."""

    __slots__ = ("positions",)

    def __init__(self, positions: dict[bytes, list[ReadPosition]]) -> None:
        super().__init__(list(positions), None, False, NEVER, b"")
        self.positions = positions

    def begin(self, ctx: Context) -> bytes | None:
        """Return the reply to the call, or None if it must wait."""
        ready: list[bytes] = []
        for name, positions in self.positions.items():
            stream = ctx.ks.read_stream(name, ctx.now)
            if stream is None:
                continue
            for position in positions:
                if position.from_now:
                    position.ms, position.seq = stream.last_ms, stream.last_seq
            if _is_after(positions, stream):
                ready.append(name)
        return encode.bulk_array(ready) if ready else None

    def serve(self, ctx: Context, key: bytes) -> bytes | None:
        if not self._has_news(ctx, key):
            return None
        return encode.bulk_array([name for name in self.keys if self._has_news(ctx, name)])

    def _has_news(self, ctx: Context, key: bytes) -> bool:
        stream = ctx.ks.stream(key, ctx.now)
        return stream is not None and _is_after(self.positions[key], stream)


def _is_after(positions: list[ReadPosition], stream: Stream) -> bool:
    """Return whether the stream has an entry after one of the positions."""
    if stream.first_ord == stream.next_ord:
        return False
    newest = stream.newest_id()
    return any(position.id < newest for position in positions)


class GroupWait(Block):
    """A client that waits until a group has something to deliver, in one of many streams."""

    __slots__ = ("group_name",)

    def __init__(self, keys: list[bytes], group_name: bytes) -> None:
        super().__init__(keys, group_name, False, NEVER, b"")
        self.group_name = group_name

    def begin(self, ctx: Context) -> bytes | None:
        """Return the reply to the call, or None if it must wait. Raises CommandError for a stream without the group."""
        ks, now, served = ctx.ks, ctx.now, ctx.served()
        found = [need_group(ks.read_stream(name, now), name, self.group_name) for name in self.keys]
        for _, group in found:
            group.touch(served)
        ready = [
            name
            for name, (stream, group) in zip(self.keys, found, strict=True)
            if has_messages(ks, name, stream, group, now)
        ]
        return encode.bulk_array(ready) if ready else None

    def serve(self, ctx: Context, key: bytes) -> bytes | None:
        if not self._has_news(ctx, key):
            return None
        return encode.bulk_array([name for name in self.keys if self._has_news(ctx, name)])

    def same(self, other: Block) -> bool:
        return isinstance(other, GroupWait) and self.keys == other.keys

    def _has_news(self, ctx: Context, key: bytes) -> bool:
        stream, group = need_group(ctx.ks.stream(key, ctx.now), key, self.group_name)
        return has_messages(ctx.ks, key, stream, group, ctx.now)


def _stream_wait(argv: list[bytes]) -> StreamWait:
    """Parse the form without GROUP. Raises CommandError."""
    if len(argv) % 2:
        raise errors.arity("twait")
    _check_number(len(argv) // 2 - 1)
    positions: dict[bytes, list[ReadPosition]] = {}
    for at in range(2, len(argv), 2):
        positions.setdefault(argv[at], []).append(ReadPosition(argv[at + 1]))
    return StreamWait(positions)


def _group_wait(argv: list[bytes]) -> GroupWait:
    """Parse the form with GROUP. Raises CommandError."""
    if not argv[3]:
        raise CommandError(errors.EMPTY_GROUP)
    _check_number(len(argv) - 4)
    return GroupWait(list(dict.fromkeys(argv[4:])), argv[3])


def _check_number(keys: int) -> None:
    if keys > MOST_KEYS:
        raise errors.too_many_keys("TWAIT", keys, MOST_KEYS)
