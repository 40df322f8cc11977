"""A consistent copy of a store while it goes on: compacted by LMDB, compressed, on its way to a file.

Rule 1: the copy is of one read transaction, the same that its version was read in (``opened`` of the store).
Rule 2: while a read transaction lives, LMDB reuses no page that was freed since, and the store grows. So the copy goes
        to a file of this machine first, and the transaction does not wait for the object store.
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
    """What was written to the file."""

    size: int  # bytes of the LMDB file
    stored: int  # bytes, compressed
    sha256: str  # of what is compressed


def copy(env: lmdb.Environment, txn: lmdb.Transaction[bytes], into: IO[bytes]) -> CopyResult:
    """Write a compressed copy of what ``txn`` sees. OSError, lmdb.Error."""
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
    """The bytes of the compacted copy, from a thread that writes it into a pipe."""
    taken, given = os.pipe()
    errors: list[lmdb.Error | OSError] = []

    def write() -> None:
        try:
            env.copyfd(given, compact=True, txn=txn)
        except (lmdb.Error, OSError) as error:
            errors.append(error)
        finally:
            os.close(given)

    thread = threading.Thread(target=write, name="copy", daemon=True)
    thread.start()
    try:
        while piece := os.read(taken, PIECE):
            yield piece
    finally:
        os.close(taken)
        thread.join()
    if errors:
        raise errors[0]
