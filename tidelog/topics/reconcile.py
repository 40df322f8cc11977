"""A declaration and the facts on the server become one: written by the first program, compared by all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.client.steps import Steps, checked
from tidelog.topics.settings import TopicSettings, key_of, read_settings
from tidelog.transport.call import Call


def known(name: str) -> Steps[TopicSettings | None]:
    """The facts of a topic, None if there is none. TopicError if they can't be read."""
    (text,) = checked((yield [Call(("GET", key_of(name)), _itself)]))
    return None if text is None else read_settings(name, text)


def agree(name: str, declared: TopicSettings) -> Steps[TopicSettings]:
    """The facts of a topic, which are written if there is none. TopicMismatchError if they are not as declared."""
    wanted = declared.complete()
    facts = yield from compare(name, declared.agreed, wanted)
    return facts or wanted


def compare(
    name: str, agreed: Callable[[str, TopicSettings], TopicSettings], wanted: TopicSettings | None
) -> Steps[TopicSettings | None]:
    """What ``agreed`` makes of the facts on the server, which are changed to that.

    If there are none: ``wanted`` is written and returned; None if it is None. What ``agreed`` raises is raised.
    """
    key = key_of(name)
    ask: Call[Any] = Call(("GET", key), _itself)
    if wanted is not None:
        ask = Call(("SET", key, wanted.written(), "NX", "GET"), _itself)
    while True:
        (there,) = checked((yield [ask]))
        if there is None:
            return wanted
        found = read_settings(name, there)
        facts = agreed(name, found)
        if facts is found:
            return facts
        (swapped,) = checked((yield [Call(("SET", key, facts.written(), "IFEQ", there), _itself)]))
        if swapped is not None:
            return facts


def _itself(reply: Any) -> Any:
    return reply
