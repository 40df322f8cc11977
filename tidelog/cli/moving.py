"""``tidelog import`` and ``tidelog export``: streams and strings from a Redis into a tidelog-server, and back."""

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

from tidelog.cli.connect import url_option
from tidelog.cli.lines import printable
from tidelog.cli.output import echo
from tidelog.cli.progress import Progress
from tidelog.cli.report import table
from tidelog.moving.errors import MovingError
from tidelog.moving.facts import dashed, text
from tidelog.moving.move import PAGE, Plan, move
from tidelog.moving.outcome import LISTED, Outcome, StreamOutcome
from tidelog.moving.streams import Moved
from tidelog.transport.access import shown

F = TypeVar("F", bound=Callable[..., Any])
LAG_EVERY: Final = 5.0  # seconds between two lines about the lag
NAMED: Final = 10  # keys of another type that are named
WENT_ON: Final = 3  # the exit code if the source was written to after it was copied


def _options(command: F) -> F:
    for option in reversed(
        [
            click.argument("redis_url", metavar="REDIS_URL"),
            url_option,
            click.option("--match", metavar="PATTERN", help="Only keys like this, such as 'orders:*'."),
            click.option("--follow", is_flag=True, help="Then go on with what is written, until Ctrl-C."),
            click.option("--until-idle", type=click.FloatRange(0, min_open=True), metavar="SECONDS",
                         help="End --follow once nothing was written for so long."),
            click.option("--resume", is_flag=True, help="Go on with a copy that was interrupted."),
            click.option("--replace", is_flag=True, help="Delete keys that are at the target already."),
            click.option("--no-verify-content", is_flag=True,
                         help="Compare counts, IDs and groups, but not the entries."),
            click.option("--page", type=click.IntRange(1, 100_000), default=PAGE, show_default=True,
                         help="Entries a command, at most. Large entries make it fewer."),
            click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
                         help="Has the password of REDIS_URL."),
            click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
        ]
    ):  # fmt: skip
        command = option(command)
    return command


@click.command("import")
@_options
def import_command(redis_url: str, url: str, **options: Any) -> None:
    """Copy streams and strings of the running Redis at REDIS_URL into the tidelog-server at --url, and verify them.

    \b
      tidelog import redis://old:6379                     everything that can be moved
      tidelog import redis://old:6379/2 --match 'orders:*'
      tidelog import redis://old:6379 --resume            after an interruption
      tidelog import redis://old:6379 --follow            until the programs have changed over
      tidelog import rediss://mover@old --password-file secret --url redis://new:6390

    REDIS_URL is redis://, rediss:// (TLS) or unix://, with user, password and database. Redis 5 and later, and what
    speaks its protocol.

    Streams keep their IDs, entries, last ID and counters, and the end of their time. Groups keep their offsets,
    consumers, and pending messages with owner, number of deliveries and time of the last one. Strings are copied with
    the end of their time. Keys of other types can't be moved: they are listed. Nothing is changed at the source.

    \b
    exit code 0   everything was copied, and is the same at both ends
              1   something differs, or an error
              3   what was copied is the same, but the source was written to meanwhile

    While programs write, use --follow: it copies, then goes on with what is written. Stop the programs, press Ctrl-C
    (or send SIGTERM), and wait for "the same at both ends". Then start them with the new URL.

    Pending messages whose entries were deleted at the source can't be moved. They are counted. docs/moving.md tells
    the rest, and the permissions that are needed.
    """
    _run(redis_url, url, _plan(redis_url, url, False, options), options["as_json"])


@click.command("export")
@_options
def export_command(redis_url: str, url: str, **options: Any) -> None:
    """Copy streams and strings of the tidelog-server at --url into the running Redis at REDIS_URL, and verify them.

    \b
      tidelog export redis://old:6379
      tidelog export redis://old:6379/2 --match 'orders:*'
      tidelog export redis://old:6379 --follow            until the programs have changed over

    The other way of "tidelog import", with the same options; its --help explains them. The Redis must be 7.0 or newer.
    What only tidelog has can't be moved: groups that end if nobody reads them have no end in Redis, and messages that
    TREAD delivered become pending messages of a consumer without a name, which are not delivered again by themselves.
    """
    _run(url, redis_url, _plan(url, redis_url, True, options), options["as_json"])


