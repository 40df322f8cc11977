"""Reads a full copy and the following log from a running server, as a new replica does.

    INFO                      the current end of the log: the backup contains everything up to there
    REPLCONF tidelog 1 rdb-only 1                  with capa continuous, if the backup follows the log, and with capa
                                                   whole, unless the backup refers to history objects
    REPLCONF history start:crc32                   of the end of the stored log, if there is one
    PSYNC ? -1, or PSYNC <ID> <offset>             a thread then reads frames, and sends a PING each second
    REPLCONF ACK <offset>                          the log up to there is stored; only if the backup follows the log

Rule 1: the thread buffers at most QUEUED bytes of frames and one incomplete frame. If the frames are not taken, it
        stops reading, and the server retains its log for this connection.
Rule 2: the PINGs stop when nothing was taken for STALLED seconds, and a backup that follows the log did not call
        ``working``. The server then closes the connection after its repl-timeout, and does not retain the log any
        longer.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tidelog.backup.frames import ALIVE, BATCH, LOG, MESSAGE, BackupFrame, BackupFrameDecoder, LogPart
from tidelog.backup.targets import BackupError, BackupStoppedError
from tidelog.client.client import Client

NAME = "tidelog-backup"  # the name in CLIENT LIST
READ_AT_ONCE = 1 << 18  # bytes
QUEUED = 8 << 20  # bytes of buffered frames
PING_SECONDS = 1.0
SILENT = 120.0  # seconds without data after which the server is considered unreachable
HANDSHAKE = 5.0  # the same before PSYNC for a backup that follows the log: it tries again, and must react to signals
STALLED = 300.0  # maximum time for one file, in seconds
LONGEST_LINE = 4096  # bytes of the reply to PSYNC
FULL = re.compile(r"\+FULLRESYNC ([0-9a-f]{40}) (\d{1,18})", re.ASCII)
CONTINUE = re.compile(r"\+CONTINUE ([0-9a-f]{40})", re.ASCII)
POINT = re.compile(r"([0-9a-f]{40}):(\d{1,18})", re.ASCII)  # in the reply to REPLCONF tidelog
VERSION = re.compile(r"[!-~]{1,100}")
PING = b"*1\r\n$4\r\nPING\r\n"
PSYNC = b"*3\r\n$5\r\nPSYNC\r\n$1\r\n?\r\n$2\r\n-1\r\n"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """The end of a stored log."""

    replid: str
    offset: int
    start: int = -1  # log offset of the last commit group before it; -1: unknown
    crc: int = 0  # crc32 of this commit group

    def request(self) -> bytes:
        """Return the PSYNC that continues from here."""
        words = (b"PSYNC", self.replid.encode(), b"%d" % self.offset)
        return b"".join([b"*3\r\n", *[b"$%d\r\n%b\r\n" % (len(word), word) for word in words]])


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of a server before the copy started."""

    version: str
    role: str  # leader or replica
    log_offset: int  # end of its log
    keys: int
    entries: int  # in all streams


