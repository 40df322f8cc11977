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
from collections.abc import Callable
from typing import Final, cast

from commands.context import Chunks
from commands.session import Session, TransportStats
from resp import reply
from resp.decode import RequestDecoder
from respserver.clients.flow import BACKLOG_AT_ONCE, BACKLOG_BYTES, LOGIN_AT_ONCE, OUTPUT_AT_ONCE, OutputLimits
from respserver.clock import Clock
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters
from respserver.ticks import Client, Ticks

NO_ENDS: Final[list[int]] = []


class Executor:
    """What runs a connection's commands: the dispatcher."""

    def run(self, conn: Connection, commands: list[list[bytes]], raw: bytes, ends: list[int]) -> None:
        """Run the commands in order, until one has to wait or the client has to read first; the rest is held.

        ``raw``, ``ends``: as RequestDecoder has them, for the first len(ends) commands.
        """
        raise NotImplementedError


class Wait:
    """What a blocked client waits for."""

    def forget(self) -> None:
        """The client waits no more."""
        raise NotImplementedError

    def end(self, error: bool) -> None:
        """CLIENT UNBLOCK: reply as if the wait had timed out, or with an error."""
        raise NotImplementedError


class Host:
    """What connections need of their server."""

    def __init__(
        self, clock: Clock, ticks: Ticks, executor: Executor, limits: OutputLimits, counters: Counters, logger: Logger,
        accept: Callable[[Connection], None], left: Callable[[Session], None],
    ) -> None:  # fmt: skip
        self.now_ms = clock.now  # ms since epoch
        self.mono_ms = clock.mono  # ms of a clock that is never set
        self.ticks = ticks
        self.executor = executor
        self.limits = limits
        self.counters = counters
        self.logger = logger
        self.accept = accept  # a connection was made: it gets its session and its decoder, or is turned away
        self.left = left  # a connection is gone


