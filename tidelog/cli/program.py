"""The ``tidelog`` CLI and its commands load, tail, dump, and info."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import click
import redis

import tidelog
from tidelog.cli import lines
from tidelog.cli.connect import connected, url_option
from tidelog.cli.lazygroup import LazyCommands, LazyGroup
from tidelog.cli.load import BadRow, Format, Loader, guess_format, read_rows
from tidelog.cli.progress import Progress, file_size, is_file
from tidelog.cli.report import print_server, print_stream
from tidelog.client import PAGE, Client
from tidelog.client.entries import Batch, StreamId
from tidelog.operating.signals import end_as_first_process
from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo

P = ParamSpec("P")
T = TypeVar("T")
RECONNECT = 1.0  # seconds between two attempts to reconnect
POLL = 60_000  # ms that tail waits in one TREAD
AT_ONCE = 100  # entries that tail reads in one TREAD


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(tidelog.__version__)
def main() -> None:
    """Command-line tool for tidelog servers.

    \b
    A stream is an append-only log under a key. An entry has an ID (ms.seq),
    which contains the time of the append, and fields with values. Examples:

    \b
      tidelog quickstart                      start a server with sample data, and a console
      tidelog load weather temps.csv          append the rows of a file
      tidelog tail weather                    print the newest entries, then follow
      tidelog dump weather --start 2026-11-21T08:00Z | head
      tidelog info weather
      tidelog sql "select city, avg(celsius) from weather group by city"
      tidelog doctor                          check the installation and this machine
      tidelog completion bash                 print the script that completes commands
      tidelog topics list                     list partitioned streams of typed records
      tidelog send shop:orders '{"id": 7}'    send a record to a topic
      tidelog sendmany shop:orders rows.csv   send the records of a file
      tidelog dlq list                        list dead letters
      tidelog worker shop:app                 run the processors of an app
      tidelog app status shop:app             show its workers and their progress
      tidelog jobs add shop.jobs:count        add an exactly-once job on Spark
      tidelog flow run flows.yaml             run the flows of a file
      tidelog group status                    show the members of a server group
      tidelog cluster up --dir ./cluster      run a cluster, one group of servers for each core
      tidelog console                         serve a web application for a server
      tidelog gateway                         serve streams over HTTP
      tidelog backup /mnt/backups             back up all data of a server
      tidelog backups /mnt/backups            list the backups
      tidelog verify /mnt/backups             verify the newest backup
      tidelog restore /mnt/backups ./data     create a data directory from it
      tidelog history list                    show the history in an object store
      tidelog import redis://old:6379         copy streams and strings from Redis
      tidelog export redis://old:6379         copy them back
    """
    end_as_first_process()


main.modules.update(
    app="app:app_commands", backup="backups:backup", backups="backups:backups", cluster="cluster:cluster_commands",
    completion="completion:completion", console="console:console", dlq="dlq:dlq", doctor="doctor:doctor",
    export="moving:export_command", gateway="gateway:gateway", group="group:group_commands",
    history="history:history_commands", quickstart="quickstart:quickstart", restore="backups:restore",
    send="sending:send", sendmany="sending:sendmany",
    sql="sql:sql", topics="topics:topics", verify="backups:verify", worker="worker:worker",
    **{"import": "moving:import_command"},
)  # fmt: skip
for _group in (
    LazyGroup("jobs", "tidelog.cli.jobs", "jobs_commands", "jobs", "Manage stateful exactly-once jobs on Spark."),
    LazyGroup("flow", "tidelog.cli.flow", "flow_commands", "flows", "Run and control flows of events."),
):
    main.add_command(_group)


@main.command()
@click.argument("key")
@click.argument("file", type=click.File("rb"))
@url_option
@click.option("--format", "form", type=click.Choice(["csv", "jsonl", "dump"]), help="Default: guessed.")
@click.option("--delimiter", default=",", show_default=True, help="Delimiter of a CSV file.")
@click.option("--batch", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Rows per command.")
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", help="At invalid rows; default: stop.")
@click.option("--from-line", type=click.IntRange(1), default=1, help="Start at this line of the file.")
def load(
    key: str, file: io.BufferedReader, url: str, form: Format | None, delimiter: str, batch: int, on_error: str,
    from_line: int,
) -> None:  # fmt: skip
    """Append the rows of FILE (- is standard input) to the stream KEY.

    \b
    csv    the first line contains the names of the fields, each other line an entry
    jsonl  each line is a JSON object; numbers are stored as written, nested
           values as JSON, and null values are omitted
    dump   output of "tidelog dump"; the entries get new IDs

    The format is guessed from the file name (.csv, .jsonl, .ndjson) or the first character. Rows are appended in
    batches. Each batch is appended as a whole or not at all. If the command stops early, it prints the --from-line
    option with which to continue.
    """
    rows = read_rows(file, form or guess_format(file.name, file), delimiter)
    with connected(url) as client, Progress(file_size(file)) as progress, closing(rows):
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
                        raise click.ClickException(f"{message}{_progress_text(loader, row.line)}")
                    echo(message, err=True)
                    skipped += 1
                    continue
                loader.add(row)
                progress.show(loader.rows, file.tell() if progress.total else 0)
            loader.flush()
        except (redis.RedisError, OSError, KeyboardInterrupt) as error:
            what = "stopped" if isinstance(error, KeyboardInterrupt) else str(error)
            raise click.ClickException(f"{what}{_progress_text(loader, loader.line + 1)}") from None
        rate = loader.rows / max(progress.seconds, 1e-9)
    echo(f"{counted(loader.rows, 'row')} in {progress.seconds:.2f} s ({rate:,.0f} rows/s)", nl=False)
    echo(f", IDs {loader.first} to {loader.last}" if loader.first else "", nl=False)
    echo(f"; {counted(skipped, 'bad row')} skipped" if skipped else "")


def _progress_text(loader: Loader, next_line: int) -> str:
    text = f"\n{counted(loader.rows, 'row')} appended. To continue: --from-line {next_line}"
    if loader.waiting:
        first, last = loader.waiting
        text += f"\nThe batch of lines {first} to {last} got no reply. Check whether it was appended first."
    return text


@main.command()
@click.argument("key")
@url_option
@click.option("-n", "--lines", "show", type=click.IntRange(0), default=10, help="Newest entries to print; default: 10.")
@click.option("--from", "start", metavar="ID", help="Start after this ID instead; 0: at the first entry.")
@click.option("--limit", type=click.IntRange(1), help="Stop after this many entries.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, as dump does.")
@click.option("--group", help="Read as a member of this group.")
@click.option("--ttl", type=click.IntRange(0), default=0, help="Ms without requests until the group expires; 0: never.")
@click.option("--retry", type=click.IntRange(1), help="Ms until an unacknowledged entry is redelivered.")
@click.option("--expire", type=click.IntRange(0), default=0, help="Ms until an entry is dropped; 0: never.")
@click.option("--max-deliveries", type=click.IntRange(1), help="Maximum number of deliveries of an entry.")
@click.option("--deadletter", metavar="KEY", help="Dead-letter stream, to which dropped entries are appended.")
@click.option("--no-ack", is_flag=True, help="With --retry: do not acknowledge printed entries.")
def tail(
    key: str, url: str, show: int, start: str | None, limit: int | None, as_json: bool, group: str | None, ttl: int,
    retry: int | None, expire: int, max_deliveries: int | None, deadletter: str | None, no_ack: bool,
) -> None:  # fmt: skip
    """Print the newest entries of KEY, then new ones as they arrive.

    The command ends at Ctrl-C, or after --limit entries.

    \b
    With --group, several readers share the stream: each entry is delivered to one
    of them. A new group starts with new entries, or after --from. With --retry,
    an entry is acknowledged after it is printed. If a reader dies, its
    unacknowledged entries are delivered to another reader:

    \b
      tidelog tail jobs --group mail --retry 5000

    If the connection is lost, the command reconnects and prints no entry twice. With --group and without --retry,
    entries that were in transit are lost.
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
                    echo("-- entries are missing here: they were evicted before they were read", err=True)
                for entry in batch.entries:
                    echo(lines.to_json(entry) if as_json else lines.to_text(entry))
                if retry and not no_ack:
                    _retrying(client.tack, key, str(group), *batch.entries)
        except KeyboardInterrupt:
            pass


