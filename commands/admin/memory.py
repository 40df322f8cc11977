"""MEMORY: the memory of keys and of the server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from commands.context import Context, Reply, Slices
from commands.declare import arg, command, key, opt
from commands.parse import integer
from commands.slicing import in_parts
from resp import errors, reply
from storage.groups.group import Group
from storage.streams.stream import Stream

_memory = partial(command, group="server")

KEY_BYTES = 150  # an estimate for a slot of the key table, the key object and the value object
STRING_BYTES = 33  # a bytes object without its content


@_memory(
    "MEMORY|USAGE", key("RO"), opt(arg("count", "integer", token="SAMPLES")), flags="readonly",
    complexity="O(N): N groups of the stream.",
)  # fmt: skip
def memory_usage(ctx: Context, argv: list[bytes]) -> Reply:
    """Return an estimate of the memory of a key in bytes, excluding nodes that are only on disk."""
    if len(argv) > 3 and (len(argv) != 5 or argv[3].upper() != b"SAMPLES" or integer(argv[4]) < 0):
        raise errors.syntax()
    value = ctx.ks.live(argv[2], ctx.now)
    if value is None:
        return reply.null(ctx.session.proto)
    size = KEY_BYTES + len(argv[2])
    if not isinstance(value, Stream):
        return reply.integer(size + STRING_BYTES + len(value.value))
    size += value.memory_bytes()
    delayed = ctx.ks.delayed.get(argv[2])
    if delayed is not None:
        size += delayed.memory_bytes()

    def add(groups: Sequence[Group]) -> None:
        nonlocal size
        size += sum([group.pending.memory_bytes() for group in groups])

    return in_parts(list(value.groups.values()), add, lambda _: reply.integer(size), ctx)


@_memory("MEMORY|STATS", complexity="O(N): N clients and streams.")
def memory_stats(ctx: Context, argv: list[bytes]) -> Reply:
    """Return memory statistics of the server, in bytes unless the name says otherwise."""
    return _when_ready(ctx, _stats)


def _when_ready(ctx: Context, answer: Callable[[Context], bytes]) -> Reply:
    """Return the reply. If many groups have changed since the last one, they are counted in slices first."""

    def step(ctx: Context) -> bytes | None:
        return answer(ctx) if ctx.server.stats.ready(["memory"]) else None

    return step(ctx) or Slices(step, False)


def _stats(ctx: Context) -> bytes:
    m = ctx.server.stats.memory()
    used, keys = m["used"], m["keys"]
    return reply.encode(ctx.session.proto, {
        "peak.allocated": m["peak"],
        "total.allocated": used,
        "startup.allocated": m["startup"],
        "replication.backlog": 0,
        "clients.slaves": m["replicas"],
        "clients.normal": m["clients"],
        "overhead.total": max(0, used - m["dataset"]),
        "node.cache": m["node_cache"],
        "keys.count": keys,
        "keys.bytes-per-key": m["dataset"] // keys if keys else 0,
        "dataset.bytes": m["dataset"],
        "dataset.percentage": min(100.0, 100.0 * m["dataset"] / max(1, used)),
        "peak.percentage": 100.0 * used / max(1, m["peak"]),
        "fragmentation": m["resident"] / max(1, used + m["startup"]),
        "fragmentation.bytes": max(0, m["resident"] - used - m["startup"]),
    })  # fmt: skip


@_memory("MEMORY|DOCTOR", complexity="O(N): N clients and streams.")
def memory_doctor(ctx: Context, argv: list[bytes]) -> Reply:
    """Describe in words what uses the memory."""
    return _when_ready(ctx, _words)


def _words(ctx: Context) -> bytes:
    m = ctx.server.stats.memory()
    text = (
        f"{m['used']} bytes are in use: {m['dataset']} by {m['keys']} keys, {m['node_cache']} by the cache of decoded "
        f"nodes (node-cache-size), {m['clients']} by clients. The peak was {m['peak']}. The program itself takes "
        f"{m['startup']} bytes more; the system has assigned {m['resident']} to it in total.\n"
    )
    return reply.verbatim(ctx.session.proto, "txt", text.encode())


@_memory("MEMORY|PURGE")
def memory_purge(ctx: Context, argv: list[bytes]) -> Reply:
    """Do nothing: memory is returned to the system after checkpoints."""
    return reply.OK


@_memory("MEMORY|MALLOC-STATS")
def memory_malloc_stats(ctx: Context, argv: list[bytes]) -> Reply:
    """Return that the allocator has no statistics."""
    return reply.verbatim(ctx.session.proto, "txt", b"Stats not supported for the current allocator")
