"""The mutators of delayed entries: the effects of TDELAY, and of the server when an entry is due.

As in ``keyspace``, each mutator applies one effect and logs its record, and replay calls the same mutators.

Rule 1: JOIN removes entries from the companion and appends them to their stream, in one record. An entry is therefore
always in exactly one of them.
Rule 2: records contain the entries that they remove, so that replay reads no node of the companion.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from storage.keyspace.keyspace import Keyspace
from storage.model import records, timers
from storage.streams.delayed import OWN, WALL, DelayedEntries, StoredDelay
from storage.streams.stream import Stream

TOKENS: Final = b""  # the producer whose IDs are the tokens of delivered entries; clients can't use this name


def companion(ks: Keyspace, key: bytes) -> DelayedEntries:
    """Return the delayed entries of a key, which must be a stream. Creates the companion if there is none."""
    found = ks.delayed.get(key)
    if found is None:
        found = ks.delayed[key] = DelayedEntries(Stream(ks.next_sid, ks.pool))
        ks.next_sid += 1
    return found


def delay(
    ks: Keyspace, key: bytes, stream: Stream, delayed: DelayedEntries, ms: int, seq: int, wire: bytes,
    found: StoredDelay,
) -> None:  # fmt: skip
    """Add a delayed entry. ``ms``, ``seq``, ``wire``: of the companion. ``found``: the parts of ``wire``."""
    ks.before(key)
    if not (stream.next_ord or stream.lone):
        stream.lone = True  # the key remains, even without groups and if the entry is cancelled
        ks.changes.stream(key, stream)
    delayed.add(ms, seq, wire, found)
    ks.delayed_count += 1
    ks.due.arm(timers.DUE_WALL if found.flags & WALL else timers.DUE_SERVED, key, b"", found.due)
    ks.delayed_logged(key, delayed, records.delay(key, ms, seq, wire))


def cancel(ks: Keyspace, key: bytes, delayed: DelayedEntries, ordinal: int, wire: bytes, found: StoredDelay) -> None:
    """Remove a delayed entry. ``wire``: of the companion; ``found``: its parts."""
    ks.before(key)
    delayed.remove([ordinal], [found])
    ks.delayed_count -= 1
    ks.delayed_logged(key, delayed, records.cancel(key, ordinal, wire))


def join(
    ks: Keyspace, key: bytes, stream: Stream, delayed: DelayedEntries, first: tuple[int, int], now: int, keep_ms: int,
    most: int, ordinals: Sequence[int], wires: Sequence[bytes], found: Sequence[StoredDelay],
) -> None:  # fmt: skip
    """Append delayed entries to their stream with the IDs from ``first`` on: (ms, seq).

    ``ordinals``, ``wires``: of the companion; ``found``: their parts. Tokens that clients chose are remembered at
    ``now`` for ``keep_ms``, at most ``most`` of them.
    """
    ks.before(key)
    ms, seq = first
    entries = [one.wire(ms, seq + number) for number, one in enumerate(found)]
    stream.append_packed(ms, seq, array("I", map(len, entries)), b"".join(entries))  # first, since it can fail
    delayed.remove(ordinals, found)
    ks.delayed_count -= len(found)
    ks.delivered_entries += len(found)
    chosen = [(number, one.token) for number, one in enumerate(found) if one.flags & OWN]
    for number, token in chosen:
        stream.own_producers().add(TOKENS, token, ms << 64 | (seq + number), now, keep_ms, most)
    if chosen:
        ks.timers.arm(timers.PRODUCED, key, b"", now + keep_ms)
    ks.changes.count += len(found) - 1
    ks.delayed_logged(key, delayed, records.join(key, ms, seq, now, keep_ms, most, ordinals, wires))
    ks.appended(key, stream)
