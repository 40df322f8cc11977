"""What took long: the slow log, latency events, and how long commands take (a histogram each).

Rule 1: nothing here reads a clock; times are arguments.  Rule 2: everything is bounded, whatever clients send.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from commands.declare import Command
from commands.session import Session
from respserver.config.config import Config

BUCKETS: Final = 37 * 8 + 16  # of a histogram; the longest duration told apart is 2 ** 40 us, 12 days
NO_LIMIT_NS: Final = 1 << 62  # nanoseconds that nothing takes

MAX_ARGS = 32  # arguments of a command that the slow log keeps; the last says how many more there were
MAX_ARG_BYTES = 128  # bytes of an argument that it keeps
MAX_SAMPLES = 160  # latency samples kept for an event

SlowEntry = tuple[int, int, int, list[bytes], str, str]  # id, unix seconds, microseconds, argv, address, name


class SlowLog:
    """Commands slower than ``slower_than`` microseconds, newest first; negative: none; 0: every command."""

    __slots__ = ("_entries", "_next_id", "slower_than")

    def __init__(self, slower_than: int = 10_000, max_len: int = 128) -> None:
        self.slower_than = slower_than  # microseconds; negative: off
        self._entries: deque[SlowEntry] = deque(maxlen=max(0, max_len))
        self._next_id = 0

    def resize(self, max_len: int) -> None:
        """Keep the newest ``max_len`` entries from now on."""
        self._entries = deque(list(self._entries)[: max(0, max_len)], maxlen=max(0, max_len))

    def note(self, unix_seconds: int, usec: int, argv: list[bytes], addr: str, name: str) -> None:
        """Enter a command if it was slow enough. The arguments are cut, so that a giant command is not kept alive."""
        if self.slower_than < 0 or usec < self.slower_than:
            return
        self._entries.appendleft((self._next_id, unix_seconds, usec, _cut(argv), addr, name))
        self._next_id += 1

    def entries(self) -> list[SlowEntry]:
        """Newest first."""
        return list(self._entries)

    def reset(self) -> None:
        """Forget the entries; IDs go on."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def _cut(argv: list[bytes]) -> list[bytes]:
    kept = argv if len(argv) <= MAX_ARGS else argv[: MAX_ARGS - 1]
    out = [
        arg if len(arg) <= MAX_ARG_BYTES else arg[:MAX_ARG_BYTES] + b"... (%d more bytes)" % (len(arg) - MAX_ARG_BYTES)
        for arg in kept
    ]
    if len(kept) < len(argv):
        out.append(b"... (%d more arguments)" % (len(argv) - len(kept)))
    return out


class LatencyEvents:
    """Named events that took ``threshold`` ms or more; 0 switches the monitor off.

    Redis's names where the thing is the same: ``command``, ``fast-command``, ``aof-write``, ``aof-fsync-always``,
    ``expire-cycle``.
    """

    __slots__ = ("_samples", "threshold")

    def __init__(self, threshold: int = 0) -> None:
        self.threshold = threshold  # ms; 0: off
        self._samples: dict[str, deque[tuple[int, int]]] = {}

    def note(self, event: str, unix_seconds: int, ms: int) -> None:
        """Two spikes in one second are one sample: the worse."""
        if self.threshold <= 0 or ms < self.threshold:
            return
        samples = self._samples.setdefault(event, deque(maxlen=MAX_SAMPLES))
        if samples and samples[-1][0] == unix_seconds:
            samples[-1] = (unix_seconds, max(ms, samples[-1][1]))
        else:
            samples.append((unix_seconds, ms))

    def all(self) -> dict[str, list[tuple[int, int]]]:
        """Event -> [(unix seconds, ms), ...], oldest first."""
        return {event: list(samples) for event, samples in self._samples.items()}

    def reset(self, events: list[str]) -> int:
        """Forget these events, or all where none is named; how many there were."""
        named = events or list(self._samples)
        return sum(self._samples.pop(event, None) is not None for event in named)


class Histogram:
    """How long a command took, in buckets of which eight make a doubling: a percentile is at most 12 % too high.

    Bucket of a duration of ``u`` microseconds, where ``shift`` makes ``u >> shift`` a number from 8 to 15::

        u < 16:    u                                         (exact)
        u >= 16:   shift * 8 + (u >> shift)                  shift = bit_length(u) - 4
    """

    __slots__ = ("_counts", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._counts: list[int] = []  # grown to the slowest bucket seen

    def note(self, usec: int) -> None:
        if usec < 16:
            bucket = max(usec, 0)
        else:
            shift = usec.bit_length() - 4
            bucket = min(shift * 8 + (usec >> shift), BUCKETS - 1)
        counts = self._counts
        if bucket >= len(counts):
            counts.extend([0] * (bucket + 1 - len(counts)))
        counts[bucket] += 1
        self.calls += 1

    def percentile(self, percent: float) -> float:
        """Microseconds within which ``percent`` of the calls were done (upper end of the bucket); 0.0 without calls."""
        need = self.calls * percent / 100.0
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= need:
                return float(_upper(bucket))
        return 0.0

    def doublings(self) -> list[tuple[int, int]]:
        """``(microseconds, calls that took no longer)`` for powers of two, from the first that has any."""
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
    """The longest duration, in microseconds, that falls into a bucket."""
    if bucket < 16:
        return bucket
    shift = bucket // 8 - 1
    return ((bucket - shift * 8 + 1) << shift) - 1


class Timings:
    """All of the above for one server, as its directives want them. Implements ``TimingsPart``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.slowlog = SlowLog()
        self.latency = LatencyEvents()
        self.histograms: dict[str, Histogram] = {}
        self.tracking = False  # histograms are kept
        self.slow_ns = NO_LIMIT_NS  # nanoseconds from which on slow() wants to hear of a command
        self.configure()

    def configure(self) -> None:
        """Directives have changed."""
        config = self._config
        self.tracking = config.latency_tracking
        self.slowlog.slower_than = config.slowlog_log_slower_than
        self.slowlog.resize(config.slowlog_max_len)
        self.latency.threshold = config.latency_monitor_threshold
        limits = []
        if config.slowlog_log_slower_than >= 0:
            limits.append(config.slowlog_log_slower_than * 1000)
        if config.latency_monitor_threshold > 0:
            limits.append(config.latency_monitor_threshold * 1_000_000)
        self.slow_ns = min(limits, default=NO_LIMIT_NS)

    def note(self, name: str, took_ns: int) -> None:
        """A command took so long: its histogram."""
        self.histograms.setdefault(name, Histogram()).note(took_ns // 1000)

    def slow(self, session: Session, command: Command | None, argv: list[bytes], took_ns: int, now: int) -> None:
        """A command took ``slow_ns`` or longer. ``argv``: without its secrets. ``now``: ms since epoch."""
        flags = command.flags if command is not None else frozenset()
        if "skip_slowlog" in flags or ("blocking" in flags and session.blocked):
            return
        seconds = now // 1000
        self.slowlog.note(seconds, took_ns // 1000, argv, session.addr, session.name.decode("latin-1"))
        self.latency.note("fast-command" if "fast" in flags else "command", seconds, took_ns // 1_000_000)

    def doublings(self) -> dict[str, tuple[int, list[tuple[int, int]]]]:
        """Command -> its calls, and ``(microseconds, calls that took no longer)`` for powers of two."""
        found = sorted(self.histograms.items())
        return {name: (histogram.calls, histogram.doublings()) for name, histogram in found if histogram.calls}
