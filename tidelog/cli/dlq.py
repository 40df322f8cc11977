"""``tidelog dlq``: dead letters, the events that processors gave up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
import redis

from tidelog.cli import lines
from tidelog.cli.connect import connected, url_option
from tidelog.cli.output import echo
from tidelog.cli.report import print_pairs, table
from tidelog.client import Client
from tidelog.client.alone import run_alone
from tidelog.client.entries import Entry, StreamId
from tidelog.client.steps import run
from tidelog.topics import TopicError, admin, deadletters
from tidelog.topics.deadletters import DeadLetterRecord, DeadLetterResult, NotADeadLetterError

SHOWN = 60  # characters of an error's message in a list


@click.group()
def dlq() -> None:
    """Dead letters: events that processors gave up.

    \b
    A processor whose on_error ends with DeadLetter() writes them to a topic: that of
    the events with .dead appended, unless it names another. NAME below is either.

    \b
      tidelog dlq list                     topics with letters, and how many
      tidelog dlq list orders              the letters
      tidelog dlq show orders 1795354158671.0
      tidelog dlq replay orders --all      once the cause is mended
    """


_name = click.argument("name")
_ids = click.argument("ids", nargs=-1, metavar="[ID]...")
_processor = click.option("--processor", metavar="APP.PROCESSOR", help="Only letters of this processor.")
_all = click.option("--all", "all_of_them", is_flag=True, help="All letters, or all of --processor.")


@dlq.command("list")
@click.argument("name", required=False)
@_processor
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="At most so many letters.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, with all that there is.")
@url_option
def list_letters(name: str | None, processor: str | None, limit: int, as_json: bool, url: str) -> None:
    """List the letters of NAME, oldest first; without NAME, the topics that have letters."""
    with connected(url) as client:
        if name is None:
            _list_topics(client)
            return
        topic = _topic(client, name)
        rows = []
        for entry in _open(client, topic):
            letter = _read(entry)
            if processor is not None and (letter is None or letter.processor != processor):
                continue
            if as_json:
                echo(json.dumps(_facts(entry, letter), ensure_ascii=False))
            rows.append(_row(entry, letter))
            if len(rows) == limit:
                break
        if not as_json and rows:
            table(["letter", "event", "processor", "attempts", "error"], rows)
        elif not rows:
            echo("no letters", err=as_json)
        if len(rows) == limit:
            echo(f"-- the first {limit:,}; --limit shows more", err=True)


@dlq.command()
@_name
@click.argument("letter_id", metavar="ID")
@url_option
def show(name: str, letter_id: str, url: str) -> None:
    """Show the letter ID of NAME: the event, what went wrong, and where."""
    with connected(url) as client:
        entry = run(client, deadletters.one(_topic(client, name), StreamId.parse(letter_id)))
        if entry is None:
            raise click.ClickException(f"no open letter {letter_id}: it was replayed or purged, or there never was one")
        letter = deadletters.read(entry)
    print_pairs(
        {
            "event": _event(letter),
            "key": letter.key.decode("utf-8", "backslashreplace") or "none",
            "processor": letter.processor,
            "attempts": f"{letter.attempts}, the last by worker {letter.worker}",
            "given up": _time(letter),
            "error": _shown(f"{letter.error}: {letter.message}"),
        }
    )
    echo(f"\n{lines.to_json(letter.entry)}\n\n{_shown(letter.traceback.rstrip())}")


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
    """Send the events of letters of NAME again, to the topics that they came from.

    \b
    They are appended as new entries, after the existing ones, so the order of a
    key changes. Every processor of the topic gets them, not only the one that
    gave them up. A letter is replayed once, even if two users do so at a time.

    A letter names the topic or stream of its event. It is replayed only if NAME belongs to that topic or stream:
    orders.dead belongs to orders, other names to the topics whose processors have written to them. Anyone who can
    append to NAME could forge another target.
    """
    with connected(url) as client:
        topic = _topic(client, name)
        allowed = [deadletters.home(each, part) for each in allow for part in (0, deadletters.NO_PARTITION)]
        done = run_alone(client, deadletters.replay(topic, _wanted(ids, all_of_them, processor), allowed))
        _tell("replayed", done, ids)


@dlq.command()
@_name
@_ids
@_all
@_processor
@click.option("--yes", is_flag=True, help="Don't ask.")
@url_option
def purge(name: str, ids: tuple[str, ...], all_of_them: bool, processor: str | None, yes: bool, url: str) -> None:
    """Forget letters of NAME without sending them again.

    They leave the list at once. Their entries are evicted when no older letter is open.
    """
    with connected(url) as client:
        topic = _topic(client, name)
        wanted = _wanted(ids, all_of_them, processor)
        if not yes:
            what = f"{len(ids)} letters" if ids else f"all letters{f' of {processor}' if processor else ''}"
            click.confirm(f"Purge {what} from {topic}?", abort=True)
        _tell("purged", run_alone(client, deadletters.purge(topic, wanted)), ids)


# -- letters -------------------------------------------------------------------------------------------------
def _topic(client: Client, name: str) -> str:
    """The topic for dead letters that is meant: the name itself, or with ``.dead`` appended."""
    for candidate in (name, f"{name}.dead"):
        try:
            if deadletters.is_for_letters(admin.facts_of(client, candidate)):
                return candidate
        except TopicError:
            continue
    raise click.ClickException(
        f"no dead letters of {name!r}: no worker has written any there. tidelog dlq list shows where there are some"
    )


def _list_topics(client: Client) -> None:
    topics = []
    for name in sorted(set(admin.names(client))):
        try:
            if deadletters.is_for_letters(admin.facts_of(client, name)):
                topics.append(name)
        except (TopicError, redis.ResponseError) as error:  # the others are listed all the same
            echo(f"{name}: {error}", err=True)
    rows = [[name, f"{run(client, deadletters.count(name)):,}"] for name in topics]
    if rows:
        table(["topic", "letters"], rows)
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
        raise click.UsageError("name letters by their IDs, or all of them by --all")
    if ids and processor:
        raise click.UsageError("--processor is for --all")
    chosen = {StreamId.parse(text) for text in ids}

    def wanted(letter: DeadLetterRecord | None, id: StreamId) -> bool:  # noqa: A002 - its name everywhere else
        if chosen:
            return id in chosen
        return processor is None or (letter is not None and letter.processor == processor)

    return wanted


def _tell(what: str, done: DeadLetterResult, ids: tuple[str, ...]) -> None:
    echo(f"{done.letters:,} letters {what}")
    for reason in done.refused:
        echo(f"-- {reason}", err=True)
    missing = len(set(ids)) - done.letters - len(done.refused) if ids else 0
    if missing:
        echo(f"-- {missing} of the IDs are no open letters", err=True)
    if done.refused or missing:
        raise click.exceptions.Exit(1)


def _read(entry: Entry) -> DeadLetterRecord | None:
    try:
        return deadletters.read(entry)
    except NotADeadLetterError:
        return None


def _row(entry: Entry, letter: DeadLetterRecord | None) -> list[str]:
    if letter is None:
        return [str(entry.id), "-", "-", "-", "no dead letter: it can be purged"]
    message = " ".join(f"{letter.error}: {letter.message}".split())
    message = _shown(message if len(message) <= SHOWN else f"{message[:SHOWN]}...")
    return [str(letter.id), _event(letter), letter.processor, str(letter.attempts), message]


def _event(letter: DeadLetterRecord) -> str:
    return f"{letter.event_id} of {letter.place}" if letter.topic else "of no stream"


def _facts(entry: Entry, letter: DeadLetterRecord | None) -> dict[str, Any]:
    if letter is None:
        return {"letter": str(entry.id), "entry": json.loads(lines.to_json(entry))}
    return {
        "letter": str(letter.id), "topic": letter.topic, "partition": letter.partition,
        "key": letter.key.decode("utf-8", "backslashreplace"), "processor": letter.processor, "error": letter.error,
        "message": letter.message, "traceback": letter.traceback, "attempts": letter.attempts, "worker": letter.worker,
        "time": letter.time, "entry": json.loads(lines.to_json(letter.entry)),
    }  # fmt: skip


def _shown(text: str) -> str:
    """Text with what a terminal can't show escaped; line ends stay."""
    return "\n".join(map(lines.printable, text.split("\n")))


def _time(letter: DeadLetterRecord) -> str:
    try:
        return datetime.fromtimestamp(letter.time / 1000, UTC).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return f"{letter.time} ms"
