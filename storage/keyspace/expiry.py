"""What ends by time: keys, groups, stages, and pending messages that are given up. Only a leader runs this; each end is
logged explicitly.

Rule 1: timers say when to look; the subject itself says whether its time has come.
Rule 2: keys and what producers added end in wall-clock time, everything else in served time (``keyspace``, Rule 6).
Rule 3: one run does a bounded amount of work, so a million keys that expire together don't stop the server.
"""

from __future__ import annotations

from typing import Final

from storage.keyspace import groupmutators, stagemutators
from storage.keyspace.deadletters import drop_overdue
from storage.keyspace.keyspace import Keyspace
from storage.model import timers
from storage.streams.stream import Stream

AT_ONCE: Final = 1000  # timers per run: some milliseconds


def run(ks: Keyspace, now: int) -> int:
    """End what is over at ``now`` (ms since epoch); returns the work done, in timers and messages.

    If that is at least AT_ONCE, there may be more.
    """
    seen, served = 0, ks.served(now)
    while seen < AT_ONCE:
        item = ks.timers.take(now, served)
        if item is None:
            break
        seen += 1
        seen += _end(ks, item, now, served)
    return seen


def _end(ks: Keyspace, item: timers.Item, now: int, served: int) -> int:
    """Look at the subject of a timer; returns the work done besides, in messages."""
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
    if kind == timers.PRODUCED:
        _forget_produced(ks, key, stream, now)
        return 0
    group = stream.groups.get(name)
    if group is None:
        return 0
    if kind == timers.PENDING_DROP:
        return drop_overdue(ks, key, stream, group, now)
    if not group.deadline or group.waiters:
        return 0  # no TTL, or a blocked reader keeps it alive: armed again when that reader leaves
    if group.deadline <= served:
        ks.expired_groups += 1
        groupmutators.end_group(ks, key, stream, name, b"tgroup-expired")
    else:
        ks.timers.arm(kind, key, name, group.deadline)
    return 0


def _forget_produced(ks: Keyspace, key: bytes, stream: Stream, now: int) -> None:
    if stream.producers is not None and stream.producers.by_name:
        ks.forget_produced(key, stream, now)
        if stream.producers.by_name:  # not again at each ID's end: what is over does no harm
            ks.timers.arm(timers.PRODUCED, key, b"", now + stream.idmp()[0])
