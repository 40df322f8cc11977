"""Expiry of keys, groups, stages, producers' IDs, and pending messages; checks of retention policies.

Only a leader runs it. Each expiry is logged.

Rule 1: a timer only determines when its subject is inspected. The subject's own deadline decides.
Rule 2: keys, entries, and the IDs of producers expire in wall-clock time, everything else in served time (Rule 6 of
``keyspace``).
Rule 3: one call does a bounded amount of work, so that a million keys that expire together do not block the server.
Rule 4: a subject that needs a damaged node is inspected again after RETRY_MS. By then, the node may be repaired, or not
be needed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from resp.errors import DamagedNodeError
from storage.keyspace import groupmutators, retaining, stagemutators
from storage.keyspace.deadletters import drop_overdue
from storage.keyspace.keyspace import Keyspace
from storage.model import timers
from storage.streams.stream import Stream

AT_ONCE: Final = 1000  # timers per call, which takes a few milliseconds
RETRY_MS: Final = 1000


def run(ks: Keyspace, now: int, damaged: Callable[[DamagedNodeError], object] | None = None) -> int:
    """Expire everything that is due at ``now`` (ms since epoch). Return the work done, in timers and messages.

    If the result is at least AT_ONCE, there may be more. ``damaged``: called for each damaged node that was met.
    """
    seen, served = 0, ks.served(now)
    while seen < AT_ONCE:
        item = ks.timers.take(now, served)
        if item is None:
            break
        seen += 1
        if ks.inert is not None and ks.park(item):
            continue
        try:
            seen += _expire(ks, item, now, served)
        except DamagedNodeError as error:
            kind, key, name = item
            ks.timers.arm(kind, key, name, (now if kind == timers.RETENTION else served) + RETRY_MS)
            if damaged is not None:
                damaged(error)
    retaining.check_later(ks, now)
    while seen < AT_ONCE and ks.unchecked:
        key = next(iter(ks.unchecked))
        seen += 1
        if ks.inert is not None and ks.park((timers.RETENTION, key, b"")):
            del ks.unchecked[key]
            ks.check_later.pop(key, None)
            continue
        try:
            seen += _retain(ks, key, now)
        except DamagedNodeError as error:
            ks.timers.arm(timers.RETENTION, key, b"", now + RETRY_MS)
            if damaged is not None:
                damaged(error)
    return seen


def _retain(ks: Keyspace, key: bytes, now: int) -> int:
    """Check the policy of the stream at a key. Return the work done."""
    del ks.unchecked[key]
    ks.check_later.pop(key, None)
    stream = ks.keys.get(key)
    return retaining.check(ks, key, stream, now) if isinstance(stream, Stream) else 0


def _expire(ks: Keyspace, item: timers.Item, now: int, served: int) -> int:
    """Inspect the subject of a timer. Return the number of messages that were removed."""
    kind, key, name = item
    if kind == timers.KEY_EXPIRY:
        at = ks.expire_at(key)
        if at and at <= now:
            ks.expire_key(key)
        elif at:
            ks.timers.arm(kind, key, b"", at)
        return 0
    if kind == timers.STAGE_EXPIRY:
        stage = stagemutators.live(ks, key, served)
        if stage is not None:
            ks.arm_stage(key, stage)
        return 0
    stream = ks.keys.get(key)
    if not isinstance(stream, Stream):
        return 0
    if kind in (timers.RETENTION, timers.PRODUCED):
        return retaining.check(ks, key, stream, now) if kind == timers.RETENTION else _forget(ks, key, stream, now)
    group = stream.groups.get(name)
    if group is None:
        return 0
    if kind == timers.PENDING_DROP:
        return drop_overdue(ks, key, stream, group, now)
    if not group.deadline or group.waiters:
        return 0  # no TTL, or a blocked reader; armed again when the reader leaves
    if group.deadline <= served:
        ks.expired_groups += 1
        groupmutators.end_group(ks, key, stream, name, b"tgroup-expired")
    else:
        ks.timers.arm(kind, key, name, group.deadline)
    return 0


def _forget(ks: Keyspace, key: bytes, stream: Stream, now: int) -> int:
    """Forget the IDs of producers that have expired. Return 0."""
    if stream.producers is not None and stream.producers.by_name:
        ks.forget_produced(key, stream, now)
        if stream.producers.by_name:  # not called for each ID, since expired IDs are harmless
            ks.timers.arm(timers.PRODUCED, key, b"", now + stream.idmp()[0])
    return 0
