"""The topic, the key and the headers of a message, from templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.connectors.templates import Template

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")  # the rule of Kafka's brokers, which refuse all others
NO_TOPIC: Final = "can't be a topic: use at most 249 letters, digits, '.', '_', and '-'"


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


class MessageTarget(NamedTuple):
    """Where a message goes, and what is sent with it."""

    topic: str
    key: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class TargetTemplates:
    """The templates of a sink. Raises ValueError if one is not valid."""

    def __init__(self, topic: str, key: str | None, headers: Mapping[str, str]) -> None:
        self._topic = Template(topic)
        self._key = None if key is None else Template(key)
        self._headers = [(name, Template(text)) for name, text in headers.items()]

    def of(self, event: Event) -> MessageTarget:
        """Return the target of an event. Raises RejectError if a value is missing, or the topic can't exist."""
        topic = self._topic.fill(event)
        if self._topic.fixed is None and not is_topic(topic):
            raise RejectError(f"{self._topic.text!r}: {topic!r:.260} {NO_TOPIC}")
        key = None if self._key is None else self._key.fill(event).encode()
        return MessageTarget(topic, key, tuple((name, each.fill(event).encode()) for name, each in self._headers))
