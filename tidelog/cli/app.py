"""``tidelog app``: what an app is doing, and what people do to its processors while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from tidelog.cli.connect import choose, connected, reported, url_option
from tidelog.cli.lines import printable
from tidelog.cli.modules import Declaration
from tidelog.cli.output import echo
from tidelog.cli.report import table
from tidelog.cli.status import print_status, to_json
from tidelog.client.entries import StreamId
from tidelog.client.steps import Steps, drive
from tidelog.topics import TopicError
from tidelog.transport.errors import ReplyError
from tidelog.transport.leader import LeaderConnection, UnreachableError
from tidelog.workers import App, AppError
from tidelog.workers.coordination.member_document import MembersError
from tidelog.workers.operate import control, deletion
from tidelog.workers.operate.deletion import Found
from tidelog.workers.operate.status import AppStatus, look

T = TypeVar("T")
Ask = Callable[[Steps[Any]], Any]
ANSWER_MS: Final = 10_000  # for connecting, and for each reply


@click.group("app")
def app_commands() -> None:
    """What an app is doing, and what you do to it while it runs.

    \b
      tidelog app status shop:app                   members, owners, how far each is
      tidelog app status shop:app --watch
      tidelog app pause shop:app bill               nothing new is begun, until
      tidelog app resume shop:app bill
      tidelog app pause shop:app bill --key ann     one customer only
      tidelog app reset shop:app bill --to 0        everything once more
      tidelog app delete shop                       forget all of it

    APP is module:name of an App in Python. The current folder is looked in first.
    The server is the one that the app names, or that of --url. delete takes the
    name that the App has, and needs no program.
    """


_app = click.argument("app", type=Declaration[App](App, "shop.orders:app"))
_processor = click.argument("processor")
_partition = click.option("--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")
_url = click.option("--url", help="Another server than the app's: redis://, rediss:// or unix://.")


@app_commands.command()
@_app
@_url
@click.option("--processors", metavar="NAME,NAME", help="Only these. Default: all of the app.")
@click.option("--watch", is_flag=True, help="Again and again, until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(0.0), default=1.0, show_default=True,
              help="Seconds between two looks: rates are the difference. 0: one look, no rates.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each look.")
def status(app: App, url: str | None, processors: str | None, watch: bool, interval: float, as_json: bool) -> None:
    """Show who works on APP, who owns which partitions, and how far each processor is.

    \b
    behind    entries that were not delivered yet
    age       of the oldest entry that is not finished
    pending   delivered, and not acknowledged; events of parked keys are pending
    parked    keys that are held back; "tidelog app resume" lets them go on
    sent/s, finished/s   between two looks

    "bill -> w2" is a partition that changes hands: w2 should own it, and does not yet.
    """
    names = [name.strip() for name in processors.split(",") if name.strip()] if processors else None
    if watch and not interval:
        raise click.UsageError("--watch needs an --interval")
    with asking(app, url) as ask:
        before: AppStatus | None = None
        seen: AppStatus = ask(look(app, names))
        try:
            while True:
                if interval:
                    time.sleep(interval)
                    before, seen = seen, ask(look(app, names))
                if watch and not as_json and sys.stdout.isatty():
                    click.clear()
                if as_json:
                    echo(to_json(seen, before))
                else:
                    print_status(seen, before)
                if not watch:
                    return
                if not as_json:
                    echo()
        except KeyboardInterrupt:
            return


@app_commands.command()
@_app
@_processor
@click.option("--to", required=True, metavar="0|ID|TIME|end", help="Where it goes on; see above.")
@_partition
@click.option("--force", is_flag=True, help="Also while workers take part.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@_url
def reset(
    app: App, processor: str, to: str, partition: int | None, force: bool, yes: bool, url: str | None
) -> None:  # fmt: skip
    """Move PROCESSOR of APP back or on, in all partitions or in one.

    \b
    0       to the oldest entry there is
    ID      such as 1795354158671.0: behind that entry
    TIME    such as 2026-11-21T08:00Z: to the first entry from then on
    end     behind the newest entry: only what is sent from now on

    What was pending is forgotten. Of that, what lies after the new position comes again as new, and what lies before it
    does not come any more. Parked keys stay parked, paused partitions stay paused.

    While workers take part this is refused: they would finish what they have in hand, and partitions would move under
    them one after another. Stop them first, or say --force.
    """
    target = _target(to)
    with asking(app, url) as ask:
        if not yes:
            where = "all partitions" if partition is None else f"partition {partition}"
            click.confirm(f"Reset {processor} of {app.name} to {to}, in {where}?", abort=True)
        moved = ask(control.reset(app, processor, target, partition, force))
        rows = [
            [str(each.partition), _shown(each.before), _shown(each.after), f"{each.forgotten:,}", f"{each.left:,}"]
            for each in moved
        ]
        table(["partition", "before", "now after", "pending forgotten", "entries to go"], rows)


@app_commands.command()
@_app
@_processor
@_partition
@click.option("--key", help="Only events with this key: for processors with ordering='key'.")
@click.option("--reason", default="by hand", show_default=True, help="Shown by status.")
@_url
def pause(
    app: App, processor: str, partition: int | None, key: str | None, reason: str, url: str | None
) -> None:  # fmt: skip
    """Hold back PROCESSOR of APP: all of it, one partition, or one key.

    Workers notice at once. What is in work is finished; nothing new is begun, whatever workers are started or stopped,
    until "tidelog app resume". Events that are held back wait on the server.
    """
    with asking(app, url) as ask:
        held = ask(control.hold(app, processor, partition, key, reason))
        echo(f"{processor}: {', '.join(held)} held back" if held else f"{processor}: held back already")


@app_commands.command()
@_app
@_processor
@_partition
@click.option("--key", help="Only this key.")
@_url
def resume(app: App, processor: str, partition: int | None, key: str | None, url: str | None) -> None:
    """Let PROCESSOR of APP go on: all that is paused, parked or halted, or only one partition or key.

    It makes no difference whether a person or a failure policy (Park, Pause, Halt) has held it back. An event that
    failed is tried again first.
    """
    with asking(app, url) as ask:
        found = ask(control.resume(app, processor, partition, key))
        for each in found:
            echo(f"{processor}: {each} resumed")
        if not found:
            raise click.ClickException(f"{processor}: nothing of that is held back. tidelog app status shows what is")


@app_commands.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@url_option
def delete(name: str, dry_run: bool, yes: bool, url: str) -> None:
    """Remove what the app NAME has remembered on the server.

    That is how far its processors are, who took part, what is held back, and when timers ran.

    NAME is the app's own name, such as shop: its program need not be there any more. Topics, their entries and dead
    letters stay. If a program with this name runs again, it begins anew. The counter app:NAME:epoch stays, too, so that
    epochs go on.

    While workers run the app this is refused.
    """
    with connected(url) as client:
        try:
            found = deletion.look(client, name)
            if not (found.keys or found.seen or found.groups):
                raise click.ClickException(f"the server knows nothing of an app {name!r}")
            _list(found)
            if dry_run:
                return
            if not yes:
                click.confirm(f"Delete this of {name}?", abort=True)
            gone = deletion.delete(client, name)
        except AppError as error:
            raise click.ClickException(str(error)) from None
    echo(f"{len(gone.keys) + len(gone.seen):,} keys and {len(gone.groups):,} groups deleted")


def _list(found: Found) -> None:
    for key in found.keys:
        echo(f"key    {printable(key)}")
    if found.seen:
        echo(f"keys   {len(found.seen):,} of deduplicate")
    for group in found.groups:
        pending = f", {group.pending:,} pending" if group.pending else ""
        echo(f"group  {printable(group.name)} on {group.topic}:{group.partition}{pending}")
    if found.alive:
        echo(f"-- workers live: {', '.join(map(printable, found.alive))}", err=True)


# -- asking --------------------------------------------------------------------------------------------------
@contextmanager
def asking(app: App, url: str | None) -> Iterator[Ask]:
    """What drives operations on the app's server, with errors as messages of the program."""
    with reported(url or app.access.places):
        access = choose(url, app.access, app.url is None, f"app {app.name!r}") or app.access
        access = access.single_attempt(ANSWER_MS)
        servers = LeaderConnection(access, "tidelog-app")

        def ask(steps: Steps[T]) -> T:
            return drive(lambda calls: servers.ask(*calls), steps)

        try:
            yield ask
        except UnreachableError as error:
            raise click.ClickException(f"no answer from {access.places}: {error.__cause__}") from None
        except ReplyError as error:
            raise click.ClickException(f"the server replied: {error}") from None
        except (AppError, TopicError, MembersError) as error:
            raise click.ClickException(str(error)) from None
        finally:
            servers.close()


def _target(text: str) -> StreamId | str:
    """The ID that is meant: the processor goes on with the first entry after it."""
    if text == control.END:
        return text
    if text[4:5] == "-" and text[:4].isdigit():
        try:
            at = datetime.fromisoformat(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is no time: {error}", param_hint="--to") from None
        if at.tzinfo is None:
            raise click.BadParameter(f"{text!r} needs its zone, such as {text}Z", param_hint="--to")
        return control.before(max(0, round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)))
    try:
        return StreamId.parse(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not 0, an ID, a time, or end", param_hint="--to") from None


def _shown(at: StreamId | None) -> str:
    return "-" if at is None else str(at) if at > StreamId(0) else "0"
