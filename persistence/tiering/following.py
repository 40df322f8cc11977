"""A replica's part in tiering: it frees the nodes of its store that its leader has copied, and writes no history.

Rule 1: the history must belong to the replica's server group or, without a group, to its leader. Another owner would
not know which objects the replica needs. If the replica already has references to them, it writes a pin (``adopting``).
Rule 2: a stream is looked up in the object store only while its next node is due. One whose leader has not copied it
yet takes one request per pass.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from persistence.tiering import source
from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.freeing import FreedNode, Freeing
from persistence.tiering.manifests import ManifestStore
from persistence.tiering.objectstore import HistoryStore
from persistence.tiering.ownership import is_claimed
from persistence.tiering.source import DueNodes
from persistence.tiering.tieringpass import MOST_PROBLEMS
from resp.errors import CorruptError
from storage.model.ids import MASK64


class Following:
    """Compares the store of a replica with the history of its leader."""

    def __init__(
        self, store: HistoryStore, server: str, found: Callable[[list[FreedNode]], None], progress: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        """``server``: the ID of the owner. The others: see ``Freeing`` and ``ManifestStore``."""
        self._store = store
        self._server = server
        self._found = found
        self._progress = progress
        self._warn = warn
        self._manifests: ManifestStore | None = None  # None: the prefix had no owner yet
        self._freeing: Freeing

    def run(self, directory: Path, due: DueNodes) -> list[str]:
        """Report the nodes of all streams that can leave the store. Return the problems of single streams.

        Arguments: see ``PassRequest``. Raises HistoryStoreError, CorruptError, OSError.
        """
        manifests = self._manifests
        if manifests is None:
            if not is_claimed(self._store, self._server):
                return []
            deletions = DeletionList(self._store, self._server, lambda: 0)  # a replica neither reads nor writes it
            self._manifests = manifests = ManifestStore(self._store, self._server, self._warn, deletions, lambda: 0)
            self._freeing = Freeing(self._store, manifests, self._found, self._progress)
        problems: list[str] = []
        seen: set[int] = set()

        def compared_to(of: int) -> int:
            seen.add(of)
            return self._freeing.compared_to(of)

        sid = 0
        while True:
            self._progress()
            with source.opened(directory) as view:
                stream = view.next_due(sid, compared_to, due)
            if stream is None:
                break
            sid = stream.sid
            try:
                manifest = manifests.latest(stream.name, MASK64)
                if manifest.sid == sid:
                    self._freeing.free(directory, manifest, due)
            except CorruptError as error:
                if len(problems) < MOST_PROBLEMS:
                    problems.append(f"stream {stream.name!r}: {error}")
        self._freeing.forget(seen)
        return problems
