"""Start and end positions in the options. offsets.py converts them to IDs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tidelog.client.entries import StreamId
from tidelog.spark.optionvalues import OptionError, OptionValues
from tidelog.topics.settings import TopicError, check_name

NO_ID: Final = StreamId(0, 0)
TOPIC: Final = "topic"
SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign", TOPIC)
STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")


@dataclass(frozen=True)
class Position:
    """A position in a stream as an option names it."""

    kind: Literal["earliest", "latest", "id", "time"]
    id: StreamId = NO_ID  # for kind "id"; for kind "time", the first ID of that millisecond
    text: str = field(default="", compare=False)  # for kind "id": the text in the option


EARLIEST: Final = Position("earliest")
LATEST: Final = Position("latest")


@dataclass(frozen=True)
class Positions:
    """Start or end positions: one position for all keys, or one for each key."""

    option: str  # the option that contains them, for messages
    everywhere: Position | None
    by_key: Mapping[str, Position] = field(default_factory=dict)

    def named(self, key: str) -> Position | None:
        """Return the position for this key; None if the option does not name it."""
        return self.everywhere or self.by_key.get(key)


def places_of(given: OptionValues, names: tuple[str, ...], default: Position, refused: Position | None) -> Positions:
    name = given.at_most_one(names)
    if name is None:
        return Positions(names[-1], default)
    text = given.filled(name) or ""
    if name in ("startingTimestamp", "endingTimestamp"):
        return Positions(name, Position("time", StreamId(given.needed(name))))
    by_time = name.endswith("ByTimestamp")
    if not by_time and text.strip().lower() in ("earliest", "latest"):
        where = Position(text.strip().lower())  # type: ignore[arg-type]  # one of the two, as just checked
        if where == refused:
            raise OptionError(f"{name} can't be {where.kind}: there would be nothing to read")
        return Positions(name, where)
    read = _time if by_time else _place
    places = {key: read(name, key, value) for key, value in _object(name, text).items()}
    if not places:
        raise OptionError(f"{name} names no key")
    for key, where in places.items():
        if where == refused:
            raise OptionError(f"{name} can't be {where.kind}, as it is for key {key!r}: there would be nothing to read")
    return Positions(name, None, places)


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        what = "JSON" if name.endswith("ByTimestamp") else "earliest, latest or JSON"
        raise OptionError(f'{name} must be {what} such as {{"key": ...}}: {text!r} ({error})') from None
    if not isinstance(value, dict):
        raise OptionError(f'{name} must be a JSON object such as {{"key": ...}}: {text!r}')
    return value


def _place(name: str, key: str, value: object) -> Position:
    """Parse ``earliest``, ``latest``, an ID as text, milliseconds as a number, or Kafka's -2 and -1."""
    known = {"earliest": EARLIEST, "latest": LATEST, -2: EARLIEST, -1: LATEST}
    if isinstance(value, str | int) and not isinstance(value, bool):
        where = known.get(value)
        if where is not None:
            return where
        try:
            return Position("id", StreamId.parse(str(value)), str(value))
        except ValueError:
            pass
    raise OptionError(f"{name} for key {key!r} must be earliest, latest or an ID (ms.seq): {value!r}")


def _time(name: str, key: str, value: object) -> Position:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise OptionError(f"{name} for key {key!r} must be milliseconds since 1970: {value!r}")
    return Position("time", StreamId(value))


@dataclass(frozen=True)
class Subscription:
    """The keys to read: named keys, keys that match a pattern, or the partitions of a topic."""

    option: str
    keys: tuple[str, ...] = ()
    pattern: str = ""
    topic: str = ""


def subscription_of(given: OptionValues) -> Subscription:
    name = given.at_most_one(SUBSCRIPTIONS)
    if name is None:
        raise OptionError(f"one of {', '.join(SUBSCRIPTIONS)} must say what to read")
    text = given.filled(name) or ""
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern is no regular expression: {text!r} ({error})") from None
        return Subscription(name, pattern=text)
    if name == TOPIC:
        try:
            check_name(text)
        except TopicError as error:
            raise OptionError(str(error)) from None
        return Subscription(name, topic=text)
    keys = _assigned(text) if name == "assign" else [key.strip() for key in text.split(",")]
    if not keys or not all(keys):
        raise OptionError(f"{name} has an empty key: {text!r}")
    if len(set(keys)) < len(keys):
        raise OptionError(f"{name} names a key twice: {text!r}")
    return Subscription(name, tuple(keys))


def _assigned(text: str) -> list[str]:
    """Parse a JSON array of keys, or an object as in Kafka, with 0 as the only partition of a stream."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(f'assign must be JSON such as ["key"]: {text!r} ({error})') from None
    if isinstance(value, dict) and all(partitions == [0] for partitions in value.values()):
        value = list(value)
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise OptionError(f'assign must be a JSON array of keys, or {{"key": [0]}}: {text!r}')
    return value
