"""``tidelog import`` and ``tidelog export``: copy streams and strings from Redis to tidelog, and back, or to files."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.connect import url_option
from tidelog.cli.exporting import export_files
from tidelog.cli.fieldtypes import TYPE_HELP, history_option
from tidelog.cli.lines import printable
from tidelog.cli.progress import Progress
from tidelog.moving.descriptions import dashed, text
from tidelog.moving.errors import MovingError
from tidelog.moving.move import PAGE, Plan, move
from tidelog.moving.outcome import LISTED, CopyOutcome, StreamOutcome
from tidelog.moving.streams import CopiedStream
from tidelog.operating.tables import counted, table
from tidelog.operating.terminal import echo, try_echo
from tidelog.transport.access import without_credentials

F = TypeVar("F", bound=Callable[..., Any])
LAG_EVERY: Final = 5.0  # seconds between two lines about the lag
NAMED: Final = 10  # keys of an unsupported type that are named
SOURCE_CHANGED: Final = 3  # exit code if the source received writes after the copy


def _options(command: F) -> F:
    for option in reversed(
        [
            url_option,
            click.option("--match", metavar="PATTERN", help="Copy only keys that match, such as 'orders:*'."),
            click.option("--follow", is_flag=True, help="Continue to copy new data until Ctrl-C."),
            click.option("--until-idle", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                         help="End --follow when nothing was written for this long."),
            click.option("--resume", is_flag=True, help="Continue an interrupted copy."),
            click.option("--replace", is_flag=True, help="Delete keys that exist at the target."),
            click.option("--no-delayed", "delayed", is_flag=True, flag_value=False, default=True,
                         help="Do not copy delayed entries (from tidelog to tidelog)."),
            click.option("--no-verify-content", "verify_content", is_flag=True, flag_value=False, default=True,
                         help="Compare counts, IDs, and groups, but not the entries."),
            click.option("--page", type=click.IntRange(1, 100_000), default=PAGE, show_default=True,
                         help="Maximum entries per command; fewer if entries are large."),
            click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                         help="File with the password of REDIS_URL."),
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


@click.command("import")
@click.argument("redis_url", metavar="REDIS_URL")
@_options
def import_command(redis_url: str, url: str, **options: Any) -> None:
    """Copy streams and strings from the Redis server at REDIS_URL to the tidelog-server at --url, and verify them.

    \b
      tidelog import redis://old:6379                     all supported keys
      tidelog import redis://old:6379/2 --match 'orders:*'
      tidelog import redis://old:6379 --resume            after an interruption
      tidelog import redis://old:6379 --follow            until the programs use the new server
      tidelog import rediss://mover@old --password-file secret --url redis://new:6390

    REDIS_URL is redis://, rediss:// (TLS), or unix://, with user, password, and database. The source can be Redis 5 or
    later or a compatible server. The command does not change it.

    Streams are copied with their IDs, entries, last ID, counters, and expiry time. Groups are copied with their
    positions, consumers, and pending entries, including owner, number of deliveries, and time of the last delivery.
    Strings are copied with their expiry time. Keys of other types are listed and not copied. Between tidelog servers,
    delayed entries are copied at the end. Use --no-delayed if the source stays in use after this copy.

    \b
    exit code 0   both servers have the same data
              1   the data differ, or an error occurred
              3   the copied data are the same, but the source received new writes

    While programs write to the source, use --follow. To finish, stop the programs, press Ctrl-C (or send SIGTERM), and
    wait for "the same at both ends". Then start the programs with the new URL.

    Pending entries that were deleted at the source cannot be copied. The output counts them. docs/moving.md has the
    details and the required permissions.
    """
    _run(redis_url, url, False, **options)


@click.command("export")
@click.argument("what", metavar="REDIS_URL|NAME")
@_options
@click.option("--to", "target", metavar="DIR|URL", help="Write Parquet files of the stream or topic NAME.")
@click.option("--format", type=click.Choice(["parquet"]), expose_value=False, help="The format of the files: parquet.")
@click.option("--type", "types", multiple=True, metavar="FIELD=TYPE", help=TYPE_HELP)
@click.option("--all-fields", is_flag=True, help="Add a column with a map of all fields.")
@click.option("--allow-gaps", is_flag=True, help="Continue if entries were evicted before they were exported.")
@history_option
@click.pass_context
def export_command(
    context: click.Context, /, what: str, url: str, target: str | None, types: tuple[str, ...], all_fields: bool,
    allow_gaps: bool, history: str, **options: Any,
) -> None:  # fmt: skip
    """Copy data out of the tidelog-server at --url: to the Redis server at REDIS_URL, or to Parquet files.

    \b
      tidelog export redis://old:6379
      tidelog export redis://old:6379/2 --match 'orders:*'
      tidelog export redis://old:6379 --follow            until the programs use Redis

    This is the reverse of "tidelog import", with the same options (see "tidelog import --help"). The target must be
    Redis 7.0 or later. Groups that expire in tidelog do not expire in Redis. Entries that TREAD delivered become
    pending entries of a consumer with an empty name, which are not redelivered automatically.

    \b
      tidelog export orders --to lake/orders
      tidelog export orders --to s3://lake/orders --type amount='decimal(9,2)'

    With --to, the entries of one stream or topic are written to files for each UTC day: ts_day=2026-11-27/*.parquet.
    The next run continues after the last exported entry, also after an interruption. Each entry is exported once.
    docs/queries.md describes the columns.
    """
    files = {"target", "types", "all_fields", "allow_gaps", "history"}
    given = {
        name: "--" + name.replace("_", "-")
        for name in context.params
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, ParameterSource.ENVIRONMENT)
    }
    is_url = "://" in what
    if target is None:
        if not is_url:
            raise click.UsageError(
                f"{what!r} is not a URL. To write files of a stream or a topic, add --to DIR. To copy all streams to a"
                " Redis server, name its URL: redis://host:6379"
            )
        if wrong := sorted(files & given.keys()):
            raise click.UsageError(f"{given[wrong[0]]} is for files: use it with a name and --to")
        _run(url, what, True, **options)
        return
    if is_url:
        shown = without_credentials(what)
        raise click.UsageError(f"--to is for files of a stream or a topic: name it instead of {shown}")
    if wrong := sorted(given.keys() - files - {"what", "url", "as_json"}):
        raise click.UsageError(f"{given[wrong[0]]} is for a copy to a Redis server: omit it with --to")
    export_files(what, url, target, types, all_fields, allow_gaps, history, options["as_json"])


def _run(
    source: str, target: str, export: bool, as_json: bool, password_file: Path | None, **options: Any
) -> None:  # fmt: skip
    if options["resume"] and options["replace"]:
        raise click.UsageError("--resume builds on the data at the target, and --replace deletes it: use one of them")
    if options["until_idle"] is not None and not options["follow"]:
        raise click.UsageError("--until-idle needs --follow")
    password = None if password_file is None else _password(password_file)
    plan = Plan(
        source, target, source_password=None if export else password, target_password=password if export else None,
        **options,
    )  # fmt: skip
    with Progress() as progress, _Stop() as stop:
        watch = _Watch(progress, as_json)
        try:
            outcome = move(plan, watch, stop.asked)
        except MovingError as error:
            raise click.ClickException(f"{error}{watch.how_to_continue()}") from None
        except OSError as error:
            raise click.ClickException(
                f"no answer: {error} (source {without_credentials(source)}, target {without_credentials(target)})"
                f"{watch.how_to_continue()}"
            ) from None
        except KeyboardInterrupt:
            raise click.ClickException(f"stopped{watch.how_to_continue()}") from None
        progress.end()
    if as_json:
        echo(json.dumps(outcome.to_dict(), indent=2))
    else:
        _print(outcome)
    if outcome.verdict != "same":
        raise SystemExit(SOURCE_CHANGED if outcome.verdict == "source changed" else 1)


def _password(file: Path) -> str:
    try:
        password = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {error}") from None
    if not password:
        raise click.ClickException(f"{file} is empty")
    return password


class _Stop:
    """Handles Ctrl-C and SIGTERM: the first one while following finishes the copy, any other ends the command."""

    def __init__(self) -> None:
        self._following = False
        self._asked = False
        self._before: list[tuple[int, Any]] = []

    def asked(self) -> bool:
        self._following = True
        return self._asked

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._following or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> _Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before.append((number, signal.signal(number, self._handle)))
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)


class _Watch:
    """Shows a progress bar for each stream on a terminal, and otherwise a line."""

    def __init__(self, progress: Progress, as_json: bool) -> None:
        self._progress = progress
        self._as_json = as_json
        self._started = False  # data may have been written to the target
        self._reported_at = 0.0  # time of the last line about the lag
        self._lag = -1

    def copying(self, key: bytes, done: int, total: int) -> None:
        self._started = True
        self._progress.show_entries(printable(text(key)), done, total)

    def copied(self, moved: CopiedStream) -> None:
        if not self._progress.visible and moved.here is not None:
            here, carried = moved.here, moved.carried
            self._line(
                f"{printable(text(moved.key))}: {counted(here.length, 'entry')}, {counted(len(here.groups), 'group')}, "
                f"{counted(carried.consumers, 'consumer')}, {carried.pending:,} pending"
            )

    def verifying(self, key: bytes, done: int, total: int) -> None:
        self._progress.show_entries(f"verifying {printable(text(key))}", done, total)

    def following(self, lag: int, streams: int) -> None:
        line = f"lag: {counted(lag, 'entry')} in {counted(streams, 'stream')}"
        if self._progress.visible:
            self._progress.show_text(line)
        elif time.monotonic() - self._reported_at >= LAG_EVERY and lag != self._lag:
            self._reported_at, self._lag = time.monotonic(), lag
            self._line(line)

    def report(self, line: str) -> None:
        self._progress.end()
        self._line(line)

    def _line(self, line: str) -> None:
        try_echo(line, err=self._as_json)

    def how_to_continue(self) -> str:
        text = "\nThe copied data stays at the target. To continue, run the command again with --resume"
        return text if self._started else ""


# -- the result ----------------------------------------------------------------------------------------------
def _print(outcome: CopyOutcome) -> None:
    echo()
    if outcome.streams:
        table(
            ["stream", "entries", "last ID", "copied", "groups", "consumers", "pending", "verified"],
            [_row(each) for each in outcome.streams],
        )
    for line in _lines(outcome):
        echo(line)
    echo(f"{outcome.source} -> {outcome.target}, {outcome.seconds:.1f} s: {_VERDICTS[outcome.verdict]}")


_VERDICTS: Final = {
    "same": "the same at both ends",
    "different": "NOT the same at both ends",
    "source changed": "the copied data is the same, but the source received new writes (--follow copies them)",
    "not compared": "not compared",
}


def _row(each: StreamOutcome) -> list[str]:
    moved, here = each.moved, each.moved.here
    if here is None:
        return [printable(text(moved.key)), "-", "-", "-", "-", "-", "-", each.verdict]
    counts = [len(here.groups), moved.carried.consumers, moved.carried.pending]
    return [
        printable(text(moved.key)), f"{here.length:,}", dashed(here.last), f"{moved.entries:,}",
        *(f"{count:,}" for count in counts), each.verdict,
    ]  # fmt: skip


def _lines(outcome: CopyOutcome) -> Iterator[str]:
    for each in outcome.streams:
        if each.found is not None:
            for line in [*each.found.differences, *each.found.source_changes]:
                yield f"{printable(text(each.moved.key))}: {printable(line)}"
    if outcome.strings:
        yield counted(outcome.strings, "string")
    if copied := sum(each.moved.delayed for each in outcome.streams):
        yield counted(copied, "delayed entry")
    for line in outcome.string_differences[:LISTED]:
        yield printable(line)
    if len(outcome.string_differences) > LISTED:
        yield f"and {counted(len(outcome.string_differences) - LISTED, 'more different string')}"
    for kind, other in outcome.others.items():
        more = ", ..." if other.keys > NAMED else ""
        named = ", ".join(printable(text(key)) for key in other.named[:NAMED])
        yield f"not copied: {other.keys:,} of type {kind} ({named}{more})"
    yield from outcome.notes
