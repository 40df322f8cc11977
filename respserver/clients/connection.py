"""One client's connection: reads requests into ``input``, runs them, and sends the replies in ``output``.

Rule 1: replies are sent only by flush(), which ticks call when the commit group of the tick is durable.
Rule 2: a command waits in the backlog of ``input`` for one of these reasons:

    blocked    a blocking command waits               until it is served or times out
    streaming  a reply is being sent in chunks        until its last chunk is written to the socket
    throttled  the socket's buffer is full            until it has room
    paused     CLIENT PAUSE, or a FAILOVER            until it ends

Rule 3: while a client does not read, its commands do not run. If its waiting replies exceed the output limit, its
connection is closed.
Rule 4: ``state`` changes only by the transitions in the module ``state``.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import cast

from commands.context import Chunks
from commands.session import Session, TransportStats
from resp import reply
from resp.decode import Call
from resp.errors import CorruptError, QueryBufferError
from respserver.clients import tlsclose
from respserver.clients.clientsocket import ClientSocket
from respserver.clients.flowcontrol import LOGIN_AT_ONCE, OUTPUT_AT_ONCE, STREAM_AT_ONCE, OutputLimits
from respserver.clients.input import RequestInput
from respserver.clients.output import ReplyOutput
from respserver.clients.sockets import SocketReader, Sockets
from respserver.clients.state import CLOSE, CLOSED, CLOSING, END, FINISH, HALF_CLOSED, OPEN, PEER_SHUTDOWN, next_state
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters
from respserver.runtime.clock import Clock
from respserver.runtime.ticks import Ticks


class CommandRunner:
    """Runs a connection's commands: the dispatcher."""

    def run(self, conn: Connection, calls: list[Call]) -> None:
        """Run the calls in order until one has to wait, or the client has to read first. The others go to the backlog.

        May change the list.
        """
        raise NotImplementedError


class Wait:
    """The wait of a client for its command.

    ``firm``: only the command ends the wait, neither CLIENT UNBLOCK nor the client by shutting down its side.
    """

    __slots__ = ("firm",)

    def __init__(self, firm: bool = False) -> None:
        self.firm = firm

    def memory_bytes(self) -> int:
        """Return the approximate memory size."""
        raise NotImplementedError

    def forget(self) -> None:
        """End the wait without a reply."""
        raise NotImplementedError

    def end(self, error: bool) -> bool:
        """End the wait, as at its timeout or with an error (CLIENT UNBLOCK). Returns False if it can't be ended."""
        raise NotImplementedError


class ConnectionServices:
    """The parts of the server that connections use."""

    def __init__(
        self, clock: Clock, ticks: Ticks, executor: CommandRunner, limits: OutputLimits, counters: Counters,
        logger: Logger, accept: Callable[[Connection], None], left: Callable[[Session], None],
        awaited: Callable[[Session, list[bytes]], None], sockets: Sockets | None,
    ) -> None:  # fmt: skip
        self.now_ms = clock.now  # ms since epoch
        self.mono_ms = clock.mono  # ms, monotonic
        self.ticks = ticks
        self.executor = executor
        self.limits = limits
        self.counters = counters
        self.logger = logger
        self.accept = accept  # called with a new connection: gives it a session and a decoder, or refuses it
        self.left = left  # called when a connection is closed
        self.awaited = awaited  # called before the reply to a read that waited, for a client with CLIENT TRACKING
        self.sockets = sockets  # None: the event loop reads all sockets


