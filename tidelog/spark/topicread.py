"""Detects that the topic of a query has grown or was replaced.

An offset of a topic has an additional pair, ``"topic:orders": "id:5f0c..."``: the ID of the topic.

Rule 1: a topic that has grown has new partitions, which are keys that the offset does not name.
Rule 2: a topic with another ID is another topic. The offsets of the query do not apply to it.
Rule 3: the mark of an offset is read before its IDs. It can therefore belong to a topic that was deleted since, which
        the next comparison detects, but never to a topic that was not compared with the previous offset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from tidelog.arrow.names import as_text
from tidelog.client.steps import drive_over
from tidelog.codecs.packed import FIELD
from tidelog.spark.optionvalues import OptionError
from tidelog.topics.reconcile import known
from tidelog.topics.sending import PLAIN
from tidelog.topics.settings import TopicSettings, key_of
from tidelog.transport.leader import LeaderConnection

FACTS_FOR: Final = 1.0  # seconds for which settings are reused
MARK: Final = "id:"  # prefix of an ID in an offset; no ID of an entry starts with it


class ReadTopic:
    """A topic that is read. Raises TopicError for invalid settings, and errors of ``LeaderConnection.ask``."""

    def __init__(self, servers: LeaderConnection, name: str) -> None:
        self.name = name
        self._servers = servers
        self._facts: TopicSettings | None = None
        self._until = 0.0

    def facts(self, fresh: bool = False) -> TopicSettings | None:
        """Return the settings, at most FACTS_FOR old, or current if ``fresh``. None if there is no such topic."""
        if fresh or time.monotonic() >= self._until:
            self._facts = drive_over(self._servers.ask, known(self.name))
            self._until = time.monotonic() + FACTS_FOR
        return self._facts

    def keys(self) -> tuple[str, ...]:
        """Return the streams of the partitions; none if there is no such topic."""
        facts = self.facts()
        return tuple(f"{self.name}:{at}" for at in range(facts.partitions or 0)) if facts is not None else ()

    def mark(self) -> dict[str, str]:
        """Return the part of an offset that identifies the topic."""
        facts = self.facts()
        return {key_of(self.name): f"{MARK}{facts.id}"} if facts is not None else {}

    def change(self, offset: Mapping[str, str], fresh: bool = False) -> str | None:
        """Return what happened to the topic since this offset was written; None if it is still the same topic."""
        before = offset.get(key_of(self.name))
        facts = self.facts(fresh)
        if before is None or (facts is not None and before == f"{MARK}{facts.id}"):
            return None
        was = before.removeprefix(MARK)
        if facts is None:
            return f"topic {self.name!r} was deleted (its ID was {was})"
        return f"topic {self.name!r} was deleted and made anew: its ID was {was}, it is {facts.id} now"

    def check_fields(self, names: tuple[bytes, ...]) -> None:
        """Raise OptionError for columns of fields that entries of a packed topic do not have."""
        facts = self.facts()
        if facts is None or facts.codec == PLAIN:
            return
        for name in names:
            if name != FIELD.encode():
                raise OptionError(
                    f"schema: there is a column {as_text(name)}, and entries of topic {self.name!r} have one field, "
                    f"data, with the codec {facts.codec}: read data as binary or string, and take it apart with "
                    "from_json or a function of yours"
                )
