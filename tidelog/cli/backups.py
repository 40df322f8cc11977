"""The commands of backups: backup, backups, verify, restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tidelog.backup import manifest, take
from tidelog.backup import restore as reading
from tidelog.backup.manifest import Manifest
from tidelog.backup.places import BackupError, Place, place_at
from tidelog.cli.connect import reported, url_option
from tidelog.cli.output import echo
from tidelog.cli.progress import Progress
from tidelog.cli.report import size, table

SECONDS = len("2026-11-21T08:00:00")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except BackupError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("target")
@url_option
@click.option("--keep", type=click.IntRange(1), help="Then remove all but the newest so many backups at TARGET.")
def backup(target: str, url: str, keep: int | None) -> None:
    """Copy everything that a running server has to TARGET, and verify the copy.

    \b
    TARGET is a folder, or a URL that fsspec knows, such as s3://bucket/tide:
      pip install 'tidelog[backup]' s3fs
    It holds any number of backups, which share files: after the first one, only
    what is new is written. Use a target of its own for each server.

    \b
      tidelog backup /mnt/backups/tide
      tidelog backup s3://bucket/tide --url rediss://user:password@db1 --keep 14
      tidelog backups /mnt/backups/tide          list them
      tidelog verify /mnt/backups/tide           read all of the newest one
      tidelog restore /mnt/backups/tide ./data   make a data directory of it

    The server, a leader or a replica, goes on serving. The backup is the state at one moment: it has everything that
    was acknowledged before the command began, and no transaction in part. All data is read from the server each time.
    If anything goes wrong, the exit code is not 0, and no backup is added; what was written of it is used by the next
    one, or removed by it with --keep. Configuration and ACL files are not part of a backup.
    """
    with _told(), reported(url), Progress() as progress:
        place = place_at(target)
        taken = take.take(url, place, keep, progress.show_bytes)
        done = taken.manifest
        progress.end()
        echo(f"{place.shown}/{done.name}: {size(done.size)}, of which {size(taken.new_bytes)} are new, verified")
        echo(
            f"up to log offset {done.log_offset:,} of a {done.role}, about {done.keys:,} keys"
            f" and {done.entries:,} entries" + (f"; {taken.removed} older backups removed" if taken.removed else "")
        )


@click.command()
@click.argument("target")
def backups(target: str) -> None:
    """List the complete backups at TARGET, oldest first.

    Take a name from here for "tidelog restore TARGET/NAME DIR" and "tidelog verify TARGET/NAME". "shared" is the part
    that an older backup in the list has too.
    """
    with _told():
        place = place_at(target)
        names = manifest.backups(place)
        if not names:
            raise click.ClickException(f"there is no backup at {place.shown}")
        rows, there = [], set[str]()
        for name in names:
            try:
                rows.append(_row(manifest.load(place, name), there))
            except BackupError as error:
                rows.append([name, str(error), *[""] * 4])
        table(["name", "began (UTC)", "size", "shared", "entries", "server"], rows)


def _row(found: Manifest, there: set[str]) -> list[str]:
    shared = sum(count for digest, count in found.chunks if digest in there)
    there.update(digest for digest, _ in found.chunks)
    began = found.began[:SECONDS].replace("T", " ")
    return [found.name, began, size(found.size), size(shared), f"{found.entries:,}", f"{found.server} ({found.role})"]


@click.command()
@click.argument("backup")
def verify(backup: str) -> None:  # it is not the command of that name
    """Read all files of a backup and compare their checksums.

    BACKUP is TARGET/NAME, or TARGET for the newest backup there. The exit code is not 0 if a file is missing or
    damaged; the message names it. The files are plain: their names are their SHA-256.
    """
    with _told(), Progress() as progress:
        place, found = manifest.find(backup)
        reading.verify(place, found, progress.show_bytes)
        progress.end()
        echo(f"{place.shown}/{found.name}: {len(found.chunks):,} files, {size(found.size)}, all as written")


@click.command()
@click.argument("backup")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def restore(backup: str, directory: Path) -> None:
    """Make the data directory DIR from a backup, for tidelog-server to start on.

    BACKUP is TARGET/NAME, or TARGET for the newest backup there. DIR must be new or empty. It appears when it is
    complete and checked, and not before.

    \b
      tidelog restore /mnt/backups/tide ./data
      tidelog-server --dir ./data

    The server begins a new history there: replicas of the old server take a full copy of it, unless they have nothing
    that it lacks. To make a new replica from a backup, start it on DIR with --replicaof: it asks its leader only for
    what came after the backup, as far as the leader still has that. Keys whose time is over end at the start.
    """
    with _told(), Progress() as progress:
        place, found = manifest.find(backup)
        facts = reading.restore(place, found, directory, progress.show_bytes)
        progress.end()
        _print_restored(place, found, directory, facts)


def _print_restored(place: Place, found: Manifest, directory: Path, facts: dict[str, Any]) -> None:
    newest = f", the newest {_moment(facts['newest_ms'])}" if facts["newest_ms"] else ""
    echo(f"{directory}: what {found.server} had at log offset {facts['log_offset']:,}, from")
    echo(f"{place.shown}/{found.name}")
    streams = f"{facts['streams']:,} of them streams with {facts['entries']:,} entries{newest}"
    echo(f"{facts['keys']:,} keys, {streams}")
    echo(f"{facts['groups']:,} groups with {facts['pending']:,} pending messages")
    echo(f"start it: tidelog-server --dir {directory}")


def _moment(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999
        return f"{ms} ms"
