"""Reconciles a declaration with the settings on the server: the first program writes them, all others compare them."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import documents
from tidelog.topics.balancing import balance
from tidelog.topics.settings import TopicSettings, key_of, read_settings


def known(name: str) -> Steps[TopicSettings | None]:
    """Return the settings of a topic, None if there is none. Raises TopicError if they are invalid."""
    (text,) = checked((yield [strings.get(key_of(name))]))
    return None if text is None else read_settings(name, text)


def agree(name: str, declared: TopicSettings) -> Steps[TopicSettings]:
    """Return the settings of a topic. They are written if there are none. Raises TopicMismatchError if they differ.

    In a cluster, the program that has written them distributes the partitions over the groups before it sends anything.
    """
    wanted = declared.complete()
    settings = yield from compare(name, declared.agreed, wanted)
    if settings is wanted:
        yield from balance(name, wanted.partitions or 0)
    return settings or wanted


def compare(
    name: str, agreed: Callable[[str, TopicSettings], TopicSettings], wanted: TopicSettings | None
) -> Steps[TopicSettings | None]:
    """Replace the settings on the server by the result of ``agreed``, and return it.

    If there are none, ``wanted`` is written and returned; nothing is written if it is None.
    """

    def edit(text: bytes | None) -> tuple[bytes | None, TopicSettings | None]:
        if text is None:
            return (None if wanted is None else wanted.written()), wanted
        found = read_settings(name, text)
        settings = agreed(name, found)
        return (text if settings is found else settings.written()), settings

    return (yield from documents.change(key_of(name), edit))
