"""Reads and verifies the files of backups and logs.

Rule: the SHA-256 of a file is compared before its content is used.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Final

from tidelog.backup import logchunks, ranges
from tidelog.backup.logchunks import LogChunk, LogContent
from tidelog.backup.manifest import chunk_file
from tidelog.backup.targets import BackupError, BackupTarget

MOST_MERGES: Final = 3  # one after the other, while a chunk is read


def read_chunk(place: BackupTarget, digest: str, size: int) -> bytes:
    """Return a chunk of a base backup. Raises BackupError if it is missing or damaged."""
    file = chunk_file(digest)
    data = place.read(file, size)
    if sha256(data).hexdigest() != digest:
        raise damaged(place, file, "its SHA-256 is not its name")
    return data


def read_log_chunk(place: BackupTarget, chunk: LogChunk) -> LogContent:
    """Return a chunk of a log. Raises BackupError, with the range that can still be restored, if it is damaged or
    missing.

    If the chunk was merged into another one since the target was listed, the other one is read.
    """
    try:
        return _decoded(place, chunk)
    except BackupError as error:
        found = _merged(place, chunk) if isinstance(error.__cause__, FileNotFoundError) else None
        if found is not None:
            return found
        raise BackupError(
            f"{error}. Without it, the log can be restored up to log offset {chunk.begin:,}: --until {chunk.begin}"
        ) from error


def _decoded(place: BackupTarget, chunk: LogChunk) -> LogContent:
    return logchunks.decode(chunk, place.read(chunk.file, chunk.size), f"{place.shown}/{chunk.file}")


def _merged(place: BackupTarget, chunk: LogChunk) -> LogContent | None:
    """Return the part of a merged chunk that was a chunk of its own; None if there is no such merged chunk."""
    for _ in range(MOST_MERGES):
        listed = ranges.chunks_of(place, chunk.log)
        others = [one for one in listed if one.begin <= chunk.begin and chunk.end <= one.end and one.name != chunk.name]
        if not others:
            return None
        with suppress(BackupError):
            return _decoded(place, max(others, key=lambda one: one.end - one.begin)).within(chunk.begin, chunk.end)
    return None


def damaged(place: BackupTarget, file: str, why: str) -> BackupError:
    """Return the error for a damaged file of a base backup."""
    return BackupError(
        f"{place.shown}/{file} is damaged: {why}. If you remove it, the next backup writes what it still needs of it"
    )
