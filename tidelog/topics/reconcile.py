"""A declaration and the facts on the server become one: written by the first program, compared by all others."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import documents
from tidelog.topics.settings import TopicSettings, key_of, read_settings


def known(name: str) -> Steps[TopicSettings | None]:
    """The facts of a topic, None if there is none. TopicError if they can't be read."""
    (text,) = checked((yield [strings.get(key_of(name))]))
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

    def edit(text: bytes | None) -> tuple[bytes | None, TopicSettings | None]:
        if text is None:
            return (None if wanted is None else wanted.written()), wanted
        found = read_settings(name, text)
        settings = agreed(name, found)
        return (text if settings is found else settings.written()), settings

    return (yield from documents.change(key_of(name), edit))
