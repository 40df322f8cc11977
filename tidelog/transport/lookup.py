"""Finds the leader among the servers of an ``Access``.

Rule 1: with one URL, that server counts as the leader, whatever its role is. With several URLs, the leader is the
        server whose ROLE is master, or, if none of them leads, the leader that a replica among them follows. With
        Sentinels, it is the server that they name, if its ROLE agrees.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

from tidelog.transport.access import Access, without_credentials
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError, is_temporary
from tidelog.transport.slots import MemberAddress


def find_leader(access: Access, name: str) -> BlockingConnection:
    """Connect to the leader among the URLs, or to the one that a Sentinel names (Rule 1).

    ``name`` is the name of the connection in CLIENT LIST. Raises OSError if no leader answers, ReplyError for a wrong
    password.
    """
    met, followed = list[str](), list[str]()
    if len(access.urls) == 1 and not access.sentinels:
        return BlockingConnection(access, access.urls[0], name)
    for place in access.sentinels or access.urls:
        try:
            url = _named_by(access, place, name) if access.sentinels else place
            found = _examine(access, url, name) if url else None
        except (OSError, ReplyError) as error:
            if isinstance(error, ReplyError) and not is_temporary(error):
                raise
            met.append(f"{without_credentials(place)}: {error}")
            continue
        if found is None:
            met.append(f"{without_credentials(place)}: no service of this name")
            continue
        wire, url = found
        if not url:
            return wire
        met.append(f"{wire.place}: a replica")
        if not access.sentinels and url not in followed:
            followed.append(url)
    for url in followed:  # the URLs may name only some of the servers
        with suppress(OSError, ReplyError):
            wire, other = _examine(access, url, name)
            if not other:
                return wire
    named = f"by {access.called('sentinels')} for {access.service!r}"
    where = named if access.sentinels else f"among {access.called('urls')}"
    raise ConnectionError(f"no leader {where} ({'; '.join(met)})")


def leader_url(access: Access, name: str) -> str:
    """Return the URL of the current leader. Raises OSError if no leader answers, ReplyError for a wrong password."""
    connection = find_leader(access, name)
    connection.close()
    return connection.url


def url_of(access: Access, like: str, host: str, port: int) -> str:
    """Return the URL of another server, with user and password of the URL ``like``."""
    scheme, address = "rediss" if access.secure else "redis", access.address(like)
    user = f"{quote(address.username or '', '')}:{quote(address.password, '')}@" if address.password else ""
    return f"{scheme}://{user}{_host(host)}:{port}"


def member_url(access: Access, member: MemberAddress) -> str:
    """Return the URL of a member of a cluster, with the user of the URL with this address, or else of the first URL."""
    like = next((url for url in access.urls if address_of(access, url) == member), access.urls[0])
    return url_of(access, like, member.host, member.port)


def address_of(access: Access, url: str) -> MemberAddress:
    """Return the address in a URL."""
    found = access.address(url)
    return MemberAddress(found.host, found.port)


def _examine(access: Access, url: str, name: str) -> tuple[BlockingConnection, str]:
    """Return a connection to a server, and the URL of the leader that it follows; "" if it leads. The connection to a
    replica is closed. Raises OSError, ReplyError."""
    wire = BlockingConnection(access, url, name)
    leader = url
    try:
        role = wire.ask("ROLE")
        leader = "" if role[0] == b"master" else url_of(access, wire.url, role[1].decode(), int(role[2]))
    finally:
        if leader:
            wire.close()
    return wire, leader


def _named_by(access: Access, sentinel: str, name: str) -> str:
    """Return the leader's URL from a Sentinel, or "" if it does not know the service. Raises OSError."""
    wire = BlockingConnection(access.of_sentinel(sentinel), sentinel, name)
    try:
        found = wire.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", access.service)
    finally:
        wire.close()
    scheme = "rediss" if access.secure else "redis"
    return f"{scheme}://{_host(found[0].decode())}:{found[1].decode()}" if found else ""


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
