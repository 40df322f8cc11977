"""Creates the groups of processors before the workers of the app read anything.

Rule 1: with ``start="latest"``, the groups of all partitions are created in one transaction while no partition has one,
        at the current ends. A partition without a group, where another partition has one, was therefore added later,
        and all its entries are new.
Rule 2: a topic that protects entries evicts what all existing groups have finished. Each worker therefore creates the
        groups of all processors of its app, including those that run elsewhere or later, before it reads anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.client import calls
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, transaction
from tidelog.options.start import LATEST
from tidelog.topics.groupreader import group_offset
from tidelog.transport.errors import is_temporary
from tidelog.workers.declare.processor import Processor

PAGE: Final = 500  # calls per pipeline


def create_protecting_groups(processors: Iterable[Processor]) -> Steps[bool]:
    """Create the missing groups of these processors at their start positions, except ``latest`` (Rule 2).

    Returns False if the server has temporarily rejected some of them: try again. A partition that the server rejects
    for another reason is left to the fetcher.
    """
    protected = [
        each for each in processors
        if each.start != LATEST and each.topic.settings.retention.limited and not each.topic.settings.retention.drops
    ]  # fmt: skip
    made = [
        calls.tread(each.topic.stream(at), each.start.last_id, 0, group=each.group)
        for each in protected
        for at in range(each.topic.partitions)
    ]
    complete = True
    for start in range(0, len(made), PAGE):
        replies = yield made[start : start + PAGE]
        complete = complete and not any(isinstance(each, Exception) and is_temporary(each) for each in replies)
    return complete


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
