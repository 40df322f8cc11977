"""``syslog``: receives and sends messages of RFC 5424 and RFC 3164 over UDP, TCP, and TLS (RFC 5425, 5426, 6587).

The source is a ``tcp_server`` or a ``udp_server``, and the sink a ``tcp_client`` or a ``udp_client``, with the codec
``syslog``. Syslog has no acknowledgements: a message is delivered when the kernel has accepted it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, Literal

from tidelog.flows.api.connector import Deferred, Outcome, Sink, Source
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import DisconnectedError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import Token
from tidelog.flows.connectors.sockets.tcp import TcpClient, TcpClientOptions, TcpServer, TcpServerOptions
from tidelog.flows.connectors.sockets.udp import UdpClient, UdpOptions, UdpServer, UdpServerOptions
from tidelog.flows.connectors.tls import ClientTlsOptions, ServerTlsOptions
from tidelog.options.limits import AtLeastOne, Port
from tidelog.options.units import Duration, PositiveSize, Size

PORT: Final = 514
TLS_PORT: Final = 6514


class SyslogConnectorOptions(ConnectorOptions, kw_only=True):
    """Options of ``syslog``."""

    transport: Literal["udp", "tcp"] = "udp"  # The protocol: `udp` or `tcp`.
    host: str = "127.0.0.1"
    # Source: the address to listen on. `""`: all addresses. Sink: the host of the server.
    port: Port | None = None
    # The port to listen on, or of the server. `null`: 514, or 6514 with TLS. `0`: a source selects a free port.
    tls: ClientTlsOptions | None = None
    # TLS over `tcp`. Source: `cert`, `key`, and `ca`, if clients must present a certificate. Sink: as for `tcp_client`.
    format: Literal["RFC5424", "RFC3164"] = "RFC5424"
    # Sink: the format of a message, unless the value has `protocol`: `RFC5424` or `RFC3164`.
    framing: Literal["octet_counting", "newline"] = "octet_counting"
    # Sink over `tcp`: `octet_counting` (a length before each message) or `newline`. A source detects it.
    max_bytes: PositiveSize = PositiveSize(64 << 10)  # Source: maximum size of a message.
    max_connections: AtLeastOne = 1000  # Source over `tcp`: maximum number of open connections.
    idle_timeout: Duration | None = None
    # Source over `tcp`: time without received bytes after which a connection is closed. `null`: never.
    receive_buffer: Size | None = None
    # Source over `udp`: size of the kernel's buffer, which the kernel may limit. `null`: the kernel's default.
    connect_timeout: Duration = Duration(10)  # Sink over `tcp`: time limit for opening the connection.
    write_timeout: Duration = Duration(10)
    # Sink over `tcp`: time after which a server that reads nothing is disconnected.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tls is not None and self.transport != "tcp":
            raise ValueError("tls: set transport: tcp, or omit tls")

    def source(self) -> TcpServer | UdpServer:
        """Return the source that receives the messages."""
        common: dict[str, Any] = {
            "host": self.host, "port": self._port, "codec": "syslog", "max_bytes": self.max_bytes,
        }  # fmt: skip
        if self.transport == "udp":
            return UdpServer(UdpServerOptions(**common, receive_buffer=self.receive_buffer))
        tls = None
        if self.tls is not None:
            tls = ServerTlsOptions(cert=self.tls.cert or "", key=self.tls.key, ca=self.tls.ca)
        return TcpServer(TcpServerOptions(
            **common, preprocessors=["syslog_framing"], tls=tls, max_connections=self.max_connections,
            idle_timeout=self.idle_timeout,
        ))  # fmt: skip

    def sink(self) -> TcpClient | UdpClient:
        """Return the sink that sends the messages."""
        common: dict[str, Any] = {
            "host": self.host, "port": self._port, "codec": {"syslog": {"protocol": self.format}},
        }  # fmt: skip
        if self.transport == "udp":
            return UdpClient(UdpOptions(**common))
        lines: Any = {"separate": {"within": "reject"}}
        after = [lines if self.framing == "newline" else "textual_length_prefixed"]
        return TcpClient(TcpClientOptions(
            **common, postprocessors=after, tls=self.tls, connect_timeout=self.connect_timeout,
            write_timeout=self.write_timeout,
        ))  # fmt: skip

    @property
    def _port(self) -> int:
        return self.port if self.port is not None else PORT if self.tls is None else TLS_PORT


class SyslogConnector(Source, Sink):
    """Sets ``peer`` in meta, and ``connection`` over ``tcp``."""

    type = "syslog"
    Options = SyslogConnectorOptions

    @classmethod
    def option_errors(cls, options: SyslogConnectorOptions, *, source: bool) -> list[str]:
        found = super().option_errors(options, source=source)
        if source and options.tls is not None and options.tls.cert is None:
            found.append("tls: a source needs cert, the certificate of the server")
        if not source and options.port == 0:
            found.append("port: a sink needs the port of the server")
        return found

    def __init__(self, options: SyslogConnectorOptions) -> None:
        super().__init__()
        self._options = options
        self._numbers = itertools.count()
        self.receiver: TcpServer | UdpServer | None = None
        self.sender: TcpClient | UdpClient | None = None

    async def connect(self) -> None:
        if self.context.source is not None and self.context.sink is not None:
            raise ValueError("syslog has no answers: use two connectors, one to receive and one to send")
        if self.context.source is not None:
            self.receiver = self.receiver or self._options.source()
            self.receiver.context = self.context
            await self.receiver.connect()
        else:
            self.sender = self.sender or self._options.sink()
            self.sender.context = self.context
            await self.sender.connect()

    async def close(self) -> None:
        for each in (self.receiver, self.sender):
            if each is not None:
                await each.close()

    # -- source ----------------------------------------------------------------------------------------------
    @property
    def backlog(self) -> int:
        return 0 if self.receiver is None else self.receiver.backlog

    def interrupt(self) -> None:
        if self.receiver is not None:
            self.receiver.interrupt()

    async def pull(self, limit: int) -> list[Event] | None:
        if self.receiver is None:
            raise DisconnectedError("not connected")
        events = await self.receiver.pull(limit)
        for each in events or ():
            each.id = next(self._numbers)
        return events

    async def settled(self, tokens: Sequence[Token]) -> None:
        """Syslog has no acknowledgements."""

    # -- sink ------------------------------------------------------------------------------------------------
    async def write(self, events: list[Event]) -> Deferred | Sequence[Outcome] | None:
        if self.sender is None:
            raise DisconnectedError("not connected")
        return await self.sender.write(events)
