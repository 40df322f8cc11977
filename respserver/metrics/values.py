"""The values of the server, its commands, its replicas, and its server group.

Each step of the generators takes at most some tenths of a millisecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from commands.admin.connection import REDIS_LEVEL
from commands.declare import all_commands
from commands.session import Session
from respserver import __version__
from respserver.metrics import infofields
from respserver.metrics.text import Buckets, Labels, Sample
from respserver.observe import info
from respserver.observe.clienttotals import ClientWalk
from respserver.observe.info import ServerStats
from respserver.observe.slowlog import Histogram

SECTIONS: Final = [name for name in info.SECTION_NAMES if name not in ("commandstats", "errorstats", "latencystats")]
COMMANDS: Final = 50  # of a step
# Upper bounds of the buckets in microseconds, from 16 us to 16.8 s. An upper bound of Prometheus is inclusive; the
# durations are rounded down, so that "less than 16" means up to 16 us.
BOUNDS: Final = [1 << shift for shift in (*range(4, 21), 22, 24)]

Samples = dict[str, list[Sample]]  # by key of ``families.FAMILIES``


class ClientPages(ClientWalk):
    """The totals over all clients, in shorter steps than those of INFO."""

    __slots__ = ()

    PAGE = 100


def server(stats: ServerStats, samples: Samples) -> Iterator[None]:
    """Add the fields of INFO, one section in a step."""
    config, leads = stats.config, stats.roles.leader
    labels = (
        __version__, REDIS_LEVEL.decode(), "cluster" if stats.cluster else "standalone",
        "leader" if leads else "replica", str(int(info.COMPILED)), config("appendfsync"),
    )  # fmt: skip
    samples["server_info"].append((labels, 1))
    for section in SECTIONS:
        if section == "keyspace":
            _add_keyspace(stats, samples)
        else:
            for name, values, number in infofields.samples(info.fields(stats, section)):
                samples[name].append((values, number))
        yield
    for code, count in stats.counters.errors.items():
        samples["errors"].append(((code,), count))
    for one in stats.roles.replicas:
        replica: Labels = (f"[{one.host}]:{one.port}" if ":" in one.host else f"{one.host}:{one.port}",)
        samples["replica_online"].append((replica, int(one.state == "online")))
        samples["replica_offset_bytes"].append((replica, one.offset))
        samples["replica_lag_bytes"].append((replica, max(0, stats.log_offset - one.offset)))
        samples["replica_last_ack_seconds"].append((replica, one.lag))
    yield


def _add_keyspace(stats: ServerStats, samples: Samples) -> None:
    """Add the numbers of INFO keyspace, which has no line without keys."""
    ks = stats.keyspace
    samples["keys"].append(((), len(ks.keys)))
    samples["keys_with_expiry"].append(((), len(ks.expires)))
    for _, text in info.fields(stats, "keyspace"):
        values = dict(pair.split("=") for pair in str(text).split(","))
        samples["keys_average_ttl_seconds"].append(((), int(values["avg_ttl"]) / 1000))


def commands(
    histograms: dict[str, Histogram], tracking: bool, samples: Samples, found: list[tuple[Labels, Buckets]]
) -> Iterator[None]:  # fmt: skip
    """Add the calls of commands, and to ``found`` the histograms if ``tracking``: the directive latency-tracking."""
    used = [command for command in all_commands() if command.calls or command.rejected or command.failed]
    for at, command in enumerate(used):
        labels = (command.name,)
        samples["command_calls"].append((labels, command.calls))
        samples["command_seconds"].append((labels, command.usec / 1e9))  # counted in nanoseconds
        samples["command_rejected"].append((labels, command.rejected))
        samples["command_failed"].append((labels, command.failed))
        if at % COMMANDS == COMMANDS - 1:
            yield
    if not tracking:
        return
    for name in sorted(histograms):
        histogram = histograms.get(name)  # CONFIG RESETSTAT can have removed it
        if histogram is not None and histogram.calls:
            counts = histogram.below(BOUNDS)
            bounds = [(bound / 1e6, count) for bound, count in zip(BOUNDS, counts, strict=True)]
            found.append(((name,), (bounds, histogram.calls, histogram.usec / 1e6)))
        yield


def member(status: dict[str, Any], samples: Samples) -> None:
    """Add the values of a member of a server group. ``status``: that of TMEMBER STATUS."""
    samples["server_group_info"].append(((status["group"], status["member"], status["phase"]), 1))
    samples["server_group_longest_stall_seconds"].append(((), status["longest_stall_ms"] / 1000))
    samples["server_group_warnings"].append(((), len(status["warnings"])))
    for one in status.get("members", ()):
        labels = (one["name"],)
        samples["server_group_member_in_sync"].append((labels, int(one["in_sync"])))
        if "lag_bytes" in one:
            samples["server_group_member_lag_bytes"].append((labels, one["lag_bytes"]))
            samples["server_group_member_lag_seconds"].append((labels, one["lag_seconds"]))


def all_clients(sessions: list[Session], walk: ClientWalk) -> Iterator[None]:
    """Process the clients, some in a step. Afterwards ``walk.take()`` is fast."""
    while not walk.more(sessions):
        yield
