"""SLOWLOG and LATENCY."""

from __future__ import annotations

from functools import partial

from commands.context import Context, Reply
from commands.declare import MOST_NAMES, arg, command, opt
from commands.parse import integer
from commands.slicing import array_of
from resp import errors, reply
from resp.errors import CommandError

_slowlog = partial(command, flags="admin loading stale", group="server")
_latency = partial(command, flags="admin noscript loading stale", group="server")


@_slowlog("SLOWLOG|GET", opt(arg("count", "integer")), complexity="O(N): N entries returned.")
def slowlog_get(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the newest entries of the slow log: ID, time, microseconds, arguments, client address and name."""
    if len(argv) > 3:
        raise errors.bad_subcommand(argv)
    count = 10
    if len(argv) == 3:
        count = integer(argv[2], errors.BAD_SLOWLOG_COUNT)
        if count < -1:
            raise CommandError(errors.BAD_SLOWLOG_COUNT)
    entries = ctx.server.timings.slowlog.entries()
    if count >= 0:
        entries = entries[:count]

    def encoded(entry: tuple[int, int, int, list[bytes], str, str]) -> bytes:
        return reply.encode(ctx.session.proto, [*entry[:5], entry[5].encode("latin-1", "replace")])

    return array_of(entries, encoded, ctx)


@_slowlog("SLOWLOG|LEN")
def slowlog_len(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the number of entries in the slow log."""
    return reply.integer(len(ctx.server.timings.slowlog.entries()))


@_slowlog("SLOWLOG|RESET", complexity="O(N): N entries.")
def slowlog_reset(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove all entries from the slow log."""
    ctx.server.timings.slowlog.reset()
    return reply.OK


@_latency("LATENCY|LATEST")
def latency_latest(ctx: Context, argv: list[bytes]) -> Reply:
    """Return for each event its name, the time and duration of the last sample, and the longest duration (ms)."""
    latency = ctx.server.timings.latency
    rows = [[event, *samples[-1], latency.worst(event)] for event, samples in latency.all().items() if samples]
    return reply.encode(ctx.session.proto, rows)


@_latency("LATENCY|HISTORY", arg("event"))
def latency_history(ctx: Context, argv: list[bytes]) -> Reply:
    """Return the samples of an event: Unix time and duration (ms)."""
    return reply.encode(ctx.session.proto, ctx.server.timings.latency.all().get(argv[2].decode("latin-1"), []))


GRAPH_WIDTH = 80  # columns, one per sample
GRAPH_ROWS = 4
_BAR = "_o#"  # thirds of a row


@_latency("LATENCY|GRAPH", arg("event"))
def latency_graph(ctx: Context, argv: list[bytes]) -> Reply:
    """Draw the samples of an event in ASCII, newest last, with their ages below them."""
    event = argv[2].decode("latin-1")
    latency = ctx.server.timings.latency
    samples = latency.all().get(event)
    if not samples:
        raise errors.quoting(errors.NO_SAMPLES, argv[2])
    times = [ms for _, ms in samples]
    low, high = min(times), max(times)
    text = f"{event} - high {high} ms, low {low} ms (all time high {latency.worst(event)} ms)\n{'-' * GRAPH_WIDTH}\n"
    parts = [samples[at : at + GRAPH_WIDTH] for at in range(0, len(samples), GRAPH_WIDTH)]
    text += "\n".join(_graph(part, low, high, ctx.now // 1000) for part in parts)
    return reply.verbatim(ctx.session.proto, "txt", text.encode("latin-1", "replace"))


def _graph(samples: list[tuple[int, int]], low: int, high: int, now: int) -> str:
    """Return the lines of a graph. ``low``, ``high``: ms at its bottom and top. ``now``: Unix seconds."""
    steps = GRAPH_ROWS * len(_BAR)
    bars = []
    for _, ms in samples:
        step = min((ms - low) * steps // max(1, high - low), steps - 1)
        full = step // len(_BAR)
        bars.append("|" * full + _BAR[step % len(_BAR)] + " " * (GRAPH_ROWS - 1 - full))  # from the bottom up
    ages = [_age(max(0, now - unix)) for unix, _ in samples]
    rows = ["".join([bar[row] for bar in bars]) for row in range(GRAPH_ROWS - 1, -1, -1)]
    rows.append(" " * len(samples))
    rows += ["".join([age[at : at + 1] or " " for age in ages]) for at in range(max(map(len, ages)))]
    return "\n".join(rows) + "\n"


def _age(seconds: int) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


@_latency("LATENCY|RESET", opt(arg("event", multiple=True)), most=MOST_NAMES)
def latency_reset(ctx: Context, argv: list[bytes]) -> Reply:
    """Remove the samples of the named events, or of all; return the number of events."""
    return reply.integer(ctx.server.timings.latency.reset([word.decode("latin-1") for word in argv[2:]]))


@_latency("LATENCY|DOCTOR")
def latency_doctor(ctx: Context, argv: list[bytes]) -> Reply:
    """Describe the samples in words."""
    lines = []
    latency = ctx.server.timings.latency
    for event, samples in sorted(latency.all().items()):
        worst, mean = latency.worst(event), sum(ms for _, ms in samples) // len(samples)
        lines.append(f"{event}: {len(samples)} latency spikes (average {mean}ms, worst {worst}ms).\n")
    if not lines:
        if ctx.server.config.value("latency-monitor-threshold") == "0":
            lines = ["Latency monitoring is off: CONFIG SET latency-monitor-threshold <milliseconds> switches it on.\n"]
        else:
            lines = ["No latency spike was observed.\n"]
    return reply.verbatim(ctx.session.proto, "txt", "".join(lines).encode())


@_latency(
    "LATENCY|HISTOGRAM", opt(arg("command", multiple=True)), complexity="O(N): N commands with latencies.",
    most=MOST_NAMES,
)  # fmt: skip
def latency_histogram(ctx: Context, argv: list[bytes]) -> Reply:
    """Return for each command the number of calls, and how many took at most 1, 2, 4, ... microseconds."""
    proto = ctx.session.proto
    known = ctx.server.timings.doublings()
    wanted = sorted(known)
    if len(argv) > 2:
        requested = {word.decode("latin-1").lower() for word in argv[2:]}
        # the name of a container selects its subcommands
        wanted = [name for name in wanted if name in requested or name.partition("|")[0] in requested]
    pairs = []
    for name in wanted:
        calls, steps = known[name]
        if calls:
            histogram = reply.map_reply(proto, [(reply.integer(usec), reply.integer(n)) for usec, n in steps])
            fields = [(reply.bulk(b"calls"), reply.integer(calls)), (reply.bulk(b"histogram_usec"), histogram)]
            pairs.append((reply.bulk(name.encode()), reply.map_reply(proto, fields)))
    return reply.map_reply(proto, pairs)
