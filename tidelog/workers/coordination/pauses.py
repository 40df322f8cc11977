"""What is held back, on the server: parked keys, paused partitions, halted processors.

    app:shop:parked:bill:3   {"<key>": {"id": "17.0", "error": "...", "time": 1700000000000}}
    app:shop:paused:bill     {"3": {"reason": "...", "time": ..., "worker": "..."}, "*": ...}    "*": all of it

JSON, changed by compare-and-set only, so that workers and administrators don't undo each other's changes. A document
without entries is deleted. Workers look at it when they take a partition, and again while something is held back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import documents
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.workers import logs

_unreadable: Final = UnreadableDocuments(logs.get(__name__))
ALL: Final = "*"  # in place of a partition: the whole processor is halted
Marks = dict[str, dict[str, Any]]


def parked_key(app: str, processor: str, partition: int) -> str:
    return f"app:{app}:parked:{processor}:{partition}"


def paused_key(app: str, processor: str) -> str:
    return f"app:{app}:paused:{processor}"


def shown_key(key: bytes) -> str:
    """A record's key as it is listed: UTF-8, other bytes escaped."""
    return key.decode("utf-8", "backslashreplace")


def read(key: str) -> Steps[Marks]:
    """What is held back; empty if nothing is."""
    (text,) = checked((yield [strings.get(key)]))
    return decoded(text, key)


def add(key: str, name: str, facts: Mapping[str, Any]) -> Steps[Marks]:
    """Hold ``name`` back, unless it is; returns all that are."""
    return (yield from _changed(key, lambda marks: {name: dict(facts)} | marks))


def remove(key: str, names: Iterable[str]) -> Steps[Marks]:
    """Resume these; returns what is still held back."""
    gone = set(names)
    return (yield from _changed(key, lambda marks: {name: marks[name] for name in marks if name not in gone}))


def _changed(key: str, change: Callable[[Marks], Marks]) -> Steps[Marks]:

    def edit(text: bytes | None) -> tuple[bytes | None, Marks]:
        marks = decoded(text, key)
        wanted = change(marks)
        if wanted == marks and (marks or text is None):
            return text, marks
        return (msgspec.json.encode(wanted) if wanted else None), wanted

    return documents.change(key, edit)


def decoded(text: bytes | None, key: str) -> Marks:
    """What a key of this module holds. What can't be decoded is reported, and holds nothing back."""
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=Marks)
    except (ValueError, RecursionError) as error:
        _unreadable.tell(key, error)
        return {}
