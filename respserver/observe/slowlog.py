"""The slow log, latency events, and a histogram of the durations of each command.

Rule 1: nothing here reads a clock; times are arguments.
Rule 2: memory is bounded, whatever clients send.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from commands.declare import Command
from commands.session import Session
from respserver.config.config import Config

# of a histogram: up to 2 ** 40 us (12 days); the last bucket also contains longer durations
BUCKETS: Final = 37 * 8 + 16
NO_LIMIT_NS: Final = 1 << 62  # longer than any command, in nanoseconds

MAX_ARGS = 32  # maximum number of arguments of a command in the slow log; the last one counts the omitted ones
MAX_ARG_BYTES = 128  # maximum size of an argument in the slow log
MAX_SAMPLES = 160  # maximum number of latency samples of an event

SlowEntry = tuple[int, int, int, list[bytes], str, str]  # id, unix seconds, microseconds, argv, address, name


class SlowLog:
    """Commands that took at least ``slower_than`` microseconds, newest first. Negative: none; 0: all."""

    __slots__ = ("_entries", "_next_id", "slower_than")

    def __init__(self, slower_than: int = 10_000, max_len: int = 128) -> None:
        self.slower_than = slower_than  # microseconds; negative: off
        self._entries: deque[SlowEntry] = deque(maxlen=max(0, max_len))
        self._next_id = 0

    def resize(self, max_len: int) -> None:
        """Retain only the newest ``max_len`` entries from now on."""
        self._entries = deque(list(self._entries)[: max(0, max_len)], maxlen=max(0, max_len))

    def note(self, unix_seconds: int, usec: int, argv: list[bytes], addr: str, name: str) -> None:
        """Add a command if it was slow enough. Long arguments and names are truncated."""
        if self.slower_than < 0 or usec < self.slower_than:
            return
        self._entries.appendleft((self._next_id, unix_seconds, usec, _truncated(argv), addr, name[:MAX_ARG_BYTES]))
        self._next_id += 1

    def entries(self) -> list[SlowEntry]:
        return list(self._entries)

    def reset(self) -> None:
        """Remove all entries. The numbering of IDs continues."""
        self._entries.clear()


def shortened(argv: list[bytes]) -> list[bytes]:
    """Return at most MAX_ARGS arguments; if some are omitted, the last one states their number."""
    if len(argv) <= MAX_ARGS:
        return argv
    return [*argv[: MAX_ARGS - 1], b"... (%d more arguments)" % (len(argv) - MAX_ARGS + 1)]


def _truncated(argv: list[bytes]) -> list[bytes]:
    return [
        arg if len(arg) <= MAX_ARG_BYTES else arg[:MAX_ARG_BYTES] + b"... (%d more bytes)" % (len(arg) - MAX_ARG_BYTES)
        for arg in shortened(argv)
    ]


class LatencyEvents:
    """Events that took at least ``threshold`` ms (0: none). Their names are Redis's: ``command``, ``fast-command``."""

    __slots__ = ("_samples", "_worst", "threshold")

    def __init__(self, threshold: int = 0) -> None:
        self.threshold = threshold  # ms; 0: off
        self._samples: dict[str, deque[tuple[int, int]]] = {}
        self._worst: dict[str, int] = {}

    def note(self, event: str, unix_seconds: int, ms: int) -> None:
        """Add a sample if it was slow enough. Of two samples in one second, only the slower one is retained."""
        if self.threshold <= 0 or ms < self.threshold:
            return
        self._worst[event] = max(ms, self._worst.get(event, 0))
        samples = self._samples.setdefault(event, deque(maxlen=MAX_SAMPLES))
        if samples and samples[-1][0] == unix_seconds:
            samples[-1] = (unix_seconds, max(ms, samples[-1][1]))
        else:
            samples.append((unix_seconds, ms))

    def all(self) -> dict[str, list[tuple[int, int]]]:
        return {event: list(samples) for event, samples in self._samples.items()}

    def worst(self, event: str) -> int:
        return self._worst.get(event, 0)

    def reset(self, events: list[str]) -> int:
        named = events or list(self._samples)
        for event in named:
            self._worst.pop(event, None)
        return sum(self._samples.pop(event, None) is not None for event in named)


