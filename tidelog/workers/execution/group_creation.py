"""Where a processor with ``start="newest"`` begins: behind what its topic held when it was first started.

Rule 1: the groups on all partitions are made in one step, when no partition has one. So a partition without a group,
        where another one has it, came later: the topic has grown, and nothing that was sent to it is old.
"""

from __future__ import annotations

from tidelog.client import calls
from tidelog.client.steps import Steps, checked
from tidelog.transport.call import plain, queued
from tidelog.workers.declare.processor import Declared


def begin_newest(declared: Declared) -> Steps[None]:
    """Make the groups that are missing. A partition that the server refuses is left to whoever reads it."""
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