class Connection(SocketReader):
    """The server's side of one socket. Implements ``commands.session.Transport``, and asyncio.Protocol without deriving
    from it: event loops need only the methods, and a compiled class can't derive from an interpreted one."""

    __slots__ = (
        "_services", "_ticks", "_traffic", "input", "multi_bytes", "output", "paused", "session", "socket", "state",
        "wait",
    )  # fmt: skip

    def __init__(self, services: ConnectionServices) -> None:
        super().__init__()
        self._services = services
        self._ticks = services.ticks
        self._traffic = services.counters.traffic
        self.session: Session
        self.socket = ClientSocket(self, services.sockets, services.counters.traffic)
        self.input = RequestInput()
        self.output = ReplyOutput()
        self.state = OPEN
        self.multi_bytes = 0  # memory of the commands that wait for EXEC
        self.wait: Wait | None = None  # the wait of a blocking command
        self.paused = False  # a command waits for the end of CLIENT PAUSE or FAILOVER

    # -- asyncio's callbacks ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket.transport = cast(asyncio.Transport, transport)
        self.socket.transport.set_write_buffer_limits(high=OUTPUT_AT_ONCE)
        self._services.accept(self)

    def data_received(self, data: bytes) -> None:
        self.socket.leave_transport(self.session.tls)
        self.received(data)

    def eof_received(self) -> bool:
        """Handle the end of input. The peer's commands are still answered, but blocked commands end (see flush())."""
        if self.state != CLOSED:
            self._peer_shut_down()
        if not self.session.tls:
            return True
        self._ticks.run_whole()  # TLS can't close only one side, so replies must be sent now
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self.hand_over()
        self._services.left(self.session)
        self.session.transport = None

    def pause_writing(self) -> None:
        self.output.throttled = True
        self._pause_reading()

    def resume_writing(self) -> None:
        self.output.throttled = False
        self.output.progress = self._services.mono_ms()
        self.session.last_active = self._services.now_ms()
        self._ticks.queue_flush(self)  # not immediately: the replies may belong to a batch that is not durable yet
        self._ticks.queue_resume(self)

    # -- requests --------------------------------------------------------------------------------------------
    def received(self, data: bytes) -> None:
        session = self.session
        if session.close_after_reply:  # after QUIT, CLIENT KILL or a protocol error, nothing is read
            return
        session.total_in += len(data)
        traffic = self._traffic
        traffic.bytes_in += len(data)
        traffic.reads += 1
        self._decode(data)

    def ended(self, error: int) -> None:
        self.socket.pause_reading()
        if error:
            self.socket.transport.abort()
        else:
            self.eof_received()

    def failed(self, error: Exception) -> None:
        self.kill()
        context = {"message": "Fatal error while reading from a client", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)

    def poll_shutdown(self) -> None:
        """Check whether the peer has shut down its side. Needed while the client waits and so many commands wait behind
        its command that nothing is read. (A shutdown is not noticed if the requests in the socket fill its buffers.)

        Does nothing for a command that only the command itself ends, and for a delayed login. These waits are short,
        and the requests behind them, some still in the socket, are answered as usual.
        """
        if self._firm() or not self.session.authenticated:
            return
        poll = select.poll()
        poll.register(self.socket.fileno(), select.POLLRDHUP)
        if poll.poll(0):  # or an error
            self._peer_shut_down()

    def _peer_shut_down(self) -> None:
        self.state = next_state(self.state, PEER_SHUTDOWN)
        self._ticks.queue_flush(self)

    @property
    def peer_shut_down(self) -> bool:
        """Whether the peer sends nothing more and only waits for replies."""
        return self.state == HALF_CLOSED

    def _decode(self, data: bytes) -> None:
        session, decoder = self.session, self.input.decoder
        if not session.authenticated:
            if self.busy:
                self._postpone(data)
                return
            data = self._before_login(data)
        decoder.authenticated = session.authenticated
        try:
            calls = decoder.calls(data)
        except MemoryError:  # none of these commands has run
            self.cut("out of memory while reading its commands")
            return
        self.input.chunk = len(data)
        self._accept(calls, len(data))
        self.input.chunk = 0
        if decoder.error is not None:
            self._report_protocol_error()

    def _accept(self, calls: list[Call], size: int) -> None:
        """Run calls that arrived as ``size`` bytes, or add them to the backlog."""
        source, output = self.input, self.output
        if self.busy or source.backlog or output.bytes > OUTPUT_AT_ONCE:  # replies may wait for the disk
            source.append(calls, size)
            if source.full:
                self._pause_reading()
        elif calls:
            self._services.executor.run(self, calls)
            if output.bytes > self._services.limits.lowest and self._ticks.stalled:
                self.check_output_limit()
        else:
            self.session.last_active = self._services.now_ms()

    def _before_login(self, data: bytes) -> bytes:
        """Run commands one at a time until AUTH, which lifts the decoder's limits. Returns the bytes after it."""
        session, decoder = self.session, self.input.decoder
        decoder.authenticated = False
        for at in range(0, len(data), LOGIN_AT_ONCE):
            piece = data[at : at + LOGIN_AT_ONCE]
            while piece:
                size = len(piece)
                commands, piece = decoder.first(piece)
                self._accept(list(commands), size - len(piece))
                if session.close_after_reply:
                    return b""
                if session.authenticated:
                    return piece + data[at + LOGIN_AT_ONCE :]
                if self.busy:
                    self._postpone(piece + data[at + LOGIN_AT_ONCE :])
                    return b""
        return b""

    def _postpone(self, data: bytes) -> None:
        """Before the login, while a command waits (AUTH, after failures), decode and read nothing."""
        self.input.undecoded += data
        self._pause_reading()

    @property
    def busy(self) -> bool:
        """Whether commands must wait in the backlog (Rule 2)."""
        output = self.output
        return self.wait is not None or output.throttled or self.paused or output.streaming is not None

    def run_backlog(self) -> None:
        """Run the commands of the backlog, unless there is still a reason to wait."""
        source, output, decoder = self.input, self.output, self.input.decoder
        if self.busy or self.state == CLOSED or self.socket.transport.is_closing():
            return
        if output.bytes > OUTPUT_AT_ONCE:  # retained until the disk accepts writes: flush() queues this again
            return
        if source.backlog:
            self._services.executor.run(self, source.take())
            if self._ticks.stalled:
                self.check_output_limit()
        if source.undecoded and not self.busy and not source.backlog and not self.session.close_after_reply:
            data, source.undecoded = source.undecoded, b""
            self._decode(data)
        if self.state == HALF_CLOSED:
            self._ticks.queue_flush(self)
        if not self.busy and not source.backlog and decoder.error is not None:
            self._report_protocol_error()
            return
        source.measure()
        # also while blocked, to notice that the peer closes
        if not source.full and not output.throttled and output.streaming is None:
            self._resume_reading()

    def _report_protocol_error(self) -> None:
        """Once the commands before the error are answered, send the error and finish."""
        if self.busy or self.input.backlog or self.session.close_after_reply:
            return
        error = self.input.decoder.error
        self._services.counters.note_error("ERR")
        if isinstance(error, QueryBufferError):
            self._services.counters.query_buffer_cuts += 1
        self._send(reply.error(f"ERR Protocol error: {error}"))
        self.finish()
        self._pause_reading()

    def _pause_reading(self) -> None:
        if self.input.reading and not self.socket.transport.is_closing():
            self.input.reading = False
            self.socket.pause_reading()

    def _resume_reading(self) -> None:
        if not self.input.reading and not self.socket.transport.is_closing() and not self.session.close_after_reply:
            self.input.reading = True
            self.socket.resume_reading()

    # -- replies ---------------------------------------------------------------------------------------------
    def answer(self, data: bytes | Chunks) -> None:
        """Queue the reply to a command, unless CLIENT REPLY suppresses it. The caller queues the flush."""
        session = self.session
        caching = session.caching
        if caching is not None and caching.parked is not None:
            argv, caching.parked = caching.parked, None
            self._services.awaited(session, argv)
        mode = session.reply_mode
        if mode == 3:  # SKIP, for this reply
            session.reply_mode = 0
            session.refresh()
        elif mode == 2:
            session.reply_mode = 3
        if mode in (1, 3) or not data:
            if isinstance(data, Chunks):
                data.close()
        else:
            self.output.add(data)
            if isinstance(data, Chunks):
                self._ticks.queue_flush(self)
        if self.output.pushes is not None:
            self.release_pushes()

    def _send(self, data: bytes) -> None:
        """Queue a reply or message, and the flush at the end of the tick."""
        self.output.add(data)
        self._ticks.queue_flush(self)

    def flush(self) -> None:
        """Write queued replies to the socket; of streamed ones as much as its buffer accepts."""
        output = self.output
        if self.state >= CLOSING and (self.state == CLOSED or self.session.tls):
            output.drop()
            return
        if output.streams:
            self._stream()
        elif output.items:
            self._write(output.take())
        if output.throttled:
            self.check_output_limit()
        if output.items or output.streaming is not None:
            return
        source, waits = self.input, self.wait is not None
        if self.session.close_after_reply or (
            self.state == HALF_CLOSED and (waits or not source.backlog) and not self._firm()
        ):
            self._close_in_order()
        elif (source.backlog or not source.reading) and not self.busy:
            self._ticks.queue_resume(self)

    def held(self) -> None:
        """Apply the limit of the client's class while replies wait for the disk."""
        self.check_output_limit()

    def _stream(self) -> None:
        """Write until no reply is left or the socket's buffer is full."""
        output, sent = self.output, 0
        while self.state != CLOSED:
            if output.streaming is None:
                if not output.items:
                    return
                data = output.take_one(self._services.mono_ms())
                if data:
                    self._write(data)
                continue
            if output.throttled:
                return
            if sent > STREAM_AT_ONCE:  # other clients are served first
                self._ticks.queue_flush(self)
                return
            try:
                piece = next(output.streaming.pieces, None)
            except MemoryError:
                self.cut("out of memory while making its reply")
                return
            except Exception as error:  # noqa: BLE001 - damage or a bug
                self._stream_failed(error)
                piece = None
            if piece is None:
                output.end_stream()
                self._ticks.queue_resume(self)
            else:
                output.begun = True
                sent += len(piece)
                self._write(piece)

    def _stream_failed(self, error: Exception) -> None:
        """Handle a failed streamed reply. If a part of it was sent, only closing the connection can report this."""
        services = self._services
        if not isinstance(error, (CorruptError, OSError)):
            services.logger.trace("A streamed reply can't be finished", error)
            self.cut("its reply can't be finished")
        elif self.output.begun:
            self.cut(f"its reply met damaged data: {error}")
        else:
            services.logger.warning(f"A reply to client id={self.session.id} met damaged data: {error}")
            services.counters.note_error("ERR")
            self._write(reply.error(f"ERR damaged data: {error}"))

    def _write(self, data: bytes) -> None:
        self.session.total_out += len(data)
        self.socket.write(data)

    # -- limits ----------------------------------------------------------------------------------------------
    def buffered_output(self) -> int:
        """Return the size of replies that wait here and in the socket's buffer, and the memory of streamed ones."""
        output = self.output
        size = output.bytes + self.socket.buffered()
        return size + output.streamed_bytes() if output.streams else size

    def waiting_bytes(self) -> int:
        """Return the approximate memory size of commands and replies that wait, and of the client's own wait."""
        queued = self.multi_bytes if self.session.queued else 0
        wait = self.wait.memory_bytes() if self.wait is not None else 0
        return self.input.waiting_bytes() + queued + wait + self.buffered_output()

    def overfull(self, size: int) -> bool:
        """Close the client if its output, including ``size`` bytes of an unfinished reply, exceeds its hard limit.

        Returns whether the client is closed.
        """
        hard = self._services.limits.of(self.session)[0]
        if hard and self.state != CLOSED and self.buffered_output() + size > hard:
            self._services.counters.output_buffer_cuts += 1
            self.cut("output buffer limit (hard) exceeded")
        return self.state == CLOSED

    def check_output_limit(self) -> None:
        """Close the client if its output exceeds the limit of its class (client-output-buffer-limit)."""
        services, output = self._services, self.output
        waiting = self.buffered_output()
        if waiting <= services.limits.lowest and not output.soft_since:
            return
        if self.overfull(0):
            return
        _, soft, seconds = services.limits.of(self.session)
        if soft and waiting > soft:
            now = services.mono_ms()
            if not output.soft_since:
                output.soft_since = now
            elif now - output.soft_since > seconds * 1000:
                services.counters.output_buffer_cuts += 1
                self.cut("output buffer limit (soft) exceeded")
        else:
            output.soft_since = 0

    # -- the end ---------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """Stop reading and running commands; close after the replies."""
        if self.state < CLOSING:
            self.state = next_state(self.state, FINISH)
        self.session.close_after_reply = True
        self.input.backlog.clear()

    def cut(self, why: str) -> None:
        """Close immediately and log why. Queued replies are lost."""
        if self.state != CLOSED:
            self._services.logger.warning(f"Client id={self.session.id} addr={self.session.addr} closed: {why}")
            self.kill()

    def kill(self) -> None:
        """Close immediately without a log line (CLIENT KILL, ``timeout``), even if the peer reads nothing."""
        self.state = next_state(self.state, END)
        self.session.close_after_reply = True
        self._stop_waiting()
        self.input.backlog.clear()
        self.socket.to_transport()
        self.socket.transport.abort()

    def _close_in_order(self) -> None:
        """Close once the peer has the last reply; nothing more is read."""
        if not self.session.tls or self.state == HALF_CLOSED:
            self.close()
        else:
            self.state = next_state(self.state, CLOSE)
            self.session.close_after_reply = True
            self._pause_reading()
            tlsclose.close(self.socket.transport)

    def close(self) -> None:
        """Close once the transport has sent its buffer."""
        if self.state < CLOSING:
            self.state = next_state(self.state, CLOSE)
        self.socket.to_transport()
        if not self.socket.transport.is_closing():
            self.socket.transport.close()

    def hand_over(self) -> None:
        """Stop reading and writing: the socket is closed, or is now used by a replica's feed."""
        self.state = next_state(self.state, END)
        self.socket.to_transport()
        self._stop_waiting()
        self.output.drop()
        self.input.backlog.clear()

    def _firm(self) -> bool:
        """Return whether only its command ends the client's wait."""
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
        if self.output.pushes is None:
            self._send(data)
            self.check_output_limit()
        else:
            self.output.pushes.append(data)

    def hold_pushes(self) -> None:
        if self.output.pushes is None:
            self.output.pushes = []

    def release_pushes(self) -> None:
        pushes, self.output.pushes = self.output.pushes, None
        for message in pushes or ():
            self.push(message)

    def stats(self) -> TransportStats:
        output, in_socket = self.output, self.socket.buffered()
        return TransportStats(
            fd=self.socket.fileno(),
            query_buffered=self.input.query_buffered(),
            output_queued=output.bytes,
            output_buffered=in_socket + output.streamed_bytes(),
            output_pieces=output.streams + (1 if in_socket else 0),
            reading=self.input.reading,
            writing=output.throttled,
            paused=self.paused,
            wait=self.wait.memory_bytes() if self.wait is not None else 0,
        )


def connection_of(session: Session) -> Connection | None:
    """Return the client's connection; None if it is closed, and for the link to a leader."""
    transport: object = session.transport
    return transport if isinstance(transport, Connection) else None
