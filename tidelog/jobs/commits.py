"""The epochs of a job in a cluster of several groups: one commit decides about the outputs and markers on all groups.

    tasks     TSTAGE the rows of each output, and the marker of the partition, each on the group of its stream
    driver    DividedCommit with the fence of the generation: the decision is one TPUBLISH at the slot of the fence

Rule 1: The fence, and all other keys of a job, have the same names in every cluster, so a job continues if its server
        becomes a cluster of several groups, or the reverse. With one group, the fence itself publishes all stages.
Rule 2: A decided epoch is complete only after ``recover``. A driver recovers before it reads the replay logs.
Rule 3: The end of a generation is an epoch, too: CLOSED. An epoch that was decided just before is completed by whoever
        closes the generation, and by the first driver of the next one.
"""

from __future__ import annotations

from typing import Final

from tidelog.client import calls
from tidelog.client.dividedcommit import DividedCommit
from tidelog.client.steps import Steps, checked
from tidelog.jobs import keys

CLOSED: Final = 2**63 - 1  # the epoch of a closed fence, under which nothing can be published
CHECK: Final = "closed"


def commit_of(name: str, generation: int) -> DividedCommit:
    """Return the commits of a generation of a job."""
    return DividedCommit(keys.prefix(name), keys.fence(name, generation))


def close(name: str, generation: int) -> Steps[None]:
    """Close a generation, unless it is closed, and publish what it has decided."""
    yield from commit_of(name, generation).close(CLOSED, CHECK)


def complete_former(name: str, generation: int, divided: bool) -> Steps[None]:
    """Publish what the generations before this one have decided.

    divided: whether there are several groups. The program that ended the last generation may then have died before it
    closed it.
    """
    former = [commit_of(name, each) for each in range(1, generation)]
    logs = checked((yield [calls.trevrange(commit.log, count=1) for commit in former])) if former else []
    for commit, found in zip(former, logs, strict=True):
        if found:
            yield from commit.recover()
    if divided and generation > 1:
        yield from close(name, generation - 1)
