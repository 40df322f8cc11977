"""The ports and the address of the members on this machine."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from typing import Final

from tidelog.cluster.errors import ClusterError
from tidelog.cluster.plan import PlannedMember

_EVERYWHERE: Final = {"*": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1", "::*": "::1"}  # noqa: S104 - not bound to


def host(bind: str) -> str:
    """Return the address at which this machine reaches a server that listens on these addresses."""
    first = (bind.split() or ["127.0.0.1"])[0].removeprefix("-")
    return _EVERYWHERE.get(first, first)


def url(bind: str, port: int) -> str:
    """Return the URL of a server that listens on these addresses."""
    address = host(bind)
    return f"redis://[{address}]:{port}" if ":" in address else f"redis://{address}:{port}"


def check(bind: str, members: Iterable[PlannedMember]) -> None:
    """Raise ClusterError if a port is in use, or an address is not one of this machine."""
    taken = []
    for member in members:
        for each in bind.split():
            problem = _problem(_EVERYWHERE.get(each, each.removeprefix("-")), member.port)
            if problem == errno.EADDRINUSE:
                taken.append(f"{member.port} ({member.name})")
                break
            if problem == errno.EACCES:
                raise ClusterError(f"port {member.port} needs the rights of root: use a --port above 1023")
            if problem and not each.startswith("-"):
                raise ClusterError(f"--bind {each} can't be used: {os.strerror(problem)}")
    if taken:
        ports = ", ".join(taken[:5]) + (f", and {len(taken) - 5} more" if len(taken) > 5 else "")
        raise ClusterError(f"these ports are in use: {ports}. Stop the other servers, or use another --port")


def _problem(address: str, port: int) -> int:
    """Return the error of listening on a port; 0 if it is free."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
            probe.bind(where)
    except OSError as error:
        return error.errno or errno.EADDRNOTAVAIL
    return 0
