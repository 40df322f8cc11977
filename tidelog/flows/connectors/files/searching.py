"""Finds the files that match a pattern. All calls block.

Rule 1: Links to files are followed, links to directories are not, so that a search ends.
Rule 2: A file that is known and was renamed is found in each directory that is searched, also if its new name does not
        match. A file with several names is found once.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Container
from typing import NamedTuple

from tidelog.flows.connectors.files.manypositions import FileKey
from tidelog.flows.connectors.pathpatterns import fixed_directory, path_pattern, reaches

log = logging.getLogger("tidelog.flows")


class FileStatus(NamedTuple):
    """Changes if a file is written or renamed."""

    size: int  # bytes
    modified: int  # ns since 1970
    changed: int  # ns since 1970, also of its name


class FoundFile(NamedTuple):
    """A file that a search has found."""

    path: str
    state: FileStatus
    matches: bool  # False: a known file that was renamed


class FoundFiles(NamedTuple):
    """The result of a search."""

    files: dict[FileKey, FoundFile]
    took: float  # s


def state_of(about: os.stat_result) -> FileStatus:
    return FileStatus(about.st_size, about.st_mtime_ns, about.st_ctime_ns)


class FileSearch:
    """The searches for one pattern, which is an absolute path."""

    def __init__(self, pattern: str) -> None:
        """Raises ValueError if the pattern is not valid."""
        self._pattern = pattern
        self._regex = path_pattern(pattern)
        self.root = fixed_directory(pattern)
        self._failed: set[str] = set()  # directories whose errors were logged

    def matches(self, path: str) -> bool:
        return self._regex.fullmatch(path) is not None

    def find(self, known: Container[FileKey]) -> FoundFiles:
        began = time.monotonic()
        found: dict[FileKey, FoundFile] = {}
        left = [self.root]
        while left:
            directory = left.pop()
            try:
                with os.scandir(directory) as entries:
                    device = os.stat(directory).st_dev
                    names = sorted(entries, key=lambda each: each.name)
            except OSError as error:
                deleted = isinstance(error, FileNotFoundError) and directory != self.root
                if directory not in self._failed and not deleted:
                    self._failed.add(directory)
                    log.warning("%s: %s", directory, error.strerror)
                continue
            self._failed.discard(directory)
            below = [each.name for each in names if not self._add(directory, device, each, known, found)]
            left += [path for name in below if reaches(self._pattern, path := f"{directory}{name}/")]
        return FoundFiles(found, time.monotonic() - began)

    def _add(
        self, directory: str, device: int, entry: os.DirEntry[str], known: Container[FileKey],
        found: dict[FileKey, FoundFile],
    ) -> bool:  # fmt: skip
        """Add an entry if it is a file that matches, or a known one. Return False if it is a directory."""
        path = directory + entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                return False
            matches = self.matches(path)
            if not matches and (device, entry.inode()) not in known:
                return True
            about = entry.stat(follow_symlinks=matches)
        except OSError:
            return True  # it was just deleted, or it is a link to nothing
        key = (about.st_dev, about.st_ino)
        if stat.S_ISREG(about.st_mode) and (key not in found or (matches and not found[key].matches)):
            found[key] = FoundFile(path, state_of(about), matches)
        return True
