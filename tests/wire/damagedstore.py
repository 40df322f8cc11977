"""Damage in the store of a server that is stopped, in the nodes that tests choose."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import shake_256
from pathlib import Path

from tests.persistence.lmdbdamage import LmdbFile


def noise(number: int, size: int = 3000) -> bytes:
    """Return bytes that do not compress, so that the pages of a node contain them unchanged."""
    return shake_256(b"%d" % number).digest(size)


def damage(place: Path, numbers: Iterable[int], copies: int = 1) -> None:
    """Damage the nodes with the noise of these numbers in the store of a data directory. ``copies``: of each node."""
    file = LmdbFile(place / "store" / "data.mdb")
    raw = bytes(file.raw)
    for number in numbers:
        whole, start = noise(number, 256), 0
        for _ in range(copies):
            # the compressor can find a part of it elsewhere
            start = next(found for at in range(0, 256, 32) if (found := raw.find(whole[at : at + 32], start)) > 0) + 256
            file.flip(start - 256)
    file.write()
