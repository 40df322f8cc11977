"""The mutators of keys that are copied from another group of a cluster, while their slots move [112].

As in ``keyspace``, each mutator applies one effect and logs its record, and replay calls the same mutators. Strings,
stages, fences, and delayed entries are copied with the records of their commands.

    COPIED 0, NODE or NODEREF ..., COPIED 1, GROUPCOPY, PENDING ..., PRODUCER ...    a stream

Rule 1: a stream is valid after each of these records, so that checkpoints and copies to replicas need not wait.
Rule 2: nodes are copied as the store has them, so that ordinals, to which later records refer, are the same.
Rule 3: ``Keyspace.imports`` says which slots are being copied to this group. It is logged, and stored with each
checkpoint, so that the next leader knows which keys are incomplete.
"""

from __future__ import annotations

from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace
from storage.model import records
from storage.nodes.reference import is_reference
from storage.streams.stream import Stream

MOST_DEAD = 1 << 16  # deleted ordinals in a NODE record


def set_imports(ks: Keyspace, value: bytes) -> None:
    """Set the description of the imports in progress; b"": there are none."""
    ks.log.append(records.imports(value))
    ks.set_imports(value)


def begin(ks: Keyspace, key: bytes, meta: bytes) -> None:
    """Begin the copy of a stream, whose key must not exist. ``meta``: of the copied stream."""
    ks.before(key)
    stream = ks.add_copied(key, meta)
    ks.stream_logged(key, stream, records.copied(key, 0, meta))


def add_node(
    ks: Keyspace, key: bytes, stream: Stream, first: int, end: int, dead: list[tuple[int, int]], blob: bytes
) -> None:  # fmt: skip
    """Add the next node, see ``Stream.add_copied_node``. ``dead``: ranges of deleted ordinals."""
    ks.before(key)
    stream.add_copied_node(first, end, [ordinal for start, stop in dead for ordinal in range(start, stop)], blob)
    record = records.node_reference if is_reference(blob) else records.node
    ks.stream_logged(key, stream, record(key, first, end, dead, blob))


def complete(ks: Keyspace, key: bytes, stream: Stream, meta: bytes) -> None:
    """Set everything else of a stream. Its groups and producers follow."""
    ks.before(key)
    stream.complete_copy(meta)
    ks.stream_logged(key, stream, records.copied(key, 1, meta))
    ks.copied_retention(key, stream)


def add_group(ks: Keyspace, key: bytes, stream: Stream, group: Group) -> None:
    """Add a group, which has no messages yet."""
    ks.before(key)
    stream.groups[group.name] = group
    ks.group_changed(key, stream, group, records.group_copy(key, group.name, group.meta()))
    ks.arm_group(key, group)


def add_pending(
    ks: Keyspace, key: bytes, stream: Stream, group: Group, deadletter: bytes, times: tuple[int, int, int, int],
    deliveries: int, most: int, owner: int, kind: int, ids: list[bytes],
) -> None:  # fmt: skip
    """Add pending messages with the same terms, see ``PendingTable.copy``."""
    ks.before(key)
    group.pending.copy(ids, times, deliveries, most, owner, kind, deadletter)
    record = records.pending(key, group.name, deadletter, times, deliveries, most, owner, kind, ids)
    ks.group_changed(key, stream, group, record)
    ks.arm_group(key, group)


def add_producer(ks: Keyspace, key: bytes, stream: Stream, name: bytes, dump: bytes) -> None:
    """Add the IDs of a producer, which must be new."""
    ks.before(key)
    producers = stream.own_producers()
    producers.restore(name, dump)
    producers.changed.add(name)
    ks.stream_logged(key, stream, records.producer(key, name, dump))
    ks.arm_produced(key, stream)
