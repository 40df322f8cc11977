"""The output of ``tidelog info``."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from tidelog.client import Client
from tidelog.client.entries import GroupInfo, StreamId
from tidelog.operating.tables import counted, print_pairs, size, table, utc
from tidelog.operating.terminal import echo

SHOWN = 50  # streams listed by name


def print_stream(client: Client, key: str) -> None:
    """Print a stream and its groups."""
    info = client.tinfo(key)
    print_pairs(
        {
            "entries": f"{info.length:,}",
            "first": _id(info.first),
            "last": _id(info.last),
            "ever added": f"{info.entries_added:,}",
            "evicted": f"{info.evicted:,}" + (f", up to {_id(info.evicted_to)}" if info.evicted else ""),
            "nodes": f"{info.nodes:,}",
            "memory": size(info.memory_bytes),
            "disk": size(info.disk_bytes),
        }
    )
    groups = client.tgroup_list(key)
    if groups:
        echo()
        table(
            ["group", "offset", "lag", "pending", "readers", "redelivered", "expired", "dead letters", "ttl"],
            [_group(client, key, group) for group in groups],
        )


def _group(client: Client, key: str, group: GroupInfo) -> list[str]:
    lag = client.tcount(key, f"({group.offset}")
    counters = [lag, group.pending, group.readers, group.redelivered, group.expired, group.deadlettered]
    ttl = f"{group.ttl:,} ms" if group.ttl else "none"
    return [_name(group.name), str(group.offset), *(f"{n:,}" for n in counters), ttl]


def print_server(client: Client) -> None:
    """Print the server and the names of its streams."""
    try:
        info: dict[str, Any] = client.redis.info()
        pairs = _server(info)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise click.ClickException("the server is not a tidelog-server: its INFO lacks fields of tidelog") from None
    print_pairs(pairs)
    # SCAN may return a key twice.
    names = sorted(set(islice(client.redis.scan_iter(count=1000, _type="stream"), 10 * SHOWN)))
    if names:
        echo()
        table(["stream", "entries", "last"], [_stream(client, name) for name in names[:SHOWN]])
    if info["streams"] > SHOWN:
        echo(f"and {info['streams'] - SHOWN:,} more")


def _server(info: dict[str, Any]) -> dict[str, str]:
    changes = counted(info["rdb_changes_since_last_save"], "change")
    return {
        "server": f"tidelog {info['tidelog_version']}, behaves as Redis {info['redis_version']}",
        "up for": f"{info['uptime_in_seconds']:,} s, process {info['process_id']}, port {info['tcp_port']}",
        "clients": f"{info['connected_clients']}, {info['blocked_clients']} of them blocked",
        "memory": size(info["used_memory"]),
        "streams": f"{info['streams']:,}, {counted(info['stream_entries'], 'entry')}, {size(info['stream_memory'])}",
        "pending": f"{info['group_pending']:,} in {counted(info['groups'], 'group')}",
        "replication": _replication(info),
        "last save": f"{utc(1000 * info['rdb_last_save_time'])}, {changes} since",
    }


def _replication(info: dict[str, Any]) -> str:
    replicas = counted(info["connected_slaves"], "replica")
    if info["role"] == "master":
        return f"leader of {replicas}"
    leader = f"{info['master_host']}:{info['master_port']}"
    return f"replica of {leader}, the link is {info['master_link_status']}; {replicas} of its own"


def _stream(client: Client, key: bytes) -> list[str]:
    span = client.tread(key, count=0, with_info=True).info
    return [_name(key), f"{client.tlen(key):,}", _id(span.last if span else None)]


def _id(at: StreamId | None) -> str:
    if at is None or at.ms == 0:
        return "-"
    return f"{at} ({utc(at.ms)})"


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")
