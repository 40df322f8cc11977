"""Removes the snapshots of former generations from the object store.

    <url>/<job>/<generation>/owner.json          its owner (``owners``)
    <url>/<job>/<generation>/<partition>/...     snapshots of a batch job
    <url>/<job>/<generation>/checkpoint/...      of a frame job, written by Spark

Rule 1: Only folders named by a number are considered, up to the newest ended generation. The caller knows that it has
        ended, so nothing of it can be published or recovered. A folder without an owner, or of another server, is not
        touched.
Rule 2: A call lists and removes a limited number of objects. Manifests are removed before the objects they describe
        (``manifests``), and the owner last.
Rule 3: A snapshot process of such a generation that is still running does no harm, but may leave files. The caller
        therefore repeats the cleanup later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.jobs.snapshots import owners
from tidelog.jobs.snapshots.manifests import MANIFEST
from tidelog.jobs.snapshots.objects import ObjectStore

MOST: Final = 1000  # objects that one call removes at most

log = logging.getLogger(__name__)


def clear(
    objects: ObjectStore, job: str, over: int, ours: Callable[[Mapping[str, str]], bool], most: int = MOST
) -> bool:  # fmt: skip
    """Remove a job's generations up to ``over``; return whether all removable objects are removed. Raises
    SnapshotError.

    ours: gets the topics of a generation's job, with their IDs; returns whether they are on this server.
    """
    left = most
    for generation in sorted(int(name) for name in objects.folders(job) if name.isdecimal() and name.isascii()):
        if not 0 < generation <= over:
            continue
        if not left:
            return False
        folder = f"{job}/{generation}"
        if not ours(owners.read(objects, job, generation)):
            log.warning("%s/%s belongs to another server or has no owner: not removed", objects.shown, folder)
            continue
        last = owners.name_of(job, generation)
        found = [name for name in objects.below(folder, left + 1) if name != last][:left]
        for name in sorted(found, key=lambda each: not each.endswith(MANIFEST)):
            objects.remove(name)
        if len(found) == left:
            log.info("removed %d objects of %s/%s, a former generation; more remain", len(found), objects.shown, folder)
            return False
        objects.remove(last)
        objects.remove_folder(folder)
        left -= len(found)
        log.info("removed %d objects of %s/%s, a former generation", len(found), objects.shown, folder)
    return True