class Histogram:
    """The durations of a command, in eight buckets for each power of two. Percentiles are therefore at most 12 % too
    high.

    The bucket of ``u`` microseconds; ``shift`` is such that ``u >> shift`` is from 8 to 15::

        u < 16:    u                                         (exact)
        u >= 16:   shift * 8 + (u >> shift)                  shift = bit_length(u) - 4
    """

    __slots__ = ("_counts", "calls", "usec")

    def __init__(self) -> None:
        self.calls = 0
        self.usec = 0  # total duration
        self._counts: list[int] = []  # calls in each bucket, up to the last bucket in use

    def note(self, usec: int, calls: int = 1) -> None:
        """Add ``calls`` calls that took ``usec`` each."""
        if usec < 16:
            bucket = max(usec, 0)
        else:
            shift = usec.bit_length() - 4
            bucket = min(shift * 8 + (usec >> shift), BUCKETS - 1)
        counts = self._counts
        if bucket >= len(counts):
            counts.extend([0] * (bucket + 1 - len(counts)))
        counts[bucket] += calls
        self.calls += calls
        self.usec += usec * calls

    def below(self, limits: list[int]) -> list[int]:
        """Return, for each of these powers of two (microseconds, ascending), the number of calls that took less."""
        found: list[int] = []
        seen = bucket = 0
        counts = self._counts
        for limit in limits:
            while bucket < len(counts) and _upper(bucket) < limit:
                seen += counts[bucket]
                bucket += 1
            found.append(seen)
        return found

    def percentile(self, percent: float) -> float:
        """Return the microseconds within which ``percent`` of the calls ended (end of a bucket); 0.0 without calls."""
        need = self.calls * percent / 100.0
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= need:
                return float(_upper(bucket))
        return 0.0

    def doublings(self) -> list[tuple[int, int]]:
        """Return (microseconds, calls that took at most that long) for powers of two, from the first with calls on."""
        pairs: list[tuple[int, int]] = []
        seen = 0
        limit = 1
        for bucket, count in enumerate(self._counts):
            while _upper(bucket) > limit:
                if seen and (not pairs or pairs[-1][1] < seen):
                    pairs.append((limit, seen))
                limit *= 2
            seen += count
        if seen and (not pairs or pairs[-1][1] < seen):
            pairs.append((limit, seen))
        return pairs


def _upper(bucket: int) -> int:
    """Return the longest duration in a bucket, in microseconds."""
    if bucket < 16:
        return bucket
    shift = bucket // 8 - 1
    return ((bucket - shift * 8 + 1) << shift) - 1


class Timings:
    """All of the above for one server, configured by its directives. Implements ``TimingsPart``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.slowlog = SlowLog()
        self.latency = LatencyEvents()
        self.histograms: dict[str, Histogram] = {}
        self.tracking = False  # whether histograms are recorded
        self._confirming = False  # see confirm()
        self.each = False  # whether the dispatcher must look at each call after it
        self.slow_ns = NO_LIMIT_NS  # nanoseconds; slow() is called for commands that take longer
        self.configure()

    def configure(self) -> None:
        config = self._config
        self.tracking = config.latency_tracking
        self.each = self.tracking or self._confirming or config.replica_acks != 0 or bool(config.group)
        self.slowlog.slower_than = config.slowlog_log_slower_than
        self.slowlog.resize(config.slowlog_max_len)
        self.latency.threshold = config.latency_monitor_threshold
        limits = []
        if config.slowlog_log_slower_than >= 0:
            limits.append(config.slowlog_log_slower_than * 1000)
        if config.latency_monitor_threshold > 0:
            limits.append(config.latency_monitor_threshold * 1_000_000)
        self.slow_ns = min(limits, default=NO_LIMIT_NS)

    def confirm(self, confirming: bool) -> None:
        """Let the dispatcher look at each call if replies may be withheld, also on a replica whose own ``replica-acks``
        is 0."""
        self._confirming = confirming
        self.configure()

    def note(self, name: str, took_ns: int, calls: int) -> None:
        """Add calls to the histogram of the command; ``took_ns`` is their total duration."""
        self.histograms.setdefault(name, Histogram()).note(took_ns // calls // 1000, calls)

    def slow(self, session: Session, command: Command | None, argv: list[bytes], took_ns: int, now: int) -> None:
        """Add a call to the slow log and the latency events. ``argv``: without passwords. ``now``: ms since epoch."""
        flags = command.flags if command is not None else frozenset()
        if "skip_slowlog" in flags or ("blocking" in flags and session.blocked):
            return
        seconds = now // 1000
        self.slowlog.note(seconds, took_ns // 1000, argv, session.addr, session.name.decode("latin-1"))
        self.latency.note("fast-command" if "fast" in flags else "command", seconds, took_ns // 1_000_000)

    def doublings(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        found = sorted(self.histograms.items())
        return {name: (histogram.calls, histogram.doublings()) for name, histogram in found if histogram.calls}
