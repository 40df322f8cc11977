"""One client's connection: its socket, requests (``input``), replies (``output``), waits (``flow``), and its end.

Rule 1: replies are sent only by flush(), which ticks call when the commit group of the tick is durable.
Rule 2: with ``replica-acks``, ticks call withhold() and confirm() instead: only some of the replies may be sent.
Rule 3: ``state`` changes only by the transitions in the module ``state``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from commands.context import Chunks
from commands.session import Session, TransportStats
from resp import reply
from resp.errors import AbsentNodeError, CorruptError, DamagedNodeError
from respserver.clients import tlsclose
from respserver.clients.clientsocket import ClientSocket
from respserver.clients.flowcontrol import OUTPUT_AT_ONCE, STREAM_AT_ONCE, FlowControl, OutputLimits
from respserver.clients.input import RequestInput
from respserver.clients.output import ReplyOutput
from respserver.clients.sockets import SocketReader, Sockets
from respserver.clients.state import CLOSE, CLOSED, CLOSING, END, FINISH, HALF_CLOSED, OPEN, PEER_SHUTDOWN, next_state
from respserver.runtime.parts import RuntimeParts


class RequestHandler:
    """Runs the requests of all connections: ``respserver.execution.requests``."""

    def received(self, conn: Connection, data: bytes) -> None:
        raise NotImplementedError

    def run_backlog(self, conn: Connection) -> None:
        """Run the commands of the backlog, unless there is still a reason to wait."""
        raise NotImplementedError


class ConnectionServices:
    """The parts of the server that connections use."""

    def __init__(
        self, parts: RuntimeParts, requests: RequestHandler, limits: OutputLimits, sockets: Sockets | None,
        accept: Callable[[Connection], None], left: Callable[[Session], None],
        awaited: Callable[[Session, list[bytes]], None],
        fetch: Callable[[AbsentNodeError, Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self.now_ms = parts.clock.now  # ms since epoch
        self.mono_ms = parts.clock.mono  # ms, monotonic
        self.ticks = parts.ticks
        self.counters = parts.counters
        self.logger = parts.logger
        self.data = parts.data
        self.fetch = fetch  # called with a node that is only in the object store, and what to call afterwards
        self.requests = requests
        self.limits = limits
        self.sockets = sockets  # None: the event loop reads all sockets
        self.accept = accept  # called with a new connection: gives it a session and a decoder, or refuses it
        self.left = left  # called when a connection is closed
        self.awaited = awaited  # called before the reply to a read that waited, for a client with CLIENT TRACKING


class Connection(SocketReader):
    """The server's side of one socket. Implements ``commands.session.Transport``, and asyncio.Protocol without deriving
    from it: event loops need only the methods, and a compiled class can't derive from an interpreted one."""

    __slots__ = (
        "_requests", "_services", "_ticks", "_traffic", "flow", "idle_since", "input", "output", "seen_active",
        "session", "socket", "state",
    )  # fmt: skip

    def __init__(self, services: ConnectionServices) -> None:
        super().__init__()
        self._services = services
        self._requests = services.requests
        self._ticks = services.ticks
        self._traffic = services.counters.traffic
        self.session: Session
        self.socket = ClientSocket(self, services.sockets, services.counters.traffic)
        self.input = RequestInput()
        self.output = ReplyOutput()
        self.flow = FlowControl()
        self.state = OPEN
        # ms (monotonic), for ``timeout``; 0: a wait has ended, so that idle time begins at the next examination
        self.idle_since = services.mono_ms()
        self.seen_active = 0  # ``session.last_active`` when ``idle_since`` was set

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
        self.flow.throttled = True
        self.socket.pause_reading()

    def resume_writing(self) -> None:
        self.flow.throttled = False
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
        session.total_reads += 1
        traffic = self._traffic
        traffic.bytes_in += len(data)
        traffic.reads += 1
        self._requests.received(self, data)

    def ended(self, error: int) -> None:
        self.socket.stop()
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
        its command that nothing is read.

        Does nothing for a command that only the command itself ends, and for a delayed login. These waits are short,
        and the requests behind them, some still in the socket, are answered as usual.
        """
        if not self.flow.firm and self.session.authenticated and self.socket.peer_has_shut_down():
            self._peer_shut_down()

    def _peer_shut_down(self) -> None:
        self.state = next_state(self.state, PEER_SHUTDOWN)
        self._ticks.queue_flush(self)

    @property
    def busy(self) -> bool:
        """Whether commands must wait in the backlog (Rule 1 of ``flowcontrol``)."""
        flow = self.flow
        return flow.wait is not None or flow.throttled or flow.paused or self.output.streams != 0

    def run_backlog(self) -> None:
        self._requests.run_backlog(self)

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

    def answer_late(self, data: bytes | Chunks) -> None:
        """Queue the reply to a command that waited or ran for long. The backlog then continues."""
        self.shows_data = True
        self.answer(data)
        self._ticks.queue_flush(self)
        self._ticks.queue_resume(self)

    def flush(self) -> None:
        """Write queued replies to the socket; of streamed ones as much as its buffer accepts."""
        session, output, flow = self.session, self.output, self.flow
        if self.state >= CLOSING and (self.state == CLOSED or session.tls):
            output.drop()
            return
        if output.streams:
            self._stream(False)
        elif output.items:
            data = output.take()
            session.total_out += len(data)
            self.socket.write(data)
        if flow.throttled:
            self.check_output_limit()
        if output.items or output.streaming is not None:
            return
        waits, backlog = flow.wait is not None, bool(self.input.backlog)
        if session.close_after_reply or (self.state == HALF_CLOSED and (waits or not backlog) and not flow.firm):
            self._close_in_order()
        elif (backlog or not self.socket.reading) and not self.busy:
            self._ticks.queue_resume(self)

    def withhold(self, offset: int) -> bool:
        output = self.output
        shows, self.shows_data = self.shows_data, False
        if output.marks and not shows:
            offset = output.marks[-1][0]  # released together with the reply before it
        if not (output.marks or shows) or self.state == CLOSED:
            output.free = 0
            self.flush()
            return False
        output.withhold(offset)
        self._flush_free()
        return not self.check_output_limit() and bool(output.marks)

    def confirm(self, offset: int) -> None:
        self.output.confirm(offset)
        self._flush_free()

    def withheld_bytes(self) -> int:
        return self.output.withheld_bytes() if self.state != CLOSED else -1

    def _flush_free(self) -> None:
        """Do the same as flush(), but without the replies that are withheld and those of the current tick."""
        session, output = self.session, self.output
        if len(output.items) == output.free or (self.state >= CLOSING and (self.state == CLOSED or session.tls)):
            output.free = 0
            self.flush()
            return
        if output.streaming is not None or (output.free and output.streams):
            self._stream(True)
        elif output.free:
            data = output.take_free()
            session.total_out += len(data)
            self.socket.write(data)
        if self.flow.throttled:
            self.check_output_limit()
        if (self.input.backlog or not self.socket.reading) and not self.busy and output.bytes <= OUTPUT_AT_ONCE:
            self._ticks.queue_resume(self)  # fewer replies wait now, so commands may continue

    def _stream(self, only_free: bool) -> None:
        """Write until no reply is left or the socket's buffer is full. ``only_free``: see _flush_free()."""
        output, sent = self.output, 0
        while self.state != CLOSED and not self.flow.fetching:
            streaming = output.streaming
            if streaming is not None:
                if self.flow.throttled:
                    return
                if sent > STREAM_AT_ONCE:  # other clients are served first
                    self._ticks.queue_flush(self)
                    return
            try:
                mono = self._services.mono_ms()
                piece = output.next_free_piece(mono) if only_free else output.next_piece(mono)
            except MemoryError:
                self.cut("out of memory while making its reply")
                return
            except Exception as error:  # noqa: BLE001 - damage or a bug
                piece = self._stream_failed(error)
            if piece is None:
                return
            if not piece:
                if streaming is None or output.streaming is not streaming:  # a streamed reply begins or has ended
                    self._ticks.queue_resume(self)
                else:  # it may need entries that are only in the object store
                    self._fetch()
                continue
            sent += len(piece)
            self.session.total_out += len(piece)
            self.socket.write(piece)

    def _fetch(self) -> None:
        """Let a streamed reply wait for the entries that it needs next."""
        error = self._services.data.ks.pool.take_absent()
        if error is not None:
            self.flow.fetching = True
            self._services.fetch(error, self._fetched)

    def _fetched(self) -> None:
        self.flow.fetching = False
        if self.state != CLOSED:
            self._ticks.queue_flush(self)

    def _stream_failed(self, error: Exception) -> bytes:
        """End a streamed reply that has failed; return the error reply. If a part of it was sent, only closing the
        connection can report the error."""
        services, begun = self._services, self.output.begun
        self.output.end_stream()
        text = services.data.note_damage(error) if isinstance(error, DamagedNodeError) else str(error)
        if isinstance(error, AbsentNodeError):
            if begun:
                self.cut(f"its reply needs history: {text}")
                return b""
            services.counters.note_error("TRYAGAIN")
            return reply.error(f"TRYAGAIN {text}")
        if not isinstance(error, (CorruptError, OSError)):
            services.logger.trace("A streamed reply can't be finished", error)
            self.cut("its reply can't be finished")
        elif begun:
            self.cut(f"its reply met damaged data: {text}")
        else:
            services.logger.warning(f"A reply to client id={self.session.id} met damaged data: {text}")
            services.counters.note_error("ERR")
            return reply.error(f"ERR damaged data: {text}")
        return b""

    def push(self, data: bytes) -> None:
        self.shows_data = True
        if self.output.pushes is None:
            self.output.add(data)
            self._ticks.queue_flush(self)
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

    # -- limits ----------------------------------------------------------------------------------------------
    def buffered_output(self) -> int:
        """Return the size of replies that wait here and in the socket's buffer, and the memory of streamed ones."""
        return self.output.bytes + self.socket.buffered() + self.output.streamed_bytes()

    def waiting_bytes(self) -> int:
        """Return the approximate memory size of commands and replies that wait, and of the client's own wait."""
        queued = self.input.queued_bytes if self.session.queued else 0
        return self.input.waiting_bytes() + queued + self.flow.wait_bytes() + self.buffered_output()

    def check_output_limit(self, unfinished: int = 0) -> bool:
        """Close the client if its output exceeds the limit of its class (client-output-buffer-limit).

        ``unfinished``: size of a reply that is not queued yet. Returns whether the client is closed.
        """
        services, waiting = self._services, self.buffered_output() + unfinished
        if (waiting > services.limits.lowest or self.output.soft_since) and self.state != CLOSED:
            exceeded = services.limits.exceeded(self.session, self.output, waiting, services.mono_ms())
            if exceeded:
                services.counters.output_buffer_cuts += 1
                self.cut(f"output buffer limit ({exceeded}) exceeded")
        return self.state == CLOSED

    def stats(self) -> TransportStats:
        output, in_socket = self.output, self.socket.buffered()
        return TransportStats(
            fd=self.socket.fileno(),
            query_buffered=self.input.query_buffered(),
            output_queued=output.bytes,
            output_withheld=max(0, output.withheld_bytes()),
            output_buffered=in_socket + output.streamed_bytes(),
            output_pieces=output.streams + (1 if in_socket else 0),
            reading=self.socket.reading,
            writing=self.flow.throttled,
            paused=self.flow.paused,
            wait=self.flow.wait_bytes(),
        )

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
        self.flow.end_wait()
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
            self.socket.pause_reading()
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
        self.flow.end_wait()
        self.output.drop()
        self.input.backlog.clear()

    def unblock(self, error: bool) -> bool:
        wait = self.flow.wait
        return wait is not None and not wait.firm and wait.end(error)


def connection_of(session: Session) -> Connection | None:
    """Return the client's connection; None if it is closed, and for the link to a leader."""
    transport: object = session.transport
    return transport if isinstance(transport, Connection) else None
