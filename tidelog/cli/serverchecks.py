"""The checks of ``tidelog doctor`` of running servers. They read INFO and the directive ``dir``, and change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import tidelog
from tidelog.cli.diagnosis import Finding, judged
from tidelog.cli.machinechecks import compiled_finding
from tidelog.operating.tables import counted, size
from tidelog.transport.access import Access, without_credentials
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_denied
from tidelog.transport.leader import LeaderConnection

ANSWER_MS: Final = 5000  # timeout of connecting and of each reply
NAME: Final = "tidelog-doctor"  # of the connections
NEARLY: Final = 0.9  # share of a limit
LAG: Final = 10  # seconds since the last acknowledgement of a replica
READ_LOG: Final = "read the log file of the server, which names the error"
NO_ACCESS: Final = "give --url the name and password of a user that may run INFO"
BROKEN: Final = {  # field of INFO: what is wrong if it is not "ok", and the action
    "aof_last_write_status": ("writes fail because of the disk", READ_LOG),
    "rdb_last_bgsave_status": ("the last checkpoint failed", READ_LOG),
}
NOT_TIDELOG: Final = "set --url to a tidelog-server"
Info = Mapping[str, str]


class DoctorServers:
    """The servers that a URL names. ``answered`` and ``directory`` are set by ``findings``."""

    def __init__(self, url: str, *, required: bool) -> None:
        """Raise ValueError if the URL is invalid. ``required``: a server that does not answer is a problem."""
        self._access = Access.of(url).single_attempt(ANSWER_MS)
        self._required = required
        self.answered = False
        self.directory: Path | None = None  # of the data of the first server, if this machine has a directory there

    def findings(self) -> Iterator[Finding]:
        """Check each server: all that the URL names, or the leader that the Sentinels name."""
        for place in (None,) if self._access.sentinels else self._access.urls:
            shown = self._access.places if place is None else without_credentials(place)
            try:
                yield from self._server(place)
            except ReplyError as error:
                action = NO_ACCESS if is_denied(error) else READ_LOG
                yield Finding(f"server {shown}", "problem", f"the server replied: {error}", action)
            except (LookupError, ValueError, AttributeError):
                yield Finding(f"server {shown}", "problem", "its INFO is not that of tidelog", NOT_TIDELOG)
            except OSError as error:
                yield self._unreachable(shown, f"no answer: {error.__cause__ or error}")

    def _unreachable(self, shown: str, value: str) -> Finding:
        if not self._required:
            return Finding(f"server {shown}", "unknown", value)
        return Finding(f"server {shown}", "problem", value, "start the server, or correct --url")

    def _server(self, url: str | None) -> Iterator[Finding]:
        leading = LeaderConnection(self._access, NAME) if url is None else None
        connection = leading.leader() if leading is not None else BlockingConnection(self._access, str(url), NAME)
        try:
            info = parse_info(connection.ask("INFO").decode("utf-8", "replace"))
            self.answered = True
            yield from server_findings(connection.place, info)
            if self.directory is None:
                self.directory = _directory(connection)
        finally:
            connection.close()


def _directory(connection: BlockingConnection) -> Path | None:
    """Return the server's data directory if this machine has it. The server may be on another machine."""
    try:
        reply = connection.ask("CONFIG", "GET", "dir")
    except ReplyError:  # the user may not run CONFIG
        return None
    pairs = reply if isinstance(reply, list) else []
    found = Path(pairs[1].decode("utf-8", "surrogateescape")) if len(pairs) == 2 else None
    try:
        return found if found is not None and found.is_dir() else None
    except OSError:
        return None


def parse_info(text: str) -> dict[str, str]:
    """Return the fields of INFO."""
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line and not line.startswith("#"))


