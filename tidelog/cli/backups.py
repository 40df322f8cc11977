"""The commands of backups: backup, backups, verify, restore."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tidelog.backup import datadirectory, manifest, supervised, take, until
from tidelog.backup import restore as reading
from tidelog.backup.continuous import ContinuousBackup, ContinuousOptions
from tidelog.backup.manifest import BackupManifest
from tidelog.backup.overview import TargetOverview, overview
from tidelog.backup.ranges import RestorableRange
from tidelog.backup.supervised import AbandonedError
from tidelog.backup.targets import BackupError, BackupTarget, target_at
from tidelog.backup.until import RestorePoint
from tidelog.cli.connect import reported, url_option
from tidelog.cli.progress import Progress
from tidelog.operating import signals
from tidelog.operating.tables import counted, duration, size, table, utc
from tidelog.operating.terminal import echo, try_echo

SECONDS = len("2026-11-21T08:00:00")
DEFAULT_LAG = 5.0  # seconds
DEFAULT_BASE_EVERY = 24.0  # hours


@contextmanager
def _reporting() -> Iterator[None]:
    try:
        yield
    except BackupError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("target")
@url_option
@click.option("--keep", type=click.IntRange(1), help="Afterwards, remove all but this many of the newest backups.")
@click.option("--continuous", is_flag=True, help="Then copy the log as it grows, until a signal stops the process.")
@click.option(
    "--lag",
    type=click.FloatRange(1, 3600),
    help="With --continuous: store each write within this many seconds.  [default: 5]",
)
@click.option(
    "--base-every",
    type=click.FloatRange(0),
    help="With --continuous: hours between two base backups; 0: only the first.  [default: 24]",
)
@click.option(
    "--reference-history",
    metavar="URL",
    default="",
    help="Refer to entries in an object store, instead of copying them. URL: the tier-url of the server.",
)
def backup(
    target: str, url: str, keep: int | None, continuous: bool, lag: float | None, base_every: float | None,
    reference_history: str,
) -> None:  # fmt: skip
    """Copy all data of a running server to TARGET, and verify the copy.

    \b
    TARGET is a directory or an fsspec URL, such as s3://bucket/tide:
      pip install 'tidelog[backup]' s3fs
    It can hold any number of backups, which share files. Only the first backup
    writes all data. Use a separate target for each server.

    \b
      tidelog backup /mnt/backups/tide
      tidelog backup s3://bucket/tide --url rediss://user:password@db1 --keep 14
      tidelog backups /mnt/backups/tide          list the backups
      tidelog verify /mnt/backups/tide           read all files of the newest one
      tidelog restore /mnt/backups/tide ./data   create a data directory from it
      tidelog backup /mnt/backups/tide --continuous   and then copy the log

    The server can be a leader or a replica, and continues to serve clients. The backup is consistent: it contains all
    writes that were acknowledged before the command started, and no partial transaction. Each backup reads all data
    from the server. If the command fails, the exit code is not 0, and no backup is added. The next backup reuses the
    files that were written. Configuration and ACL files are not part of a backup.

    With tier-free, a part of the entries is only in an object store. The server reads them from there for the backup.
    With --reference-history URL, the tier-url of the server, the backup refers to the objects instead, and protects
    them from deletion until the backup is removed (--keep).

    With --continuous, the process also copies the log, so that "tidelog restore --until" can restore any point in time
    since the base backup. It reconnects when the server restarts, and retries while TARGET is unavailable. After a
    restart of the process, it continues where the log at TARGET ends. It prints a line only when something changes.
    After SIGTERM, it writes the rest of the log and ends.
    """
    if continuous:
        hours = DEFAULT_BASE_EVERY if base_every is None else base_every
        _run_continuously(target, url, ContinuousOptions(lag or DEFAULT_LAG, keep, hours * 3600, reference_history))
        return
    if lag is not None or base_every is not None:
        raise click.UsageError(f"{'--lag' if lag is not None else '--base-every'} needs --continuous")
    with _reporting(), reported(url), Progress() as progress:
        place = target_at(target)
        taken = take.take(
            url, place, keep, progress.show_bytes, lambda text: echo(text, err=True), reference_history
        )  # fmt: skip
        done = taken.manifest
        progress.end()
        echo(f"{place.shown}/{done.name}: {size(done.size)}, of which {size(taken.new_bytes)} are new, verified")
        if done.pin:
            echo(f"it refers to objects in {done.history}, which {done.pin} protects")
        echo(
            f"up to log offset {done.log_offset:,} of a {done.role}, about {counted(done.keys, 'key')} and"
            f" {counted(done.entries, 'entry')}"
            + (f"; {counted(taken.removed, 'older backup')} removed" if taken.removed else "")
        )


def _run_continuously(target: str, url: str, options: ContinuousOptions) -> None:
    with _reporting(), reported(url), Progress() as progress, _stopped_by_signals() as stop:

        def say(text: str) -> None:
            progress.end()
            try_echo(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}")

        try:
            supervised.run(ContinuousBackup(url, target, options, say, progress.show_bytes, stop), stop)
        except AbandonedError as error:
            progress.end()
            echo(f"Error: {error}", err=True)
            os._exit(1)  # the thread and those of the target's driver may be blocked


@contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that a signal sets."""
    stop = threading.Event()
    numbers = [each for each in signals.ENDING if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@click.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--max-age",
    type=click.FloatRange(0),
    help="Exit with 1 if the target was last up to date more than this many seconds ago.",
)
def backups(target: str, as_json: bool, max_age: float | None) -> None:
    """List the complete backups at TARGET, oldest first, and what can be restored.

    Use the names in "tidelog restore TARGET/NAME DIR" and "tidelog verify TARGET/NAME". The column "shared" shows the
    size of the files that older backups in the list also use.

    If there is a log of a continuous backup, a second table lists the ranges of log offsets and times that
    "tidelog restore TARGET DIR --until" can restore. The last line shows which process writes to TARGET, and when
    TARGET was last up to date with the server. A continuous backup updates the line every 15 seconds.

    \b
      tidelog backups s3://bucket/tide --max-age 120 > /dev/null   for monitoring
    """
    with _reporting(), Progress() as progress:
        place = target_at(target)
        found = overview(place, progress.show_entries)
        progress.end()
        if as_json:
            echo(json.dumps({"target": place.shown} | found.data()))
        else:
            rows = [_row(base, shared) for base, shared in found.bases]
            rows += [[name, why, *[""] * 4] for name, why in found.damaged]
            table(["name", "began (UTC)", "size", "shared", "entries", "server"], sorted(rows))
            _print_ranges(found.ranges)
            if found.writer is not None or any(each.chunks for each in found.ranges):
                _print_writer(found)
        if max_age is not None and found.age > max_age:
            raise click.ClickException(f"{place.shown} was up to date {found.age:.0f} s ago (--max-age {max_age:g})")


