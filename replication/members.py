"""How a leader and its replicas announce their identities and client addresses to each other. Bytes only.

A member of a server group announces itself with ``REPLCONF capa group-<ID of the group>,<name>,<ID of its
directory>,<ms since epoch>``. A member with another directory lacks data that it had before. The time shows the leader
by how much the clocks differ.

A replica with ``cluster-enabled yes`` announces itself with ``REPLCONF capa node-<ID>,<port>,<TLS
port>,<host>[,<hostname>]``. A leader of an earlier version ignores it, as it does any capability. To the replicas that
announced themselves, the leader sends MEMBERS frames. Their payload has a line for each server: the leader first, then
the other online replicas.

    <ID> <port> <TLS port> <host>[ <hostname>]

``ID`` has 40 hex digits. A port is 0 if there is none. An empty host means the address at which the other end of the
link is reached.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha1
from typing import NamedTuple

from commands.parse import is_host
from replication.frames import LinkError

CAPA = b"node-"
GROUP_CAPA = b"group-"
_GROUP_MEMBER = re.compile(rb"group-([0-9a-f]{40}),([0-9A-Za-z._:@-]{1,64}),([0-9a-f]{40}),(\d{1,15})", re.ASCII)
_MEMBER = re.compile(r"([0-9a-f]{40})[, ](\d{1,5})[, ](\d{1,5})[, ]([^, ]*)(?:[, ](.+))?", re.ASCII)


class ClusterMember(NamedTuple):
    """One server, as it announces itself to clients."""

    id: str  # 40 hex digits
    port: int  # without TLS; 0: none
    tls_port: int  # 0: none
    host: str  # "": the address at which the other end of the link is reached
    hostname: str = ""  # "": none

    def fields(self, between: str) -> bytes:
        """Return the text with which it is announced."""
        words = [self.id, str(self.port), str(self.tls_port), self.host, *([self.hostname] if self.hostname else [])]
        return between.join(words).encode("utf-8", "surrogateescape")


class GroupAnnouncement(NamedTuple):
    """A member of a server group, as it announces itself to the leader."""

    group_id: str  # 40 hex digits
    name: str
    id: str  # of its directory, 40 hex digits
    now: int = 0  # ms since epoch by its clock

    def capability(self) -> bytes:
        """Return the capability with which it announces itself."""
        return GROUP_CAPA + f"{self.group_id},{self.name},{self.id},{self.now}".encode()

    @classmethod
    def announced(cls, value: bytes) -> GroupAnnouncement | None:
        """Return the member that announces itself with this capability; None if it is another one, or malformed."""
        found = _GROUP_MEMBER.fullmatch(value)
        if found is None:
            return None
        return cls(found[1].decode(), found[2].decode(), found[3].decode(), int(found[4]))


def derived_id(host: str, port: int) -> str:
    """Return an ID for a server of an earlier version, which announces none."""
    return sha1(f"{host.lower()}:{port}".encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()


def capability(member: ClusterMember) -> bytes:
    """Return the capability with which a replica announces itself."""
    return CAPA + member.fields(",")


def announced(value: bytes) -> ClusterMember | None:
    """Return the replica that announces itself with this capability; None if it is a different one, or malformed."""
    return _parse(value[len(CAPA) :]) if value.startswith(CAPA) else None


def _parse(text: bytes) -> ClusterMember | None:
    found = _MEMBER.fullmatch(text.decode("utf-8", "surrogateescape"))
    if found is None:
        return None
    name, port, tls_port, host, hostname = found.groups("")
    if int(port) > 65535 or int(tls_port) > 65535 or not all(is_host(each) for each in (host, hostname) if each):
        return None
    return ClusterMember(name, int(port), int(tls_port), host, hostname)


def encode(members: Sequence[ClusterMember]) -> bytes:
    """Return the payload of a MEMBERS frame."""
    return b"\n".join([member.fields(" ") for member in members])


def decode(payload: bytes) -> list[ClusterMember]:
    """Return the members in a MEMBERS frame, the leader first. Raises LinkError."""
    members = []
    for line in payload.split(b"\n"):
        member = _parse(line)
        if member is None:
            raise LinkError("a list of members that is malformed")
        members.append(member)
    return members
