"""Connects to another server."""

from __future__ import annotations

import asyncio
import socket


async def connected(host: str, port: int) -> socket.socket:
    """Return a socket that is connected to the first of the server's addresses that answers. Raises OSError.

    create_connection() is not used: if it is cancelled, uvloop reports that the failed lookup was never retrieved.
    """
    loop = asyncio.get_running_loop()
    problem = OSError("its host name has no address: check the name and the DNS")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise problem
