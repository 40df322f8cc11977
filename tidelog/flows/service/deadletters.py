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
SEARCHED: Final = 20_000  # maximum number of dead letters that are read for a list

T = TypeVar("T")


class DeadLettersError(ConnectionError):
    """The server does not reply, or has no such dead letters."""


async def listed(server: str, topic: str, limit: int, contains: str = "") -> dict[str, Any]:
    """Return up to ``limit`` open dead letters of a topic, oldest first, and their total number.

    ``contains``: only those whose reason, origin, or fields contain this text, in any case. Up to SEARCHED dead letters
    are read; ``complete``: all were. Raises DeadLettersError.
    """

    def ask(client: Client) -> dict[str, Any]:
        letters: list[dict[str, Any]] = []
        position, read = None, 0
        while len(letters) < limit and read < SEARCHED:
            entries, position = run(client, deadletters.page(topic, position, limit if not contains else LIMIT))
            read += len(entries)
            letters += [told for told in map(_told, entries) if contains.lower() in _searched(told)]
            if position is None or not contains:
                break
        count = run(client, deadletters.count(topic))
        complete = len(letters) <= limit and (position is None or (not contains and read >= count))
        return {"topic": topic, "open": count, "letters": letters[:limit], "complete": complete}

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


def _searched(told: dict[str, Any]) -> str:
    """Return the text of a dead letter in which a search looks."""
    words = [str(told.get(name, "")) for name in ("error", "message", "of", "source", "event", "id")]
    return "\n".join([*words, *(f"{name}={value}" for name, value in told.get("fields", {}).items())]).lower()


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
