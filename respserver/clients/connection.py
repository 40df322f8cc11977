"""One client's connection: bytes in, replies out, and flow control both ways.

Rule 1: replies leave only with flush(), which ticks call when the batch of the tick is durable.
Rule 2: commands that arrive while a connection can't run them wait in ``backlog``. The reasons:

    blocked    a blocking command waits               until it is served or times out
    streaming  a reply is being sent in pieces        until its last piece is with the socket
    throttled  the socket's buffer is full            until it has room
    paused     CLIENT PAUSE, or a FAILOVER            until it ends

Rule 3: while a client does not read, its commands don't run. If its waiting replies exceed the output limit, it is
closed.
"""

from __future__ import annotations

import asyncio
import select
from collections import deque
from collections.abc import Callable
from typing import cast

from commands.context import Chunks
from commands.session import Session, TransportStats
from resp import reply
from resp.decode import Call, RequestDecoder, expanded
from resp.errors import CorruptError, QueryBufferError
from respserver.clients import tlsclose
from respserver.clients.flowcontrol import (
    BACKLOG_AT_ONCE,
    BACKLOG_BYTES,
    LOGIN_AT_ONCE,
    OUTPUT_AT_ONCE,
    STREAM_AT_ONCE,
    OutputLimits,
)
from respserver.clients.sockets import Reader, Sockets
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters
from respserver.runtime.clock import Clock
from respserver.runtime.ticks import Ticks


class Executor:
    """Runs a connection's commands: the dispatcher."""

    def run(self, conn: Connection, calls: list[Call], raw: bytes, ends: list[int]) -> None:
        """Run the calls in order until one has to wait, or the client has to read first. The others go to the backlog.

        ``raw``, ``ends``: those of RequestDecoder, for the first len(ends) items. The lists may be changed.
        """
        raise NotImplementedError


class Wait:
    """The wait of a client for its command.

    ``firm``: it ends with the command only, not with CLIENT UNBLOCK, nor when the client shuts down its side.
    """

    __slots__ = ("firm",)

    def __init__(self, firm: bool = False) -> None:
        self.firm = firm

    def memory_bytes(self) -> int:
        """What it takes of memory, roughly."""
        raise NotImplementedError

    def forget(self) -> None:
        """End the wait without a reply."""
        raise NotImplementedError

    def end(self, error: bool) -> bool:
        """CLIENT UNBLOCK: end it with the reply of a timeout, or with an error. False if it can't be ended so."""
        raise NotImplementedError


class Host:
    """The parts of the server that connections use."""

    def __init__(
        self, clock: Clock, ticks: Ticks, executor: Executor, limits: OutputLimits, counters: Counters, logger: Logger,
        accept: Callable[[Connection], None], left: Callable[[Session], None],
        awaited: Callable[[Session, list[bytes]], None], sockets: Sockets | None,
    ) -> None:  # fmt: skip
        self.now_ms = clock.now  # ms since epoch
        self.mono_ms = clock.mono  # ms, monotonic
        self.ticks = ticks
        self.executor = executor
        self.limits = limits
        self.counters = counters
        self.logger = logger
        self.accept = accept  # called with a new connection: gives it its session and decoder, or refuses it
        self.left = left  # called when a connection is closed
        self.awaited = awaited  # called before the reply of a read that waited, of a client with CLIENT TRACKING
        self.sockets = sockets  # None: the event loop reads them all