class BackupSource:
    """The connection. ``facts`` and ``replid`` are set by the constructor; ``take`` then returns frames.

    ``follow``: the backup follows the log. ``after``: request the log after this position instead of a full copy.
    ``continued`` is set if the server has agreed; otherwise a full copy begins, and ``points`` describes the server's
    history: its replication IDs, the current one first, and the log offset up to which each is valid.

    ``whole``: the copy has the entries that the server has only in an object store. A server of an earlier version
    sends references to them instead.

    ``stop``: if this is set, whatever waits for the server without a limit raises BackupStoppedError.

    Raises redis.RedisError if the server is unreachable or refuses, and BackupError if it is not a tidelog-server.
    """

    def __init__(
        self, url: str, follow: bool = False, after: LogPosition | None = None, stop: threading.Event | None = None,
        whole: bool = True,
    ) -> None:  # fmt: skip
        self._put_back: LogPart | None = None
        self._follow = follow
        timeout = HANDSHAKE if follow else SILENT
        self._client = Client(url, client_name=NAME, socket_connect_timeout=min(10, timeout), socket_timeout=timeout)
        try:
            pool: Any = self._client.redis.connection_pool
            self._connection = pool.make_connection()
            self._connection.connect()
            self.facts = _facts(self._ask("INFO"))
            options = [*(["capa", "continuous"] if follow else []), *(["capa", "whole"] if whole else [])]
            reply = self._ask("REPLCONF", "tidelog", "1", "rdb-only", "1", *options)
            self.points = {name: int(end) for name, end in POINT.findall(reply.decode("utf-8", "replace"))}
            if after is not None and after.start >= 0:
                self._ask("REPLCONF", "history", f"{after.start}:{after.crc}")
            # The data after PSYNC is not RESP, so the socket is now read without redis-py.
            self._frames = Frames(self._connection._sock, stop)
            self.replid, self.store_offset = self._frames.begin(after)
            self.continued = self._frames.continued
        except BaseException:
            self.close()
            raise

    def _ask(self, *words: str) -> bytes:
        self._connection.send_command(*words)
        reply: bytes = self._connection.read_response(disable_decoding=True)
        return reply

    def take(self) -> BackupFrame:
        """Return the next frame of the copy or the log. Raises BackupError if the connection is lost or the data is
        damaged.
        """
        while True:
            frame = self._frames.take()
            if frame.kind not in (ALIVE, MESSAGE):
                return frame

    def take_log(self, offset: int, seconds: float | None = None) -> LogPart | None:
        """Return the next part of the log, which must start at this offset; None if none arrives within ``seconds``.
        Raises BackupError as ``take`` does.
        """
        if self._put_back is not None:
            part, self._put_back = self._put_back, None
            return part
        frame = self._frames.poll(seconds)
        while frame is not None and frame.kind in (ALIVE, MESSAGE):
            frame = self._frames.poll(seconds)
        if frame is None:
            return None
        if frame.offset != offset or frame.kind not in (BATCH, LOG):
            raise BackupError(f"the server sent {chr(frame.kind)} at {frame.offset} instead of its log from {offset}")
        return LogPart(offset, [frame.payload], 0) if frame.kind == BATCH else LogPart.of(frame)

    def put_back(self, part: LogPart) -> None:
        """Let the next ``take_log`` return this part."""
        self._put_back = part

    def stored(self, offset: int) -> None:
        """Report that the log up to this offset is stored. Raises BackupError if the connection is lost."""
        self._frames.send(b"REPLCONF ACK %d\r\n" % offset)

    def working(self) -> None:
        """Note that the caller makes progress without taking frames. The server then retains its log (Rule 2)."""
        if self._follow:
            self._frames.working()

    def close(self) -> None:
        if hasattr(self, "_frames"):
            self._frames.close()
        if hasattr(self, "_connection"):
            self._connection.disconnect()
        self._client.close()


