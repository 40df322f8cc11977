"""The parked keys, paused partitions and halted processors, as stored on the server.

    app:shop:parked:bill:3   {"<key>": {"id": "17.0", "error": "...", "time": 1700000000000}}
                             in a cluster, app:shop:parked:bill:{orders:3}, in the slot of the partition
    app:shop:paused:bill     {"3": {"reason": "...", "time": ..., "worker": "..."}, "*": ...}    "*": all of it

The values are JSON and are changed only by compare-and-set, so that workers and administrators don't undo each other's
changes. A document without entries is deleted. Workers read the documents when they take a partition, and periodically
while something is paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination import documents
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.slots import hash_tag
from tidelog.workers import logs

_unreadable: Final = UnreadableDocuments(logs.get(__name__))
ALL: Final = "*"  # instead of a partition: the whole processor is halted
PauseEntries = dict[str, dict[str, Any]]


def parked_key(app: str, processor: str, partition: int, tag: str = "") -> str:
    """Return the key of the parked keys of a partition. ``tag``: in a cluster, the hash tag of its stream."""
    return f"app:{app}:parked:{processor}:{tag or partition}"


def parked_keys(app: str, processor: str, partition: int, stream: str) -> tuple[str, str]:
    """Return the keys outside of a cluster and in a cluster, for tools that don't know where the workers run."""
    return parked_key(app, processor, partition), parked_key(app, processor, partition, hash_tag(stream))


def paused_key(app: str, processor: str) -> str:
    return f"app:{app}:paused:{processor}"


def shown_key(key: bytes) -> str:
    """Return a record's key as it is stored: UTF-8, with other bytes escaped."""
    return key.decode("utf-8", "backslashreplace")


def read(key: str) -> Steps[PauseEntries]:
    """Return what is paused or parked; empty if nothing is."""
    (text,) = checked((yield [strings.get(key)]))
    return decoded(text, key)


def add(key: str, name: str, details: Mapping[str, Any]) -> Steps[PauseEntries]:
    """Add ``name`` unless it is present; returns all entries."""
    return (yield from _changed(key, lambda entries: {name: dict(details)} | entries))


def remove(key: str, names: Iterable[str]) -> Steps[PauseEntries]:
    """Remove these entries; returns the remaining ones."""
    gone = set(names)
    return (yield from _changed(key, lambda entries: {name: entries[name] for name in entries if name not in gone}))


def move(source: str, target: str) -> Steps[None]:
    """Move all entries to another key. It can be repeated."""
    entries = yield from read(source)
    if entries:
        yield from _changed(target, lambda there: entries | there)
        yield from remove(source, entries)


def _changed(key: str, change: Callable[[PauseEntries], PauseEntries]) -> Steps[PauseEntries]:

    def edit(text: bytes | None) -> tuple[bytes | None, PauseEntries]:
        entries = decoded(text, key)
        wanted = change(entries)
        if wanted == entries and (entries or text is None):
            return text, entries
        return (msgspec.json.encode(wanted) if wanted else None), wanted

    return documents.change(key, edit)


def decoded(text: bytes | None, key: str) -> PauseEntries:
    """Decode the value of a key of this module. An invalid value is logged and treated as empty."""
    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=PauseEntries)
    except (ValueError, RecursionError) as error:
        _unreadable.report(key, error)
        return {}
