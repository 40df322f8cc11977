"""Messages for destinations that are named by templates, such as keys, channels and topics."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from tidelog.flows.api.connector import Outcome
from tidelog.flows.api.errors import RejectError
from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import OK, REJECT
from tidelog.flows.connectors.payload import PayloadWriter
from tidelog.flows.connectors.templates import Template, filled_name

K = TypeVar("K", bound=Hashable)


def by_name(template: Template) -> Callable[[Event], str]:
    """Return a function that returns the name for an event. It raises RejectError if the event has none."""
    fixed = template.fixed
    if fixed:
        return lambda event: fixed  # noqa: ARG005 - all of these functions have an argument
    return lambda event: filled_name(template, event)


def named_messages(
    writer: PayloadWriter, name: Callable[[Event], K], events: Sequence[Event]
) -> tuple[list[tuple[K, list[int], bytes]], list[Outcome]]:
    """Encode events like ``PayloadWriter.messages``, separately for each destination.

    Returns ((name, indexes of its events, message) of each message, outcomes). The messages of a name are in order. An
    event is rejected if ``name`` raises RejectError for it.
    """
    groups: dict[K, list[int]] = {}
    outcomes: list[Outcome] = [OK] * len(events)
    for at, event in enumerate(events):
        try:
            groups.setdefault(name(event), []).append(at)
        except RejectError as error:
            outcomes[at] = (REJECT, str(error))
    messages: list[tuple[K, list[int], bytes]] = []
    for key, places in groups.items():
        try:
            found, results = writer.messages([events[at] for at in places])
        except RejectError as error:
            if len(groups) == 1 and len(places) == len(events):
                raise
            found, results = [], [(REJECT, str(error))] * len(places)
        for at, result in zip(places, results, strict=True):
            outcomes[at] = result
        messages += [(key, [places[index] for index in indexes], message) for indexes, message in found]
    return messages, outcomes