def _print_writer(found: TargetOverview) -> None:
    writer = found.writer
    echo()
    if writer is None:
        echo(f"no process writes to the target; the newest state is {duration(int(found.age * 1000))} old")
        return
    process = f"process {writer.pid} on {writer.host}, since {utc(writer.began * 1000)}"
    if not writer.continuous:
        echo(f"a backup is being written by {process}")
    elif writer.behind is None:
        echo(f"continuous backup by {process}; it has just started, or takes a base backup")
    else:
        echo(f"continuous backup by {process}; the target was up to date {found.age:.0f} s ago")


def _print_ranges(found: list[RestorableRange]) -> None:
    if any(each.chunks for each in found):
        echo()
        rows = [
            [
                f"{each.begin:,} to {each.end:,}", utc(each.begin_ms).removesuffix(" UTC"),
                utc(each.end_ms).removesuffix(" UTC"), f"{len(each.bases):,}", f"{len(each.chunks):,}",
                size(sum(chunk.size for chunk in each.chunks)),
            ]
            for each in found
        ]  # fmt: skip
        table(["log offsets", "from (UTC)", "until (UTC)", "backups", "log files", "log size"], rows)


def _row(found: BackupManifest, shared: int) -> list[str]:
    began = found.began[:SECONDS].replace("T", " ")
    return [found.name, began, size(found.size), size(shared), f"{found.entries:,}", f"{found.server} ({found.role})"]


