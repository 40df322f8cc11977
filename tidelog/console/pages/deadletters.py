"""Dead letters: list, filter, read with error and traceback, replay one, many, or all.

Rule 1: replays are those of ``tidelog dlq replay``: one transaction each, only to topics that the queue belongs to.
Rule 2: a stream of messages that groups have given up belongs to no topic. Its messages are replayed only to streams
        that the user has confirmed (``to``).
Rule 3: a filter examines at most EXAMINED dead letters for a page; the user asks for the next ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any, Final

import redis
from aiohttp import web
from multidict import MultiDictProxy

from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import Steps, arun
from tidelog.console import payloads
from tidelog.console.audit import DONE
from tidelog.console.deadletterqueues import QueueLocation, find_queues, queue_of
from tidelog.console.errors import PageError, UnavailableError, page_error
from tidelog.console.pages.site import ConsoleSite, session_of, values_hidden
from tidelog.console.sessions import ConsoleSession
from tidelog.console.streams import StreamReader
from tidelog.topics import deadletters
from tidelog.topics.deadletters import DeadLetterRecord, NotADeadLetterError
from tidelog.topics.settings import TopicError
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.errors import ReplyError, message_of

SHOWN: Final = 50  # dead letters of a page
EXAMINED: Final = 1000  # dead letters that a filter examines for one page, about
TARGETS: Final = 50  # streams that a replay can confirm


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = DeadLetterPages(site)
    return [
        web.get("/deadletters", pages.show),
        web.get("/deadletters/letter", pages.letter),
        web.post("/deadletters/replay", pages.replay),
    ]


class DeadLetterPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def show(self, request: web.Request) -> web.Response:
        """Show the open dead letters of ``queue``, oldest first, with ``filter`` in the processor or the error."""
        name, words = name_of(request, required=False), request.query.get("filter", "")
        start = id_of(request.query["after"]) if request.query.get("after") else None
        values: dict[str, Any] = {"queue": name, "words": words, "rows": [], "following": None, "total": 0, "to": []}
        if name:
            queue = await queue_of(session_of(request).connection, name)
            rows, following = await self._found(request, queue, words, start)
            total = await reading(request, deadletters.count(queue.name, queue.stream))
            to = sorted({letter.topic for _, letter in rows if letter is not None}) if queue.stream else []
            values |= {"queue": queue.name, "rows": rows, "following": following, "total": total, "to": to}
        queues, problems = ([], ()) if name else await find_queues((await self._reader(request)).connection)
        return self._site.page(
            request, "deadletters.html", queues=queues, problems=problems, now=int(time() * 1000), **values
        )  # fmt: skip

    async def letter(self, request: web.Request) -> web.Response:
        queue, letter = await letter_of(request)
        return self._site.part(
            "deadletter.html", queue=queue.name, letter=letter, payloads=payloads, hidden=values_hidden(request)
        )  # fmt: skip

    async def replay(self, request: web.Request) -> web.Response:
        """Replay the dead letters ``id``, or with ``all`` all open ones. ``to``: confirmed streams (Rule 2)."""
        given = await request.post()
        ids = {id_of(str(each)) for each in given.getall("id", [])}
        everything = given.get("action") == "all"
        if not everything and not ids:
            raise PageError(400, "Select at least one dead letter.")
        session = session_of(request)
        queue = await queue_of(session.connection, name_of(request))
        connection = await session.connection.open_another()
        problem, done = "the replay failed", 0
        try:
            wanted = deadletters.everything if everything else lambda _, at: at in ids
            steps = deadletters.replay(queue.name, wanted, confirmed(queue, given), queue.stream)
            result = await arun(connection, steps)
            done, problem = result.letters, "; ".join(result.refused[:5])
        except LostError as error:
            problem = f"{error}. Some dead letters may have been replayed."
            raise UnavailableError(problem) from None
        except (redis.ResponseError, ReplyError, TopicError) as error:
            problem = message_of(error)
        finally:
            connection.close()
            detail = {"all": True} if everything else {"ids": sorted(map(str, ids))}
            self._site.audit.write(
                session.user, session.address, "replay", queue.name, problem or DONE, replayed=done, **detail
            )  # fmt: skip
        return self._site.part("deadletters_done.html", done=done, problem=problem)

    async def _reader(self, request: web.Request) -> ConsoleSession:
        """Return the session, once the kind of the server is known."""
        session = session_of(request)
        await StreamReader.of(session.connection)
        return session

    async def _found(
        self, request: web.Request, queue: QueueLocation, words: str, start: StreamId | None
    ) -> tuple[list[tuple[StreamId, DeadLetterRecord | None]], StreamId | None]:
        rows: list[tuple[StreamId, DeadLetterRecord | None]] = []
        following, examined = start, 0
        while examined < EXAMINED and len(rows) < SHOWN:
            steps = deadletters.page(queue.name, following, SHOWN - len(rows), queue.stream)
            entries, following = await reading(request, steps)
            examined += max(1, len(entries))
            rows += [(entry.id, letter) for entry in entries if _matches(letter := _read(entry), words)]
            if following is None:
                break
        return rows, following


async def reading(request: web.Request, steps: Steps[Any]) -> Any:
    """Drive an operation that only reads, on the connection of the user. Raises PageError."""
    try:
        return await arun(session_of(request).connection, steps)
    except (redis.ResponseError, ReplyError) as error:
        raise page_error(error) from None


async def letter_of(request: web.Request) -> tuple[QueueLocation, DeadLetterRecord]:
    """Return the queue and the open dead letter ``id`` of a request. Raises PageError."""
    queue, at = await queue_of(session_of(request).connection, name_of(request)), id_of(request.query.get("id", ""))
    entry = await reading(request, deadletters.one(queue.name, at, queue.stream))
    if entry is None:
        raise PageError(404, f"There is no open dead letter {at}: it was replayed or purged, or never existed.")
    letter = _read(entry)
    if letter is None:
        raise PageError(404, f"The entry {at} is not a dead letter.")
    return queue, letter


def confirmed(queue: QueueLocation, given: MultiDictProxy[Any]) -> list[str]:
    """Return the streams that a form has confirmed, for a queue that is not a topic (Rule 2)."""
    if not queue.stream:
        return []
    return [deadletters.home(str(each), deadletters.NO_PARTITION) for each in given.getall("to", [])[:TARGETS]]


def name_of(request: web.Request, required: bool = True) -> str:
    """Return the name of the queue. Raises PageError."""
    name = request.query.get("queue", "").strip()
    if required and not name:
        raise PageError(400, "The address names no dead-letter queue.")
    return name


def id_of(words: str) -> StreamId:
    """Return an ID. Raises PageError."""
    try:
        return StreamId.parse(words)
    except ValueError as error:
        raise PageError(400, str(error)) from None


def _read(entry: Entry) -> DeadLetterRecord | None:
    try:
        return deadletters.read(entry)
    except NotADeadLetterError:
        return None


def _matches(letter: DeadLetterRecord | None, words: str) -> bool:
    if not words:
        return True
    return letter is not None and any(
        words.lower() in each.lower() for each in (letter.processor, letter.error, letter.message, letter.stream)
    )