class Frames:
    """Frames as they arrive on a socket; see the rules above."""

    def __init__(self, sock: socket.socket, stop: threading.Event | None = None) -> None:
        self._sock = sock
        self._stop = stop
        self._queue: deque[BackupFrame] = deque()
        self._bytes = 0  # in ``_queue``
        self._news = threading.Condition()
        self._failed: BackupError | None = None
        self._closing = False
        self._busy_since: float | None = None  # start of the caller's work on the last frame; None while it waits
        self._decoder = BackupFrameDecoder()
        self._sending = threading.Lock()
        self.continued = False  # the server continues from the requested position
        self._thread: threading.Thread | None = None

    def begin(self, after: LogPosition | None = None) -> tuple[str, int]:
        """Request a full copy, or the log after a position. Return the replication ID, and the log offset of the store
        or of the position. Raises BackupError if the request is refused.
        """
        try:
            self._sock.settimeout(PING_SECONDS)
            self._sock.sendall(PSYNC if after is None else after.request())
            line, rest = self._line()
        except OSError as error:
            raise _lost(error) from error
        answer, continued = FULL.fullmatch(line), CONTINUE.fullmatch(line)
        if after is not None and continued is not None:
            self.continued = True
            begun = continued[1], after.offset
        elif answer is not None:
            begun = answer[1], int(answer[2])
        else:
            raise BackupError(f"the server replied: {line.removeprefix('-')}")
        self._busy_since = time.monotonic()
        self._put(self._decoder.feed(rest))
        self._thread = threading.Thread(target=self._run, name="tidelog-backup", daemon=True)
        self._thread.start()
        return begun

    def working(self) -> None:
        """Note that the caller makes progress with the last frame."""
        with self._news:
            self._busy_since = time.monotonic()

    def send(self, request: bytes) -> None:
        """Send a request without a reply. Raises BackupError if the connection is lost."""
        try:
            with self._sending:
                self._sock.sendall(request)
        except OSError as error:
            raise _lost(error) from error

    def _line(self) -> tuple[str, bytes]:
        """Return the first line that is not empty, and the data after it."""
        data = b""
        while b"\n" not in data.lstrip():  # the server sends empty lines as heartbeats
            data += self._receive()
            if len(data) > LONGEST_LINE + READ_AT_ONCE:
                raise BackupError("the server's answer has no end: is it a tidelog-server?")
        line, _, rest = data.lstrip().partition(b"\n")
        return line.decode("utf-8", "replace").strip(), rest

    def _receive(self) -> bytes:
        """Return the next data, and send PINGs while waiting. Raises BackupError if nothing arrives."""
        until = time.monotonic() + SILENT
        while time.monotonic() < until and not self._closing:
            try:
                data = self._sock.recv(READ_AT_ONCE)
            except TimeoutError:
                if self._thread is None:
                    self._check_stop()
                self._ping()
                continue
            if not data:
                raise BackupError("the server closed the connection; its log file says why")
            return data
        raise BackupError(f"nothing was heard of the server for {SILENT:g} seconds")

    def _check_stop(self) -> None:
        """Raise BackupStoppedError if the process was asked to stop."""
        if self._stop is not None and self._stop.is_set():
            raise BackupStoppedError

    def _ping(self) -> None:
        since = self._busy_since
        if since is None or time.monotonic() - since < STALLED:
            with self._sending:
                self._sock.sendall(PING)

    def _run(self) -> None:
        pinged = time.monotonic()
        try:
            while not self._closing:
                if time.monotonic() - pinged > PING_SECONDS:
                    pinged = time.monotonic()
                    self._ping()
                with self._news:
                    if self._bytes > QUEUED:
                        self._news.wait(PING_SECONDS)
                        continue
                self._put(self._decoder.feed(self._receive()))
        except BackupError as error:
            self._fail(error)
        except OSError as error:
            self._fail(_lost(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller waits for an answer
            self._fail(BackupError(f"reading from the server failed: {error!r}"))

    def _put(self, frames: list[BackupFrame]) -> None:
        with self._news:
            self._queue += frames
            self._bytes += sum(len(frame.payload) for frame in frames)
            self._news.notify_all()

    def _fail(self, error: BackupError) -> None:
        with self._news:
            self._failed = error
            self._news.notify_all()

    def take(self) -> BackupFrame:
        """Return the next frame. Raises BackupError if no frame can follow, or BackupStoppedError."""
        frame = self.poll(None)
        assert frame is not None  # noqa: S101 - without a limit, it waits
        return frame

    def poll(self, seconds: float | None) -> BackupFrame | None:
        """Return the next frame; None if none arrives within ``seconds``.

        Raises BackupError if no frame can follow; without a limit, BackupStoppedError.
        """
        until = None if seconds is None else time.monotonic() + seconds
        with self._news:
            self._busy_since = None
            while not self._queue:
                if self._failed is not None:
                    raise self._failed
                left = PING_SECONDS if until is None else until - time.monotonic()
                if until is None:
                    self._check_stop()
                elif left <= 0:
                    self._busy_since = time.monotonic()
                    return None
                self._news.wait(left)
            self._busy_since = time.monotonic()
            frame = self._queue.popleft()
            self._bytes -= len(frame.payload)
            self._news.notify_all()
            return frame

    def close(self) -> None:
        self._closing = True
        with self._news:
            self._news.notify_all()
        if self._thread is not None:
            with suppress(OSError):  # already closed
                self._sock.shutdown(socket.SHUT_RDWR)
            self._thread.join()


def _facts(reply: bytes) -> SourceState:
    """Read the facts from the reply to INFO. Raises BackupError if the server is not a tidelog-server."""
    if not isinstance(reply, bytes):
        raise BackupError(f"the server answered INFO with {type(reply).__name__} instead of text")
    pairs = [line.partition(":") for line in reply.decode("utf-8", "replace").splitlines()]
    info = {name: value for name, _, value in pairs}
    databases = [value for name, value in info.items() if name.startswith("db") and value.startswith("keys=")]
    try:
        if not VERSION.fullmatch(info["tidelog_version"]):
            raise ValueError
        return SourceState(
            version=info["tidelog_version"],
            role="leader" if info["role"] == "master" else "replica",
            log_offset=int(info["master_repl_offset"]),
            keys=sum(int(value.removeprefix("keys=").partition(",")[0]) for value in databases),
            entries=int(info["stream_entries"]),
        )
    except (KeyError, ValueError):
        raise BackupError("the server is no tidelog-server: its INFO lacks what a backup needs") from None


def _lost(error: OSError) -> BackupError:
    return BackupError(f"the connection to the server was lost: {error.strerror or error}")
