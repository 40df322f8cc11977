"""The history of the groups of a storm in an object store: prefixes of their own in a directory, or in moto's S3.

The members copy and free each node soon, and objects are deleted a second after they are not needed any more. The disk
caches are emptied before entries are checked, so that these are read from the objects.

Rule 1: at the end of a round, no object that a manifest lists is missing or damaged, and deletions are not suspended.
Rule 2: from the first to the last entry that the objects of a stream have, they have all entries of the stream.
Rule 3: when all streams have been deleted at the end, each prefix becomes empty: no object and no pin is left.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.persistence.tiering.kit import History
from tests.simulation.checker import number
from tests.storm.members import Member
from tests.tidelog.jobs.s3kit import s3_bucket
from tidelog.history.checking import verify
from tidelog.history.errors import HistoryError
from tidelog.history.files import HistoryFiles
from tidelog.history.survey import survey

KINDS: Final = ("directory", "s3")
SETTINGS: Final[dict[str, str | int]] = {
    "tier-after": 0, "tier-interval": 1, "tier-free": "yes", "tier-grace": 1, "tier-timeout": 10, "save": "1 1",
    "node-cache-size": 0,
}  # fmt: skip
LINKED: Final = re.compile(rb"(\d+) of (\d+) history objects of the moving slots are linked")


class Histories:
    """The prefixes of the groups."""

    def __init__(self, kind: str, top: Path, groups: Iterable[str]) -> None:
        """``kind``: one of KINDS. The directory is below ``top``."""
        self._stack = contextlib.ExitStack()
        self.directory = top / "history" if kind == "directory" else None
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto's server would log each request
        base = str(self.directory) if self.directory is not None else self._stack.enter_context(s3_bucket())
        self.urls = {group: f"{base}/{group}" for group in groups}
        if self.directory is not None:
            for url in self.urls.values():
                Path(url).mkdir(parents=True)
        self._seen: dict[str, set[str]] = {group: set() for group in self.urls}  # objects
        self._left: dict[str, set[str]] = {}

    def close(self) -> None:
        self._stack.close()

    def settings(self, group: str) -> dict[str, str | int]:
        """Return the settings of a member of a group."""
        return {**SETTINGS, "tier-url": self.urls[group]}

    def look(self) -> None:
        """Note which objects exist."""
        for group, url in self.urls.items():
            with contextlib.suppress(HistoryError):  # the directory is away
                self._left[group] = set(HistoryFiles(url, 30).names("objects"))
                self._seen[group] |= self._left[group]

    def counts(self, members: Iterable[Member]) -> Counter[str]:
        """Return what was seen so far: objects that existed, those that were deleted, and those of moves."""
        self.look()
        found: Counter[str] = Counter()
        for group, seen in self._seen.items():
            found["objects"] += len(seen)
            found["objects deleted"] += len(seen - self._left.get(group, set()))
        for member in members:
            for linked, of in LINKED.findall(member.log.read_bytes() if member.log.exists() else b""):
                found["objects of moving streams"] += int(of)
                found["objects linked"] += int(linked)
                found["moves with links"] += linked != b"0"
        return found

    def problems(self) -> list[str]:
        """Verify all prefixes, as ``tidelog history verify`` does, and return the problems (Rule 1)."""
        problems = []
        for url in self.urls.values():
            try:
                found = survey(HistoryFiles(url, 30), lambda _done, _all: None)
                problems += verify(found, lambda _done, _all: None)
            except HistoryError as error:
                problems.append(str(error))
        return problems

    def differences(self, streams: Mapping[str, Sequence[Sequence[bytes]]]) -> list[str]:
        """Compare the objects with the rows of streams: ID, fields (Rule 2)."""
        return [
            text for url in self.urls.values() for key, rows in streams.items() if (text := _difference(url, key, rows))
        ]

    def left(self) -> list[str]:
        """Return the objects and the pins of moves that exist (Rule 3)."""
        found = []
        for url in self.urls.values():
            files = HistoryFiles(url, 30)
            found += [f"{url}/objects/{name}" for name in files.names("objects")]
            found += [f"{url}/pins/{name}" for name in files.names("pins") if name.endswith(".json")]
        return found


def empty_cache(member: Member) -> None:
    """Remove what a member has read from the object store."""
    for path in (member.directory / "tier-cache").glob("*"):
        path.unlink(missing_ok=True)


def _difference(url: str, key: str, rows: Sequence[Sequence[bytes]]) -> str:
    copied: dict[tuple[int, int], Any] = {number(its): fields for its, fields in _entries(url, key)}
    if not copied:
        return ""
    first, last = min(copied), max(copied)
    there = {number(row[0]): list(row[1:]) for row in rows if first <= number(row[0]) <= last}
    wrong = [its for its, fields in there.items() if copied.get(its) != fields]
    return f"{key} below {url}: {len(wrong)} entries are not as in the stream, such as {min(wrong)}" if wrong else ""


def _entries(url: str, key: str) -> list[Any]:
    from persistence.tiering.objectstore import HistoryStore

    return History(HistoryStore(url, 30, lambda: None)).entries(key.encode())
