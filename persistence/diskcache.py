"""The disk cache: nodes that were read back from history objects, one file for each in ``DIR/tier-cache``.

A file has the blob of a node, and the name of the digest that the reference in the store has. The process that reads
objects (``persistence.tiering.reader``) writes it under another name and renames it. The server removes those that were
not used for the longest time.

Decision: the files have the form of nodes rather than that of sections of objects, so that a read in the event loop
takes as long as one from the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from zlib import crc32

from resp.errors import AbsentNodeError, CorruptError, DamagedNodeError
from storage.nodes import coder, reference
from storage.nodes.node import BODY, CRC, HEADER, MAGIC

CACHE: Final = "tier-cache"


class DiskCache:
    """The files. For the event loop, and for the thread that starts the server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.used: dict[bytes, None] = {}  # digests of nodes that were read since the caller last cleared it
        self.hits = 0
        self.misses = 0
        #: objects and sections that could not be read lately, and why; set by the server
        self.failures: dict[str | tuple[int, bytes, int], str] = {}

    def load(self, raw: bytes, sid: int, first_ord: int, first_id: int) -> bytes:
        """Return the blob of a node whose reference is ``raw``. Raises AbsentNodeError if it is not in the cache,
        DamagedNodeError if the reference is damaged."""
        try:
            found = reference.unpack(raw)
        except CorruptError as error:
            raise DamagedNodeError(sid, first_ord, first_id, 1, str(error)) from error
        path = self.path / found.digest.hex()
        try:
            blob = path.read_bytes()
        except OSError:
            blob = b""
        if _is_sound(blob, found.first_id, found.entries):
            self.hits += 1
            self.used[found.digest] = None
            return blob
        if blob:
            path.unlink(missing_ok=True)
        self.misses += 1
        failed = self.failures.get(found.section) or self.failures.get(found.object, "")
        raise AbsentNodeError(
            sid, first_ord, first_id, found.entries, found.last_id, raw, f"object {found.object}", failed
        )


def _is_sound(blob: bytes, first_id: int, count: int) -> bool:
    """Return whether a file has the node, undamaged."""
    if len(blob) <= BODY:
        return False
    magic, version, _, its_count, _, ms, seq = HEADER.unpack_from(blob)
    if magic != MAGIC or its_count != count or ms << 64 | seq != first_id:
        return False
    if version == coder.VERSION:
        checksum = coder.checksum(blob)
    else:
        checksum = crc32(memoryview(blob)[BODY:], crc32(blob[: HEADER.size]))
    return bool(CRC.unpack_from(blob, HEADER.size)[0] == checksum)
