"""Checkpoints of a keyspace taken at once, for tests in which nothing happens meanwhile."""

from __future__ import annotations

from storage.keyspace.changes import EVERYTHING
from storage.keyspace.keyspace import Keyspace
from storage.streams.capture import Capture, StreamCapture


def whole_capture(ks: Keyspace) -> Capture:
    """Everything that changed since the last capture."""
    capture = ks.begin_capture()
    ks.changes.more(EVERYTHING)
    return capture


def parts_of(capture: StreamCapture) -> tuple[object, ...]:
    """Everything in a capture, for comparisons."""
    lists = capture.nodes, capture.tombstones, capture.dead_nodes, capture.sparse, capture.producers
    return capture.sid, capture.meta, capture.first_ord, capture.next_ord, capture.active, *map(list, lists)


def all_stored(ks: Keyspace, capture: Capture) -> None:
    """The capture is on disk, and the node store reads from it."""
    ks.changes.stored(capture, EVERYTHING)