class Connection(Client):
    """Server's side of one socket: an asyncio.Protocol in all but its base class, and a ``commands.session.Transport``.

    Loops ask for the methods. Without a base class that is not compiled, the attributes are a struct's once this is.
    """

    __slots__ = (
        "_backlog_bytes", "_chunks", "_cut", "_host", "_streams", "_ticks", "backlog", "decoder", "eof", "multi_bytes",
        "out", "out_bytes", "paused", "progress", "reading", "session", "soft_since", "throttled", "transport", "wait",
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._ticks = host.ticks
        self.transport: asyncio.Transport
        self.session: Session
        self.decoder: RequestDecoder
        self.out: list[bytes | Chunks] = []
        self.out_bytes = 0  # bytes in ``out``
        self.backlog: deque[list[bytes]] = deque()
        self._backlog_bytes = 0  # received since commands began to wait
        self.multi_bytes = 0  # bytes of the commands that wait for EXEC
        self.wait: Wait | None = None  # a blocking command is parked
        self.throttled = False
        self.paused = False
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
        self._host.accept(self)

    def data_received(self, data: bytes) -> None:
        session, decoder = self.session, self.decoder
        if session.close_after_reply:  # it said QUIT, was killed or broke the protocol: nothing after that counts
            return
        session.total_in += len(data)
        if not session.authenticated:
            data = self._before_login(data)
        decoder.authenticated = session.authenticated
        commands = decoder.feed(data)
        self._take(commands, len(data))
        decoder.forget()
        if decoder.error is not None:
            self._broken()

    def _take(self, commands: list[list[bytes]], size: int) -> None:
        """Run commands that arrived as ``size`` bytes, or let them wait for their turn."""
        if self.busy or self.backlog:
            self.backlog.extend(commands)
            self._backlog_bytes += size
            if len(self.backlog) > BACKLOG_AT_ONCE or self._backlog_bytes > BACKLOG_BYTES:
                self._stop_reading()
        elif commands:
            self._host.executor.run(self, commands, self.decoder.raw, self.decoder.ends)
        else:
            self.session.last_active = self._host.now_ms()

    def _before_login(self, data: bytes) -> bytes:
        """Take commands one at a time: AUTH lifts the decoder's limits for what comes after it. Returns the rest."""
        session, decoder = self.session, self.decoder
        decoder.authenticated = False
        for at in range(0, len(data), LOGIN_AT_ONCE):
            piece = data[at : at + LOGIN_AT_ONCE]
            while piece:
                commands, piece = decoder.first(piece)
                self._take(commands, 0)
                if session.close_after_reply:
                    return b""
                if session.authenticated:
                    return piece + data[at + LOGIN_AT_ONCE :]
        return b""

    def eof_received(self) -> bool:
        """The peer sends no more; what it asked for is still answered, unless that would mean to wait (see flush())."""
        self.eof = True
        self._ticks.queue_flush(self)
        if not self.session.tls:
            return True
        self._ticks.run()  # TLS ends both ways at once: what there is must leave now
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self.hand_over()
        self._host.left(self.session)
        self.session.transport = None

    def _drop_output(self) -> None:
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None
        for item in self.out:
            if isinstance(item, Chunks):
                item.close()
        self.out.clear()
        self.out_bytes = self._streams = 0

    def pause_writing(self) -> None:
        self.throttled = True
        self._stop_reading()

    def resume_writing(self) -> None:
        self.throttled = False
        self.progress = self._host.mono_ms()
        self.session.last_active = self._host.now_ms()
        self._ticks.queue_flush(self)  # with the tick, as all replies: what waits may not be durable yet
        self._ticks.queue_resume(self)

    # -- commands --------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Commands must wait in the backlog."""
        return self.wait is not None or self.throttled or self.paused or self._chunks is not None

    def hold(self, commands: list[list[bytes]], start: int) -> None:
        """Commands from ``start`` on can't run now."""
        self.backlog.extendleft(reversed(commands[start:]))

    def run_backlog(self) -> None:
        """Go on with what waited, if nothing holds it any more."""
        if self.busy or self._cut or self.transport.is_closing():
            return
        if self.out_bytes > OUTPUT_AT_ONCE:  # the disk holds the replies up: flush() comes back
            return
        if self.backlog:
            commands = list(self.backlog)
            self.backlog.clear()
            self._host.executor.run(self, commands, b"", NO_ENDS)
        if self.eof:
            self._ticks.queue_flush(self)
        if not self.busy and not self.backlog and self.decoder.error is not None:
            self._broken()
            return
        self._backlog_bytes = sum(sum(map(len, argv)) for argv in self.backlog) if self.backlog else 0
        room = len(self.backlog) <= BACKLOG_AT_ONCE and self._backlog_bytes <= BACKLOG_BYTES
        if room and not self.throttled and self._chunks is None:  # also while blocked: else its end would go unseen
            self._go_on_reading()

    def _broken(self) -> None:
        """The peer broke the protocol: answer what came before, say so, close."""
        if self.busy or self.backlog or self.session.close_after_reply:
            return
        self._host.counters.note_error("ERR")
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
    def answer(self, data: bytes | Chunks) -> None:
        """Queue the reply to a command as CLIENT REPLY wants it. It leaves once somebody queues the flush."""
        session = self.session
        mode = session.reply_mode
        if mode == 3:  # SKIP: this reply is the one to leave out
            session.reply_mode = 0
            session.refresh()
        elif mode == 2:
            session.reply_mode = 3
        if mode in (1, 3) or not data:
            if isinstance(data, Chunks):
                data.close()
        elif isinstance(data, Chunks):
            self.send(data)
        else:
            self.out.append(data)
            self.out_bytes += len(data)

    def send(self, data: bytes | Chunks) -> None:
        """Queue a reply; it leaves with the tick."""
        self.out.append(data)
        if isinstance(data, bytes):
            self.out_bytes += len(data)
        else:
            self._streams += 1
        self._ticks.queue_flush(self)

    def flush(self) -> None:
        """Hand queued replies to the socket (or as much as it takes of a streamed one)."""
        if self._cut:
            self._drop_output()
            return
        if self.out or self._chunks is not None:
            self._pump()
        if self.throttled:
            self.check_output_limit()
        if self.out or self._chunks is not None:
            return
        if self.session.close_after_reply or (self.eof and (not self.backlog or self.wait is not None)):
            self.close()
        elif self.backlog and not self.busy:
            self._ticks.queue_resume(self)

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
                try:
                    piece = next(self._chunks.pieces, None)
                except Exception as error:  # noqa: BLE001 - a damaged node or a bug; too late for an error reply
                    self._host.logger.trace("A streamed reply can't be finished", error)
                    self.cut("its reply can't be finished")
                    return
                if piece is None:
                    self._chunks.close()
                    self._chunks = None
                    self._streams -= 1
                    self._ticks.queue_resume(self)
                else:
                    self._write(piece)
            elif not out:
                return
            else:
                item = out.pop(0)
                if isinstance(item, Chunks):
                    self._chunks = item
                    self.progress = self._host.mono_ms()
                else:
                    self.out_bytes -= len(item)
                    self._write(item)

    def _write(self, data: bytes) -> None:
        self.session.total_out += len(data)
        self._host.counters.net_output += len(data)
        self.transport.write(data)

    @property
    def streams(self) -> int:
        """Replies that are being sent piece by piece, or will be."""
        return self._streams

    @property
    def streaming(self) -> bool:
        return self._chunks is not None

    def buffered_output(self) -> int:
        """Bytes of replies that the peer has not taken yet."""
        return self.out_bytes + self.transport.get_write_buffer_size()

    def check_output_limit(self) -> None:
        """Cut a client whose output exceeds its class's limit (client-output-buffer-limit)."""
        waiting = self.buffered_output()
        if waiting <= self._host.limits.lowest and not self.soft_since:
            return
        hard, soft, seconds = self._host.limits.of(self.session)
        if hard and waiting > hard:
            self._host.counters.output_buffer_cuts += 1
            self.cut("output buffer limit (hard) exceeded")
            return
        if soft and waiting > soft:
            now = self._host.mono_ms()
            if not self.soft_since:
                self.soft_since = now
            elif now - self.soft_since > seconds * 1000:
                self._host.counters.output_buffer_cuts += 1
                self.cut("output buffer limit (soft) exceeded")
        else:
            self.soft_since = 0

    def cut(self, why: str) -> None:
        """Close at once, losing what is queued."""
        if not self._cut:
            self._host.logger.warning(f"Client id={self.session.id} addr={self.session.addr} closed: {why}")
            self.kill()

    def kill(self) -> None:
        """The same without a word: CLIENT KILL, idle timeout. A peer that reads nothing can't put it off."""
        self._cut = True
        self.session.close_after_reply = True
        self._stop_waiting()
        self.backlog.clear()
        self.transport.abort()

    def close(self) -> None:
        """Close after what is already with the socket."""
        if not self.transport.is_closing():
            self.transport.close()

    def hand_over(self) -> None:
        """The socket is gone, or somebody else's from now on (a replica's feed): nothing is read or written here."""
        self._cut = True
        self._stop_waiting()
        self._drop_output()
        self.backlog.clear()

    def _stop_waiting(self) -> None:
        if self.wait is not None:
            self.wait.forget()

    # -- what commands ask of a client (commands.session.Transport) ----------------------------------------------
    def unblock(self, error: bool) -> bool:
        if self.wait is None:
            return False
        self.wait.end(error)
        return True

    def push(self, data: bytes) -> None:
        self.send(data)
        self.check_output_limit()

    def stats(self) -> TransportStats:
        sock = self.transport.get_extra_info("socket")
        return TransportStats(
            fd=sock.fileno() if sock is not None else -1,
            query_buffered=self.decoder.buffered + sum(sum(map(len, argv)) for argv in self.backlog),
            output_buffered=self.buffered_output(),
            output_pieces=1 if self.streaming else 0,
            reading=self.reading,
            writing=self.throttled,
        )


def connection_of(session: Session) -> Connection | None:
    """The client's connection; None for one that is gone, and for the link to a leader."""
    transport: object = session.transport
    return transport if isinstance(transport, Connection) else None
