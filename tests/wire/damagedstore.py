"""Damage in the store of a server that is stopped, in the nodes that tests choose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import shake_256
from pathlib import Path

from tests.persistence.lmdbdamage import LmdbFile


def noise(number: int, size: int = 3000) -> bytes:
    """Return bytes that do not compress, so that the pages of a node contain them unchanged."""
    return shake_256(b"%d" % number).digest(size)


def damage(place: Path, numbers: Iterable[int]) -> None:
    """Damage the nodes with the noise of these numbers in the store of a data directory.

    A node can be in the file several times: pages that are no longer in use keep their content.
    """
    file = LmdbFile(place / "store" / "data.mdb")
    raw = bytes(file.raw)
    for number in numbers:
        whole = noise(number, 256)
        # the compressor can find a part of it elsewhere
        found = [at for start in range(0, 256, 64) for at in _all(raw, whole[start : start + 32])]
        assert found
        for at in found:
            file.flip(at)
    file.write()


def _all(raw: bytes, part: bytes) -> Iterator[int]:
    at = raw.find(part)
    while at >= 0:
        yield at
        at = raw.find(part, at + 1)
