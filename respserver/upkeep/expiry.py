"""What ends by time: keys, groups, stages, and pending messages that are given up. Only a leader runs this; it logs
explicit ends.

Rule 1: the agenda says when to look; the thing itself says whether its time has come. Rule 2: one run does a bounded
amount of work, so a million keys that expire together don't stop the server.
"""

from __future__ import annotations

from commands.streams.groups import end_group
from commands.streams.read import drop_overdue
from storage import timers
from storage.keyspace import Keyspace
from storage.stages import publish
from storage.stream import Stream

AT_ONCE = 2000  # items a run


def run(ks: Keyspace, now: int) -> int:
    """End what is over at ``now`` (ms since epoch); returns how many items were looked at."""
    seen = 0
    while seen < AT_ONCE:
        item = ks.agenda.take(now)
        if item is None:
            break
        seen += 1
        kind, key, name = item
        if kind == timers.KEY_EXPIRY:
            at = ks.expire_at(key)
            if at and at <= now:
                ks.expire_key(key)
            elif at:
                ks.agenda.file(kind, key, b"", at)
            continue
        if kind == timers.STAGE_EXPIRY:
            stage = publish.live(ks, key, now)
            if stage is not None:
                publish.file_stage(ks, key, stage)
            continue
        stream = ks.keys.get(key)
        group = stream.groups.get(name) if isinstance(stream, Stream) else None
        if not isinstance(stream, Stream) or group is None:
            continue
        if kind == timers.PENDING_DROP:
            seen += drop_overdue(ks, key, stream, group, now)
        elif not group.deadline or group.waiters:
            continue  # without TTL, or a blocked reader keeps it: filed again when the reader leaves
        elif group.deadline <= now:
            ks.expired_groups += 1
            end_group(ks, key, stream, name)
        else:
            ks.agenda.file(kind, key, name, group.deadline)
    return seen
