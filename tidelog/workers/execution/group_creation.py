"""Creates the groups of a processor with ``start="latest"``, at the current ends of its partitions.

Rule 1: the groups of all partitions are created in one transaction while no partition has one. A partition without a
        group, where another partition has one, was therefore added later, and all its entries are new.
"""

from __future__ import annotations

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, transaction
from tidelog.topics.groupreader import group_offset
from tidelog.workers.declare.processor import Processor


def create_groups_at_end(declared: Processor) -> Steps[None]:
    """Create the missing groups. A partition that the server rejects is left to the fetcher."""
    group = declared.group
    streams = [declared.topic.stream(at) for at in range(declared.topic.partitions)]
    offsets = yield [group_offset(stream, group) for stream in streams]
    there = [isinstance(each, StreamId) for each in offsets]
    start = "0" if any(there) else ""
    missing = [
        calls.tread(stream, start, 0, group=group) for stream, known in zip(streams, there, strict=True) if not known
    ]
    if missing:
        yield from transaction(missing)
