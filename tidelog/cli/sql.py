"""``tidelog sql``: a query in which streams and topics are tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from tidelog.cli.connect import ANSWER_MS, url_option
from tidelog.cli.extras import needs
from tidelog.cli.fieldtypes import TYPE_HELP, field_types, history_option
from tidelog.cli.progress import Progress
from tidelog.operating.tables import table
from tidelog.operating.terminal import echo
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError

if TYPE_CHECKING:
    from tidelog.sql.query import SqlResult

SHOWN: Final = 1000  # rows of a table; its widths need all of them
CUT: Final = 60  # characters of a cell


@click.command("sql")
@click.argument("query")
@url_option
@click.option("--type", "types", multiple=True, metavar="FIELD=TYPE",
              help=TYPE_HELP + " Of one table: TABLE.FIELD=TYPE.")
@click.option("--json", "as_json", is_flag=True, help="Print each row as a JSON object.")
@click.option("--to", "target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write the rows to FILE.parquet or FILE.csv.")
@history_option
def sql(query: str, url: str, types: tuple[str, ...], as_json: bool, target: Path | None, history: str) -> None:
    """Run a SELECT in which streams and topics are tables.

    \b
      tidelog sql "select city, avg(celsius) from weather group by city"
      tidelog sql "select * from weather where _ts > now() - interval 1 hour"
      tidelog sql 'select count(*) from "shop:orders"'          a name with special characters
      tidelog sql "select * from orders" --to orders.parquet
      tidelog sql - < query.sql

    \b
    columns   _key        the stream
              _id         the ID of the entry
              _ts         the time of the entry
              _partition  the partition, for a topic
              and the fields of the entries

    DuckDB runs the query in this process, so its functions, joins, and files (from 'cities.csv') are available. Only
    the columns and the range of time that the query needs are read. The server is not changed.
    """
    if as_json and target is not None:
        raise click.UsageError("--json prints the rows, and --to writes them to a file: use one of them")
    with needs("tidelog sql", "sql"):
        from tidelog.arrow.columns import MalformedError
        from tidelog.arrow.rows import EvictedError
        from tidelog.history.errors import HistoryError
        from tidelog.sql.query import SqlSession
    if query == "-":
        query = sys.stdin.read()
    try:
        access = Access.of(url).single_attempt(ANSWER_MS)
        with Progress() as progress, SqlSession(
            access, field_types(types), progress.counting("rows read:"), history
        ) as session:
            result = session.run(query)
            if target is not None:
                result.write(target)
            elif as_json:
                _print_json(result, progress)
            else:
                _print_table(result, progress)
    except MalformedError as error:
        text = str(error)
        raise click.ClickException(f"{text.rpartition(' (')[0]}: use --type FIELD=string for this field") from None
    except ReplyError as error:
        raise click.ClickException(f"the server replied: {error}") from None
    except (ValueError, EvictedError, HistoryError) as error:
        raise click.ClickException(str(error)) from None
    except BrokenPipeError:  # nobody reads the output
        raise
    except OSError as error:
        raise click.ClickException(f"no answer from {access.places}: {error.__cause__ or error}") from None


def _rows(result: SqlResult, progress: Progress) -> Iterator[tuple[Any, ...]]:
    for batch in result:
        progress.end()
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    progress.end()


def _print_json(result: SqlResult, progress: Progress) -> None:
    names = result.names
    for row in _rows(result, progress):
        echo(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, default=_plain))


def _print_table(result: SqlResult, progress: Progress) -> None:
    cells: list[list[str]] = []
    more = False
    for row in _rows(result, progress):
        if len(cells) == SHOWN:
            more = True
            break
        cells.append([_cell(value) for value in row])
    table(result.names, cells)
    if more:
        echo(f"only the first {SHOWN:,} rows are shown; --json prints all, --to writes them to a file", err=True)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(" ").removesuffix("+00:00")
    if isinstance(value, float):
        return f"{value:.10g}"
    plain = _plain(value) if isinstance(value, bytes) else value
    text = " ".join((plain if isinstance(plain, str) else _text(plain)).split("\n"))
    return text if len(text) <= CUT else f"{text[: CUT - 1]}…"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain) if isinstance(value, dict | list) else str(value)


def _plain(value: Any) -> Any:
    """Return a value as JSON can represent it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(type(value).__name__)
