"""``GET`` with ``Accept: text/event-stream``: sends the entries of a stream as they arrive.

Rule 1: a client resumes at ``Last-Event-ID``. The first event sets its position, so that it also resumes exactly if it
        disconnects before the first entry.
Rule 2: a reader waits at a tail, which it shares with all other readers of the stream (``tails``). It reads ranges
        itself until it has reached the entries that the tail has in memory.
Rule 3: a reader that does not read is disconnected with a reason after UNREAD seconds. It can resume.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from time import monotonic
from typing import Final

from aiohttp import HttpVersion11, web

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.gateway.errors import ProblemError, expired, unavailable
from tidelog.gateway.frames import KEEPALIVE, PART, frames_of, position, problem_event, retry
from tidelog.gateway.media import EVENTS
from tidelog.gateway.parameters import last_event_id
from tidelog.gateway.site import GatewayCall
from tidelog.gateway.tails import StreamTail
from tidelog.operating.httpaddress import endless
from tidelog.options.start import LATEST

QUIET: Final = 15.0  # s without an event after which a comment is sent
UNREAD: Final = 20.0  # s
BEGIN_WITHIN: Final = 5.0  # s for the first answer of the server; afterwards, a client that resumes waits for it
RETRY_MS: Final = 2000
END: Final = b"\n\n"  # of an event
RANGE: Final = 64 << 10  # bytes of entries that a reader reads at a time
RANGE_ENTRIES: Final = 1000

log = logging.getLogger("tidelog.gateway")


class SlowReaderError(Exception):
    """The client does not read."""


class EventWriter:
    """Writes events to a client."""

    def __init__(self, call: GatewayCall) -> None:
        self._request = call.request
        self._counts = call.site.counts
        self._whole = True  # the last part ends with a whole event
        self.response = web.StreamResponse(
            headers={**call.site.headers(call.request), "Content-Type": EVENTS, "X-Accel-Buffering": "no"}
        )  # fmt: skip

    async def begin(self, at: StreamId | None) -> None:
        """Send the headers, the delay of reconnections, and the position of the client."""
        endless(self._request)
        if self._request.version >= HttpVersion11:
            self.response.enable_chunked_encoding()
        await self.response.prepare(self._request)
        await self.write(retry(RETRY_MS) + (b"" if at is None else position(at)))

    async def write(self, data: bytes) -> None:
        """Write events. Raises SlowReaderError, or ConnectionResetError if the client has gone.

        They are written in parts of about PART, because the buffer of the connection copies what it can't send at once.
        """
        begin = 0
        try:
            while begin < len(data):
                end = begin + PART
                if end < len(data):
                    end = data.rfind(END, begin, end) + len(END)
                    if end < begin + len(END):  # one event is larger
                        end = begin + PART
                part = data[begin:end]
                self._whole = part.endswith(END)
                begin = end
                async with asyncio.timeout(UNREAD):
                    await self.response.write(part)
                self._counts.event_bytes += len(part)
        except TimeoutError:
            raise SlowReaderError from None

    async def end(self) -> None:
        """Ask the client to reconnect soon. Clients do so at different times."""
        await self.write(retry(random.randint(RETRY_MS // 4, RETRY_MS)))

    async def fail(self, problem: ProblemError) -> None:
        """Send the reason for which the event stream ends, unless the client does not read."""
        with suppress(SlowReaderError, ConnectionResetError):
            await self.write(problem_event(problem))

    def disconnect(self) -> None:
        """Disconnect a client that does not read. The reason is the last that it receives, if it reads again soon."""
        reason = b": disconnected: nothing was read for %d seconds; resume with Last-Event-ID\n\n" % UNREAD
        self._counts.slow_readers += 1
        log.warning("%s: an event stream is closed: nothing was read for %g s", self._request.remote, UNREAD)
        transport = self._request.transport
        if transport is not None and self._whole:
            if self.response.chunked:
                reason = b"%x\r\n%b\r\n" % (len(reason), reason)
            transport.write(reason)
        self._request.protocol.force_close()


async def follow(call: GatewayCall) -> web.StreamResponse:
    """Send the entries of a stream."""
    start = last_event_id(call.request) or call.query.get("after", LATEST).after
    site, user = call.site, call.user
    with site.readers.taken(user.name), user.held(), site.tails.joined(user, call.key) as tail:
        at = await begin(tail, start)
        writer = EventWriter(call)
        try:
            await writer.begin(at)
            await _send(call, tail, at, writer)
        except ProblemError as problem:
            await writer.fail(problem)
        except SlowReaderError:
            writer.disconnect()
        except ConnectionResetError:  # the client has gone
            pass
        return writer.response


async def begin(tail: StreamTail, start: StreamId | None) -> StreamId:
    """Return the position at which a reader begins. Raises ProblemError if the server refuses the user."""
    await tail.wait(None, BEGIN_WITHIN)
    if tail.problem is not None:
        raise tail.problem
    if start is not None:
        return start
    if tail.position is None:
        raise unavailable("The server does not answer.")
    return tail.position


async def _send(call: GatewayCall, tail: StreamTail, at: StreamId, writer: EventWriter) -> None:
    while tail.problem is None and monotonic() < call.expires:
        if tail.position is not None and not tail.covers(at):
            at = await _send_range(call, tail, at, writer)
        elif found := tail.take(at):
            await writer.write(found[0])
            at = found[1]
        else:
            await tail.wait(at, min(QUIET, call.expires - monotonic()))
            if tail.problem is None and not (tail.position is not None and tail.position > at):
                await writer.write(KEEPALIVE)
    if not call.site.closing:
        raise tail.problem or expired()
    await writer.end()


async def _send_range(call: GatewayCall, tail: StreamTail, at: StreamId, writer: EventWriter) -> StreamId:
    """Send entries that the tail no longer has in memory. Returns the new position. Raises ProblemError."""
    floor = tail.floor
    try:
        batch = await call.user.read_page(calls.tread(call.key, at, RANGE_ENTRIES, max_bytes=RANGE, with_info=True))
    except ProblemError as problem:
        if problem.status != 503:
            raise
        await writer.write(KEEPALIVE)
        return at
    found = frames_of(batch, at)
    if found is None:  # the tail had read all entries up to ``floor``, so there are none in between
        return max(at, floor)
    data, last = found.data, found.last
    del batch, found  # the write may take UNREAD
    await writer.write(data)
    return last
