"""``tidelog dlq``: lists, replays and purges dead letters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
import redis

from tidelog.cli import lines
from tidelog.cli.connect import connected, url_option
from tidelog.cli.progress import Progress
from tidelog.client import Client
from tidelog.client.alone import run_alone
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import run
from tidelog.operating.tables import counted, print_pairs, table, utc
from tidelog.operating.terminal import echo
from tidelog.topics import TopicError, admin, deadletters
from tidelog.topics.deadletters import DeadLetterRecord, DeadLetterResult, NotADeadLetterError

SHOWN = 60  # characters of an error's message in a table


@click.group()
def dlq() -> None:
    """Manage dead letters: events whose processing failed for good.

    A processor whose on_error ends with DeadLetter() writes them to a dead-letter queue. Its default name is that of
    the events' topic with .dead appended. NAME is the name of either topic.

    \b
      tidelog dlq list                     dead-letter queues, with their number of dead letters
      tidelog dlq list orders              the dead letters of one topic
      tidelog dlq show orders 1795354158671.0
      tidelog dlq replay orders --all      after the cause was fixed
    """


_name = click.argument("name")
_ids = click.argument("ids", nargs=-1, metavar="[ID]...")
_processor = click.option("--processor", metavar="APP.PROCESSOR", help="Only dead letters of this processor.")
_all = click.option("--all", "all_of_them", is_flag=True, help="All dead letters, or all of --processor.")


@dlq.command("list")
@click.argument("name", required=False)
@_processor
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Maximum number of dead letters.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines with all fields.")
@url_option
def list_dead_letters(name: str | None, processor: str | None, limit: int, as_json: bool, url: str) -> None:
    """List the dead letters of NAME, oldest first. Without NAME, list the dead-letter queues."""
    with connected(url) as client, Progress() as progress:
        if name is None:
            _list_topics(client, progress)
            return
        topic = _topic(client, name)
        rows = []
        for number, entry in enumerate(_open(client, topic)):
            progress.show_count("dead letters read:", number)
            dead_letter = _read(entry)
            if processor is not None and (dead_letter is None or dead_letter.processor != processor):
                continue
            if as_json:
                progress.end()
                echo(json.dumps(_fields(entry, dead_letter), ensure_ascii=False))
            rows.append(_row(entry, dead_letter))
            if len(rows) == limit:
                break
        progress.end()
        if not as_json and rows:
            table(["dead letter", "event", "processor", "attempts", "error"], rows)
        elif not rows:
            echo("no dead letters", err=as_json)
        if len(rows) == limit:
            echo(f"-- the first {limit:,}; use --limit to show more", err=True)


@dlq.command()
@_name
@click.argument("dead_letter_id", metavar="ID")
@url_option
def show(name: str, dead_letter_id: str, url: str) -> None:
    """Show the dead letter ID of NAME: its event and the error with its traceback."""
    with connected(url) as client:
        entry = run(client, deadletters.one(_topic(client, name), StreamId.parse(dead_letter_id)))
        if entry is None:
            raise click.ClickException(
                f"no open dead letter {dead_letter_id}: it was replayed or purged, or never existed"
            )
        dead_letter = deadletters.read(entry)
    print_pairs(
        {
            "event": _event(dead_letter),
            "key": dead_letter.key.decode("utf-8", "backslashreplace") or "none",
            "processor": dead_letter.processor,
            "attempts": f"{dead_letter.attempts}, the last by worker {dead_letter.worker}",
            "given up": utc(dead_letter.time),
            "error": _shown(f"{dead_letter.error}: {dead_letter.message}"),
        }
    )
    echo(f"\n{lines.to_json(dead_letter.entry)}\n\n{_shown(dead_letter.traceback.rstrip())}")


@dlq.command()
@_name
@_ids
@_all
@_processor
@click.option(
    "--allow", multiple=True, metavar="TOPIC|STREAM",
    help="Also replay to this target, even if NAME does not belong to it.",
)  # fmt: skip
@url_option
def replay(
    name: str, ids: tuple[str, ...], all_of_them: bool, processor: str | None, allow: tuple[str, ...], url: str
) -> None:
    """Send the events of dead letters of NAME again, to the topics that they came from.

    \b
    The events are appended as new entries after the existing ones, so the order
    of a key changes. Every processor of the topic receives them, not only the one
    that failed. A dead letter is replayed once, even if two users do so at the same time.

    A dead letter contains the topic or stream of its event. It is replayed only if NAME belongs to that topic or
    stream: orders.dead belongs to orders, other names to the topics whose processors have written to them. Otherwise
    anyone who can append to NAME could forge another target.
    """
    with connected(url) as client, Progress() as progress:
        topic = _topic(client, name)
        allowed = [deadletters.home(each, part) for each in allow for part in (0, deadletters.NO_PARTITION)]
        wanted = _shown_by(progress, _wanted(ids, all_of_them, processor), run(client, deadletters.count(topic)))
        done = run_alone(client, deadletters.replay(topic, wanted, allowed))
        progress.end()
        _tell("replayed", done, ids)


@dlq.command()
@_name
@_ids
@_all
@_processor
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@url_option
def purge(name: str, ids: tuple[str, ...], all_of_them: bool, processor: str | None, yes: bool, url: str) -> None:
    """Discard dead letters of NAME without sending them again.

    They disappear from the list immediately. Their entries are evicted when no older dead letter is open.
    """
    with connected(url) as client, Progress() as progress:
        topic = _topic(client, name)
        wanted = _wanted(ids, all_of_them, processor)
        if not yes:
            everything = f"all dead letters of {processor}" if processor else "all dead letters"
            what = counted(len(ids), "dead letter") if ids else everything
            click.confirm(f"Purge {what} from {topic}?", abort=True)
        wanted = _shown_by(progress, wanted, run(client, deadletters.count(topic)))
        done = run_alone(client, deadletters.purge(topic, wanted))
        progress.end()
        _tell("purged", done, ids)


# -- dead letters ---------------------------------------------------------------------------------------------
def _topic(client: Client, name: str) -> str:
    """Return the dead-letter queue: the name itself, or the name with ``.dead`` appended."""
    for candidate in (name, f"{name}.dead"):
        try:
            if deadletters.is_dead_letter_queue(admin.settings_of(client, candidate)):
                return candidate
        except TopicError:
            continue
    raise click.ClickException(
        f"{name!r} has no dead letters: no worker has written any. tidelog dlq list shows the dead-letter queues"
    )


def _list_topics(client: Client, progress: Progress) -> None:
    topics = []
    progress.show_text("searching for topics")
    names = sorted(set(admin.names(client)))
    for number, name in enumerate(names):
        progress.show_entries("topics", number, len(names))
        try:
            if deadletters.is_dead_letter_queue(admin.settings_of(client, name)):
                topics.append(name)
        except (TopicError, redis.ResponseError) as error:  # the other topics are still listed
            progress.end()
            echo(f"{name}: {error}", err=True)
    rows = [[name, f"{run(client, deadletters.count(name)):,}"] for name in topics]
    progress.end()
    if rows:
        table(["topic", "dead letters"], rows)
    else:
        echo("no dead letters")


def _open(client: Client, topic: str) -> Iterator[Entry]:
    start: StreamId | None = None
    while True:
        entries, start = run(client, deadletters.page(topic, start))
        yield from entries
        if start is None:
            return


def _wanted(ids: tuple[str, ...], all_of_them: bool, processor: str | None) -> deadletters.Wanted:
    if bool(ids) == all_of_them:
        raise click.UsageError("specify either IDs or --all")
    if ids and processor:
        raise click.UsageError("--processor requires --all")
    chosen = {StreamId.parse(text) for text in ids}

    def wanted(dead_letter: DeadLetterRecord | None, id: StreamId) -> bool:  # noqa: A002 - its name everywhere else
        if chosen:
            return id in chosen
        return processor is None or (dead_letter is not None and dead_letter.processor == processor)

    return wanted


def _shown_by(progress: Progress, wanted: deadletters.Wanted, total: int) -> deadletters.Wanted:
    """Return ``wanted`` with progress: it is called for each of ``total`` dead letters, more often after a conflict."""
    done = 0

    def called(dead_letter: DeadLetterRecord | None, id: StreamId) -> bool:  # noqa: A002 - as above
        nonlocal done
        done += 1
        progress.show_entries("dead letters", done, total)
        return wanted(dead_letter, id)

    return called


def _tell(what: str, done: DeadLetterResult, ids: tuple[str, ...]) -> None:
    echo(f"{counted(done.letters, 'dead letter')} {what}")
    for reason in done.refused:
        echo(f"-- {reason}", err=True)
    missing = len(set(ids)) - done.letters - len(done.refused) if ids else 0
    if missing:
        echo(f"-- {counted(missing, 'ID')} without an open dead letter", err=True)
    if done.refused or missing:
        raise click.exceptions.Exit(1)


def _read(entry: Entry) -> DeadLetterRecord | None:
    try:
        return deadletters.read(entry)
    except NotADeadLetterError:
        return None


def _row(entry: Entry, dead_letter: DeadLetterRecord | None) -> list[str]:
    if dead_letter is None:
        return [str(entry.id), "-", "-", "-", "not a dead letter; can be purged"]
    message = " ".join(f"{dead_letter.error}: {dead_letter.message}".split())
    message = _shown(message if len(message) <= SHOWN else f"{message[:SHOWN]}...")
    return [str(dead_letter.id), _event(dead_letter), dead_letter.processor, str(dead_letter.attempts), message]


def _event(dead_letter: DeadLetterRecord) -> str:
    return f"{dead_letter.event_id} of {dead_letter.stream}" if dead_letter.topic else "of no stream"


def _fields(entry: Entry, found: DeadLetterRecord | None) -> dict[str, Any]:
    if found is None:
        return {"dead_letter": str(entry.id), "entry": json.loads(lines.to_json(entry))}
    return {
        "dead_letter": str(found.id), "topic": found.topic, "partition": found.partition,
        "key": found.key.decode("utf-8", "backslashreplace"), "processor": found.processor, "error": found.error,
        "message": found.message, "traceback": found.traceback, "attempts": found.attempts, "worker": found.worker,
        "time": found.time, "entry": json.loads(lines.to_json(found.entry)),
    }  # fmt: skip


def _shown(text: str) -> str:
    """Escape characters that a terminal can't display, except line ends."""
    return "\n".join(map(lines.printable, text.split("\n")))
