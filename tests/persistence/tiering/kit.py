"""Copies the store of a server in the test's process, with faults, and reads the history back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from persistence.tiering.deleting import Deleting
from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.manifests import ManifestStore
from persistence.tiering.needed import DeletionRequest
from persistence.tiering.objectstore import Files, HistoryStore, LocalFiles
from persistence.tiering.source import AGELESS, DueNodes
from persistence.tiering.tieringpass import PassRequest, TieringPass, TieringState
from storage.history import manifest as manifests
from storage.history import objectfile
from storage.history.manifest import Manifest, Part
from storage.model.ids import MASK64
from tests.storage.history.kit import words_of
from tests.wire.rawclient import Raw

SERVER = "5e" * 20
LOG = "10" * 20  # replication ID
CLOCK = 1_800_000_000_000  # ms since epoch
GRACE = 3_600_000  # ms

Entry = list[Any]  # ID and fields, as XRANGE returns them


class FaultyFiles:
    """A directory whose call number ``fail_at`` raises OSError, before or after it takes effect."""

    def __init__(self, files: Files, fail_at: int = -1, after: bool = False) -> None:
        self.files = files
        self.calls = 0
        self.change: Callable[[str, bytes], bytes] = lambda _name, data: data  # what a read returns
        self.fail_at = fail_at
        self._after = after

    def _call(self, call: Callable[[], Any]) -> Any:
        number, self.calls = self.calls, self.calls + 1
        if number == self.fail_at and not self._after:
            raise OSError("the connection was lost")
        result = call()
        if number == self.fail_at:
            raise OSError("the connection was lost")
        return result

    def names(self, folder: str) -> list[str]:
        return list(self._call(lambda: self.files.names(folder)))

    def read(self, name: str, start: int, end: int | None) -> bytes:
        return self.change(name, self._call(lambda: self.files.read(name, start, end)))

    def write(self, name: str, data: bytes) -> None:
        self._call(lambda: self.files.write(name, data))

    def create(self, name: str, data: bytes) -> None:
        self._call(lambda: self.files.create(name, data))

    def link(self, name: str, files: Files, other: str) -> None:
        self._call(lambda: self.files.link(name, files, other))

    def remove(self, name: str) -> None:
        self._call(lambda: self.files.remove(name))

    def remove_folder(self, folder: str) -> None:
        self._call(lambda: self.files.remove_folder(folder))

    def remove_unfinished(self, folder: str) -> None:
        self._call(lambda: self.files.remove_unfinished(folder))

    def size(self, name: str) -> int:
        return int(self._call(lambda: self.files.size(name)))


class Copier:
    """What one helper process does, without the process."""

    def __init__(
        self, store: Path, target: Path, files: Files | None = None, epoch: int = 0, now: int = CLOCK
    ) -> None:  # fmt: skip
        self.warnings: list[str] = []
        self.problems: list[str] = []
        self.objects = HistoryStore(str(target), 30, lambda: None)
        self.objects._files = files or LocalFiles(str(target))
        self.now = now
        self.deletions = DeletionList(self.objects, SERVER, lambda: self.now)
        self.deletions.epoch = epoch
        self.manifests = ManifestStore(
            self.objects, SERVER, self.warnings.append, self.deletions, lambda: self.now
        )  # fmt: skip
        self.deleting = Deleting(self.objects, self.manifests, self.deletions, lambda: None, lambda: self.now)
        self.state = TieringState()
        self._directory = store
        self._epoch = epoch
        self.floor = 0
        self.progress: Callable[[], None] = lambda: None
        self.deletions.load()

    def run(self, due: DueNodes = AGELESS, offset: int = -1) -> bool:
        request = PassRequest(self._directory, self._epoch, due, offset, self.floor)
        one = TieringPass(request, self.state, self.objects, self.manifests, lambda: self.progress())
        complete = one.run()
        self.problems = one.problems
        return complete

    def _request(self, grace: int, offset: int, points: dict[str, int] | None) -> DeletionRequest:
        waiting = frozenset(file.name for file in self.deletions.current.files)
        points = points or {LOG: 1 << 60}
        return DeletionRequest(self._directory, self._epoch, offset, self.floor, points, grace, waiting)

    def prepare(self, points: dict[str, int] | None = None, offset: int = -1) -> None:
        """Do what a helper does before a pass."""
        self.deleting.prepare(self._request(GRACE, offset, points))

    def delete(self, grace: int = GRACE, offset: int = -1, points: dict[str, int] | None = None) -> None:
        """Run a sweep, as a helper does after a pass."""
        request = self._request(grace, offset, points)
        self.deleting.prepare(request)
        self.deleting.sweep(request, self.state.copied)


class History:
    """The history below a prefix, as a reader of docs/history-format.md sees it. Everything is verified."""

    def __init__(self, target: Path | HistoryStore) -> None:
        self._objects = target if isinstance(target, HistoryStore) else HistoryStore(str(target), 30, lambda: None)

    def manifest(self, stream: bytes) -> Manifest | None:
        folder = f"streams/{manifests.directory_of(stream)}"
        names = sorted(name for name in self._objects.names(folder) if name[20:] == ".json")
        return manifests.decode(self._objects.read(f"{folder}/{names[-1]}"), stream) if names else None

    def entries(self, stream: bytes) -> list[Entry]:
        """Return the entries of a stream; [] if it has no history."""
        found = self.manifest(stream)
        entries: list[Entry] = []
        if found is None:
            return entries
        expected = found.parts[0].first_ord if found.parts else 0
        for part in self._parts(found.parts, stream):
            assert part.first_ord == expected
            expected = part.end_ord
            content = self._objects.read(f"objects/{part.name}")
            assert len(content) == part.size
            for section in objectfile.verify(content):
                if section.head.stream == stream:
                    for at, ordinal in enumerate(section.ordinals):
                        if ordinal >= found.first_ord:
                            its = section.ids[at]
                            entries.append([b"%d-%d" % (its >> 64, its & MASK64), list(words_of(section.fields(at)))])
        return entries

    def _parts(self, parts: tuple[Part, ...], stream: bytes) -> list[Part]:
        found: list[Part] = []
        for part in parts:
            if part.level:
                page = self._objects.read(f"streams/{manifests.directory_of(stream)}/{part.name}")
                found += self._parts(manifests.decode_page(page, part, stream), stream)
            else:
                found.append(part)
        return found


class TieredServer:
    """A server, its client, and the target of the copies."""

    def __init__(self, port: int, directory: Path, target: Path) -> None:
        self.port = port
        self.client = Raw(port)
        self.directory = directory
        self.target = target
        self.copied = directory.parent / "copied"
        self.copied.mkdir()

    def add(self, key: str, count: int, text: str = "v") -> None:
        """Append entries, and write a checkpoint."""
        self.client.pipeline(*[("XADD", key, "*", "n", f"{text}{number}") for number in range(count)])
        self.save()

    def save(self) -> None:
        """Write a checkpoint, and copy the file of the store: a process can't open LMDB's file twice."""
        assert self.client("SAVE") == b"OK"
        shutil.copy(self.directory / "store" / "data.mdb", self.copied)

    def entries(self, key: str) -> list[Entry]:
        return list(self.client("XRANGE", key, "-", "+"))

    def copier(self, files: Files | None = None, epoch: int = 0, now: int = CLOCK) -> Copier:
        return Copier(self.copied, self.target, files, epoch, now)

    def history(self, key: str) -> list[Entry]:
        return History(self.target).entries(key.encode())

    def check(self, key: str, left: int) -> None:
        """Compare the history with the stream, whose last ``left`` entries are not in it."""
        entries = self.entries(key)
        assert self.history(key) == entries[: len(entries) - left]
