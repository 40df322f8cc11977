"""What ends by time: keys, groups, stages, and pending messages that are given up. Only a leader runs this; each end is
logged explicitly.

Rule 1: timers say when to look; the subject itself says whether its time has come.
Rule 2: one run does a bounded amount of work, so a million keys that expire together don't stop the server.
"""

from __future__ import annotations

from typing import Final

from storage import timers
from storage.groups import effects
from storage.groups.overdue import drop_overdue
from storage.keyspace import Keyspace
from storage.stages import publish
from storage.stream import Stream

AT_ONCE: Final = 1000  # timers per run: some milliseconds


def run(ks: Keyspace, now: int) -> int:
    """End what is over at ``now`` (ms since epoch); returns the work done, in timers and messages.

    If that is at least AT_ONCE, there may be more.
    """
    seen = 0
    while seen < AT_ONCE:
        item = ks.timers.take(now)
        if item is None:
            break
        seen += 1
        kind, key, name = item
        if kind == timers.KEY_EXPIRY:
            at = ks.expire_at(key)
            if at and at <= now:
                ks.expire_key(key)
            elif at:
                ks.timers.arm(kind, key, b"", at)
            continue
        if kind == timers.STAGE_EXPIRY:
            stage = publish.live(ks, key, now)
            if stage is not None:
                ks.arm_stage(key, stage)
            continue
        stream = ks.keys.get(key)
        group = stream.groups.get(name) if isinstance(stream, Stream) else None
        if not isinstance(stream, Stream) or group is None:
            continue
        if kind == timers.PENDING_DROP:
            seen += drop_overdue(ks, key, stream, group, now)
        elif not group.deadline or group.waiters:
            continue  # no TTL, or a blocked reader keeps it alive: armed again when that reader leaves
        elif group.deadline <= now:
            ks.expired_groups += 1
            effects.end_group(ks, key, stream, name)
        else:
            ks.timers.arm(kind, key, name, group.deadline)
    return seen