def _follow(
    client: Client, key: str, start: str | None, show: int, limit: int, options: dict[str, Any]
) -> Iterator[Batch]:
    """Yield batches of the newest entries, then of new ones, with ``limit`` entries in total."""
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
        batch = _retrying(client.tread, key, position, min(AT_ONCE, limit), block=POLL, **options)
        limit -= len(batch.entries)
        position = batch.last_id or position
        yield batch


def _retrying(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``call`` until the server answers."""
    reported = False
    while True:
        try:
            return call(*args, **kwargs)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if not reported:
                echo(f"-- {error}; retrying", err=True)
            reported = True
            time.sleep(RECONNECT)


@main.command()
@click.argument("key")
@url_option
@click.option("--start", default="-", help="First ID, milliseconds, or time (2026-11-21T08:00Z); inclusive.")
@click.option("--end", default="+", help="Last ID, milliseconds, or time; inclusive.")
@click.option("--limit", type=click.IntRange(0), help="Maximum number of entries.")
@click.option("--text", "as_text", is_flag=True, help="Print text, as tail does.")
def dump(key: str, url: str, start: str, end: str, limit: int | None, as_text: bool) -> None:
    """Print the entries of KEY as JSON lines, oldest first.

    \b
      {"id":"1486475519747.0","fields":{"sensor":"01","temperature":"35.6"}}

    If a field occurs twice, "fields" is a list of pairs. Values that are not UTF-8 are written as {"base64":"..."}.
    "tidelog load --format dump" can load the output. Memory use does not depend on the size of the range.
    """
    left = sys.maxsize if limit is None else limit
    write = lines.to_text if as_text else lines.to_json
    first, last = _parse_time(start), _parse_time(end)
    with connected(url) as client, Progress() as progress:
        shown = progress.visible and is_file(sys.stdout)
        total, done = (min(left, client.tcount(key, first, last)) if shown else 0), 0
        for page in client.pages(key, first, last, max(1, min(PAGE, left))):
            text = "".join(f"{write(entry)}\n" for entry in page[:left])
            echo(text, nl=False)
            left -= len(page)
            if left <= 0:
                return
            done += len(page)
            if shown:
                progress.show_entries("entries", done, total)


def _parse_time(text: str) -> str | datetime:
    """Parse a time in ISO 8601; return other text unchanged, as an ID. Raises ValueError for an invalid time."""
    if text[4:5] != "-" or not text[:4].isdigit() or len(text) < 8:
        return text
    return datetime.fromisoformat(text)


@main.command()
@click.argument("key", required=False)
@url_option
def info(key: str | None, url: str) -> None:
    """Show the stream KEY, or the server if KEY is not given."""
    with connected(url) as client:
        if key is None:
            print_server(client)
        else:
            print_stream(client, key)


if __name__ == "__main__":
    main()
