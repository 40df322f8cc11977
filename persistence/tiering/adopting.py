"""Protects the objects of another owner that the store of this server refers to.

A server that was restored from a backup, or a replica that was promoted without a server group, reads entries below the
prefix of another server. It writes nothing there but a pin, and never deletes an object.

Rule 1: after a new pin, the list of deletions of the owner is read, and then the objects are listed. An object whose
deletion was due before the pin can be deleted at this moment, or is already missing: the log of this server names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from persistence.tiering import source
from persistence.tiering.objectstore import HistoryStore, MissingFileError
from resp.errors import CorruptError
from storage.history import deletions, pins
from storage.history.pins import Pin

NODES: Final = 20_000  # of the store in one read transaction
MARGIN: Final = 60_000  # ms by which the clocks of this server and the owner can differ


def references(directory: Path, progress: Callable[[], None]) -> set[str]:
    """Return the names of the objects to which the store in a directory refers.

    Nodes get new references only to objects that a manifest lists; in a move, the owner of a prefix gets others. So an
    object that is not among them and that no manifest lists is not needed later. ``progress``: called between
    transactions. Raises CorruptError, OSError.
    """
    objects: set[str] = set()
    key = b""
    while True:
        with source.opened(directory) as view:
            found, key = view.referenced(key, NODES)
        objects |= found
        progress()
        if not key:
            return objects


def adopt(
    store: HistoryStore, server: str, directory: Path, now: int, progress: Callable[[], None],
    warn: Callable[[str], None],
) -> None:  # fmt: skip
    """Pin the objects that the store of the server ``server`` needs, if it needs some. ``now``: ms since epoch.

    ``warn``: called with a line for the server's log. Raises HistoryStoreError, CorruptError, OSError.
    """
    wanted = Pin(f"server {server}", now, 0, frozenset(references(directory, progress)))
    if not wanted.objects:
        return
    name = f"{pins.FOLDER}/server-{server}.json"
    try:
        found: Pin | None = pins.decode(store.read(name))
    except (MissingFileError, CorruptError):
        found = None
    if found is None or found.objects is None or not wanted.objects <= found.objects:
        before = frozenset() if found is None or found.objects is None else found.objects
        store.write(name, replace(wanted, objects=wanted.objects | before).encode())
        _check_due(store, wanted.objects, now, warn)


def _check_due(store: HistoryStore, objects: frozenset[str], now: int, warn: Callable[[str], None]) -> None:
    """Warn of objects that the owner can have deleted before it has read the pin (Rule 1)."""
    due: set[str] = set()
    try:
        name = max(store.names(deletions.FOLDER), default="")
        if name:
            found = deletions.decode(store.read(f"{deletions.FOLDER}/{name}"))
            due = {
                file.name.removeprefix("objects/") for file in found.files
                if not file.kept and file.since <= now + MARGIN - found.grace
            }  # fmt: skip
    except (MissingFileError, CorruptError) as error:
        warn(f"whether objects that this server needs are being deleted is unknown: {error}")
    missing = objects - set(store.names("objects"))
    if missing:
        warn(
            f"this server refers to {len(missing)} objects that do not exist below {store.url}, such as {min(missing)}:"
            " restore them from a version of the bucket, or restore a later backup"
        )
    being = (due & objects) - missing
    if being:
        warn(
            f"this server refers to {len(being)} objects that the owner of {store.url} was about to delete, such as"
            f" {min(being)}, because their entries were removed there. They are pinned now. If they are missing later,"
            " restore them from a version of the bucket, or restore a later backup"
        )
