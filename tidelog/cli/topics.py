"""``tidelog topics``: what topics there are, and what changes them."""

from __future__ import annotations

from dataclasses import fields

import click
import redis

from tidelog.cli.connect import connected, url_option
from tidelog.cli.output import echo
from tidelog.cli.report import facts_lines, table
from tidelog.topics import Retention, TopicError, admin
from tidelog.topics.settings import Facts


@click.group()
def topics() -> None:
    """Streams in parts, with records of one type.

    \b
    A topic "orders" with 16 partitions is the streams orders:0 to orders:15. The
    string topic:orders says what it is. Programs declare topics (tidelog.topics);
    the first one that does creates it.
    """


@topics.command("list")
@url_option
def list_topics(url: str) -> None:
    """List all topics."""
    with connected(url) as client:
        rows = []
        for name in sorted(set(admin.names(client))):
            try:
                facts = admin.facts_of(client, name)
                entries = sum(client.together(*admin.lengths(name, facts)))
            except (TopicError, redis.ResponseError) as error:  # the others are listed all the same
                echo(f"{name}: {error}", err=True)
                continue
            rows.append([name, f"{facts.partitions}", f"{entries:,}", facts.codec, facts.partition_by or "-"])
        if rows:
            table(["topic", "partitions", "entries", "codec", "partition by"], rows)
        else:
            echo("no topics")


@topics.command()
@click.argument("name")
@url_option
def show(name: str, url: str) -> None:
    """Show what a topic is, and each of its partitions."""
    with connected(url) as client:
        facts = admin.facts_of(client, name)
        _describe(facts)
        delayed = admin.waiting(client, name)
        if delayed:
            facts_lines({"waiting": f"{delayed:,} records to be sent later, in {name}:delayed"})
        echo()
        table(
            ["stream", "entries", "first", "last", "groups", "unfinished"],
            [
                [
                    state.key, f"{state.length:,}", str(state.first or "-"), str(state.last or "-"), f"{state.groups}",
                    f"{state.unfinished:,}" if state.groups else "-",
                ]
                for state in admin.partitions(client, name, facts)
            ],
        )  # fmt: skip


@topics.command()
@click.argument("name")
@click.argument("partitions", type=click.IntRange(1))
@click.option("--force", is_flag=True, help="Even if entries are not finished: keys may lose their order.")
@url_option
def grow(name: str, partitions: int, force: bool, url: str) -> None:
    """Give the topic NAME so many PARTITIONS: a multiple of what it has.

    \b
    A key then belongs to its old partition or to one of the new ones, by the same
    hash. Entries that are there stay where they are. So the topic must be idle:
    stop the programs that send, and let the processors finish. Otherwise a key's
    old entries may be processed after its new ones. Start programs again with
    the new number; those that declare the old one are refused.
    """
    with connected(url) as client:
        facts = admin.grow(client, name, partitions, force)
    echo(f"{name} has {facts.partitions} partitions")


@topics.command()
@click.argument("name")
@click.option("--partition-size", type=click.IntRange(0), help="Entries that a partition keeps; 0: no limit.")
@click.option("--max-age", type=click.FloatRange(0), metavar="SECONDS", help="How long entries are kept; 0: no limit.")
@click.option("--overflow", type=click.Choice(["protect", "drop"]), help="Whether unfinished entries may go.")
@click.option("--hard-limit", type=click.IntRange(0), help="Entries from which on a send is refused; 0: no limit.")
@click.option("--field", "changes", multiple=True, metavar="FIELD=TYPE", help="Change the type of a field; see above.")
@url_option
def alter(
    name: str, partition_size: int | None, max_age: float | None, overflow: str | None, hard_limit: int | None,
    changes: tuple[str, ...], url: str,
) -> None:  # fmt: skip
    """Change the retention of the topic NAME, or the types of its fields.

    \b
      tidelog topics alter orders --partition-size 100000
      tidelog topics alter orders --field price=float
      tidelog topics alter orders --field 'ref=int|str'

    Programs that declare another retention are refused when they start. Running programs keep the old one.
    Programs that declare another type are refused within seconds: stop them first.

    A field can change to a type as which the stored values can be read: int to float or decimal; with the codec plain,
    all types except bytes to str, and all types to bytes; with the other codecs, all types to a union that contains the
    old type. A field that was removed from the record type, so that the newest entry lacks it, can change to any type.
    Stored entries do not change: older ones can contain the field with its old type.
    """
    types = dict(map(_pair, changes))
    given = {
        "partition_size": partition_size,
        "max_age_ms": None if max_age is None else round(max_age * 1000),
        "overflow": overflow,
        "hard_limit": hard_limit,
    }
    if all(value is None for value in given.values()) and not types:
        listed = "--partition-size, --max-age, --overflow, --hard-limit or --field"
        raise click.UsageError(f"nothing to change: give {listed}")
    with connected(url) as client:
        now = admin.facts_of(client, name).retention
        merged = {field.name: getattr(now, field.name) for field in fields(Retention)}
        merged |= {what: value or None for what, value in given.items() if value is not None}
        _describe(admin.alter(client, name, Retention(**merged), types))


def _pair(text: str) -> tuple[str, str]:
    field, equals, kind = text.partition("=")
    if not field or not equals or not kind:
        raise click.BadParameter(f"{text!r} is not FIELD=TYPE, such as price=float", param_hint="--field")
    return field, kind


@topics.command()
@click.argument("name")
@url_option
def trim(name: str, url: str) -> None:
    """Evict what the retention of the topic NAME gives up.

    With overflow "protect", only what all groups of a partition have finished, and nothing of a partition without
    groups.
    """
    with connected(url) as client:
        echo(f"{admin.trim(client, name):,} entries evicted")


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Don't ask.")
@url_option
def delete(name: str, yes: bool, url: str) -> None:
    """Delete the topic NAME with all its entries and groups."""
    with connected(url) as client:
        facts = admin.facts_of(client, name)
        entries = sum(client.together(*admin.lengths(name, facts)))
        delayed = admin.waiting(client, name)
        later = f", and {delayed:,} records to be sent later" if delayed else ""
        if not yes:
            click.confirm(f"Delete {name}: {facts.partitions} partitions with {entries:,} entries{later}?", abort=True)
        admin.delete(client, name)
    echo(f"{name} is deleted")


def _describe(facts: Facts) -> None:
    kept = facts.retention
    facts_lines(
        {
            "partitions": f"{facts.partitions}, by {facts.hash} of {facts.partition_by or 'nothing: they take turns'}",
            "codec": facts.codec,
            "fields": ", ".join(f"{name} {kind}" for name, kind in facts.fields.items()) or "any",
            "keeps": _keeps(kept),
        }
    )


def _keeps(kept: Retention) -> str:
    parts = []
    if kept.partition_size is not None:
        parts.append(f"{kept.partition_size:,} entries a partition")
    if kept.max_age_ms is not None:
        parts.append(f"entries younger than {kept.max_age_ms / 1000:,.0f} s")
    text = " and ".join(parts) or "everything"
    if parts:
        text += ", drops the rest at once" if kept.drops else ", and what groups have not finished"
    return text + (f"; refuses sends from {kept.hard_limit:,} entries on" if kept.hard_limit is not None else "")
