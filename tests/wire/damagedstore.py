"""Damage in the store of a server that is stopped, in the nodes that tests choose."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import shake_256
from pathlib import Path

from tests.persistence.lmdbdamage import LmdbFile


def noise(number: int, size: int = 3000) -> bytes:
    """Return bytes that do not compress, so that the pages of a node contain them unchanged."""
    return shake_256(b"%d" % number).digest(size)


def damage(place: Path, numbers: Iterable[int]) -> None:
    """Damage the nodes with the noise of these numbers in the store of a data directory."""
    file = LmdbFile(place / "store" / "data.mdb")
    raw = bytes(file.raw)
    for number in numbers:
        whole = noise(number, 256)
        # the compressor can find a part of it elsewhere
        file.flip(next(found for at in range(0, 256, 32) if (found := raw.find(whole[at : at + 32])) > 0))
    file.write()
