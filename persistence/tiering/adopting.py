"""Protects the objects of another owner that the store of this server refers to.

A server that was restored from a backup, or a replica that was promoted without a server group, reads entries below the
prefix of another server. It writes nothing there but a pin, and never deletes an object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from persistence.tiering import source
from persistence.tiering.objectstore import HistoryStore, MissingFileError
from resp.errors import CorruptError
from storage.history import pins
from storage.history.pins import Pin

NODES: Final = 20_000  # of the store in one read transaction


def references(directory: Path, progress: Callable[[], None]) -> set[str]:
    """Return the names of the objects to which the store in a directory refers.

    Nodes get new references only to objects that a manifest lists. So an object that is not among them and that no
    manifest lists is not needed later. ``progress``: called between transactions. Raises CorruptError, OSError.
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


def adopt(store: HistoryStore, server: str, directory: Path, now: int, progress: Callable[[], None]) -> None:
    """Pin the objects that the store of the server ``server`` needs, if it needs some. ``now``: ms since epoch.

    Raises HistoryStoreError, CorruptError, OSError.
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
