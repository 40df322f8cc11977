"""Topics: their settings and partitions, as one user sees them.

Rule: a page covers at most PARTITIONS partitions of a topic, and a list at most LISTED partitions of all its topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import Info
from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError, UnavailableError, page_error
from tidelog.console.infotext import text
from tidelog.console.streams import RATE_MS
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings
from tidelog.transport.call import Call
from tidelog.transport.errors import message_of

PARTITIONS: Final = 1000
LISTED: Final = 2000
TOGETHER: Final = 100  # partitions of a request
NO_KEY: Final = "no such key"  # of a partition to which nothing was sent


@dataclass(frozen=True)
class PartitionSummary:
    """A partition. ``info`` is None if nothing was sent to it, or if it can't be read (``problem``)."""

    key: bytes
    info: Info | None
    recent: int  # entries of the last RATE_MS
    problem: str


@dataclass(frozen=True)
class TopicSummary:
    """A topic with its partitions."""

    name: str
    settings: TopicSettings | None = None  # None: ``problem`` has the reason
    partitions: list[PartitionSummary] = field(default_factory=list)
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Whether all partitions were read."""
        return self.settings is not None and len(self.partitions) == self.settings.partitions

    @property
    def unread(self) -> int:
        """The number of partitions that can't be read. The sums do not include them."""
        return sum(bool(each.problem) for each in self.partitions)

    def _infos(self) -> list[Info]:
        return [each.info for each in self.partitions if each.info is not None]

    @property
    def entries(self) -> int:
        return sum(info.length for info in self._infos())

    @property
    def bytes(self) -> int:
        """The size in memory and on disk."""
        return sum(info.memory_bytes + info.disk_bytes for info in self._infos())

    @property
    def delayed(self) -> int:
        return sum(info.delayed for info in self._infos())

    @property
    def recent(self) -> int:
        return sum(each.recent for each in self.partitions)

    @property
    def newest(self) -> int:
        """The time of the newest record in ms since 1970, 0 if there is none."""
        return max((info.last.ms for info in self._infos()), default=0)

    @property
    def oldest(self) -> int:
        """The time of the oldest record in ms since 1970, 0 if there is none."""
        return min((info.first.ms for info in self._infos() if info.first), default=0)


async def settings_of(connection: UserConnection, name: str) -> TopicSettings:
    """Return the settings of a topic. Raises PageError if there is none, or if the user may not read them."""
    (reply,) = await connection.read(strings.get(key_of(name)))
    found = _settings(name, reply)
    if isinstance(found, Exception):
        raise found
    return found


def partitions_of(name: str, settings: TopicSettings) -> Sequence[bytes]:
    """Return the keys of the first PARTITIONS partitions of a topic."""
    return [f"{name}:{at}".encode() for at in range(min(PARTITIONS, settings.partitions or 0))]


async def summary(connection: UserConnection, name: str, settings: TopicSettings, now: int) -> TopicSummary:
    """Return the state of a topic. now: ms since 1970."""
    return TopicSummary(name, settings, await _partitions(connection, partitions_of(name, settings), now))


async def summaries(connection: UserConnection, names: Sequence[str], now: int) -> list[TopicSummary]:
    """Return the states of topics. Topics with more partitions than are left of LISTED have none."""
    replies = await connection.read(*(strings.get(key_of(name)) for name in names)) if names else []
    found = []
    left = LISTED
    for name, reply in zip(names, replies, strict=True):
        settings = _settings(name, reply)
        if isinstance(settings, Exception):
            found.append(TopicSummary(name, problem=str(settings)))
            continue
        count = settings.partitions or 0
        keys = partitions_of(name, settings) if count <= left else []
        left -= len(keys)
        found.append(TopicSummary(name, settings, await _partitions(connection, keys, now)))
    return found


async def _partitions(connection: UserConnection, keys: Sequence[bytes], now: int) -> list[PartitionSummary]:
    found = []
    for start in range(0, len(keys), TOGETHER):
        part = keys[start : start + TOGETHER]
        sent: list[Call[Any]] = [call for key in part for call in (calls.tinfo(key), calls.tcount(key, now - RATE_MS))]
        replies = iter(await connection.read(*sent))
        for key in part:
            info, recent = next(replies), next(replies)
            problem = message_of(info) if isinstance(info, Exception) else ""
            found.append(PartitionSummary(
                key, None if problem else info, 0 if isinstance(recent, Exception) else recent,
                "" if NO_KEY in problem else problem,
            ))  # fmt: skip
    return found


def _settings(name: str, reply: Any) -> TopicSettings | PageError | UnavailableError:
    if isinstance(reply, Exception):
        return page_error(reply)
    if reply is None:
        return PageError(404, f"There is no topic {text(name)}.")
    try:
        settings = read_settings(name, reply)
    except TopicError as error:
        return PageError(400, text(str(error)))
    if settings.partitions is None:
        return PageError(400, f"The settings of the topic {text(name)} have no number of partitions.")
    return settings
