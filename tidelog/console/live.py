"""Server-sent events: a page stays current without requests of its own.

Rule 1: one stream per open page. A page closes its stream while it is hidden.
Rule 2: a session has at most STREAMS streams. Further ones get 429.
Rule 3: a browser that does not read is dropped: a write waits at most UNREAD.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from aiohttp import web

from tidelog.console.errors import PageError, SessionEndedError, UnavailableError
from tidelog.console.security import HEADERS
from tidelog.console.sessions import ConsoleSession, ConsoleSessions
from tidelog.operating.httpaddress import endless

STREAMS: Final = 20  # open streams of a session
UNREAD: Final = 20.0  # s
RETRY_MS: Final = 2000  # after which a browser reconnects

Event = tuple[str, Any]  # its name, and its data, which is sent as JSON


async def stream(
    request: web.Request, sessions: ConsoleSessions, session: ConsoleSession, events: AsyncIterator[Event]
) -> web.StreamResponse:
    """Send events until the browser goes away, the session ends, or there are no more.

    The event ``problem`` has the reason why the server can't be shown, and ``ended`` means that the session has
    ended: the page then opens the login.
    """
    if session.streams >= STREAMS:
        raise PageError(429, f"{STREAMS} live pages are open, which is the limit of a session. Close some of them.")
    answer = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
    session.streams += 1
    try:
        endless(request)
        await answer.prepare(request)
        await _write(answer, f"retry: {RETRY_MS}\n\n")
        try:
            async with aclosing(events) as source:  # type: ignore[type-var] # a generator in all callers
                async for name, data in source:
                    if sessions.find(session.token) is None:
                        raise SessionEndedError
                    await _write(answer, f"event: {name}\ndata: {json.dumps(data)}\n\n")
        except SessionEndedError:
            sessions.end(session)
            await _write(answer, "event: ended\ndata: {}\n\n")
        except UnavailableError as error:
            await _write(answer, f"event: problem\ndata: {json.dumps(str(error))}\n\n")
    except (ConnectionResetError, TimeoutError):  # the browser has gone
        pass
    finally:
        session.streams -= 1
    return answer


async def _write(answer: web.StreamResponse, message: str) -> None:
    async with asyncio.timeout(UNREAD):
        await answer.write(message.encode())
