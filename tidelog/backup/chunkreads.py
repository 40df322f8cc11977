"""Reads and verifies the files of backups and logs.

Rule: the SHA-256 of a file is compared before its content is used.
"""

from __future__ import annotations

from hashlib import sha256

from tidelog.backup import logchunks
from tidelog.backup.logchunks import LogChunk, LogContent
from tidelog.backup.manifest import chunk_file
from tidelog.backup.targets import BackupError, BackupTarget


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
    """
    try:
        return logchunks.decode(chunk, place.read(chunk.file, chunk.size), f"{place.shown}/{chunk.file}")
    except BackupError as error:
        raise BackupError(
            f"{error}. Without it, the log can be restored up to log offset {chunk.begin:,}: --until {chunk.begin}"
        ) from error


def damaged(place: BackupTarget, file: str, why: str) -> BackupError:
    """Return the error for a damaged file of a base backup."""
    return BackupError(
        f"{place.shown}/{file} is damaged: {why}. If you remove it, the next backup writes what it still needs of it"
    )
