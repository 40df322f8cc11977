"""Removing what generations that are over have left on a machine's disk.

    <state directory>/<job>/<generation>/<partition>/<slot>      stores, and their locks beside them
    <state directory>/<job>/<generation>/checkpoint              of a frame job that has no object store

Rule 1: only folders named by a number are removed, up to the newest generation that is over. The caller knows that it
        is: nothing of it can be published, so nothing of it will be recovered.
Rule 2: a partition is removed under the locks of its stores and of the maker of its snapshots. Where one is held, a
        task or a maker of that generation is still at work: it stays, for another time.
Rule 3: nothing outside of the state directory is removed, regardless of a job's name and of links.
Rule 4: the locks go with it. Two tasks of a generation that is over might then both have its store, which the first
        check of a task ends; what one of them makes anew is removed another time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tidelog.jobs.store.environments import forget

log = logging.getLogger(__name__)


def clear(folder: Path, over: Mapping[str, int]) -> bool:
    """Remove the states of generations up to the one given for each job; whether all are gone. Raises OSError."""
    done = True
    for job, newest in over.items():
        home = folder / job
        if job in ("", ".", "..") or "/" in job or "\0" in job or home.is_symlink():
            log.warning("%r is not the directory of a job in %s: nothing is removed", job, folder)
            continue
        for generation in _numbered(home):
            if 0 < int(generation.name) <= newest:
                done = _generation(generation) and done
        if _numbered(home) == [] and home.is_dir():
            _remove_empty(home)
    return done


def _numbered(folder: Path) -> list[Path]:
    """The folders in it that are named by a number."""
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
        log.info("removed %s, of a generation that is over", folder)
    return done


def _partition(folder: Path) -> bool:
    """Rule 2."""
    with ExitStack() as held:
        for lock in folder.glob("*.lock"):
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("%s is of a generation that is over, and in use: it stays for now", folder)
                return False
        for store in _numbered(folder):
            forget(store)
        shutil.rmtree(folder)
    return True


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        pass  # something else is in it
