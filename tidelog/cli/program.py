"""The ``tidelog`` program, and its commands load, tail, dump, info."""

from __future__ import annotations

import io
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import click
import redis

import tidelog
from tidelog.cli import backups, lines
from tidelog.cli.app import app_commands
from tidelog.cli.connect import connected, url_option
from tidelog.cli.dlq import dlq
from tidelog.cli.later import Later
from tidelog.cli.load import BadRow, Format, Loader, guess_format, read_rows
from tidelog.cli.moving import export_command, import_command
from tidelog.cli.output import Program, echo
from tidelog.cli.progress import Progress
from tidelog.cli.report import print_server, print_stream
from tidelog.cli.sending import send, sendmany
from tidelog.cli.topics import topics
from tidelog.cli.worker import worker
from tidelog.client import PAGE, Client
from tidelog.client.entries import Batch, StreamId

P = ParamSpec("P")
T = TypeVar("T")
RECONNECT = 1.0  # seconds between two attempts to reach a server that went away
POLL = 60_000  # ms that a tail waits in one TREAD
AT_ONCE = 100  # entries that a tail reads in one TREAD


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tidelog.__version__)
def main() -> None:
    """Work with the streams of a tidelog-server.

    \b
    A stream is an append-only log under a key. An entry has an ID (ms.seq),
    which is the time it was appended, and fields with values. Try:

    \b
      tidelog load weather temps.csv          a file into a stream
      tidelog tail weather                    the newest entries, then new ones
      tidelog dump weather --start 2026-11-21T08:00Z | head
      tidelog info weather
      tidelog topics list                     streams in parts, with typed records
      tidelog send shop:orders '{"id": 7}'    a record into a topic of a module, and
      tidelog sendmany shop:orders rows.csv   any number of them
      tidelog dlq list                        events that processors gave up
      tidelog worker shop:app                 run the processors of an app
      tidelog app status shop:app             who works on it, and how far they are
      tidelog jobs add shop.jobs:count        a function over topics, run by Spark, exactly once
      tidelog flow run flows.yaml             events from connectors through pipelines to connectors
      tidelog backup /mnt/backups             a verified copy of everything; then:
      tidelog backups /mnt/backups            list, and
      tidelog verify /mnt/backups             check, and
      tidelog restore /mnt/backups ./data     make a data directory of the newest
      tidelog import redis://old:6379         streams and strings of a Redis, with groups, and
      tidelog export redis://old:6379         back
    """


for _command in (
    backups.backup, backups.backups, backups.verify, backups.restore, topics, send, sendmany, dlq, worker, app_commands,
    import_command, export_command,
    Later("jobs", "tidelog.cli.jobs", "jobs_commands", "jobs", "Functions over topics, run by Spark, exactly once."),
    Later("flow", "tidelog.cli.flow", "flow_commands", "flows", "Flows: events through connectors and pipelines."),
):  # fmt: skip
    main.add_command(_command)


