"""The health check of a container: exits with 0 if the server replies to PING, and with 1 otherwise.

    python healthcheck.py [PORT]     of the loopback interface; default: 6379

A server that requires a password replies with NOAUTH, which shows that it serves clients, too. A server that is loading
its data is not healthy yet.
"""

from __future__ import annotations

import socket
import sys
from typing import Final

TIMEOUT: Final = 4.0  # seconds; the health check itself has five
HEALTHY: Final = (b"+PONG", b"-NOAUTH ")


def reply(port: int) -> bytes:
    """Return the server's reply to PING, or as much as it sent before it closed the connection."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection:
        connection.sendall(b"PING\r\n")
        received = b""
        while not received.endswith(b"\r\n") and (more := connection.recv(1024)):
            received += more
    return received


def main() -> int:
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 6379
    try:
        received = reply(port)
    except OSError as error:
        sys.stderr.write(f"port {port}: {error}\n")
        return 1
    sys.stdout.write(received.decode("utf-8", "replace"))
    return 0 if received.startswith(HEALTHY) else 1


if __name__ == "__main__":
    sys.exit(main())
