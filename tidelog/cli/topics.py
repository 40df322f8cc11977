"""``tidelog topics``: list and change topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import click
import redis

from tidelog.cli.clustermap import reported
from tidelog.cli.connect import connected, url_option
from tidelog.cli.progress import Progress
from tidelog.cluster import moving
from tidelog.operating.tables import counted, print_pairs, table
from tidelog.operating.terminal import echo
from tidelog.topics import Retention, TopicError, admin
from tidelog.topics.balancing import summary
from tidelog.topics.retention import described, policy_of, policy_words
from tidelog.topics.settings import TopicSettings, tier_words
from tidelog.transport.access import Access


@click.group()
def topics() -> None:
    """List and change topics: partitioned streams with typed records.

    \b
    A topic "orders" with 16 partitions consists of the streams orders:0 to
    orders:15. The string topic:orders contains its settings. Programs declare
    topics (tidelog.topics), and the first program creates the topic.
    """


@topics.command("list")
@url_option
def list_topics(url: str) -> None:
    """List all topics."""
    with connected(url) as client, Progress() as progress:
        rows = []
        progress.show_text("searching for topics")
        names = sorted(set(admin.names(client)))
        for number, name in enumerate(names):
            progress.show_entries("topics", number, len(names))
            try:
                facts = admin.settings_of(client, name)
                entries = sum(client.together(*admin.lengths(name, facts)))
            except (TopicError, redis.ResponseError) as error:  # the other topics are listed
                progress.end()
                echo(f"{name}: {error}", err=True)
                continue
            rows.append([name, f"{facts.partitions}", f"{entries:,}", facts.codec, facts.partition_by or "-"])
        progress.end()
        if rows:
            table(["topic", "partitions", "entries", "codec", "partition by"], rows)
        else:
            echo("no topics")


@topics.command()
@click.argument("name")
@url_option
def show(name: str, url: str) -> None:
    """Show the settings of a topic and its partitions."""
    with connected(url) as client:
        facts = admin.settings_of(client, name)
        states = list(admin.partitions(client, name, facts))
        _describe(facts)
        _describe_policies(name, facts, states)
        delayed = admin.waiting(client, name)
        if delayed:
            print_pairs({"delayed": counted(delayed, "delayed record")})
        try:
            places = admin.places(client, name, facts)
        except redis.ResponseError as error:  # no permission: the rest is shown
            places = []
            echo(f"{name}: the groups of the partitions can't be read: {error}", err=True)
        if places:
            print_pairs({"cluster": f"{counted(len(places), 'partition')}: {summary(places)}"})
        echo()
        table(
            ["stream", *(["on group", "leader"] if places else []), "entries", "first", "last", "groups", "unfinished",
             "slowest group"],
            [
                [
                    state.key, *([places[at].group, places[at].leader] if places else []),
                    f"{state.length:,}", str(state.first or "-"), str(state.last or "-"), f"{state.groups}",
                    f"{state.unfinished:,}" if state.groups else "-", state.slowest.decode(errors="replace") or "-",
                ]
                for at, state in enumerate(states)
            ],
        )  # fmt: skip


@topics.command()
@click.argument("name")
@click.argument("partitions", type=click.IntRange(1))
@click.option("--force", is_flag=True, help="Grow despite unfinished entries; keys can lose their order.")
@url_option
def grow(name: str, partitions: int, force: bool, url: str) -> None:
    """Increase the number of PARTITIONS of the topic NAME to a multiple of the current number.

    \b
    The same hash then assigns each key to its old partition or to a new one.
    Existing entries stay in their partitions, so the topic must be idle: stop the
    programs that send, and let the processors finish. Otherwise the old entries
    of a key can be processed after its new ones. Programs that declare the old
    number of partitions are refused afterwards. In a cluster, the new partitions
    are distributed over the groups, and the old ones stay where they are.
    """
    with connected(url) as client:
        facts = admin.grow(client, name, partitions, force)
        try:
            places = admin.places(client, name, facts)
        except redis.ResponseError:  # no permission
            places = []
    echo(f"{name} has {counted(facts.partitions or 0, 'partition')}" + (f": {summary(places)}" if places else ""))


@topics.command()
@click.argument("name")
@click.option("--move", is_flag=True, help="Also move partitions that have entries.")
@url_option
def balance(name: str, move: bool, url: str) -> None:
    """Distribute the partitions of the topic NAME evenly over the groups of a cluster.

    \b
    A new topic is distributed when it is created. A partition whose slot has no
    keys is assigned to another group, which copies nothing. With --move, others
    move with their keys, while programs use them. Ctrl-C ends the current move.
    """
    with connected(url) as client:
        facts = admin.settings_of(client, name)
        if not admin.places(client, name, facts):
            raise TopicError(f"topic {name!r}: its servers are not a cluster with a coordinator")
        admin.balance(client, name)
        left = admin.transfers(client, name, facts)
        if move:
            for each in left:
                with Progress() as progress, reported():
                    moving.move(Access.of(url), each.slots, each.target, lambda _: None, progress.show_text)
        places = admin.places(client, name, facts)
    echo(f"{name} has {counted(len(places), 'partition')}: {summary(places)}")
    if left and not move:
        echo("Partitions that have entries stay where they are: --move moves them.")


@topics.command()
@click.argument("name")
@click.option("--partition-size", type=click.IntRange(0), help="Entries that a partition retains; 0: no limit.")
@click.option("--max-age", type=click.FloatRange(0), metavar="SECONDS", help="Age of retained entries; 0: no limit.")
@click.option("--overflow", type=click.Choice(["protect", "drop"]), help="Protect unfinished entries, or drop them.")
@click.option("--hard-limit", type=click.IntRange(0), help="Entries at which sends are refused; 0: no limit.")
@click.option("--tier-after", metavar="AGE|SIZE|default", help="What stays local, such as 7d or 1GB; see history.md.")
@click.option("--field", "changes", multiple=True, metavar="FIELD=TYPE", help="Change the type of a field; see above.")
@url_option
def alter(
    name: str, partition_size: int | None, max_age: float | None, overflow: str | None, hard_limit: int | None,
    tier_after: str | None, changes: tuple[str, ...], url: str,
) -> None:  # fmt: skip
    """Change the retention of the topic NAME, or the types of its fields.

    \b
      tidelog topics alter orders --partition-size 100000
      tidelog topics alter orders --field price=float
      tidelog topics alter orders --field 'ref=int|str'

    The server applies the retention at once, and evicts entries that exceed it. With overflow "protect", it retains the
    entries that a group of their partition has not finished, and all entries of a partition without groups.

    Programs that declare another retention or type are refused within seconds. Stop them before you change a type.

    A field can change to a type that can represent the stored values: int to float or decimal; with the codec plain,
    all types except bytes to str, and all types to bytes; with the other codecs, all types to a union that contains the
    old type. A field that was removed from the record type, so that the newest entry lacks it, can change to any type.
    Stored entries do not change. Older entries can contain the field with its old type.
    """
    types = dict(map(_pair, changes))
    given = {
        "partition_size": partition_size,
        "max_age_ms": None if max_age is None else round(max_age * 1000),
        "overflow": overflow,
        "hard_limit": hard_limit,
        "tier_after": _tier_after(tier_after),
    }
    if all(value is None for value in given.values()) and not types:
        listed = "--partition-size, --max-age, --overflow, --hard-limit, --tier-after or --field"
        raise click.UsageError(f"nothing to change: give {listed}")
    with connected(url) as client:
        now = admin.settings_of(client, name).retention
        merged = {field.name: getattr(now, field.name) for field in fields(Retention)}
        merged |= {what: value or None for what, value in given.items() if value is not None}
        _describe(admin.alter(client, name, Retention(**merged), types))


def _tier_after(text: str | None) -> str | None:
    try:
        return tier_words("--tier-after", text)
    except TopicError as error:
        raise click.BadParameter(str(error), param_hint="--tier-after") from None


def _pair(text: str) -> tuple[str, str]:
    field, equals, kind = text.partition("=")
    if not field or not equals or not kind:
        raise click.BadParameter(f"{text!r} is not FIELD=TYPE, such as price=float", param_hint="--field")
    return field, kind


@topics.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
def delete(name: str, yes: bool, url: str) -> None:
    """Delete the topic NAME with all its entries, groups, and delayed records."""
    with connected(url) as client:
        facts = admin.settings_of(client, name)
        entries = sum(client.together(*admin.lengths(name, facts)))
        delayed = admin.waiting(client, name)
        if not yes:
            what = f"{counted(facts.partitions or 0, 'partition')} with {counted(entries, 'entry')}"
            later = f", and {counted(delayed, 'delayed record')}" if delayed else ""
            click.confirm(f"Delete {name}: {what}{later}?", abort=True)
        admin.delete(client, name)
    echo(f"{name} is deleted")


def _describe(facts: TopicSettings) -> None:
    kept = facts.retention
    print_pairs(
        {
            "partitions": f"{facts.partitions}, by {facts.hash} of {facts.partition_by or 'nothing (round-robin)'}",
            "codec": facts.codec,
            "fields": ", ".join(f"{name} {kind}" for name, kind in facts.fields.items()) or "any",
            "retention": described(kept),
        }
    )


def _describe_policies(name: str, facts: TopicSettings, states: Sequence[admin.PartitionState]) -> None:
    """Show the policy with which the server evicts, and partitions that have another one."""
    wanted = policy_of(facts.retention)
    others = [state for state in states if state.policy != wanted]
    if wanted is None and not others:
        return
    text = policy_words(wanted)
    if others:
        remedy = f"tidelog topics alter {name} --overflow {facts.retention.overflow or 'protect'} sets it"
        text += f"; but {policy_words(others[0].policy)} in {others[0].key}"
        text += f" and {counted(len(others) - 1, 'other partition')}: {remedy}" if len(others) > 1 else f": {remedy}"
    print_pairs({"policy": text})
