"""Edit the event of a dead letter and send it: the form, a preview of the differences, and the replay.

Rule 1: what was previewed is sent: the preview has the edited fields in hidden form fields.
Rule 2: the record is sent as a replay sends it, in one transaction that finishes the dead letter. A form that is sent
        twice therefore makes one record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
from aiohttp import web

from tidelog.client.steps import arun
from tidelog.console import eventedits
from tidelog.console.audit import DONE
from tidelog.console.deadletterqueues import queue_of
from tidelog.console.errors import PageError, UnavailableError
from tidelog.console.pages.deadletters import confirmed, id_of, letter_of, name_of, reading
from tidelog.console.pages.site import ConsoleSite, session_of, values_hidden
from tidelog.topics import deadletters
from tidelog.topics.deadletteredit import edited
from tidelog.topics.deadletters import NO_PARTITION, DeadLetterRecord, NotADeadLetterError
from tidelog.topics.partition import partition_of
from tidelog.topics.reconcile import known
from tidelog.topics.settings import TopicError, TopicSettings
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.errors import ReplyError, message_of


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = DeadLetterEditPages(site)
    return [
        web.get("/deadletters/edit", pages.form),
        web.post("/deadletters/edit/preview", pages.preview),
        web.post("/deadletters/edit/send", pages.send),
    ]


class DeadLetterEditPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    async def form(self, request: web.Request) -> web.Response:
        """Show the fields of the dead letter ``id`` of ``queue``."""
        queue, letter = await letter_of(request)
        if values_hidden(request):
            raise PageError(409, "The values are hidden. Show them to edit an event.")
        if not letter.stream:
            raise PageError(409, "The event did not come from a stream, so there is no stream to send it to.")
        settings = await _settings(request, letter)
        return self._site.page(
            request, "deadletter_edit.html", queue=queue.name, letter=letter, settings=settings,
            fields=eventedits.form_of(letter.entry), to=[letter.topic] if queue.stream else [],
        )  # fmt: skip

    async def preview(self, request: web.Request) -> web.Response:
        """Show the differences, and to which stream the edited event is sent."""
        queue, letter = await letter_of(request)
        given = await request.post()
        columns = {name: [str(each) for each in given.getall(name, [])]
                   for name in ("field", "nameform", "value", "valueform")}  # fmt: skip
        pairs = eventedits.parse(columns)
        settings = await _settings(request, letter)
        changed = _checked(letter, pairs, settings)
        return self._site.part(
            "deadletter_preview.html", queue=queue.name, letter=letter, changed=changed, pairs=pairs,
            differences=eventedits.differences(letter.entry.pairs, pairs), to=[letter.topic] if queue.stream else [],
            before=_target(letter, settings), after=_target(changed, settings),
        )  # fmt: skip

    async def send(self, request: web.Request) -> web.Response:
        """Send the event of a preview, ``fieldhex`` and ``valuehex`` of each field, and finish the dead letter."""
        session, given, at = session_of(request), await request.post(), id_of(request.query.get("id", ""))
        try:
            words = [[bytes.fromhex(str(each)) for each in given.getall(name, [])] for name in ("fieldhex", "valuehex")]
            pairs = list(zip(*words, strict=True))
        except ValueError:
            raise PageError(400, "The form is not complete. Show the preview again.") from None
        queue = await queue_of(session.connection, name_of(request))
        connection = await session.connection.open_another()
        problem, detail = "the replay failed", {"id": str(at)}
        sent: Any = None
        changes = 0

        def edit(letter: DeadLetterRecord, settings: TopicSettings | None) -> DeadLetterRecord:
            nonlocal changes
            changes = len(eventedits.differences(letter.entry.pairs, pairs))
            return edited(letter, pairs, settings)

        try:
            sent = await arun(
                connection,
                deadletters.replay_edited(queue.name, at, edit, confirmed(queue, given), queue.stream),
            )  # fmt: skip
            problem = "" if sent else f"There is no open dead letter {at}: it was replayed or purged. Nothing was sent."
        except LostError as error:
            problem = f"{error}. The event may have been sent. Open the dead letter again to find out."
            raise UnavailableError(problem) from None
        except (redis.ResponseError, ReplyError, TopicError, NotADeadLetterError) as error:
            problem = message_of(error)
        finally:
            connection.close()
            if sent:
                detail |= {"stream": sent[0], "entry": str(sent[1])}
            self._site.audit.write(
                session.user, session.address, "edit and resend", queue.name, problem or DONE, **detail, fields=changes
            )  # fmt: skip
        return self._site.part("deadletter_sent.html", problem=problem, sent=sent, queue=queue.name)


async def _settings(request: web.Request, letter: DeadLetterRecord) -> TopicSettings | None:
    """Return the settings of the event's topic, None if it came from another stream. Raises PageError."""
    if letter.partition == NO_PARTITION:
        return None
    try:
        settings: TopicSettings | None = await reading(request, known(letter.topic))
    except TopicError as error:
        raise PageError(409, str(error)) from None
    if settings is None:
        raise PageError(409, f"The topic {letter.topic!r} was deleted.")
    return settings


def _checked(
    letter: DeadLetterRecord, pairs: eventedits.Pairs, settings: TopicSettings | None
) -> DeadLetterRecord:  # fmt: skip
    try:
        return edited(letter, pairs, settings)
    except TopicError as error:
        raise PageError(400, str(error)) from None


def _target(letter: DeadLetterRecord, settings: TopicSettings | None) -> str:
    """Return the stream to which a replay sends the event."""
    if settings is None or not settings.partitions:
        return letter.topic
    at = partition_of(letter.key, settings.partitions) if letter.key else letter.partition % settings.partitions
    return f"{letter.topic}:{at}"