@click.command()
@click.argument("backup", metavar="BACKUP|DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--all", "everything", is_flag=True, help="Verify all backups and logs of TARGET.")
def verify(backup: str, as_json: bool, everything: bool) -> None:  # a parameter, not the command of this name
    """Read all data of a backup, or of a data directory, and verify the checksums.

    BACKUP is TARGET/NAME, or TARGET for the newest backup. The log that follows the backup is verified, too. If a file
    is missing or damaged, the exit code is not 0, and the message names the file. The name of each file is, or ends
    with, the SHA-256 of its content.

    DIR is the data directory of a stopped server. The command reads its store, journal, and WAL, and changes nothing.
    The exit code is 1 if any data is damaged, and the output lists all damage. A running server verifies its own store;
    see the directive scrub-rate.

    \b
      tidelog verify /var/lib/tidelog --json
    """
    with _reporting(), Progress() as progress:
        if datadirectory.is_one(backup):
            report = datadirectory.verify(backup, progress.show_bytes)
            progress.end()
            _print_verified(report, as_json)
            return
        place, found = manifest.find(backup)
        chosen = [manifest.load(place, name) for name in manifest.backups(place)] if everything else [found]
        log = until.log_after(place, None if everything else found)
        reading.verify(place, chosen, log, progress.show_bytes)
        progress.end()
        files = {digest: count for one in chosen for digest, count in one.chunks}
        count, total = len(files) + len(log), sum(files.values()) + sum(chunk.size for chunk in log)
        name = place.shown if everything else f"{place.shown}/{found.name}"
        if as_json:
            end = max([found.log_offset, *(chunk.end for chunk in log)])
            echo(json.dumps({"backup": name, "intact": True, "files": count, "bytes": total, "log_offset": end}))
            return
        echo(f"{name}: {counted(count, 'file')}, {size(total)}, all intact")


def _print_verified(report: dict[str, Any], as_json: bool) -> None:
    """Print the report on a data directory. Raises SystemExit with 1 if it is damaged."""
    problems = report["problems"]
    if as_json:
        echo(json.dumps(report))
    else:
        for problem in problems:
            echo(problem)
        what = f"{report['directory']}: {size(report['bytes'])}, {counted(report['nodes'], 'node')}"
        logged = f"{report['journal_batches'] + report['wal_batches']:,} batches of the log"
        state = counted(len(problems), "problem") if problems else "all intact"
        echo(f"{what} and {logged} up to log offset {report['log_offset']:,}: {state}")
    if problems:
        raise SystemExit(1)


@click.command()
@click.argument("backup")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--until", "point", metavar="POINT", help='A time, a log offset, or "before FLUSHALL".')
def restore(backup: str, directory: Path, point: str | None) -> None:
    """Create the data directory DIR of a tidelog-server from a backup.

    BACKUP is TARGET/NAME, or TARGET for the newest state: the newest backup, and the whole log after it. DIR must be
    new or empty. It is created only after the data is complete and verified.

    \b
      tidelog restore /mnt/backups/tide ./data
      tidelog-server --dir ./data

    With the log of a continuous backup, --until restores an earlier point: the state at a time (UTC if it has no
    zone), at a log offset, or before the last FLUSHALL or FLUSHDB. "tidelog backups" lists the ranges. With
    TARGET/NAME, the restore begins with that backup.

    \b
      tidelog restore /mnt/backups/tide ./data --until 2026-11-27T09:30:00Z
      tidelog restore /mnt/backups/tide ./data --until 4711
      tidelog restore /mnt/backups/tide ./data --until "before FLUSHALL"

    The restored server starts a new history. A replica of the old server takes a full copy if it has data that the
    restored server does not have. To create a new replica from a backup, start it on DIR with --replicaof. It requests
    only the records after the backup from its leader, if the leader still has them. Expired keys are deleted at
    startup.
    """
    with _reporting(), Progress() as progress:
        place, found = manifest.find(backup)
        named = found if backup.rstrip("/").removesuffix(manifest.ENDING).endswith(found.name) else None
        if point is not None:
            chosen = until.resolve(place, point, named, progress.show_bytes)
        else:
            chosen = until.latest(place) if named is None else RestorePoint(named, named.log_offset)
        facts = reading.restore(place, chosen, directory, progress.show_bytes)
        progress.end()
        for note in chosen.notes:
            echo(f"note: {note}")
        _print_restored(place, chosen.base, directory, facts)


def _print_restored(place: BackupTarget, found: BackupManifest, directory: Path, facts: dict[str, Any]) -> None:
    newest = f", the newest {utc(facts['newest_ms'])}" if facts["newest_ms"] else ""
    echo(f"{directory}: the data of {found.server} at log offset {facts['log_offset']:,}, from")
    echo(f"{place.shown}/{found.name}")
    streams = f"{facts['streams']:,} of them streams with {counted(facts['entries'], 'entry')}{newest}"
    echo(f"{counted(facts['keys'], 'key')}, {streams}")
    echo(f"{counted(facts['groups'], 'group')} with {counted(facts['pending'], 'pending entry')}")
    echo(
        f"start the server: tidelog-server --dir {directory}"
        + (f" --tier-url {found.history}, which has a part of the entries" if found.history else "")
    )
