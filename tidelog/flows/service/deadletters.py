"""Lists and replays the dead letters of a flow.

They are stored in a dead-letter queue, as those of workers, so ``tidelog dlq`` lists and replays them as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import redis

from tidelog.client import Client
from tidelog.client.alone import run_alone
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import run
from tidelog.flows.api.errors import FlowError
from tidelog.flows.service.tap import shown
from tidelog.topics import TopicError, deadletters

LIMIT: Final = 1000  # maximum number of dead letters in a list

T = TypeVar("T")


class DeadLettersError(ConnectionError):
    """The server does not reply, or has no such dead letters."""


async def listed(server: str, topic: str, limit: int) -> dict[str, Any]:
    """Return up to ``limit`` open dead letters of a topic, oldest first, and their total number. Raises
    DeadLettersError.
    """

    def ask(client: Client) -> dict[str, Any]:
        entries, _ = run(client, deadletters.page(topic, None, limit))
        count = run(client, deadletters.count(topic))
        return {"topic": topic, "open": count, "letters": [_told(each) for each in entries]}

    return await _asked(server, ask)


async def replayed(server: str, topic: str, ids: Collection[str] | None) -> dict[str, Any]:
    """Send open dead letters to their origin: those in ``ids``, or all. Raises FlowError if an ID is invalid, or
    DeadLettersError.
    """
    try:
        chosen = None if ids is None else {StreamId.parse(each) for each in ids}
    except ValueError as error:
        raise FlowError(str(error)) from None

    def wanted(letter: deadletters.DeadLetterRecord | None, id: StreamId) -> bool:  # noqa: A002, ARG001 - the required signature
        return chosen is None or id in chosen

    def ask(client: Client) -> dict[str, Any]:
        done = run_alone(client, deadletters.replay(topic, wanted))
        return {"topic": topic, "replayed": done.letters, "refused": list(done.refused)}

    return await _asked(server, ask)


async def _asked(server: str, ask: Callable[[Client], T]) -> T:
    """Call ``ask`` in a thread, because operations with a connection of their own require the blocking client."""

    def work() -> T:
        with Client(server) as client:
            return ask(client)

    try:
        return await asyncio.to_thread(work)
    except (redis.RedisError, TopicError, OSError) as error:
        raise DeadLettersError(f"dead letters: {error}") from None


def _told(entry: Entry) -> dict[str, Any]:
    try:
        letter = deadletters.read(entry)
    except deadletters.NotADeadLetterError as error:
        return {"id": str(entry.id), "error": str(error)}
    fields = {
        name.decode("utf-8", "replace"): shown(value)[0]
        for name, value in zip(letter.flat[::2], letter.flat[1::2], strict=True)
    }
    of = letter.topic if letter.partition < 0 else f"{letter.topic}:{letter.partition}"
    return {
        "id": str(letter.id), "of": of, "event": str(letter.event_id),
        "source": letter.processor, "error": letter.error, "message": letter.message, "attempts": letter.attempts,
        "time": letter.time, "fields": fields,
    }  # fmt: skip
