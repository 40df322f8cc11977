"""The copy of the map in the data directory, by which a member redirects clients before it reaches the coordinator.

    map    a text file of two lines, replaced by rename:
    +-----------------------------------------------------+
    | {"format": 1, "cluster_id": ...}                    |   the JSON document of ``coordinator.slotmap``
    | crc32 8d1c03fa                                      |   of the first line, without its end
    +-----------------------------------------------------+

Copies to replicas and backups do not contain this file. A member saves each version before it uses it, so it notices if
the coordinator has an older one. Without the checksum, a flipped bit of a slot could reach a coordinator that has lost
the map (TCLUSTER RESTORE).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from zlib import crc32

from coordinator import slotmap
from coordinator.slotmap import DamagedMapError, SlotMap, SlotMapError
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
    document, _, rest = raw.partition(b"\n")
    if rest != _checksum(document):
        raise _damaged(path)
    try:
        return slotmap.decode(document)
    except DamagedMapError as error:
        raise _damaged(path) from error
    except SlotMapError as error:  # of another format
        raise CorruptError(f"{path} can't be used: {error}") from error


def save(directory: Path, slots: SlotMap) -> None:
    """Replace and sync the file. Raises OSError."""
    document = slots.encode()
    replace(directory / NAME, (document + b"\n" + _checksum(document)).decode())


def _checksum(document: bytes) -> bytes:
    return b"crc32 %08x\n" % crc32(document)


def _damaged(path: Path) -> CorruptError:
    return CorruptError(f"{path} is damaged: delete it, and this member reads the map from the coordinator")
