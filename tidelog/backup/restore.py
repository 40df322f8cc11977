"""Verifies a backup, or creates a data directory from it.

Rule 1: a directory that is not empty is never changed. The new directory is created as DIR.restoring, and renamed when
        it
        is complete and on disk.
Rule 2: the existence of all chunks is checked before anything is written. Each is verified before it is used (see
        ``chunkreads``).
Rule 3: ``tidelog-server --restore`` creates the directory from the data that a leader would send to a new replica.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tidelog.backup.chunkreads import damaged, read_chunk, read_log_chunk
from tidelog.backup.frames import ALIVE, BATCH, COPY, DONE, ONE, PIECE, TWO, BackupFrame
from tidelog.backup.logchunks import LogChunk
from tidelog.backup.manifest import BackupManifest, chunk_file
from tidelog.backup.take import Report
from tidelog.backup.targets import BackupError, BackupTarget
from tidelog.backup.until import RestorePoint
from tidelog.serverprogram import server_command, server_environment

UNFINISHED = ".restoring"  # suffix of an unfinished directory


def verify(place: BackupTarget, manifests: list[BackupManifest], log: list[LogChunk], report: Report) -> None:
    """Read all files of backups, and chunks of the log. Raises BackupError if a file is missing or damaged."""
    seen = set[str]()
    for manifest in manifests:
        _look_for_all(place, manifest)
        for _ in _contents(place, manifest, "verifying", report, seen):
            pass
    done, total = 0, sum(chunk.size for chunk in log)
    for chunk in log:
        report("verifying the log", done, total)
        read_log_chunk(place, chunk)
        done += chunk.size


def restore(place: BackupTarget, point: RestorePoint, directory: Path, report: Report) -> dict[str, Any]:
    """Create a data directory, and return what tidelog-server reports about it.

    Raises BackupError if that fails. ``directory`` is unchanged then.
    """
    manifest = point.base
    directory = Path(os.path.abspath(directory))
    unfinished = directory.with_name(directory.name + UNFINISHED)
    try:
        _check_free(directory, unfinished)
        _look_for_all(place, manifest)
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            facts = _run_server(directory, _link(place, point, report))
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)  # left over if the server was killed
            raise
    except OSError as error:
        raise BackupError(f"can't restore into {directory}: {error.strerror or error}") from error
    return facts


def _check_free(directory: Path, unfinished: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise BackupError(f"{directory} is there and not empty: restore into a new directory")
    if directory.is_mount():
        raise BackupError(f"{directory} is a mount point, which can't be replaced: restore into a folder in it")
    if unfinished.exists():
        raise BackupError(
            f"{unfinished} is there: a restore is running, or one was interrupted; remove it if none is running"
        )


def _look_for_all(place: BackupTarget, manifest: BackupManifest) -> None:
    """Raise BackupError if a chunk is missing or has another size."""
    there = place.names("chunks")
    for digest, size in manifest.chunks:
        file = chunk_file(digest)
        if file not in there:
            raise BackupError(f"{place.shown}/{file} is missing: backup {manifest.name} is incomplete")
        if there[file] != size:
            raise damaged(place, file, f"it has {there[file]:,} bytes instead of {size:,}")


def _contents(
    place: BackupTarget, manifest: BackupManifest, activity: str, report: Report, seen: set[str] | None = None
) -> Iterator[bytes]:
    """Yield the contents of all chunks, except those in ``seen``. Raises BackupError if one is damaged."""
    done, total = 0, manifest.size
    for digest, size in manifest.chunks:
        report(activity, done, total)
        if seen is None or digest not in seen:
            yield read_chunk(place, digest, size)
        if seen is not None:
            seen.add(digest)
        done += size


def _link(place: BackupTarget, point: RestorePoint, report: Report) -> Iterator[bytes]:
    """Yield the bytes that a leader would send."""
    manifest, end = point.base, point.offset
    at, contents = manifest.store_offset, _contents(place, manifest, "restoring", report)
    yield f"+FULLRESYNC {manifest.replid} {at}\r\n".encode()
    yield BackupFrame(COPY, at, TWO.pack(manifest.store_entries, sum(size for _, size in manifest.store))).encoded()
    for _ in manifest.store:
        yield BackupFrame(PIECE, at, next(contents)).encoded()
    yield BackupFrame(DONE, at, ONE.pack(manifest.store_entries)).encoded()
    yield from contents
    yield from _following(place, point.chunks, manifest.log_offset, end, report)
    yield BackupFrame(ALIVE, end, b"\0").encoded()


def _following(place: BackupTarget, log: Sequence[LogChunk], at: int, end: int, report: Report) -> Iterator[bytes]:
    """Yield the commit groups of a log from one log offset to another one."""
    done, total = 0, sum(chunk.size for chunk in log)
    for chunk in log:
        report("restoring the log", done, total)
        for group in read_log_chunk(place, chunk).groups:
            if group.offset >= end:
                break
            rest = group.payload[max(0, at - group.offset) :]  # a replica may have merged commit groups of its leader
            if rest:
                yield BackupFrame(BATCH, at, rest).encoded()
                at += len(rest)
        done += chunk.size
    if at != end:
        raise BackupError(f"the log ends at log offset {at:,} instead of {end:,}")


def _run_server(directory: Path, link: Iterator[bytes]) -> dict[str, Any]:
    """Let tidelog-server create the directory, and return its output. Raises BackupError with its message if it fails.
    """
    command = [*server_command(), "--dir", str(directory), "--restore"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, env=server_environment()
        )
        try:
            output = _feed(process, link)
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with suppress(OSError):
                    pipe.close()
        if process.returncode:
            said.seek(0)
            text = said.read().decode("utf-8", "replace").strip().removeprefix("tidelog-server: ")
            raise BackupError(text or f"tidelog-server ended with status {process.returncode}")
    facts: dict[str, Any] = json.loads(output)
    return facts


def _feed(process: subprocess.Popen[bytes], link: Iterator[bytes]) -> bytes:
    """Write the data to the process until it ends, and return its output."""
    source: IO[bytes] | None = process.stdin
    assert source is not None and process.stdout is not None  # noqa: S101, PT018 - pipes were asked for
    with suppress(BrokenPipeError):  # the exit status and output of the process contain the reason
        for data in link:
            source.write(data)
        source.close()
    return process.stdout.read()