@main.command()
@click.argument("key")
@click.argument("file", type=click.File("rb"))
@url_option
@click.option("--format", "form", type=click.Choice(["csv", "jsonl", "dump"]), help="Default: guessed.")
@click.option("--delimiter", default=",", show_default=True, help="Separates the values of a CSV file.")
@click.option("--batch", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Rows per command.")
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", help="At a bad row; default: stop.")
@click.option("--from-line", type=click.IntRange(1), default=1, help="Begin at this line of the file.")
def load(
    key: str, file: io.BufferedReader, url: str, form: Format | None, delimiter: str, batch: int, on_error: str,
    from_line: int,
) -> None:  # fmt: skip
    """Append the rows of FILE (- is standard input) to the stream KEY.

    \b
    csv    the first line names the fields, each other line is an entry
    jsonl  each line is a JSON object; numbers are kept as they are written,
           nested values as JSON; a null is a field left out
    dump   output of "tidelog dump"; the entries get new IDs

    The format is guessed from the name (.csv, .jsonl, .ndjson) or the first character. Rows are appended in batches,
    each as a whole or not at all. A load that stops early prints the --from-line to continue with.
    """
    rows = read_rows(file, form or guess_format(file.name, file), delimiter)
    with connected(url) as client, Progress(_size(file)) as progress, closing(rows):
        loader = Loader(client, key, batch)
        skipped = 0
        try:
            for row in rows:
                if row.line < from_line:
                    continue
                if isinstance(row, BadRow):
                    message = f"line {row.line}: {row.reason}"
                    if on_error == "stop":
                        loader.flush()
                        raise click.ClickException(f"{message}{_where_it_stands(loader, row.line)}")
                    echo(message, err=True)
                    skipped += 1
                    continue
                loader.add(row)
                progress.show(loader.rows, file.tell() if progress.total else 0)
            loader.flush()
        except (redis.RedisError, OSError, KeyboardInterrupt) as error:
            what = "stopped" if isinstance(error, KeyboardInterrupt) else str(error)
            raise click.ClickException(f"{what}{_where_it_stands(loader, loader.line + 1)}") from None
        rate = loader.rows / max(progress.seconds, 1e-9)
    echo(f"{loader.rows:,} rows in {progress.seconds:.2f} s ({rate:,.0f} rows/s)", nl=False)
    echo(f", IDs {loader.first} to {loader.last}" if loader.first else "", nl=False)
    echo(f"; {skipped:,} bad rows skipped" if skipped else "")


def _size(file: io.BufferedReader) -> int | None:
    try:
        status = os.fstat(file.fileno())
    except OSError:  # it has no file descriptor
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _where_it_stands(loader: Loader, next_line: int) -> str:
    text = f"\n{loader.rows:,} rows are in. To go on: --from-line {next_line}"
    if loader.waiting:
        first, last = loader.waiting
        text += f"\nThe batch of lines {first} to {last} was not answered: check whether it is in before you go on."
    return text


@main.command()
@click.argument("key")
@url_option
@click.option("-n", "--lines", "show", type=click.IntRange(0), default=10, help="How many of the newest; default: 10.")
@click.option("--from", "start", metavar="ID", help="Begin after this ID instead; 0: at the first entry.")
@click.option("--limit", type=click.IntRange(1), help="End after so many entries.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as dump writes them.")
@click.option("--group", help="Share the stream with the other readers of this group.")
@click.option("--ttl", type=click.IntRange(0), default=0, help="Ms without a request until the group ends; 0: never.")
@click.option("--retry", type=click.IntRange(1), help="Ms until an entry that was not acknowledged is delivered again.")
@click.option("--expire", type=click.IntRange(0), default=0, help="Ms until it is dropped; 0: never.")
@click.option("--max-deliveries", type=click.IntRange(1), help="Deliveries until it is dropped.")
@click.option("--deadletter", metavar="KEY", help="The stream that dropped entries are appended to.")
@click.option("--no-ack", is_flag=True, help="With --retry: don't acknowledge printed entries.")
def tail(
    key: str, url: str, show: int, start: str | None, limit: int | None, as_json: bool, group: str | None, ttl: int,
    retry: int | None, expire: int, max_deliveries: int | None, deadletter: str | None, no_ack: bool,
) -> None:  # fmt: skip
    """Print the newest entries of KEY, then new ones as they arrive.

    It ends with Ctrl-C, or after --limit entries.

    \b
    With --group, several tails share the stream: each entry goes to one of them.
    A new group begins with entries that arrive from then on, or after --from.
    With --retry too, an entry is acknowledged once it is printed. Entries that a
    tail did not acknowledge before it died are delivered to another one:

    \b
      tidelog tail jobs --group mail --retry 5000

    If the connection is lost, tail connects again and prints nothing twice. With --group and without --retry, entries
    that were being delivered at that moment are lost.
    """
    if not group and (retry or ttl):
        raise click.UsageError("--retry and --ttl need --group")
    if not retry and (expire or max_deliveries or deadletter):
        raise click.UsageError("--expire, --max-deliveries and --deadletter need --retry")
    options: dict[str, Any] = {}
    if group:
        options |= {"group": group, "ttl": ttl}
    if retry:
        options |= {"retry": retry, "expire": expire, "max_deliveries": max_deliveries, "deadletter": deadletter}
    with connected(url) as client:
        try:
            for batch in _follow(client, key, start, show, limit or sys.maxsize, options):
                if len(batch.entries) < len(batch):
                    echo("-- here entries are missing: evicted before they could be read", err=True)
                for entry in batch.entries:
                    echo(lines.to_json(entry) if as_json else lines.to_text(entry))
                if retry and not no_ack:
                    _patiently(client.tack, key, str(group), *batch.entries)
        except KeyboardInterrupt:
            pass


def _follow(
    client: Client, key: str, start: str | None, show: int, limit: int, options: dict[str, Any]
) -> Iterator[Batch]:
    """Batches of the newest entries, then of new ones: ``limit`` entries in all."""
    if options or start is not None:
        position: StreamId | str = start or ""
        client.tread(key, position, 0, **options)  # creates a new group; fails if there is no server
    else:
        span = client.tread(key, count=0, with_info=True).info
        position = span.last if span else ""
        newest = Batch(client.trevrange(key, end=position, count=min(show, limit))[::-1])
        limit -= len(newest)
        yield newest
    while limit > 0:
        batch = _patiently(client.tread, key, position, min(AT_ONCE, limit), block=POLL, **options)
        limit -= len(batch.entries)
        position = batch.last_id or position
        yield batch


def _patiently(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``ask``, and again while the server does not answer."""
    told = False
    while True:
        try:
            return ask(*args, **kwargs)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if not told:
                echo(f"-- {error}; trying again", err=True)
            told = True
            time.sleep(RECONNECT)


@main.command()
@click.argument("key")
@url_option
@click.option("--start", default="-", help="First ID, milliseconds or time (2026-11-21T08:00Z); included.")
@click.option("--end", default="+", help="Last ID, milliseconds or time; included.")
@click.option("--limit", type=click.IntRange(0), help="At most so many entries.")
@click.option("--text", "as_text", is_flag=True, help="Text, as tail prints it.")
def dump(key: str, url: str, start: str, end: str, limit: int | None, as_text: bool) -> None:
    """Print the entries of KEY as JSON lines, oldest first.

    \b
      {"id":"1486475519747.0","fields":{"sensor":"01","temperature":"35.6"}}

    If a field occurs twice, "fields" is a list of pairs. Bytes that are not UTF-8 are written as {"base64":"..."}.
    "tidelog load --format dump" reads everything back. Memory stays small, whatever the size of the range.
    """
    left = sys.maxsize if limit is None else limit
    write = lines.to_text if as_text else lines.to_json
    with connected(url) as client:
        for page in client.pages(key, _moment(start), _moment(end), max(1, min(PAGE, left))):
            text = "".join(f"{write(entry)}\n" for entry in page[:left])
            echo(text, nl=False)
            left -= len(page)
            if left <= 0:
                return


def _moment(text: str) -> str | datetime:
    """A time in ISO 8601, or text that the server takes as an ID. ValueError if it looks like a time and is not one."""
    if text[4:5] != "-" or not text[:4].isdigit() or len(text) < 8:
        return text
    return datetime.fromisoformat(text)


@main.command()
@click.argument("key", required=False)
@url_option
def info(key: str | None, url: str) -> None:
    """Describe the stream KEY, or the whole server."""
    with connected(url) as client:
        if key is None:
            print_server(client)
        else:
            print_stream(client, key)


if __name__ == "__main__":
    main()
