"""A consistent copy of a store while epochs continue: compacted by LMDB, compressed, and written to a file.

Rule 1: The copy comes from one read transaction, the one that also read the version (``opened`` of the store).
Rule 2: During a read transaction, LMDB does not reuse pages freed since its start, and the store grows. The copy is
        therefore written to a local file first, so that the transaction does not wait for the object store.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, Final

import lmdb
import zstandard

from tidelog.jobs.snapshots.objects import PIECE

LEVEL: Final = 3


@dataclass(frozen=True)
class CopyResult:
    """Size and checksum of the copy."""

    size: int  # bytes of the LMDB file
    stored: int  # compressed bytes
    sha256: str  # of the compressed bytes


def copy(env: lmdb.Environment, txn: lmdb.Transaction[bytes], into: IO[bytes]) -> CopyResult:
    """Write a compressed copy of what ``txn`` sees. Raises OSError or lmdb.Error."""
    packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
    digest, size, stored = sha256(), 0, 0

    def put(piece: bytes) -> None:
        nonlocal stored
        digest.update(piece)
        stored += len(piece)
        into.write(piece)

    for piece in _compacted(env, txn):
        size += len(piece)
        put(packer.compress(piece))
    put(packer.flush())
    into.flush()
    return CopyResult(size, stored, digest.hexdigest())


def _compacted(env: lmdb.Environment, txn: lmdb.Transaction[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the compacted copy, which a thread writes into a pipe."""
    reader, writer = os.pipe()
    errors: list[lmdb.Error | OSError] = []

    def write() -> None:
        try:
            env.copyfd(writer, compact=True, txn=txn)
        except (lmdb.Error, OSError) as error:
            errors.append(error)
        finally:
            os.close(writer)

    thread = threading.Thread(target=write, name="copy", daemon=True)
    thread.start()
    try:
        while piece := os.read(reader, PIECE):
            yield piece
    finally:
        os.close(reader)
        thread.join()
    if errors:
        raise errors[0]
