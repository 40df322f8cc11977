"""An event of a dead letter with edited fields: is it a record of its topic, and which key does it have?

Rule 1: the key follows the edit. If the field of the partition key is edited, the record belongs to the partition of
        the new key; records of one key would otherwise be out of order. A key that was not taken from a field (a
        function, or an explicit key) stays.
Rule 2: an edit is checked against the settings of the topic, because a record that programs can't decode would become a
        dead letter again. Only what is edited is checked. Values in MessagePack or compressed ones can't be.
"""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import msgspec

from tidelog.topics.deadletters import DeadLetterRecord
from tidelog.topics.settings import TopicError, TopicSettings

DATA: Final = b"data"  # the field of a record that is not plain
Pairs = Sequence[tuple[bytes, bytes]]

_TYPES: Final[Mapping[str, Any]] = {
    "int": int, "float": float, "bool": bool, "datetime": datetime.datetime, "date": datetime.date,
    "time": datetime.time, "timedelta": datetime.timedelta, "uuid": uuid.UUID, "decimal": Decimal,
}  # fmt: skip


def edited(letter: DeadLetterRecord, pairs: Pairs, settings: TopicSettings | None) -> DeadLetterRecord:
    """Return the dead letter with these fields in its event. Raises TopicError if they are no record of the topic.

    ``settings``: of the topic; None: the event is from a stream that is not a partition, which has any fields.
    """
    if not pairs:
        raise TopicError("an event has at least one field")
    if any(not name for name, _ in pairs):
        raise TopicError("each field needs a name")
    key = letter.key
    if settings is not None:
        before = dict(letter.entry.pairs)
        names = [name for name, _ in pairs]
        for name, value in pairs:
            if names.count(name) > 1 and names.count(name) > letter.flat[::2].count(name):
                raise TopicError(f"the field {name.decode('utf-8', 'backslashreplace')!r} occurs more than once")
            if before.get(name) != value:
                _check(name, value, settings)
        if settings.codec != "plain" and DATA in before and DATA not in names:
            raise TopicError("the field 'data' contains the record and can't be removed")
        old, new = _key(before, settings), _key(dict(pairs), settings)
        if key and old == key and new is None:
            raise TopicError(f"the field {settings.partition_by!r} is the partition key and can't be removed")
        if key and old == key and new is not None:
            key = new
    return replace(letter, flat=tuple(word for pair in pairs for word in pair), key=key)


def _check(name: bytes, value: bytes, settings: TopicSettings) -> None:
    """Raise TopicError if the value can't be that of a field of the topic."""
    if settings.codec == "json" and name == DATA:
        try:
            record = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise TopicError(f"the field 'data' is not valid JSON: {error}") from None
        if not isinstance(record, dict):
            raise TopicError("the field 'data' must be a JSON object")
        return
    kind = settings.fields.get(name.decode("utf-8", "replace"), "")
    if settings.codec != "plain" or kind in ("", "bytes"):
        return
    try:
        text = value.decode()
        if kind in _TYPES:
            msgspec.convert(text, _TYPES[kind], strict=False)
    except (ValueError, msgspec.ValidationError):  # UnicodeDecodeError is a ValueError
        raise TopicError(
            f"the field {name.decode('utf-8', 'backslashreplace')!r} must be {kind}, as the topic declares"
        ) from None


def _key(fields: Mapping[bytes, bytes], settings: TopicSettings) -> bytes | None:
    """Return the partition key in the fields of a record, None if it is not in them."""
    name = settings.partition_by
    if name is None:
        return None
    if settings.codec == "plain":
        return fields.get(name.encode())
    if settings.codec != "json" or DATA not in fields:
        return None
    try:
        value = json.loads(fields[DATA]).get(name)
    except (ValueError, AttributeError, RecursionError):
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace")
    return b"%d" % value if isinstance(value, int) and not isinstance(value, bool) else None
