"""Requests: decodes what a client sends, and runs its commands or lets them wait.

Rule 1: before the login, the decoder has low limits, and commands are decoded one at a time until AUTH lifts them.
Rule 2: a protocol error is reported after the replies to the commands before it. Nothing is read after it.
"""

from __future__ import annotations

from resp import reply
from resp.decode import Call
from resp.errors import QueryBufferError
from respserver.clients.connection import Connection, RequestHandler
from respserver.clients.flowcontrol import LOGIN_AT_ONCE, OUTPUT_AT_ONCE, OutputLimits
from respserver.clients.state import CLOSED, HALF_CLOSED
from respserver.execution.dispatch import Dispatcher
from respserver.runtime.parts import RuntimeParts


class RequestProcessor(RequestHandler):
    """Runs the requests of all connections; one object per server."""

    def __init__(self, parts: RuntimeParts, dispatcher: Dispatcher, limits: OutputLimits) -> None:
        self._now = parts.clock.now
        self._ticks = parts.ticks
        self._counters = parts.counters
        self._dispatcher = dispatcher
        self._limits = limits

    def received(self, conn: Connection, data: bytes) -> None:
        session, source = conn.session, conn.input
        decoder = source.decoder
        if not session.authenticated:
            if conn.busy:
                self._postpone(conn, data)
                return
            data = self._before_login(conn, data)
        decoder.authenticated = session.authenticated
        try:
            calls = decoder.calls(data)
        except MemoryError:  # none of these commands has run
            conn.cut("out of memory while reading its commands")
            return
        source.chunk = len(data)
        self._accept(conn, calls, len(data))
        source.chunk = 0
        if decoder.error is not None:
            self._report_protocol_error(conn)

    def _accept(self, conn: Connection, calls: list[Call], size: int) -> None:
        """Run calls that arrived as ``size`` bytes, or add them to the backlog."""
        source, output = conn.input, conn.output
        if conn.busy or source.backlog or output.bytes > OUTPUT_AT_ONCE:  # replies may wait for the disk
            source.append(calls, size)
            if source.full:
                conn.socket.pause_reading()
        elif calls:
            self._dispatcher.run(conn, calls)
            if output.bytes > self._limits.lowest and self._ticks.stalled:
                conn.check_output_limit()
        else:
            conn.session.last_active = self._now()

    def _before_login(self, conn: Connection, data: bytes) -> bytes:
        """Run commands one at a time until AUTH, which lifts the decoder's limits. Returns the bytes after it."""
        session, decoder = conn.session, conn.input.decoder
        decoder.authenticated = False
        for at in range(0, len(data), LOGIN_AT_ONCE):
            piece = data[at : at + LOGIN_AT_ONCE]
            while piece:
                size = len(piece)
                commands, piece = decoder.first(piece)
                self._accept(conn, list(commands), size - len(piece))
                if session.close_after_reply:
                    return b""
                if session.authenticated:
                    return piece + data[at + LOGIN_AT_ONCE :]
                if conn.busy:
                    self._postpone(conn, piece + data[at + LOGIN_AT_ONCE :])
                    return b""
        return b""

    def _postpone(self, conn: Connection, data: bytes) -> None:
        """Before the login, while a command waits (AUTH, after failures), decode and read nothing."""
        conn.input.undecoded += data
        conn.socket.pause_reading()

    def run_backlog(self, conn: Connection) -> None:
        session, source, output = conn.session, conn.input, conn.output
        if conn.busy or conn.state == CLOSED or conn.socket.transport.is_closing():
            return
        if output.bytes > OUTPUT_AT_ONCE:  # retained until the disk accepts writes: flush() queues this again
            return
        if source.backlog:
            self._dispatcher.run(conn, source.take())
            if self._ticks.stalled:
                conn.check_output_limit()
        if source.undecoded and not conn.busy and not source.backlog and not session.close_after_reply:
            data, source.undecoded = source.undecoded, b""
            self.received(conn, data)
        if conn.state == HALF_CLOSED:
            self._ticks.queue_flush(conn)
        if not conn.busy and not source.backlog and source.decoder.error is not None:
            self._report_protocol_error(conn)
            return
        source.measure()
        # also while blocked, to notice that the peer closes
        full = source.full or conn.flow.throttled or output.streaming is not None
        if not full and not session.close_after_reply:
            conn.socket.resume_reading()

    def _report_protocol_error(self, conn: Connection) -> None:
        """Once the commands before the error are answered, send the error and finish."""
        if conn.busy or conn.input.backlog or conn.session.close_after_reply:
            return
        error = conn.input.decoder.error
        self._counters.note_error("ERR")
        if isinstance(error, QueryBufferError):
            self._counters.query_buffer_cuts += 1
        conn.output.add(reply.error(f"ERR Protocol error: {error}"))
        self._ticks.queue_flush(conn)
        conn.finish()
        conn.socket.pause_reading()
