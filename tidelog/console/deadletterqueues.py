"""Finding dead-letter queues: topics of workers, jobs and flows, and streams of messages that groups have given up.

Rule: only a server, or a cluster, with few keys is searched (``key_count``), because a search examines all keys and the
      newest entry of each stream. On a larger one, the user enters the name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import Entry, Info
from tidelog.client.steps import arun
from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError, page_error
from tidelog.console.infotext import text
from tidelog.console.keynames import key_count, names, scan
from tidelog.topics import deadletters
from tidelog.topics.settings import PREFIX, TopicError, key_of, read_settings

LARGE: Final = 64 * 1024  # bytes of an average entry above which a search does not read the newest one


@dataclass(frozen=True)
class QueueLocation:
    """A queue. ``stream`` is empty if it is a topic: partition 0 contains the dead letters then."""

    name: str
    stream: str = ""


@dataclass(frozen=True)
class QueueSummary:
    """A row of the list of queues."""

    name: str
    origin: str  # where its events come from
    open: int | None  # open dead letters; None: the user may not count them


async def queue_of(connection: UserConnection, name: str) -> QueueLocation:
    """Return the queue with a name: a topic, or else the stream with this key. Raises PageError.

    The stream of a topic's queue, such as ``orders.dead:0``, means the topic.
    """
    topic = name.removesuffix(":0")
    settings, own, length = await connection.read(
        strings.get(key_of(name)), strings.get(key_of(topic)), calls.tlen(name)
    )
    for each in (settings, own):
        if isinstance(each, Exception):
            raise page_error(each, 403)
    if settings is not None:
        return QueueLocation(name)
    if own is not None or (topic.endswith(deadletters.DEAD) and (isinstance(length, Exception) or not length)):
        return QueueLocation(topic)
    return QueueLocation(name, name)


async def find_queues(connection: UserConnection) -> tuple[list[QueueSummary], Sequence[str]]:
    """Return the queues that the user may read, none of a large server, and the reasons why some are missing."""
    keys = await key_count(connection)
    if not keys.small:
        return [], keys.problems
    found = await _topics(connection)
    if connection.tidelog:
        found += await _given_up(connection)
    return sorted(found, key=lambda each: each.name), keys.problems


async def _topics(connection: UserConnection) -> list[QueueSummary]:
    keys = await _all(connection, PREFIX.encode() + b"*", "string")
    texts = await connection.read(*map(strings.get, keys)) if keys else []
    origins: dict[str, Sequence[str]] = {}
    for key, raw in zip(keys, texts, strict=True):
        name = key.decode("utf-8", "replace").removeprefix(PREFIX)
        try:
            settings = read_settings(name, raw) if isinstance(raw, bytes) else None
        except TopicError:  # other values have such keys, too
            continue
        if settings is not None and deadletters.is_dead_letter_queue(settings):
            own = name.removesuffix(deadletters.DEAD)
            origins[name] = [f"topic {own}"] if own != name and not own.startswith("flow.") else []
            origins[name] = [*origins[name], *settings.letters_of]
    counts = await arun(connection, deadletters.open_counts(origins))
    return [QueueSummary(name, ", ".join(origin) or "not known yet", counts[name]) for name, origin in origins.items()]


async def _given_up(connection: UserConnection) -> list[QueueSummary]:
    """Return the streams whose newest entry is a message that a group has given up."""
    keys = await _all(connection, b"*", "stream")
    infos = await connection.read(*map(calls.tinfo, keys)) if keys else []
    small = [key for key, info in zip(keys, infos, strict=True) if isinstance(info, Info) and _is_small(info)]
    newest = await connection.read(*[calls.trevrange(key, count=1) for key in small]) if small else []
    rows = []
    for key, entries in zip(small, newest, strict=True):
        if isinstance(entries, list) and entries and (origin := _origin(entries[0])):
            name = key.decode("utf-8", "replace")
            (count,) = await connection.read(calls.tlen(key))
            if not isinstance(count, Exception):
                count = await arun(connection, deadletters.count(name, name))
            rows.append(QueueSummary(name, origin, None if isinstance(count, Exception) else count))
    return rows


def _is_small(info: Info) -> bool:
    return info.length > 0 and info.memory_bytes + info.disk_bytes < LARGE * info.length


def _origin(entry: Entry) -> str:
    flat, own = entry.flat, 2 * len(deadletters.GIVEN_UP)
    if flat[-own::2] != deadletters.GIVEN_UP or len(flat) == own:
        return ""
    stream, group = flat[1 - own], flat[3 - own]
    return f"group {text(group)} of {text(stream)}"


async def _all(connection: UserConnection, pattern: bytes, kind: str) -> list[bytes]:
    """Return all keys of a kind; none if the user may not search."""
    found: list[Any] = []
    cursor = b"0"
    while True:
        try:
            step = await scan(connection, pattern, cursor, kind)
        except PageError:
            return []
        found += step.keys
        cursor = step.cursor
        if cursor == b"0":
            return names(found)
