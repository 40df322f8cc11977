"""Removing what generations that are over have left in the object store.

    <url>/<job>/<generation>/owner.json          whose it is (``owners``)
    <url>/<job>/<generation>/<partition>/...     snapshots of a batch job
    <url>/<job>/<generation>/checkpoint/...      of a frame job, which Spark writes

Rule 1: only folders named by a number are looked into, up to the newest generation that is over. The caller knows that
        it is: nothing of it can be published, so nothing of it will be recovered. A folder that does not say whose it
        is, or that is another server's, stays.
Rule 2: a call lists and removes so many objects at most. Manifests go before what they describe (``manifests``), what
        says whose it is goes last.
Rule 3: a maker of such a generation that is still at work does no harm, and leaves something behind at worst. So who
        clears does it again later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.jobs.snapshots import owners
from tidelog.jobs.snapshots.manifests import MANIFEST
from tidelog.jobs.snapshots.objects import ObjectStore

MOST: Final = 1000  # objects that are removed by one call

log = logging.getLogger(__name__)


def clear(
    objects: ObjectStore, job: str, over: int, ours: Callable[[Mapping[str, str]], bool], most: int = MOST
) -> bool:  # fmt: skip
    """Remove what is there of a job's generations up to ``over``; whether all that can go is gone. SnapshotError.

    ours: told the topics of a generation's job, with their IDs, whether it is of this server.
    """
    left = most
    for generation in sorted(int(name) for name in objects.folders(job) if name.isdecimal() and name.isascii()):
        if not 0 < generation <= over:
            continue
        if not left:
            return False
        folder = f"{job}/{generation}"
        if not ours(owners.read(objects, job, generation)):
            log.warning("%s/%s is of another server, or does not say whose it is: it stays", objects.shown, folder)
            continue
        last = owners.name_of(job, generation)
        found = [name for name in objects.below(folder, left + 1) if name != last][:left]
        for name in sorted(found, key=lambda each: not each.endswith(MANIFEST)):
            objects.remove(name)
        if len(found) == left:
            log.info("removed %d objects of %s/%s, which is over; there are more", len(found), objects.shown, folder)
            return False
        objects.remove(last)
        objects.remove_folder(folder)
        left -= len(found)
        log.info("removed %d objects of %s/%s, which is over", len(found), objects.shown, folder)
    return True
