"""Creates the groups of a processor with ``start="latest"``, at the current ends of its partitions.

Rule 1: the groups of all partitions are created in one transaction while no partition has one. A partition without a
        group, where another partition has one, was therefore added later, and all its entries are new.
"""

from __future__ import annotations

from tidelog.client import calls
from tidelog.client.steps import Steps, checked
from tidelog.transport.call import plain, queued
from tidelog.workers.declare.processor import Processor


def create_groups_at_end(declared: Processor) -> Steps[None]:
    """Create the missing groups. A partition that the server rejects is left to the fetcher."""
    group = declared.group.encode()
    streams = [declared.topic.stream(at) for at in range(declared.topic.partitions)]
    listed = yield [calls.tgroup_list(stream) for stream in streams]
    there = [not isinstance(each, Exception) and any(found.name == group for found in each) for each in listed]
    start = "0" if any(there) else ""
    missing = [
        queued(calls.tread(stream, start, 0, group=group))
        for stream, known in zip(streams, there, strict=True)
        if not known
    ]
    if missing:
        checked((yield [plain("MULTI"), *missing, plain("EXEC")])[-1:])
