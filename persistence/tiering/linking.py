"""Links history objects of another server group below the prefix of this one, for a move of slots to it [112].

In a directory, a link is a hard link. In a bucket, the object is copied within the store. So no server transfers the
bytes. The name of a link has the epoch of this group's leader, and the same digest. The streams that move then refer to
the links, which only this group needs.

Rule 1: the pin ``pins/move-ID.json`` below the own prefix names the links before they are created.
Rule 2: the pin is removed by the process that deletes objects, between two sweeps: a sweep reads the references in the
store before the pins. It is removed when the move has ended here, whatever the outcome was, and the store has the log
up to this moment. The store then has the references that are needed. The end of the move must have been known to an
earlier pass: the pin of a later leader is so never removed by an earlier one, which gets no request any more.
Rule 3: a link that nothing refers to is an object that no manifest lists. It is deleted like others (``deleting``).
Rule 4: an object in a bucket is linked only if at least half of its bytes are in moving streams. The rest would take
space here, too. In a directory, links take no space as long as the other group has the object.
Rule 5: an object is linked only if its footer and index are valid, and the other prefix belongs to the other group: the
same URL can be another store there, with another endpoint or mount. A link counts only if it has the same size and the
same index, which has the checksums of all sections.
Rule 6: a name in the list of deletions is not used: a request to delete it may still be in progress, if its process was
killed. Its entries are sent.
Rule 7: a link that was created and does not count is added to this list at once, as one that never had the only copy of
entries. Others with a damaged index are never deleted (``deleting``, Rule 3), because such an object may have it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from persistence.tiering.deletionlist import DeletionList
from persistence.tiering.objects import index_of
from persistence.tiering.objectstore import (
    HistoryStore,
    HistoryStoreError,
    MissingFileError,
    TimedOutError,
    problem_of,
)
from persistence.tiering.tieringpass import NotReadyError, ready
from resp.errors import CorruptError
from storage.history import owner, pins
from storage.history.deletions import OBJECT, UNUSED, WaitingFile
from storage.history.manifest import object_name
from storage.history.pins import Pin

THREADS: Final = 16  # objects at the same time
MOVE: Final = re.compile(r"move-([0-9a-f]{32})\.json")


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """What the server requests."""

    move: str  # its ID
    url: str  # the prefix of the other group
    owner: str  # the ID of the other group
    objects: list[tuple[str, int]]  # names there, and the bytes of moving streams in each
    epoch: int  # of this leader


class ObjectLinks:
    """Creates links and pins, and removes pins."""

    def __init__(
        self, store: HistoryStore, deletions: DeletionList, progress: Callable[[], None], warn: Callable[[str], None],
        now: Callable[[], int],
    ) -> None:  # fmt: skip
        """``deletions``: of the own prefix. ``progress``: called by any thread. ``warn``: called with a line for the
        log. ``now``: ms since epoch."""
        self._store = store
        self._deletions = deletions
        self._progress = progress
        self._warn = warn
        self._now = now
        self._other: HistoryStore | None = None  # the prefix of the last request
        self._failed: list[str] = []  # links that were created and can't be used; any thread adds to it
        self._pins: set[str] | None = None  # the pins of moves; None: not read yet
        self._ended: dict[str, int] = {}  # by pin of a move that has ended: log offset at which this was known

    # -- links -----------------------------------------------------------------------------------------------
    def link(self, wanted: LinkRequest) -> list[bool]:
        """Link objects. Return which of them are linked.

        Raises HistoryStoreError if the pin can't be written, or the other prefix can't be used, CorruptError if the pin
        or the file with the owner is damaged.
        """
        other = self._other
        if other is None or other.url != wanted.url:
            if problem_of(wanted.url) or _scheme(wanted.url) != _scheme(self._store.url):
                raise HistoryStoreError(f"{wanted.url} is in another kind of store")
            other = self._other = HistoryStore(wanted.url, self._store.seconds, self._progress)
            other.open()
        other.seconds = self._store.seconds
        _check_owner(other, wanted.owner)
        self._store.open()
        own = [_own_name(name, wanted.epoch) for name, _ in wanted.objects]
        self._pin(wanted.move, frozenset(filter(None, own)))
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(lambda one: self._link(other, *one), zip(own, wanted.objects, strict=True)))
        self._drop_failed()
        problems = [problem for problem in results if problem]
        if problems:
            self._warn(f"{len(problems)} objects of {wanted.url} are not linked for a move of slots: {problems[0]}")
        return [not problem for problem in results]

    def _link(self, other: HistoryStore, own: str, wanted: tuple[str, int]) -> str:
        """Link an object. Return why it can't be used; "" if it can. Raises TimedOutError."""
        name, moving = wanted
        created = False
        try:
            if not own:
                raise CorruptError("it is no history object")
            if any(file.name == f"objects/{own}" for file in self._deletions.current.files):
                return f"{name} is in the list of deletions as {own}"  # Rule 6
            size = other.size(f"objects/{name}")
            index = index_of(other, f"objects/{name}", size)
            if 2 * moving < size and not self._store.is_directory:
                return f"{name} has {size} bytes, of which only {moving} move"
            before = self._size(own)
            if before != size:  # never replace one that slots have left here, and that the store may need
                created = before < 0
                self._store.link(f"objects/{own}", other, f"objects/{name}")
            found = self._size(own)
            if found != size:
                raise CorruptError(f"the link has {found} bytes instead of {size}")
            if index_of(self._store, f"objects/{own}", size) != index:
                raise CorruptError("the link has another index")
        except TimedOutError:
            raise
        except (HistoryStoreError, CorruptError) as error:
            if created:
                self._failed.append(own)
            return f"{name}: {error}"
        return ""

    def _drop_failed(self) -> None:
        """List links that were created and can't be used for their deletion (Rule 7). Raises TimedOutError."""
        names, self._failed = self._failed, []
        try:
            found = [(name, self._size(name)) for name in names]
            self._deletions.add([
                WaitingFile(f"objects/{name}", size, 0, self._now(), why=UNUSED) for name, size in found if size >= 0
            ])
        except TimedOutError:
            raise
        except (HistoryStoreError, CorruptError) as error:
            self._warn(f"links that can't be used remain: {error}")

    def _size(self, name: str) -> int:
        """Return the bytes of an object; -1 if it does not exist."""
        try:
            return self._store.size(f"objects/{name}")
        except MissingFileError:
            return -1

    def _pin(self, move: str, objects: frozenset[str]) -> None:
        """Pin objects, and those that the pin of this move has. Raises HistoryStoreError."""
        file = f"move-{move}.json"
        if not MOVE.fullmatch(file):
            raise HistoryStoreError(f"{move!r} is not the ID of a move")
        name = f"{pins.FOLDER}/{file}"
        before: frozenset[str] = frozenset()
        with suppress(MissingFileError):
            before = pins.decode(self._store.read(name)).objects or before
        content = Pin(f"move {move}", self._now(), 0, objects | before).encode()
        self._store.write(name, content)
        if self._store.read(name) != content:
            raise HistoryStoreError(f"{name} differs from what was written")
        if self._pins is not None:
            self._pins.add(file)

    # -- pins ------------------------------------------------------------------------------------------------
    def release(self, directory: Path, moves: frozenset[str], end: int, offset: int, floor: int) -> bool:
        """Remove the pins that are not needed any more (Rule 2). Return whether there was one. Called once per pass.

        ``moves``: the moves to this group that have not ended. ``end``: the log offset at which they had not ended. The
        others: see ``PassRequest``. Raises HistoryStoreError, CorruptError, OSError.
        """
        if self._pins is None:
            self._pins = {name for name in self._store.names(pins.FOLDER) if MOVE.fullmatch(name)}
        candidates = [name for name in sorted(self._pins) if name[5:37] not in moves]
        known, self._ended = self._ended, {}
        if not candidates:
            return False
        try:
            with ready(directory, offset, floor) as view:
                stored = view.offset
        except NotReadyError:
            stored = -1
        removed = False
        for name in candidates:
            self._ended[name] = known.get(name, end)
            if name in known and stored >= known[name] and self._is_removed(name):
                self._pins.discard(name)
                del self._ended[name]
                removed = True
        return removed

    def _is_removed(self, name: str) -> bool:
        """Remove a pin. Return False if this fails: a later pass tries it again. Raises TimedOutError."""
        try:
            self._store.remove(f"{pins.FOLDER}/{name}")
        except TimedOutError:
            raise
        except HistoryStoreError as error:
            self._warn(f"{pins.FOLDER}/{name} is not needed any more: {error}")
            return False
        return True


def _check_owner(other: HistoryStore, expected: str) -> None:
    """Raise HistoryStoreError if the prefix of the other group belongs to another server here (Rule 5)."""
    try:
        found = f"to {owner.decode(other.read(owner.NAME))}"
    except MissingFileError:
        found = "to no server"
    if found != f"to {expected}":
        raise HistoryStoreError(
            f"{other.url} belongs {found} here, instead of to the group that has the slots ({expected}): this server"
            " perhaps has another endpoint, or another file system under this path"
        )


def _scheme(url: str) -> str:
    """Return the scheme of a URL; "" for a directory."""
    scheme, separator, _ = url.partition("://")
    return scheme if separator and scheme != "file" else ""


def _own_name(name: str, epoch: int) -> str:
    """Return the name of the link to an object; "" if this is no name of one."""
    found = OBJECT.fullmatch(f"objects/{name}")
    return object_name(epoch, name.removesuffix(".tide").partition("-")[2]) if found is not None else ""
