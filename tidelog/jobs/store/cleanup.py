"""Removes the states of former generations from a machine's disk.

    <state directory>/<job>/<generation>/<partition>/<slot>      stores, with their locks next to them
    <state directory>/<job>/<generation>/checkpoint              of a frame job without an object store

Rule 1: Only folders named by a number are removed, up to the newest ended generation. The caller knows that it has
        ended, so nothing of it can be published or recovered.
Rule 2: A partition is removed under the locks of its stores and of its snapshot process. If one of them is locked, a
        task or a process of that generation still runs, and the partition is left for a later cleanup.
Rule 3: Nothing outside of the state directory is removed, regardless of a job's name and of links.
Rule 4: The locks are removed as well. Two tasks of an ended generation might then open the same store. Their first
        check makes them fail, and files that they create are removed by a later cleanup.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from tidelog.jobs.store.environments import forget

log = logging.getLogger(__name__)


def clear(folder: Path, over: Mapping[str, int]) -> bool:
    """Remove the generations of each job up to the given one; return whether all are removed. Raises OSError."""
    done = True
    for job, newest in over.items():
        home = folder / job
        if job in ("", ".", "..") or "/" in job or "\0" in job or home.is_symlink():
            log.warning("%r is not the directory of a job in %s: not removed", job, folder)
            continue
        for generation in _numbered(home):
            if 0 < int(generation.name) <= newest:
                done = _generation(generation) and done
        if _numbered(home) == [] and home.is_dir():
            with suppress(OSError):  # the folder is not empty
                home.rmdir()
    return done


def _numbered(folder: Path) -> list[Path]:
    """Return the subfolders named by a number."""
    try:
        found = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    named = [each for each in found if each.name.isdecimal() and each.name.isascii() and not each.is_symlink()]
    return [each for each in named if each.is_dir()]


def _generation(folder: Path) -> bool:
    removed = [_partition(each) for each in _numbered(folder)]
    done = all(removed)
    if done:
        shutil.rmtree(folder)
        log.info("removed %s, a former generation", folder)
    return done


def _partition(folder: Path) -> bool:
    """Remove a partition (Rule 2)."""
    with ExitStack() as held:
        for lock in folder.glob("*.lock"):
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s belongs to a former generation and is in use: not removed yet", folder)
                return False
        for store in _numbered(folder):
            forget(store)
        shutil.rmtree(folder)
    return True
