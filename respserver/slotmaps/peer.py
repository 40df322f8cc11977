"""The connection to the leader of the group to which slots move. It is a client of this leader."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, cast

from coordinator.slotmap import MapGroup
from replication.connecting import connected
from replication.handshake import request
from respserver.config.config import Config

LONGEST: Final = 4096  # bytes of a reply line
# Codes of errors after which another attempt may succeed. "": the connection was lost.
PASSING: Final = frozenset((
    "", "TRYAGAIN", "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "BUSY"
))  # fmt: skip
TLS: Final = "TLS"  # the certificate is not valid
REMEDIES: Final = {
    **dict.fromkeys(
        ("NOAUTH", "WRONGPASS", "NOPERM"),
        "set masteruser and masterauth of this server to a user of that group that has the permission +tcluster",
    ),
    "OOM": "raise maxmemory of that group, or delete keys",
}


class PeerError(Exception):
    """The connection was lost, or the other leader has replied with an error. ``code``: of the error, or TLS; "":
    none."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(f"{text} ({REMEDIES[code]})" if code in REMEDIES else text)
        self.code = code

    @property
    def passing(self) -> bool:
        """Whether another attempt may succeed."""
        return self.code in PASSING


class GroupPeer(asyncio.Protocol):
    """Sends commands, each of which has a simple reply."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[asyncio.Future[str], int]] = deque()
        self._buffer = b""
        self._failed: PeerError | None = None
        self.unacknowledged = 0  # bytes that were sent and are not acknowledged
        self.acknowledged = 0  # replies

    @classmethod
    async def open(cls, group: MapGroup, config: Config, seconds: float) -> GroupPeer:
        """Connect to the leader of a group within some time, and log in as a replica does. Raises PeerError,
        ConfigError."""
        member = group.members[group.leader]
        secure = bool(member.tls_port) and (config.tls_replication or not member.port)
        port = member.tls_port if secure else member.port
        loop = asyncio.get_running_loop()
        tls = None
        if secure:
            from respserver.clients.tls import build_client_context  # imported here, because ssl is slow to import

            tls = build_client_context(config)
        peer = cls()
        try:
            async with asyncio.timeout(seconds):
                sock = await connected(member.host, port)
                try:
                    await loop.create_connection(
                        lambda: peer, sock=sock, ssl=tls, server_hostname=member.host if tls else None
                    )
                except BaseException:
                    sock.close()
                    raise
                if config.masterauth:
                    password = config.masterauth.encode("utf-8", "surrogateescape")
                    await peer.ask("AUTH", *([config.masteruser] if config.masteruser else []), password)
        except OSError as error:  # TimeoutError is one
            peer.close()
            why = str(error) or f"no reply within {seconds:g} s"
            code = TLS if getattr(error, "verify_code", 0) else ""  # of ssl.SSLCertVerificationError
            where = f"{group.leader} ({member.host}:{port})"
            raise PeerError(f"the leader of the other group, {where}: {why}", code) from error
        except BaseException:
            peer.close()
            raise
        return peer

    def ask(self, *words: bytes | str | int) -> asyncio.Future[str]:
        """Send a command. The result is the text of a simple reply, such as OK; otherwise PeerError."""
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)
        if self._failed is not None or self._transport is None or self._transport.is_closing():
            future.set_exception(self._failed or PeerError("the connection is closed"))
            return future
        data = request(*words)
        self._waiting.append((future, len(data)))
        self.unacknowledged += len(data)
        self._transport.write(data)
        return future

    @property
    def failed(self) -> PeerError | None:
        """The first error; None if there is none."""
        return self._failed

    def close(self) -> None:
        self.fail(PeerError("the connection is closed"))

    def fail(self, error: PeerError) -> None:
        """Close the connection. All that was asked fails with this error, unless there was one before."""
        self._failed = self._failed or error
        if self._transport is not None:
            self._transport.abort()
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(self._failed)

    # -- asyncio's callbacks -------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(PeerError(f"the connection to the other group was lost{f' ({exc})' if exc is not None else ''}"))

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\r\n")
        for line in lines:
            if not self._waiting:
                self.fail(PeerError("the other group has sent a reply without a request"))
                return
            future, size = self._waiting.popleft()
            self.unacknowledged -= size
            self.acknowledged += 1
            if line.startswith(b"+"):
                if not future.done():
                    future.set_result(line[1:].decode("utf-8", "backslashreplace"))
            else:
                text = line[1:].decode("utf-8", "backslashreplace")
                code, _, rest = text.partition(" ")
                error = PeerError(f"the other group: {rest if code == 'ERR' else text}", code)
                self._failed = self._failed or error
                if not future.done():
                    future.set_exception(error)
        if len(self._buffer) > LONGEST:
            self.fail(PeerError("the other group has sent a reply that is too long"))


def _seen(future: asyncio.Future[str]) -> None:
    """Mark an error as noticed: ``failed`` shows it, too."""
    if not future.cancelled():
        future.exception()
