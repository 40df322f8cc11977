"""The identity of a member: its name, the ID of its data directory, and the ID of its group.

    group    a text file in the data directory, replaced by rename:
    +------------------------------------------------------------+
    | tidelog group, format 1                                    |
    | group tide 8d1c...            its name, and its ID         |
    | member host:7001 03fa...      the name of the member, and  |
    |                               the ID of this directory     |
    +------------------------------------------------------------+

Copies to replicas and backups do not contain this file. A directory that was copied manually has the same IDs, and the
coordinator lets only one of the two members use the name.
"""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from persistence.directory import replace
from resp.errors import CorruptError
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.config.valuetypes import GROUP_NAME as NAME

FILE = "group"
FORMAT = "tidelog group, format 1"
_TEXT = re.compile(
    rf"{FORMAT}\ngroup ({NAME.pattern}) ([0-9a-f]{{40}}|-)\nmember ({NAME.pattern}) ([0-9a-f]{{40}})\n", re.ASCII
)
_EVERYWHERE = ("*", "0.0.0.0", "::", "::*")  # noqa: S104 - compared with, not bound to


@dataclass(slots=True)
class Identity:
    """The contents of the file ``group``."""

    group: str
    group_id: str  # "": this directory has not been in a group yet
    member: str
    id: str  # of the directory, 40 hex digits

    def save(self, directory: Path) -> None:
        """Replace and sync the file. Raises OSError."""
        text = f"{FORMAT}\ngroup {self.group} {self.group_id or '-'}\nmember {self.member} {self.id}\n"
        replace(directory / FILE, text)


def load(config: Config) -> Identity:
    """Return the identity of the member with this configuration. Raises ConfigError, CorruptError, OSError."""
    path = Path(config.dir) / FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Identity(config.group, "", config.group_member or _default_name(config), secrets.token_hex(20))
    found = _TEXT.fullmatch(raw.decode("utf-8", errors="replace"))
    if found is None:
        raise CorruptError(f"{path} is damaged: restore it, or delete it to join the group as a new member")
    group, group_id, member, own = found.groups()
    if group != config.group:
        raise ConfigError(
            f"the data directory {config.dir} belongs to the group {group!r}, not to {config.group!r}:"
            " choose another dir, or set group to its name"
        )
    if config.group_member and member != config.group_member:
        raise ConfigError(
            f"the data directory {config.dir} belongs to the member {member!r}, not to {config.group_member!r}:"
            " choose another dir, or set group-member to its name"
        )
    return Identity(group, "" if group_id == "-" else group_id, member, own)


def _port(config: Config) -> int:
    """Return the port at which the other members reach this one."""
    by_tls = config.tls_port if config.tls_replication and config.tls_port else config.port
    return config.replica_announce_port or by_tls or config.tls_port


def _default_name(config: Config) -> str:
    name = f"{config.replica_announce_ip or socket.gethostname()}:{_port(config)}"
    return name if NAME.fullmatch(name) else f"{secrets.token_hex(4)}:{_port(config)}"


def address(config: Config) -> str:
    """Return the host:port to which other members connect: the announced address, the bound address, or the address
    from which this machine connects to the coordinator."""
    bound = [host.removeprefix("-") for host in config.bind]
    named = [host for host in bound if host and host not in _EVERYWHERE]
    host = config.replica_announce_ip or (named[0] if named else _local_address(config.coordinator))
    return f"{host}:{_port(config)}"


def _local_address(url: str) -> str:
    """Return the local address of connections to the coordinator. connect() of a datagram socket sends nothing."""
    target = re.match(r"etcd://(?:[^@/]*@)?([^,:/?]+)", url)
    if target is None:
        return "127.0.0.1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((target[1], 1))
            return str(sock.getsockname()[0])
    except OSError:
        return socket.gethostname()
