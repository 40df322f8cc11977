"""``tidelog send`` and ``sendmany``: send records to a topic that a module declares."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import islice
from typing import Any

import click
import msgspec
import redis

from tidelog.cli.connect import choose, connected
from tidelog.cli.load import BadRow, guess_format, json_lines, read_rows
from tidelog.cli.modules import Declaration
from tidelog.cli.progress import Progress, file_size
from tidelog.codecs import CodecError
from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo
from tidelog.topics import SyncTopic, Topic, TopicError
from tidelog.transport.access import Access

BATCH = 5000  # records of one batch


@contextmanager
def _sending(topic: Topic[Any], url: str | None) -> Iterator[SyncTopic[Any]]:
    """Connect the topic to its own server or to --url. Errors become error messages of the CLI."""
    where = choose(url, topic.access, topic.url is None and topic.access is not None, f"topic {topic.name!r}")
    with connected(where or Access()) as client:
        topic.use(sync=client)
        try:
            yield topic.sync
        except (TopicError, CodecError) as error:
            raise click.ClickException(str(error)) from None


def server_option(command: Any) -> Any:
    """Add the option --url, whose default is the server of the topic."""
    return click.option(
        "--url", envvar="TIDELOG_URL", show_envvar=True, help="Server; default: the server of the topic, or localhost."
    )(command)


def later_options(command: Any) -> Any:
    """Add the options --delay and --at."""
    at = click.option("--at", metavar="TIME", help="Send at this time with a zone: 2026-11-24T08:00+01:00.")(command)
    return click.option("--delay", type=float, metavar="SECONDS", help="Send after this delay.")(at)


def _time(text: str | None) -> datetime | None:
    """Parse the value of --at."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("topic", type=Declaration[Topic[Any]](Topic, "shop.topics:orders"))
@click.argument("record", metavar="JSON")
@server_option
@later_options
def send(topic: Topic[Any], record: str, url: str | None, delay: float | None, at: str | None) -> None:
    """Send one record, given as a JSON object, to TOPIC: module:name of a Topic in Python.

    \b
      tidelog send shop:orders '{"id": 7, "item": "tea"}'
      tidelog send shop:orders '{"id": 7, "item": "tea"}' --delay 3600

    With --delay or --at, the server delays the record: it joins its partition at that time. The command prints the
    token of the delayed entry, which TDELAY CANCEL accepts.
    """
    try:
        made = from_json(topic, record)
    except (ValueError, TypeError) as error:
        raise click.ClickException(str(error)) from None
    with _sending(topic, url) as sender:
        echo(str(sender.send(made, delay=delay, at=_time(at))))


@click.command()
@click.argument("topic", type=Declaration[Topic[Any]](Topic, "shop.topics:orders"))
@click.argument("file", type=click.File("rb"))
@server_option
@click.option("--format", "form", type=click.Choice(["csv", "jsonl"]), help="Default: guessed.")
@click.option("--delimiter", default=",", show_default=True, help="Delimiter of a CSV file.")
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", help="At invalid rows; default: stop.")
@click.option("--producer", metavar="NAME", help="Send each row once, even if the command runs again.")
@later_options
def sendmany(
    topic: Topic[Any], file: io.BufferedReader, url: str | None, form: str | None, delimiter: str, on_error: str,
    producer: str | None, delay: float | None, at: str | None,
) -> None:  # fmt: skip
    """Send the rows of FILE (- is standard input) to TOPIC: module:name of a Topic in Python.

    \b
    csv    the first line contains the names of the fields, each other line a
           record; a last line without a line end is an error, because the
           file may be truncated
    jsonl  each line is a JSON object

    \b
    With --producer, rows are sent in numbered batches. If the command was
    interrupted, run it again with the same file and the same name. It skips the
    batches that were sent. Use each name for one file only.

    With --delay or --at, the server stores the records until that time, as in "tidelog send". --delay starts when the
    server receives a row.
    """
    if producer and (delay is not None or at is not None):
        raise click.UsageError("--producer cannot be combined with --delay or --at")
    when = _time(at)
    records = _records(topic, file, form or guess_format(getattr(file, "name", "-"), file), delimiter, on_error)
    with _sending(topic, url) as sender, Progress(file_size(file)) as progress, closing(records):
        batches = sender.producer(producer) if producer else None
        sent = skipped = number = 0
        try:
            while batch := list(islice(records, BATCH)):
                number += 1
                if batches is None:
                    sent += sender.send_many(batch, delay=delay, at=when)
                else:
                    published = batches.send_many(batch, number)
                    sent += published.entries
                    skipped += 0 if published.now else len(batch)
                progress.show(sent + skipped, file.tell() if progress.total else 0)
        except (redis.RedisError, OSError, KeyboardInterrupt) as error:
            what = "stopped" if isinstance(error, KeyboardInterrupt) else str(error)
            raise click.ClickException(f"{what}\n{counted(sent, 'record')} sent") from None
        rate = sent / max(progress.seconds, 1e-9)
    echo(f"{counted(sent, 'record')} in {progress.seconds:.2f} s ({rate:,.0f} records/s)", nl=False)
    echo(f"; {skipped:,} sent before" if skipped else "")


def _records(
    topic: Topic[Any], source: io.BufferedReader, form: str, delimiter: str, on_error: str
) -> Generator[Any, None, None]:  # fmt: skip
    """Yield the rows of a file as records of the topic. An invalid row raises ClickException or is reported."""
    made = _from_csv(topic, source, delimiter) if form == "csv" else _from_json(topic, source)
    with closing(made):
        for line, record in made:
            if not isinstance(record, ValueError | TypeError):
                yield record
            elif on_error == "stop":
                raise click.ClickException(f"line {line}: {record}")
            else:
                echo(f"line {line}: {record}", err=True)


def _from_json(topic: Topic[Any], source: io.BufferedReader) -> Generator[tuple[int, Any], None, None]:
    """Yield the number of each line with its record, or with the error."""
    for number, line in json_lines(source):
        try:
            yield number, from_json(topic, line)
        except (ValueError, TypeError) as error:
            yield number, error


def from_json(topic: Topic[Any], text: bytes | str) -> Any:
    """Convert a JSON object to a record. Raises ValueError or TypeError if it is invalid."""
    values = msgspec.json.decode(text)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return topic.codec.shape.made(values)


def _from_csv(topic: Topic[Any], source: io.BufferedReader, delimiter: str) -> Generator[tuple[int, Any], None, None]:
    """Yield the number of each line with its record, or with the error. An empty value of an optional field is None."""
    shape = topic.codec.shape
    raw = {field.name for field in shape.fields if field.kind == "bytes"}
    optional = {field.name for field in shape.fields if field.nullable}
    with closing(read_rows(source, "csv", delimiter)) as rows:
        for row in rows:
            try:
                if isinstance(row, BadRow):
                    raise ValueError(row.reason)
                values: dict[str, Any] = {}
                for name, value in row.pairs:
                    known = _text(name)
                    if value or known not in optional:
                        values[known] = value if known in raw else _text(value)
                record = shape.made(values)
            except (ValueError, TypeError) as error:
                yield row.line, error
            else:
                yield row.line, record


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
