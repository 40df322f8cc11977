"""The topic that a query reads: how many partitions it has by now, and whether it is still the same one.

An offset of a topic has one more pair, ``"topic:orders": "id:5f0c..."``: the ID that the topic had.

Rule 1: a topic that has grown has new partitions, which are keys that the offset does not name.
Rule 2: a topic with another ID is another topic: what the query has read says nothing about it.
Rule 3: the mark of an offset is taken before its IDs are read. So it may be of a topic that is gone by then, which the
        next comparison finds, but never of one that was not compared with the offset before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from tidelog.codecs.packed import FIELD
from tidelog.spark.given import OptionError
from tidelog.spark.names import as_text
from tidelog.spark.partitioning import PLAIN
from tidelog.spark.topics import run
from tidelog.topics.reconcile import known
from tidelog.topics.settings import TopicSettings, key_of
from tidelog.transport.leader import LeaderConnection

FACTS_FOR: Final = 1.0  # seconds for which facts are reused
MARK: Final = "id:"  # before an ID in an offset, which no ID of an entry begins with


class ReadTopic:
    """A topic that is read. TopicError for facts that can't be read; errors of ``Servers.ask``."""

    def __init__(self, servers: LeaderConnection, name: str) -> None:
        self.name = name
        self._servers = servers
        self._facts: TopicSettings | None = None
        self._until = 0.0

    def facts(self, fresh: bool = False) -> TopicSettings | None:
        """What the topic is: at most FACTS_FOR old, or asked for now if ``fresh``. None if there is none."""
        if fresh or time.monotonic() >= self._until:
            self._facts = run(self._servers.ask, known(self.name))
            self._until = time.monotonic() + FACTS_FOR
        return self._facts

    def keys(self) -> tuple[str, ...]:
        """The streams of its partitions; none if there is no such topic."""
        facts = self.facts()
        return tuple(f"{self.name}:{at}" for at in range(facts.partitions or 0)) if facts is not None else ()

    def mark(self) -> dict[str, str]:
        """What an offset says about the topic."""
        facts = self.facts()
        return {key_of(self.name): f"{MARK}{facts.id}"} if facts is not None else {}

    def change(self, offset: Mapping[str, str], fresh: bool = False) -> str | None:
        """What happened to the topic since this offset was written; None if it is still the same one."""
        before = offset.get(key_of(self.name))
        facts = self.facts(fresh)
        if before is None or (facts is not None and before == f"{MARK}{facts.id}"):
            return None
        was = before.removeprefix(MARK)
        if facts is None:
            return f"topic {self.name!r} was deleted (its ID was {was})"
        return f"topic {self.name!r} was deleted and made anew: its ID was {was}, it is {facts.id} now"

    def check_fields(self, names: tuple[bytes, ...]) -> None:
        """OptionError for columns of fields that no entry of a packed topic has."""
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