def server_findings(place: str, info: Info) -> Iterator[Finding]:
    """Judge one server by its INFO. ``place``: its URL without credentials."""
    server = f"server {place}"
    version = info.get("tidelog_version")
    if version is None:
        name = f"Redis {info['redis_version']}" if "redis_version" in info else "an unknown server"
        yield Finding(server, "problem", f"{name} answers", NOT_TIDELOG)
        return
    about = f"tidelog {version}, Python {info.get('python_version')}, up for {int(info['uptime_in_seconds']):,} s"
    if version != tidelog.__version__:
        action = f"install one version on both sides: this program is tidelog {tidelog.__version__}"
        yield Finding(server, "problem", about, action)
    else:
        yield compiled_finding(server, about, info.get("tidelog_compiled", ""), info.get("tidelog_coded_nodes", ""))
    yield _clients(info)
    yield _memory(info)
    yield from _persistence(info)
    yield _replication(info)
    if "group_members" in info:
        yield _group(info)


def _clients(info: Info) -> Finding:
    connected, most = int(info["connected_clients"]), int(info["maxclients"])
    value = f"{connected:,} of at most {most:,}"
    return judged("clients", value, "raise maxclients and the limit of open files", problem=connected > NEARLY * most)


def _memory(info: Info) -> Finding:
    used, most = int(info["used_memory"]), int(info["maxmemory"])
    value = f"{size(used)} of {f'at most {size(most)}' if most else 'unlimited'}"
    full = bool(most) and used > NEARLY * most
    return judged("memory", value, "trim streams, or raise maxmemory: writes fail with OOM at the limit", problem=full)


def _persistence(info: Info) -> Iterator[Finding]:
    if info.get("loading") == "1":
        yield Finding("persistence", "ok", "the server is loading its data")
        return
    broken = [said for field, said in BROKEN.items() if info.get(field, "ok") != "ok"]
    for value, action in broken:
        yield Finding("persistence", "problem", value, action)
    damaged, lost = int(info.get("scrub_damaged", 0)), int(info.get("scrub_irreparable", 0))
    if damaged or lost:
        value = f"{counted(damaged, 'damaged entry')} in the store, {lost:,} of them without a good copy"
        yield Finding("persistence", "problem", value, "replace the disk, and restore a backup or take a full copy")
    elif not broken:
        yield Finding("persistence", "ok", f"appendfsync {info.get('log_appendfsync')}, the store is intact")


def _replication(info: Info) -> Finding:
    if info["role"] == "master":
        return _leading(info)
    value = f"replica of {info['master_host']}:{info['master_port']}"
    if info.get("master_sync_refused") == "1":
        action = "make this server the leader (REPLICAOF NO ONE), or discard its data (REPLICAOF host port FORCE)"
        return Finding("replication", "problem", f"{value}, which offers data of another server", action)
    if info.get("master_sync_in_progress") == "1":
        return Finding("replication", "ok", f"{value}, receiving a full copy: {info.get('master_sync_perc', '?')} %")
    down = info["master_link_status"] != "up"
    since = f" for {int(info.get('master_link_down_since_seconds', 0)):,} s" if down else ""
    return judged(
        "replication", f"{value}, the link is {info['master_link_status']}{since}",
        "check that the leader runs and is reachable, and check masteruser and masterauth; the log names the error",
        problem=down,
    )  # fmt: skip


def _leading(info: Info) -> Finding:
    replicas = [
        dict(word.split("=", 1) for word in value.split(","))
        for field, value in info.items()
        if field.startswith("slave") and field.removeprefix("slave").isdigit()
    ]
    value = f"leader of {counted(len(replicas), 'replica')}"
    late = [f"{each['ip']}:{each['port']}" for each in replicas if each["state"] == "online" and int(each["lag"]) > LAG]
    if late:
        value += f"; no acknowledgement for more than {LAG} s from {', '.join(late)}"
    waits = int(info.get("withheld_ms", 0)) > 1000 * LAG
    if waits:
        value += f"; replies have been withheld for {int(info['withheld_ms']) // 1000:,} s"
    action = "check these replicas" if late else "connect the replicas that replica-acks requires, or lower it"
    return judged("replication", value, action, problem=bool(late) or waits)


def _group(info: Info) -> Finding:
    known, in_sync = int(info["group_members"]), int(info.get("group_in_sync", 0))
    value = f"{in_sync} of {counted(known, 'member')} in sync, leader: {info.get('group_leader') or 'none'}"
    return judged(
        "server group", value, "see which member is missing: tidelog group status",
        problem=in_sync < known or not info.get("group_leader"),
    )  # fmt: skip
