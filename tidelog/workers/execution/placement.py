"""Checks that transactional processors send to the groups that have their partitions: a transaction changes one group.

The check is made when a worker starts, and after slots of its partitions have moved. A record is sent to the partition
of its key, so two topics fit if they have the same number of partitions and each pair of partitions is on one group, or
if one group has all their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.topics import Topic
from tidelog.transport.slots import slot_of
from tidelog.workers.coordination.workergroups import WorkerGroups
from tidelog.workers.declare.errors import AppError
from tidelog.workers.declare.processor import Processor


def check_outputs(processors: Iterable[Processor], groups: WorkerGroups) -> None:
    """Raise AppError if the transactions of a processor would need several groups of a cluster."""
    for declared in processors if groups.several else ():
        if not declared.transactional:
            continue
        if declared.sends is None:
            raise AppError(
                f"processor {declared.name!r} is transactional, and several groups of the cluster share the keys:"
                " declare all topics to which it sends, sends=[...], so that their groups can be checked. A processor"
                " that sends nothing has sends=[]"
            )
        for topic in declared.sends:
            _check(declared, topic, groups)


def _check(declared: Processor, topic: Topic[object], groups: WorkerGroups) -> None:
    inputs, outputs = _streams(declared.topic), _streams(topic)
    if all(groups.together(inputs[0], each) for each in (*inputs[1:], *outputs)):
        return
    if len(inputs) != len(outputs):
        raise AppError(
            f"processor {declared.name!r} is transactional, and several groups have the partitions of its topics, but"
            f" {declared.topic.name!r} has {len(inputs)} partitions and {topic.name!r} has {len(outputs)}: declare both"
            " with the same number of partitions, or remove transactional=True"
        )
    for stream, output in zip(inputs, outputs, strict=True):
        if not groups.together(stream, output):
            raise AppError(different_groups(declared.name, stream, output))


def different_groups(processor: str, stream: str, output: str) -> str:
    """Return the text of the error if a transaction would change streams of two groups."""
    topic = output.rpartition(":")[0]
    return (
        f"processor {processor!r} is transactional, but {stream} and {output} are on different groups of the cluster:"
        f" declare topic {topic!r} with the same partition key and number of partitions, and move the slots of both"
        f" partitions ({slot_of(stream)} and {slot_of(output)}) to one group (tidelog cluster move), or remove"
        " transactional=True"
    )


def _streams(topic: Topic[object]) -> list[str]:
    return [topic.stream(at) for at in range(topic.partitions)]
