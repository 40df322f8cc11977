"""The list of files that wait for their deletion, in the object store (``storage.history.deletions``).

Rule 1: a file is listed before the manifests no longer list it. So a process that is killed at any step leaves no file
that nothing knows.
Rule 2: a version of the list is created, never replaced, and is the newest one when it was created. Otherwise, another
process writes the list, and this one stops.
Rule 3: the last VERSIONS versions are retained, so that a damaged one can be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from persistence.tiering.objectstore import HistoryStore, HistoryStoreError
from resp.errors import CorruptError
from storage.history import deletions, manifest
from storage.history.deletions import Deletions, WaitingFile
from storage.history.manifest import Part

VERSIONS: Final = 10
# ms: a file that is listed again within this time needs no new version; its deletion is this much later
SLACK: Final = 60_000
_NUMBERED: Final = re.compile(r"\d{20}\.json")


class DeletionList:
    """The list below a prefix."""

    def __init__(self, store: HistoryStore, server: str, now: Callable[[], int]) -> None:
        """``server``: the ID of the owner. ``now``: ms since epoch."""
        self._store = store
        self._now = now
        self.current = Deletions(server)
        self.epoch = 0  # of this leader
        self.grace = 0  # ms
        self.offset = 0  # the log offset of the store that was read last
        self.problem = ""  # why the list can't be read

    @property
    def slack(self) -> int:
        """The ms by which a deletion may be later than ``grace``."""
        return min(SLACK, self.grace // 10)

    def load(self) -> None:
        """Read the newest version. Raises HistoryStoreError."""
        numbers = self._numbers()
        self.problem = ""
        for number in reversed(numbers):
            name = deletions.file_name(number)
            try:
                found = deletions.decode(self._store.read(name))
                if found.server != self.current.server or found.number != number:
                    raise CorruptError("it is that of another history")
            except CorruptError as error:
                self.problem = self.problem or f"{name}: {error}"
                continue
            self.current = replace(found, number=numbers[-1])
            return
        self.current = Deletions(self.current.server, numbers[-1] if numbers else 0)

    def drop(self, stream: bytes, parts: Iterable[Part], sid: int, why: str) -> None:
        """List objects and pages of a stream that its next manifest will not list.

        ``sid``: the one in the manifest. It can still exist, with another name. Raises HistoryStoreError, CorruptError.
        """
        self.add(waiting_of(stream, parts, self._now(), sid, why))

    def add(self, files: Iterable[WaitingFile]) -> None:
        """List files. Raises HistoryStoreError, CorruptError."""
        known = {file.name: file for file in self.current.files}
        new = []
        for file in files:
            before = known.get(file.name)
            if before is not None:
                why = before.why if before.kept else file.why  # another stream in the object no longer lists it
                file = replace(file, holders=tuple({*before.holders, *file.holders}), why=why)
            if (
                before is None or (before.why, len(before.holders)) != (file.why, len(file.holders))
                or file.since - before.since > self.slack
            ):  # fmt: skip
                new.append(file)
        if new:
            self.save(self.current.listed(new))

    def save(self, version: Deletions) -> None:
        """Write the next version. Raises HistoryStoreError; CorruptError if the list is damaged."""
        if self.problem:
            raise CorruptError(self.problem)
        version = replace(version, number=self.current.number + 1, epoch=self.epoch, grace=self.grace)
        version = replace(version, offset=max(self.offset, self.current.offset))
        name, content = deletions.file_name(version.number), version.encode()
        if not self._store.create(name, content) and self._store.read(name) != content:
            raise HistoryStoreError(f"{name} was written by another process: another leader uses this prefix")
        if self._store.read(name) != content:
            raise HistoryStoreError(f"{name} differs from what was written")
        self.current = version
        for number in self._check_newest():
            if number <= version.number - VERSIONS:
                self._store.remove(deletions.file_name(number))

    def _check_newest(self) -> list[int]:
        """Return the numbers of all versions. Raises HistoryStoreError if another process has written the list."""
        numbers = self._numbers()
        if numbers and numbers[-1] != self.current.number:
            raise HistoryStoreError(
                f"{deletions.file_name(numbers[-1])} was written by another process: another leader uses this prefix"
            )
        return numbers

    def is_newest(self) -> bool:
        """Return whether no other process, such as ``tidelog history``, has written the list. Raises HistoryStoreError.
        """
        return self.current.number == max(self._numbers(), default=0)

    def check_newest(self) -> None:
        """Verify that no other process deletes files. Raises HistoryStoreError."""
        self._check_newest()

    def _numbers(self) -> list[int]:
        return sorted(int(name[:20]) for name in self._store.names(deletions.FOLDER) if _NUMBERED.fullmatch(name))


def waiting_of(
    stream: bytes, parts: Iterable[Part], now: int, sid: int = 0, why: str = "removed"
) -> list[WaitingFile]:  # fmt: skip
    """Return the files of objects and pages of a stream. ``sid``: of a stream that may need them; 0: none does."""
    folder = f"streams/{manifest.directory_of(stream)}"
    return [
        WaitingFile(
            f"{folder if part.level else 'objects'}/{part.name}", part.size, part.index_offset, now,
            ((sid, part.end_ord),) if sid and not part.level else (), why,
        )
        for part in parts
    ]  # fmt: skip
