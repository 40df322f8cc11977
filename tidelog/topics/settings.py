"""The settings of a topic, stored on the server as JSON in the string ``topic:<name>``.

    {"version": 1, "partitions": 16, "hash": "crc32", "partition_by": "id", "codec": "plain",
     "fields": {"id": "int", "city": "str"}, "servers": null, "id": "5f0c...",
     "retention": {"partition_size": 50000, "max_age_ms": null, "overflow": "protect", "hard_limit": null,
                   "tier_after": null}}

The first program that declares the topic writes them. From then on they are authoritative: a program with a different
declaration is refused before it sends or reads, since another number of partitions would silently break the order of
keys.

Rule 1: an option that a declaration omits (None) agrees with any value.
Rule 2: a field that a declaration adds is added to the settings. A different type is refused (``typechanges``).
Rule 3: ``partition_by`` is the name of a field, "(function)" for a function, whose result can't be compared, or null
        for a topic without keys.
Rule 4: ``servers`` is null: all partitions are on the server with the settings. It is reserved for other locations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

from tidelog.options.units import Duration, Size, excerpt
from tidelog.topics.partition import HASH
from tidelog.topics.typechanges import remedy

VERSION: Final = 1
PREFIX: Final = "topic:"  # of the keys of settings
MOST_BYTES: Final = (1 << 62) - 1  # of ``tier_after``
PARTITIONS: Final = 16  # of a new topic whose declaration does not specify it
MOST: Final = 100_000  # partitions
FUNCTION: Final = "(function)"  # ``partition_by`` of a topic whose keys are computed by a function
_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f*?\[\]\\^]{1,200}")
#: Prefixes of names, up to a colon: with these, keys of partitions could be those of settings or of apps.
_RESERVED: Final = ("topic", "app")

_TIER: Final = re.compile(r"(AGE|BYTES) \d{1,19}|DEFAULT", re.ASCII)
#: The fields of the retention, and the options of ``tidelog topics alter`` for them.
_RETENTION: Final = {
    "partition_size": "--partition-size", "max_age_ms": "--max-age", "overflow": "--overflow",
    "hard_limit": "--hard-limit", "tier_after": "--tier-after",
}  # fmt: skip

Overflow = Literal["protect", "drop"]


class TopicError(ValueError):
    """An invalid declaration, or an operation on a topic that is not possible. The text gives the reason."""


class TopicMismatchError(TopicError):
    """A declaration differs from the topic on the server. ``differences``: (name, value on the server, value here).

    ``remedies``: commands that change the topic, as alternatives to changing the declaration.
    """

    def __init__(
        self, name: str, differences: list[tuple[str, object, object]], remedies: Sequence[str] = ()
    ) -> None:  # fmt: skip
        listed = "; ".join(f"{what} is {there!r} on the server, {here!r} here" for what, there, here in differences)
        ways = "".join(f"; or: {remedy}" for remedy in remedies)
        super().__init__(f"topic {name!r}: {listed}. Declare what the server has: tidelog topics show {name}{ways}")
        self.name = name
        self.differences = differences
        self.remedies = tuple(remedies)

    def __reduce__(self) -> tuple[type[TopicMismatchError], tuple[Any, ...]]:
        return TopicMismatchError, (self.name, self.differences, self.remedies)


@dataclass(frozen=True)
class Retention:
    """How much of a partition is retained. None: not specified, or no limit."""

    partition_size: int | None = None  # entries
    max_age_ms: int | None = None
    overflow: Overflow | None = None  # None: not specified, which means "protect"
    hard_limit: int | None = None  # entries of a partition at which sending raises TopicFullError
    tier_after: str | None = None  # the words of TCFG TIER, such as "AGE 3600000"; see ``tier_words``

    def __post_init__(self) -> None:
        for name in ("partition_size", "max_age_ms", "hard_limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise TopicError(f"{name} must be a whole number from 1: {value!r}")
        if self.tier_after is not None and not _TIER.fullmatch(self.tier_after):
            raise TopicError(f"tier_after must be words of TCFG TIER, such as 'AGE 3600000': {self.tier_after!r}")
        if self.overflow not in (None, "protect", "drop"):
            raise TopicError(f"overflow must be 'protect' or 'drop': {self.overflow!r}")
        if self.overflow == "drop" and self.partition_size is None and self.max_age_ms is None:
            raise TopicError("overflow='drop' needs partition_size or max_age: what is to be dropped?")
        if self.overflow == "drop" and self.hard_limit is not None:
            raise TopicError("hard_limit is for overflow='protect': with 'drop' no partition grows beyond its size")
        if self.hard_limit is not None and self.partition_size is not None and self.hard_limit < self.partition_size:
            raise TopicError(f"hard_limit ({self.hard_limit}) is below partition_size ({self.partition_size})")

    @property
    def limited(self) -> bool:
        """Whether anything is evicted."""
        return self.partition_size is not None or self.max_age_ms is not None

    @property
    def drops(self) -> bool:
        """Whether entries are evicted that groups have not finished."""
        return self.overflow == "drop"


@dataclass(frozen=True)
class TopicSettings:
    """The settings of a topic. In a declaration, ``partitions`` may be None: the number on the server."""

    partitions: int | None
    partition_by: str | None
    codec: str
    fields: Mapping[str, str] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)
    hash: str = HASH
    servers: None = None
    letters_of: tuple[str, ...] = ()  # of a dead-letter queue: the topics and streams it serves (``deadletters.home``)
    id: str = ""  # differs from the ID of a later topic with the same name; empty in a declaration
    version: int = VERSION

    def written(self) -> bytes:
        """Return the settings as JSON."""
        return msgspec.json.encode(self)

    def complete(self) -> TopicSettings:
        """Return the settings of a new topic: with a number of partitions and an ID."""
        return replace(self, partitions=self.partitions or PARTITIONS, id=uuid4().hex[:12])

    def agreed(self, name: str, there: TopicSettings) -> TopicSettings:
        """Return the settings on the server, plus the fields that this declaration adds.

        Raises TopicMismatchError if they differ.
        """
        ours: dict[str, Any] = {
            "hash": self.hash, "partitions": self.partitions, "partition_by": self.partition_by, "codec": self.codec,
        }  # fmt: skip
        differences: list[tuple[str, object, object]] = [
            (what, getattr(there, what), value)
            for what, value in ours.items()
            if value != getattr(there, what) and not (what == "partitions" and value is None)
        ]
        for what in _RETENTION:
            value = getattr(self.retention, what)
            known = getattr(there.retention, what)
            if value is not None and value != known and not (what == "overflow" and value == "protect" and not known):
                differences.append((what, known, value))
        differences += [
            (f"the type of the field {field!r}", there.fields[field], kind)
            for field, kind in self.fields.items()
            if there.fields.get(field, kind) != kind
        ]
        if differences:
            raise TopicMismatchError(name, differences, self._remedies(name, there, differences))
        if self.fields.keys() <= there.fields.keys():
            return there
        return replace(there, fields={**there.fields, **self.fields})

    def _remedies(
        self, name: str, there: TopicSettings, differences: Sequence[tuple[str, object, object]]
    ) -> list[str]:
        """Return the commands that would change the topic to match this declaration."""
        found = []
        names = {what for what, _, _ in differences}
        if names & _RETENTION.keys():
            given = {what: value for what, _, value in differences if what in _RETENTION}
            if isinstance(age := given.get("max_age_ms"), int):
                given["max_age_ms"] = age / 1000
            if isinstance(after := given.get("tier_after"), str):
                given["tier_after"] = tier_option(after)
            options = " ".join(f"{_RETENTION[what]} {value}" for what, value in given.items())
            found.append(f"tidelog topics alter {name} {options}")
        if "partitions" in names and self.partitions and there.partitions and self.partitions > there.partitions:
            found.append(f"tidelog topics grow {name} {self.partitions}, if that is a multiple")
        if names & {"hash", "partition_by", "codec"}:
            found.append("a topic of another name: what is stored was written by these")
        found += [
            remedy(name, there.codec, field, there.fields[field], kind, field == there.partition_by)
            for field, kind in self.fields.items()
            if there.fields.get(field, kind) != kind
        ]
        return found


def tier_words(title: str, after: timedelta | float | str | None) -> str | None:
    """Return ``tier_after`` of a topic as the words of TCFG TIER; None: not specified.

    ``after``: an age (seconds, a timedelta, or text such as ``7d``), a size (text such as ``1GB``), or ``default``.
    Raises TopicError.
    """
    if after is None:
        return None
    if isinstance(after, str) and after.strip().lower() == "default":
        return "DEFAULT"
    if isinstance(after, timedelta):
        after = after.total_seconds()
    with suppress(ValueError):
        seconds = float(after) if isinstance(after, str) and after.strip().isdecimal() else after
        return f"AGE {round(1000 * Duration.read(seconds))}"
    with suppress(ValueError):
        if isinstance(after, str) and (size := Size.read(after)) <= MOST_BYTES:
            return f"BYTES {size:d}"
    raise TopicError(
        f"{title}: tier_after is an age (seconds, a timedelta, or text such as '7d'), a size such as '1GB', or"
        f" 'default': {excerpt(after)}"
    )


def tier_option(words: str) -> str:
    """Return the words of TCFG TIER as the option ``--tier-after``."""
    kind, _, number = words.partition(" ")
    return {"AGE": f"{number}ms", "BYTES": f"{number}b"}.get(kind, "default")


def check_name(name: object) -> None:
    """Raise TopicError if the name can't be that of a topic."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.partition(":")[0] in _RESERVED:
        raise TopicError(
            f"topic {name!r}: a name has 1 to 200 characters, no spaces, none of *?[]^\\, and is not 'topic' or 'app',"
            " nor begins with them and a colon"
        )


def check_partitions(name: str, number: object) -> None:
    """Raise TopicError if the number of partitions is invalid. None: not specified."""
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MOST):
        raise TopicError(f"topic {name!r}: partitions must be a whole number from 1 to {MOST:,}: {number!r}")


def key_of(name: str) -> str:
    """Return the key of a topic's settings."""
    return f"{PREFIX}{name}"


def read_settings(name: str, text: bytes) -> TopicSettings:
    """Decode settings. Raises TopicError if they are invalid or come from a newer version."""
    try:
        version = msgspec.json.decode(text)["version"]
        if version == VERSION:
            found = msgspec.json.decode(text, type=TopicSettings)
            check_partitions(name, found.partitions)
            return found
    except TopicError:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise TopicError(f"the key {key_of(name)!r} does not have the settings of a topic: {error}") from None
    raise TopicError(
        f"topic {name!r} has settings of version {version!r}, this program supports {VERSION}: it is too old"
    )
