"""Topics: their settings and partitions, as one user sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog.client import strings
from tidelog.console.connection import UserConnection
from tidelog.console.errors import PageError, page_error
from tidelog.topics.settings import TopicError, TopicSettings, key_of, read_settings

PARTITIONS: Final = 1000  # of a topic that a page covers


async def settings_of(connection: UserConnection, name: str) -> TopicSettings:
    """Return the settings of a topic. Raises PageError if there is none, or if the user may not read them."""
    (reply,) = await connection.read(strings.get(key_of(name)))
    if isinstance(reply, Exception):
        raise page_error(reply)
    if reply is None:
        raise PageError(404, f"There is no topic {name}.")
    try:
        return read_settings(name, reply)
    except TopicError as error:
        raise PageError(400, str(error)) from None


def partitions_of(name: str, settings: TopicSettings) -> Sequence[bytes]:
    """Return the keys of the first PARTITIONS partitions of a topic."""
    return [f"{name}:{at}".encode() for at in range(min(PARTITIONS, settings.partitions or 0))]
