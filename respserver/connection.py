"""One client's connection: bytes in to commands, replies out, and flow control both ways.

Rule 1: a reply leaves only with flush(), which the server calls when the tick's batch is durable.
Rule 2: at most one reason keeps a connection from running commands; what arrives meanwhile waits in ``backlog``:

    blocked    a blocking read is parked            until it is served or times out
    streaming  a range is being sent piece by piece  until its last piece has gone to the socket
    throttled  the socket, or a tick's output, is full     until there is room
    paused     CLIENT PAUSE                                until it ends

Rule 3: whoever does not read gets no more replies made; whoever does not drain what is there is cut at the output
limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from commands.context import Chunks
from commands.session import Session
from resp import reply
from resp.decode import RequestDecoder
from respserver.clients import ConnectionFigures

if TYPE_CHECKING:
    from respserver.blocking import Waiter
    from respserver.server import Server

OUTPUT_AT_ONCE = 1024 * 1024  # bytes of replies made before the client must read some
BACKLOG_AT_ONCE = 4096  # commands decoded and waiting, before reading stops


class Connection(asyncio.Protocol):
    """Server's side of one socket."""

    __slots__ = (
        "_chunks", "_cut", "_streams", "backlog", "decoder", "eof", "out", "out_bytes", "paused", "progress",
        "queued", "reading", "server",
        "session", "soft_since", "throttled", "transport", "waiter",
    )  # fmt: skip

    def __init__(self, server: Server) -> None:
        self.server = server
        self.transport: asyncio.Transport
        self.session: Session
        self.decoder: RequestDecoder
        self.out: list[bytes | Chunks] = []
        self.out_bytes = 0  # bytes in ``out``
        self.backlog: deque[list[bytes]] = deque()
        self.waiter: Waiter | None = None
        self.throttled = False
        self.paused = False
        self.queued = False  # stands in the server's list of connections to flush
        self.reading = True
        self.eof = False
        self.soft_since = 0  # ms (monotonic) since when the soft output limit is exceeded; 0: it is not
        self.progress = 0  # ms (monotonic) of the last byte that the socket took while a stream was under way
        self._chunks: Chunks | None = None  # the one under way
        self._streams = 0  # Chunks in ``out``, and the one under way
        self._cut = False

    # -- asyncio's callbacks ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=OUTPUT_AT_ONCE)
        self.server.accept(self)

    def data_received(self, data: bytes) -> None:
        decoder = self.decoder
        if not decoder.authenticated:
            decoder.authenticated = self.session.authenticated
        commands = decoder.feed(data)
        self.session.total_in += len(data)
        if self.waiter is not None or self.throttled or self.paused or self._chunks is not None or self.backlog:
            self.backlog.extend(commands)
            if len(self.backlog) > BACKLOG_AT_ONCE:
                self._stop_reading()
        elif commands:
            self.server.dispatcher.run(self, commands)
        if decoder.error is not None:
            self._broken()

    def eof_received(self) -> bool:
        """The peer sends no more; what it asked for is still answered, unless that would mean to wait."""
        self.eof = True
        if self.waiter is not None or self.session.tls:
            return False
        self.server.queue_flush(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._cut = True
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None
        for item in self.out:
            if isinstance(item, Chunks):
                item.close()
        self.out.clear()
        self.backlog.clear()
        self.server.drop(self)

    def pause_writing(self) -> None:
        self.throttled = True
        self._stop_reading()

    def resume_writing(self) -> None:
        self.throttled = False
        self.progress = self.server.mono_ms()
        self._pump()
        self.server.queue_resume(self)

    # -- commands --------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Commands must wait in the backlog."""
        return self.waiter is not None or self.throttled or self.paused or self._chunks is not None

    def hold(self, commands: list[list[bytes]], start: int) -> None:
        """Commands from ``start`` on can't run now."""
        self.backlog.extendleft(reversed(commands[start:]))

    def run_backlog(self) -> None:
        """Go on with what waited, if nothing holds it any more."""
        if self.busy or self._cut or self.transport.is_closing():
            return
        if self.backlog:
            commands = list(self.backlog)
            self.backlog.clear()
            self.server.dispatcher.run(self, commands)
        if not self.busy and not self.backlog:
            if self.decoder.error is not None:
                self._broken()
            else:
                self._go_on_reading()

    def _broken(self) -> None:
        """The peer broke the protocol: answer what came before, say so, close."""
        if self.busy or self.backlog or self.session.close_after_reply:
            return
        self.server.stats.note_error("ERR")
        self.send(reply.error(f"ERR Protocol error: {self.decoder.error}"))
        self.session.close_after_reply = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self.reading and not self.transport.is_closing():
            self.reading = False
            self.transport.pause_reading()

    def _go_on_reading(self) -> None:
        if not self.reading and not self.transport.is_closing() and not self.session.close_after_reply:
            self.reading = True
            self.transport.resume_reading()

    # -- replies ---------------------------------------------------------------------------------------------
    def send(self, data: bytes | Chunks) -> None:
        """Queue a reply; it leaves with the tick."""
        self.out.append(data)
        if isinstance(data, bytes):
            self.out_bytes += len(data)
        else:
            self._streams += 1
        self.server.queue_flush(self)

    def flush(self) -> None:
        """Hand queued replies to the socket (or as much as it takes of a streamed one)."""
        if self._cut:
            self.out.clear()
            return
        if self._chunks is None and self.out:
            self._pump()
        if self.throttled:
            self.check_output_limit()
        ending = self.session.close_after_reply or (self.eof and not self.backlog)
        if ending and not self.out and self._chunks is None:
            self.close()

    def _pump(self) -> None:
        """Write until everything is out or the socket's buffer is full."""
        out = self.out
        if self._chunks is None and not self._streams:  # nearly always
            data = out[0] if len(out) == 1 else b"".join(out)  # type: ignore[arg-type]
            out.clear()
            self.out_bytes = 0
            self._write(data)  # type: ignore[arg-type]
            return
        while not self._cut:
            if self._chunks is not None:
                if self.throttled:
                    return
                piece = next(self._chunks.pieces, None)
                if piece is None:
                    self._chunks.close()
                    self._chunks = None
                    self._streams -= 1
                    self.server.queue_resume(self)
                else:
                    self._write(piece)
            elif not out:
                if (self.session.close_after_reply or self.eof) and not self.backlog:
                    self.server.queue_flush(self)
                return
            else:
                item = out.pop(0)
                if isinstance(item, Chunks):
                    self._chunks = item
                    self.progress = self.server.mono_ms()
                else:
                    self.out_bytes -= len(item)
                    self._write(item)

    def _write(self, data: bytes) -> None:
        self.session.total_out += len(data)
        self.server.stats.net_output += len(data)
        self.transport.write(data)

    @property
    def streaming(self) -> bool:
        return self._chunks is not None

    def buffered_output(self) -> int:
        """Bytes of replies that the peer has not taken yet."""
        return self.out_bytes + self.transport.get_write_buffer_size()

    def check_output_limit(self) -> None:
        """Cut a client whose output exceeds its class's limit (client-output-buffer-limit)."""
        waiting = self.buffered_output()
        if waiting < OUTPUT_AT_ONCE and not self.soft_since:
            return
        hard, soft, seconds = self.server.output_limit(self.session)
        if hard and waiting > hard:
            self.cut("output buffer limit (hard) exceeded")
            return
        if soft and waiting > soft:
            now = self.server.mono_ms()
            if not self.soft_since:
                self.soft_since = now
            elif now - self.soft_since > seconds * 1000:
                self.cut("output buffer limit (soft) exceeded")
        else:
            self.soft_since = 0

    def cut(self, why: str) -> None:
        """Close at once, losing what is queued."""
        if not self._cut:
            self.server.log.warning(f"Client id={self.session.id} addr={self.session.addr} closed: {why}")
            self._cut = True
            self.server.stats.output_buffer_cuts += 1
            self.transport.abort()

    def close(self) -> None:
        """Close after what is already with the socket."""
        if not self.transport.is_closing():
            self.transport.close()

    def figures(self) -> ConnectionFigures:
        """What CLIENT LIST shows of the connection."""
        sock = self.transport.get_extra_info("socket")
        return ConnectionFigures(
            fd=sock.fileno() if sock is not None else -1,
            query_buffered=self.decoder.buffered + sum(sum(map(len, argv)) for argv in self.backlog),
            output_buffered=self.buffered_output(),
            output_pieces=1 if self.streaming else 0,
            reading=self.reading,
            writing=self.throttled,
        )