class Connection(Reader):
    """The server's side of one socket. Implements ``commands.session.Transport``, and asyncio.Protocol without deriving
    from it: event loops need only the methods, and a compiled class can't derive from an interpreted one.

    The first chunk comes through the transport; after that, without TLS, the socket is read as ``sockets`` says.
    """

    __slots__ = (
        "_backlog_bytes", "_begun", "_behind", "_chunk", "_chunks", "_closing", "_cut", "_fd", "_host", "_sockets",
        "_streams", "_ticks", "_traffic", "_undecoded", "backlog", "decoder", "eof", "multi_bytes", "out", "out_bytes",
        "paused", "progress", "pushes", "reading", "session", "soft_since", "throttled", "transport", "wait",
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        super().__init__()
        self._host = host
        self._ticks = host.ticks
        self._traffic = host.counters.traffic
        self._sockets = host.sockets  # None: the transport reads and writes
        self._fd = -1  # of the socket, when it is not the transport that reads
        self._behind = False  # the transport has, or had, what the socket did not take
        self.transport: asyncio.Transport
        self.session: Session
        self.decoder: RequestDecoder
        self.out: list[bytes | Chunks] = []
        self.out_bytes = 0  # bytes in ``out``
        self.backlog: deque[list[bytes]] = deque()
        self._chunk = 0  # bytes of the chunk whose commands run now
        self._backlog_bytes = 0  # bytes received since commands began to wait
        self._undecoded = b""  # bytes received before the login, while commands wait; what is read then is one chunk
        self.multi_bytes = 0  # memory of the commands that wait for EXEC
        self.wait: Wait | None = None  # of a blocking command
        self.pushes: list[bytes] | None = None  # messages that come after the reply in the making; None: at once
        self.throttled = False
        self.paused = False
        self.reading = True
        self.eof = False
        self.soft_since = 0  # ms (monotonic) when the soft output limit was first exceeded; 0: it is not
        self.progress = 0  # ms (monotonic) when a streamed reply began, or the socket last had room again
        self._chunks: Chunks | None = None  # the streamed reply that is being sent
        self._begun = False  # whether a part of it was sent
        self._streams = 0  # streamed replies in ``out``, and the one that is being sent
        self._closing = False  # a TLS connection that only waits for the peer to get the last reply
        self._cut = False

    # -- asyncio's callbacks ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=OUTPUT_AT_ONCE)
        self._host.accept(self)

    def data_received(self, data: bytes) -> None:
        if self._sockets is not None:
            self._leave_transport()
        self.received(data)

    def received(self, data: bytes) -> None:
        session = self.session
        if session.close_after_reply:  # after QUIT, CLIENT KILL or a protocol error nothing is read
            return
        session.total_in += len(data)
        traffic = self._traffic
        traffic.bytes_in += len(data)
        traffic.reads += 1
        self._decode(data)

    def ended(self, error: int) -> None:
        self._read_no_more()
        if error:
            self.transport.abort()
        else:
            self.eof_received()

    def failed(self, error: Exception) -> None:
        self.kill()
        context = {"message": "Fatal error while reading from a client", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)

    def _leave_transport(self) -> None:
        """Read the socket with others from now on, if it is one that can be."""
        sock = None if self.session.tls else self.transport.get_extra_info("socket")
        if sock is None:
            self._sockets = None
            return
        self.transport.pause_reading()
        self._fd = sock.fileno()
        self._read_on()

    def _read_on(self) -> None:
        if self._sockets is not None and self._fd >= 0:
            try:
                self._sockets.start(self._fd, self)
                return
            except OSError:  # the system watches no more for this user
                self._to_transport()
        self.transport.resume_reading()

    def _read_no_more(self) -> None:
        if self._sockets is not None and self._fd >= 0:
            self._sockets.stop(self._fd, self)
        else:
            self.transport.pause_reading()

    def _to_transport(self) -> None:
        """From now on the transport alone reads and writes, if anybody does."""
        if self._fd >= 0:
            self._read_no_more()
            self._fd = -1
        self._sockets = None

    def _decode(self, data: bytes) -> None:
        session, decoder = self.session, self.decoder
        if not session.authenticated:
            if self.busy:
                self._wait_with(data)
                return
            data = self._before_login(data)
        decoder.authenticated = session.authenticated
        try:
            calls = decoder.calls(data)
        except MemoryError:  # nothing of these commands has run
            self.cut("out of memory while reading its commands")
            return
        self._chunk = len(data)
        self._take(calls, len(data))
        self._chunk = 0
        decoder.forget()
        if decoder.error is not None:
            self._broken()

    def _take(self, calls: list[Call], size: int) -> None:
        """Run calls that arrived as ``size`` bytes, or add them to the backlog."""
        if self.busy or self.backlog or self.out_bytes > OUTPUT_AT_ONCE:  # replies may wait for the disk
            self.backlog.extend(expanded(calls))
            self._backlog_bytes += size
            if len(self.backlog) > BACKLOG_AT_ONCE or self._backlog_bytes > BACKLOG_BYTES:
                self._stop_reading()
        elif calls:
            self._host.executor.run(self, calls, self.decoder.raw, self.decoder.ends)
            if self.out_bytes > self._host.limits.lowest and self._ticks.stalled:
                self.check_output_limit()
        else:
            self.session.last_active = self._host.now_ms()

    def _before_login(self, data: bytes) -> bytes:
        """Run commands one at a time until AUTH, which lifts the decoder's limits. Returns the bytes after it."""
        session, decoder = self.session, self.decoder
        decoder.authenticated = False
        for at in range(0, len(data), LOGIN_AT_ONCE):
            piece = data[at : at + LOGIN_AT_ONCE]
            while piece:
                size = len(piece)
                commands, piece = decoder.first(piece)
                self._take(list(commands), size - len(piece))
                if session.close_after_reply:
                    return b""
                if session.authenticated:
                    return piece + data[at + LOGIN_AT_ONCE :]
                if self.busy:
                    self._wait_with(piece + data[at + LOGIN_AT_ONCE :])
                    return b""
        return b""

    def _wait_with(self, data: bytes) -> None:
        """Before the login a command waits (AUTH, after failures): until it goes on, decode and read nothing."""
        self._undecoded += data
        self._stop_reading()

    def eof_received(self) -> bool:
        """The peer has shut down its side. Its commands are still answered, but not waited for (see flush())."""
        self.eof = True
        self._ticks.queue_flush(self)
        if not self.session.tls:
            return True
        self._ticks.run_whole()  # TLS can't close one side only: replies must leave now
        return False

    def look_for_eof(self) -> None:
        """The client waits, and too much of what it has sent waits behind: nothing is read, so nothing tells that the
        peer has gone. (It may go unnoticed still, if what it has sent fills the socket's buffers, too.)

        A command that is finished whatever happens, and a login that is delayed, don't wait for ever: what comes behind
        them, some of it in the socket still, is answered as always.
        """
        if self._firm() or not self.session.authenticated:
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        if poll.poll(0):  # or an error
            self.eof = True
            self._ticks.queue_flush(self)

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
        self._ticks.queue_flush(self)  # not at once: the replies may belong to a batch that is not durable yet
        self._ticks.queue_resume(self)

    # -- commands --------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Whether commands must wait in the backlog."""
        return self.wait is not None or self.throttled or self.paused or self._chunks is not None

    def hold(self, calls: list[Call], start: int) -> None:
        """Put the calls from index ``start`` on at the front of the backlog."""
        self.backlog.extendleft(reversed(expanded(calls, start)))

    def run_backlog(self) -> None:
        """Run the commands of the backlog, unless there still is a reason to wait."""
        if self.busy or self._cut or self.transport.is_closing():
            return
        if self.out_bytes > OUTPUT_AT_ONCE:  # held back until the disk takes writes: flush() queues this again
            return
        if self.backlog:
            calls: list[Call] = list(self.backlog)
            self.backlog.clear()
            self._host.executor.run(self, calls, b"", [])
            if self._ticks.stalled:
                self.check_output_limit()
        if self._undecoded and not self.busy and not self.backlog and not self.session.close_after_reply:
            data, self._undecoded = self._undecoded, b""
            self._decode(data)
        if self.eof:
            self._ticks.queue_flush(self)
        if not self.busy and not self.backlog and self.decoder.error is not None:
            self._broken()
            return
        self._backlog_bytes = sum(sum(map(len, argv)) for argv in self.backlog) if self.backlog else 0
        room = len(self.backlog) <= BACKLOG_AT_ONCE and self._backlog_bytes <= BACKLOG_BYTES
        if room and not self.throttled and self._chunks is None:  # also while blocked, to notice that the peer closes
            self._go_on_reading()

    def _broken(self) -> None:
        """After a protocol error: once the commands before it are answered, send the error and close."""
        if self.busy or self.backlog or self.session.close_after_reply:
            return
        self._host.counters.note_error("ERR")
        if isinstance(self.decoder.error, QueryBufferError):
            self._host.counters.query_buffer_cuts += 1
        self.send(reply.error(f"ERR Protocol error: {self.decoder.error}"))
        self.session.close_after_reply = True
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self.reading and not self.transport.is_closing():
            self.reading = False
            self._read_no_more()

    def _go_on_reading(self) -> None:
        if not self.reading and not self.transport.is_closing() and not self.session.close_after_reply:
            self.reading = True
            self._read_on()

    # -- replies ---------------------------------------------------------------------------------------------
    def answer(self, data: bytes | Chunks) -> None:
        """Queue the reply to a command, unless CLIENT REPLY leaves it out. The caller queues the flush."""
        session = self.session
        caching = session.caching
        if caching is not None and caching.parked is not None:
            argv, caching.parked = caching.parked, None
            self._host.awaited(session, argv)
        mode = session.reply_mode
        if mode == 3:  # SKIP, for this reply
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
        if self.pushes is not None:
            self.release_pushes()

    def send(self, data: bytes | Chunks) -> None:
        """Queue a reply and the flush; it leaves at the end of the tick."""
        self.out.append(data)
        if isinstance(data, bytes):
            self.out_bytes += len(data)
        else:
            self._streams += 1
        self._ticks.queue_flush(self)

    def flush(self) -> None:
        """Write queued replies to the socket; of streamed ones as much as its buffer takes."""
        if self._cut or self._closing:
            self._drop_output()
            return
        if self.out or self._chunks is not None:
            self._pump()
        if self.throttled:
            self.check_output_limit()
        if self.out or self._chunks is not None:
            return
        waits = self.wait is not None
        if self.session.close_after_reply or (self.eof and (waits or not self.backlog) and not self._firm()):
            self._say_goodbye()
        elif (self.backlog or not self.reading) and not self.busy:
            self._ticks.queue_resume(self)

    def held(self) -> None:
        """Replies wait for the disk: the limit of the client's class holds for them, too."""
        self.check_output_limit()

    def _pump(self) -> None:
        """Write until ``out`` is empty or the socket's buffer is full."""
        out = self.out
        if self._chunks is None and not self._streams:  # the usual case
            data = out[0] if len(out) == 1 else b"".join(out)  # type: ignore[arg-type]
            out.clear()
            self.out_bytes = 0
            self._write(data)  # type: ignore[arg-type]
            return
        sent = 0
        while not self._cut:
            if self._chunks is not None:
                if self.throttled:
                    return
                if sent > STREAM_AT_ONCE:  # others have their turn
                    self._ticks.queue_flush(self)
                    return
                try:
                    piece = next(self._chunks.pieces, None)
                except MemoryError:
                    self.cut("out of memory while making its reply")
                    return
                except Exception as error:  # noqa: BLE001 - damage or a bug
                    self._not_streamed(error)
                    piece = None
                if piece is None:
                    self._chunks.close()
                    self._chunks = None
                    self._streams -= 1
                    self._ticks.queue_resume(self)
                else:
                    self._begun = True
                    sent += len(piece)
                    self._write(piece)
            elif not out:
                return
            else:
                item = out.pop(0)
                if isinstance(item, Chunks):
                    self._chunks = item
                    self._begun = False
                    self.progress = self._host.mono_ms()
                else:
                    self.out_bytes -= len(item)
                    self._write(item)

    def _not_streamed(self, error: Exception) -> None:
        """A streamed reply failed. If some of it is sent, nothing but the end of the connection can say so."""
        host = self._host
        if not isinstance(error, (CorruptError, OSError)):
            host.logger.trace("A streamed reply can't be finished", error)
            self.cut("its reply can't be finished")
        elif self._begun:
            self.cut(f"its reply met damaged data: {error}")
        else:
            host.logger.warning(f"A reply to client id={self.session.id} met damaged data: {error}")
            host.counters.note_error("ERR")
            self._write(reply.error(f"ERR damaged data: {error}"))

    def _write(self, data: bytes) -> None:
        self.session.total_out += len(data)
        traffic = self._traffic
        traffic.bytes_out += len(data)
        traffic.writes += 1
        sockets = self._sockets
        if sockets is None or self._fd < 0 or (self._behind and self.transport.get_write_buffer_size()):
            self.transport.write(data)
            return
        sent = sockets.send(self._fd, data)
        self._behind = sent < len(data)
        if self._behind:  # or there is an error, which the transport will meet, too
            self.transport.write(memoryview(data)[sent:] if sent > 0 else data)

    def streamed_bytes(self) -> int:
        """What streamed replies that are not finished take in memory, besides what waits for the socket."""
        if not self._streams:
            return 0
        size = 0 if self._chunks is None else self._chunks.memory_bytes()
        for item in self.out:
            if isinstance(item, Chunks):
                size += item.memory_bytes()
        return size

    @property
    def streams(self) -> int:
        """The number of streamed replies that are not finished."""
        return self._streams

    @property
    def streaming(self) -> bool:
        return self._chunks is not None

    def buffered_output(self) -> int:
        """Bytes of replies that wait here and in the socket's buffer, and what streamed ones keep in memory."""
        size = self.out_bytes + self.transport.get_write_buffer_size()
        return size + self.streamed_bytes() if self._streams else size

    def waiting_bytes(self) -> int:
        """Bytes of commands and replies that wait, and of the client's own wait, roughly."""
        queued = self.multi_bytes if self.session.queued else 0
        wait = self.wait.memory_bytes() if self.wait is not None else 0
        undecoded = self.decoder.buffered + len(self._undecoded)
        return undecoded + self._backlog_bytes + queued + wait + self.buffered_output()

    def overfull(self, size: int) -> bool:
        """Close the client if its output, ``size`` bytes of a reply in the making included, exceeds its hard limit.

        Returns whether it is closed.
        """
        hard = self._host.limits.of(self.session)[0]
        if hard and not self._cut and self.buffered_output() + size > hard:
            self._host.counters.output_buffer_cuts += 1
            self.cut("output buffer limit (hard) exceeded")
        return self._cut

    def check_output_limit(self) -> None:
        """Close the client if its output exceeds the limit of its class (client-output-buffer-limit)."""
        waiting = self.buffered_output()
        if waiting <= self._host.limits.lowest and not self.soft_since:
            return
        if self.overfull(0):
            return
        _, soft, seconds = self._host.limits.of(self.session)
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
        """Close at once and log why. Queued replies are lost."""
        if not self._cut:
            self._host.logger.warning(f"Client id={self.session.id} addr={self.session.addr} closed: {why}")
            self.kill()

    def kill(self) -> None:
        """Close at once without a log line (CLIENT KILL, ``timeout``), also if the peer reads nothing."""
        self._cut = True
        self.session.close_after_reply = True
        self._stop_waiting()
        self.backlog.clear()
        self._to_transport()
        self.transport.abort()

    def _say_goodbye(self) -> None:
        """Close when the peer has the last reply; nothing more is read."""
        if not self.session.tls or self.eof:
            self.close()
        elif not self._closing:
            self._closing = True
            self.session.close_after_reply = True
            self._stop_reading()
            tlsclose.close(self.transport)

    def close(self) -> None:
        """Close when the socket has sent what it has."""
        self._to_transport()
        if not self.transport.is_closing():
            self.transport.close()

    def hand_over(self) -> None:
        """Stop reading and writing: the socket is closed, or belongs to a replica's feed from now on."""
        self._cut = True
        self._to_transport()
        self._stop_waiting()
        self._drop_output()
        self.backlog.clear()

    def _firm(self) -> bool:
        """Whether a command of it will be finished whatever happens."""
        return self.wait is not None and self.wait.firm

    def _stop_waiting(self) -> None:
        if self.wait is not None:
            self.wait.forget()

    # -- for commands (commands.session.Transport) ---------------------------------------------------------------
    def unblock(self, error: bool) -> bool:
        if self.wait is None or self.wait.firm:
            return False
        return self.wait.end(error)

    def push(self, data: bytes) -> None:
        if self.pushes is None:
            self.send(data)
            self.check_output_limit()
        else:
            self.pushes.append(data)

    def hold_pushes(self) -> None:
        if self.pushes is None:
            self.pushes = []

    def release_pushes(self) -> None:
        pushes, self.pushes = self.pushes, None
        for message in pushes or ():
            self.push(message)

    def stats(self) -> TransportStats:
        sock = self.transport.get_extra_info("socket")
        waiting = len(self._undecoded) + sum(sum(map(len, argv)) for argv in self.backlog)
        in_socket = self.transport.get_write_buffer_size()
        return TransportStats(
            fd=sock.fileno() if sock is not None else -1,
            query_buffered=self.decoder.buffered + waiting + self._chunk,
            output_queued=self.out_bytes,
            output_buffered=in_socket + self.streamed_bytes(),
            output_pieces=self._streams + (1 if in_socket else 0),
            reading=self.reading,
            writing=self.throttled,
            paused=self.paused,
            wait=self.wait.memory_bytes() if self.wait is not None else 0,
        )


def connection_of(session: Session) -> Connection | None:
    """The client's connection; None if it is closed, and for the link to a leader."""
    transport: object = session.transport
    return transport if isinstance(transport, Connection) else None
