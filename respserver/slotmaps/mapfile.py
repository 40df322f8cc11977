"""The copy of the map in the data directory, by which a member redirects clients before it reaches the coordinator.

    map    the JSON document of ``coordinator.slotmap``, replaced by rename

Copies to replicas and backups do not contain this file. A member saves each version before it uses it, so it notices if
the coordinator has an older one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from coordinator import slotmap
from coordinator.slotmap import SlotMap, SlotMapError
from persistence.directory import replace
from resp.errors import CorruptError

NAME: Final = "map"


def load(directory: Path) -> SlotMap | None:
    """Return the map; None if there is none yet. Raises CorruptError, OSError."""
    path = directory / NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return slotmap.decode(raw)
    except SlotMapError as error:
        raise CorruptError(f"{path} can't be used: {error}, or delete it: the coordinator has the map") from error


def save(directory: Path, slots: SlotMap) -> None:
    """Replace and sync the file. Raises OSError."""
    replace(directory / NAME, slots.encode().decode())