def _plan(source: str, target: str, export: bool, options: dict[str, Any]) -> Plan:
    if options["resume"] and options["replace"]:
        raise click.UsageError("--resume keeps what is at the target, --replace deletes it: give one of them")
    if options["until_idle"] is not None and not options["follow"]:
        raise click.UsageError("--until-idle is for --follow")
    password: str | None = None
    if (file := options["password_file"]) is not None:
        try:
            password = file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise click.ClickException(f"{file}: {error}") from None
        if not password:
            raise click.ClickException(f"{file} is empty")
    return Plan(
        source=source,
        target=target,
        source_password=None if export else password,
        target_password=password if export else None,
        match=options["match"],
        page=options["page"],
        replace=options["replace"],
        resume=options["resume"],
        follow=options["follow"],
        until_idle=options["until_idle"],
        verify_content=not options["no_verify_content"],
    )


def _run(source: str, target: str, plan: Plan, as_json: bool) -> None:
    with Progress() as progress, _Stop() as stop:
        watch = _Watch(progress, as_json)
        try:
            outcome = move(plan, watch, stop.asked)
        except MovingError as error:
            raise click.ClickException(f"{error}{watch.how_to_go_on()}") from None
        except OSError as error:
            raise click.ClickException(
                f"no answer: {error} (source {shown(source)}, target {shown(target)}){watch.how_to_go_on()}"
            ) from None
        except KeyboardInterrupt:
            raise click.ClickException(f"stopped{watch.how_to_go_on()}") from None
        progress.end()
    if as_json:
        echo(json.dumps(outcome.to_dict(), indent=2))
    else:
        _print(outcome)
    if outcome.verdict != "same":
        raise SystemExit(WENT_ON if outcome.verdict == "went on" else 1)


class _Stop:
    """Ctrl-C and SIGTERM: the first one while following asks it to end; any other ends the program."""

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
    """A bar for each stream on a terminal, else a line for each."""

    def __init__(self, progress: Progress, as_json: bool) -> None:
        self._progress = progress
        self._as_json = as_json
        self._begun = False  # something may be at the target
        self._told = 0.0  # when the lag was told
        self._lag = -1

    def copying(self, key: bytes, done: int, total: int) -> None:
        self._begun = True
        self._progress.show_entries(printable(text(key)), done, total)

    def copied(self, moved: Moved) -> None:
        if not self._progress.visible and moved.here is not None:
            here, carried = moved.here, moved.carried
            self._line(
                f"{printable(text(moved.key))}: {here.length:,} entries, {len(here.groups):,} groups, "
                f"{carried.consumers:,} consumers, {carried.pending:,} pending"
            )

    def verifying(self, key: bytes, done: int, total: int) -> None:
        self._progress.show_entries(f"verifying {printable(text(key))}", done, total)

    def following(self, lag: int, streams: int) -> None:
        line = f"{lag:,} entries behind in {streams:,} streams"
        if self._progress.visible:
            self._progress.show_text(line)
        elif time.monotonic() - self._told >= LAG_EVERY and lag != self._lag:
            self._told, self._lag = time.monotonic(), lag
            self._line(line)

    def said(self, line: str) -> None:
        self._progress.end()
        self._line(line)

    def _line(self, line: str) -> None:
        echo(line, err=self._as_json)

    def how_to_go_on(self) -> str:
        return "\nWhat was copied stays at the target. To go on: the same command with --resume" if self._begun else ""


# -- the result ----------------------------------------------------------------------------------------------
def _print(outcome: Outcome) -> None:
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
    "went on": "what was copied is the same, but the source was written to meanwhile (--follow goes on with it)",
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


def _lines(outcome: Outcome) -> Iterator[str]:
    for each in outcome.streams:
        if each.found is not None:
            for line in [*each.found.differences, *each.found.went_on]:
                yield f"{printable(text(each.moved.key))}: {printable(line)}"
    if outcome.strings:
        yield f"{outcome.strings:,} strings"
    for line in outcome.string_differences[:LISTED]:
        yield printable(line)
    if len(outcome.string_differences) > LISTED:
        yield f"and {len(outcome.string_differences) - LISTED:,} more strings that differ"
    for kind, other in outcome.others.items():
        more = ", ..." if other.keys > NAMED else ""
        named = ", ".join(printable(text(key)) for key in other.named[:NAMED])
        yield f"not moved: {other.keys:,} of type {kind} ({named}{more})"
    yield from outcome.notes
