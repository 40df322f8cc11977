"""The members of an event that the operator ``batch`` composed, for sinks that write each member by itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from tidelog.flows.api.event import Event
from tidelog.flows.api.tokens import TokenGroup


class BatchMember(NamedTuple):
    """A value to write, and the event with its metadata."""

    value: Any
    event: Event
    own: bool  # the event is the value's own, so its ID identifies the value; not if the batch was changed


def members(event: Event) -> list[BatchMember] | None:
    """Return the members of a batch. None: the event is a single one; its value may still be a list."""
    token = event.token
    if not isinstance(event.value, list) or not (token is None or isinstance(token, TokenGroup)):
        return None
    origins = getattr(token, "origins", None)
    if origins is not None and len(origins) == len(event.value):
        return [BatchMember(value, each, own=True) for value, each in zip(event.value, origins, strict=True)]
    return [BatchMember(value, event, own=False) for value in event.value]
