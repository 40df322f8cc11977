"""Operations on many keys. They do the same as the keyspace's methods for each key, in a fraction of the time.

Rule 1: a statement that can handle all keys is not executed once per key.
Rule 2: if a key needs more than a change of its string, the keyspace's methods are called for each key.
"""

from __future__ import annotations

from typing import Final

from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.values import String, Value
from storage.model import records
from storage.streams.stream import Stream

FEW: Final = 8  # keys; up to this number, separate calls are as fast


def peek_many(ks: Keyspace, keys: list[bytes], now: int) -> list[Value | None]:
    """Return the result of peek() for each key."""
    over: list[bytes] = []
    if ks.expires:
        deadlines = ks.expires
        over = [key for key in keys if key in deadlines and deadlines[key] <= now]
        if not (ks.follower or ks.frozen):
            for key in over:
                if key in deadlines:  # unless the key occurs twice
                    ks.expire_key(key)
            over = []
    found = list(map(ks.keys.get, keys))
    if over:
        hidden = set(over)
        found = [None if key in hidden else value for key, value in zip(keys, found, strict=True)]
    missing = found.count(None)
    if missing and ks.event_classes:
        for key, value in zip(keys, found, strict=True):
            if value is None:
                ks.notify(events.MISS, b"keymiss", key)
    ks.misses += missing
    ks.hits += len(found) - missing
    return found


def read_many(ks: Keyspace, keys: list[bytes], now: int) -> list[Value | None]:
    """Return the result of read() for each key."""
    found = peek_many(ks, keys, now)
    if not ks.no_touch:
        for value in found:
            if value is not None:
                value.used = now
    return found


def set_strings(ks: Keyspace, keys: list[bytes], values: list[bytes], now: int) -> None:
    """Set each key to its value, without expiry. Counts as use at ``now``."""
    old = _plain(ks, keys)
    if old is None:
        for key, value in zip(keys, values, strict=True):
            ks.set_string(key, value)
            ks.keys[key].used = now
        return
    new = keys if not old else [key for key in keys if key not in old]
    ks.string_bytes += sum(map(len, values)) + sum(map(len, new))
    if old:
        for string in old.values():
            ks.string_bytes -= len(string.value)
        if new:
            values_of = dict(zip(keys, values, strict=True))
            new_values, values_old = [values_of[key] for key in new], [values_of[key] for key in old]
        else:
            new_values, values_old = [], values
        for string, value in zip(old.values(), values_old, strict=True):
            string.value = value
            string.used = now
    else:
        new_values = values
    ks.keys.update(zip(new, [String(value, now) for value in new_values], strict=True))
    ks.index.add_many(new)
    ks.changes.strings.update(keys)
    ks.changes.count += len(keys)
    ks.log += records.set_strings(keys, values)


def _plain(ks: Keyspace, keys: list[bytes]) -> dict[bytes, String] | None:
    """Return the strings of the keys that exist; None if the keys must be changed one by one.

    The latter applies if a key is a stream, has an expiry, or occurs twice, or if clients must be notified of changes.
    """
    if len(keys) < FEW or ks.changes.held or ks.waiting or ks.watchers or ks.tracked or ks.event_classes:
        return None
    if ks.expires and not ks.expires.keys().isdisjoint(keys):
        return None
    found = list(map(ks.keys.get, keys))
    kinds = set(map(type, found))
    if Stream in kinds:
        return None
    held: dict[bytes, String] = {}
    if String in kinds:
        held = {key: value for key, value in zip(keys, found, strict=True) if isinstance(value, String)}
    if len(kinds) == 1 and held:
        return held if len(held) == len(keys) else None
    return held if len(set(keys)) == len(keys) else None


def delete_many(ks: Keyspace, keys: list[bytes], now: int) -> int:
    """Delete each key. Return the number of keys that existed."""
    held = _plain(ks, keys)
    if held is None:
        return sum([ks.delete(key, now) for key in keys])
    gone = list(held)
    for key in gone:
        del ks.keys[key]
    ks.index.remove_many(gone)
    ks.string_bytes -= sum(map(len, gone)) + sum([len(value.value) for value in held.values()])
    ks.changes.strings.update(gone)
    ks.changes.count += len(gone)
    ks.log += records.deletes(gone)
    return len(gone)
