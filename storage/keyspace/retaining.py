"""Retention: evicts what the policies of streams do not retain. Only a leader runs it. Each eviction is logged.

Rule 1: a stream with a policy is checked after an append from which on a limit may be exceeded (``Stream.check_from``,
``Keyspace.unchecked``), and when its timer fires. The timer is armed for the time at which the oldest entry, or node,
becomes too old. If each append caused a check, appends to 5000 streams would take 1.38 times the CPU time.
Rule 2: a stream that exceeds the COUNT of an EXACT policy is checked with the others every LATER_MS, or when it has as
many more entries as a node. Streams that always exceed their limits are then checked once for many appends, while
those of large entries do not take much more memory than their policy retains.
Rule 3: one check evicts at most NODES nodes. Dropping a node takes 1 to 2 microseconds.
Rule 4: if GROUPS retains entries beyond the limits, the policy is checked again after HELD_MS, because acknowledgements
do not cause a check. Appends then cause one only if they can exceed LIMIT.
Rule 5: a stream with a BYTES limit is checked again after LATER_MS if its last full node is not compressed yet.
"""

from __future__ import annotations

from typing import Final

from resp.errors import DamagedNodeError
from storage.keyspace import events
from storage.keyspace.keyspace import Keyspace
from storage.model import timers
from storage.model.ids import MAX_ID
from storage.streams.retention import NO_CHECK, RetentionPolicy
from storage.streams.stream import Stream

NODES: Final = 1000  # full nodes that one check evicts
HELD_MS: Final = 1000
LATER_MS: Final = 1000  # also between the checks of a stream whose entries become too old one after another
LEAST_MS: Final = 50  # between the checks of a stream whose nodes become too old one after another


def border_of(stream: Stream, policy: RetentionPolicy, now: int) -> int:
    """Return the ordinal before which the policy retains nothing at ``now``; first_ord if it retains everything."""
    wanted = _wanted(stream, policy, now)
    if not policy.groups or wanted <= stream.first_ord:
        return wanted
    held = _needed_from(stream)
    if policy.limit:
        held = max(held, stream.ahead(stream.next_ord, policy.limit))
    border = min(wanted, held)
    return border if policy.exact else max(stream.node_border(border), stream.first_ord)


def _wanted(stream: Stream, policy: RetentionPolicy, now: int) -> int:
    """Return border_of() without regard to groups."""
    first, end = stream.first_ord, stream.next_ord
    border = first
    if policy.count:
        border = max(border, stream.ahead(end, policy.count))
    if policy.size:
        border = max(border, stream.bytes_border(policy.size))
    if policy.age_ms and now > policy.age_ms:
        border = max(border, stream.ord_from((now - policy.age_ms + 1) << 64))
    return border if policy.exact else max(stream.node_border(border), first)


def _needed_from(stream: Stream) -> int:
    """Return the ordinal of the first entry that some group has not read or acknowledged; first_ord without groups."""
    if not stream.groups:
        return stream.first_ord
    first, ordinal = stream.first_id(), stream.next_ord
    for group in stream.groups.values():
        ordinal = min(ordinal, stream.ord_from(group.offset + 1))
        for row in group.pending.rows(first, MAX_ID, 1):
            ordinal = min(ordinal, stream.ord_from(row.id))
    return ordinal


def excess(stream: Stream, policy: RetentionPolicy, now: int) -> int:
    """Return how many entries the policy does not retain at ``now``."""
    return stream.count(stream.first_ord, max(border_of(stream, policy, now), stream.first_ord))


def check(ks: Keyspace, key: bytes, stream: Stream, now: int) -> int:
    """Evict what the policy of a stream does not retain. Return the work done, in nodes.

    Raises DamagedNodeError if a node that contains the first entry to retain is damaged. The nodes before it are then
    evicted nevertheless, unless groups may need them.
    """
    policy = stream.retention
    if policy is None:
        return 0
    try:
        return _evict(ks, key, stream, policy, now)
    except DamagedNodeError as error:
        if not policy.groups and error.first_ord > stream.first_ord:
            ks.evict_before(key, stream, min(error.first_ord, stream.nodes_end(NODES)))
            ks.notify(events.STREAM, b"tevict", key)
        raise


def _evict(ks: Keyspace, key: bytes, stream: Stream, policy: RetentionPolicy, now: int) -> int:
    stream.check_from = NO_CHECK
    border, nodes = border_of(stream, policy, now), stream.node_count
    part = stream.nodes_end(NODES) if border > stream.first_ord else border
    if border > stream.first_ord:
        ks.evict_before(key, stream, min(part, border))
        ks.notify(events.STREAM, b"tevict", key)
    if part < border:
        ks.unchecked[key] = None
    else:
        held = policy.groups and _wanted(stream, policy, now) > stream.first_ord
        stream.check_from = _check_from(stream, policy, held)
        _arm(ks, key, stream, policy, now, held)
    return max(0, nodes - stream.node_count)


def check_later(ks: Keyspace, now: int) -> None:
    """Let the streams be checked that wait for this, if it is time (Rule 2)."""
    if ks.check_later and not 0 <= now - ks.checked_later < LATER_MS:
        ks.checked_later = now
        ks.unchecked.update(ks.check_later)
        ks.check_later.clear()


def _check_from(stream: Stream, policy: RetentionPolicy, held: bool) -> int:
    """Return the lowest next_ord at which something may have to be evicted; NO_CHECK if the timer finds that."""
    first, end = stream.first_ord, stream.next_ord
    if policy.size or first >= end:  # the size of entries is known later; the timer of an empty stream is not armed
        return end + 1
    oldest_end = first + 1 if policy.exact else stream.head_end()
    found = NO_CHECK
    if not held and policy.count:
        found = oldest_end + policy.count
    elif held and policy.limit:
        found = oldest_end + policy.limit
    return max(found, end + 1)


def _arm(ks: Keyspace, key: bytes, stream: Stream, policy: RetentionPolicy, now: int, held: bool) -> None:
    """Arm the timer of a stream for the next time at which its policy may evict something without an append."""
    first = stream.first_ord
    if first >= stream.next_ord:
        return
    if held:
        ks.timers.arm(timers.RETENTION, key, b"", now + HELD_MS)
        return
    due: list[int] = []
    if policy.age_ms:
        oldest = stream.first_id() if policy.exact else stream.head_until()
        least = LATER_MS if policy.exact else LEAST_MS
        due.append(max((oldest >> 64) + policy.age_ms, now + least))
    if policy.size and stream.has_draft:
        due.append(now + LATER_MS)
    if due:
        ks.timers.arm(timers.RETENTION, key, b"", min(due))
