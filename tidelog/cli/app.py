"""``tidelog app``: inspects and controls a running app."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from tidelog.cli.connect import Drive, choose, connected, driving, reported, url_option
from tidelog.cli.lines import printable
from tidelog.cli.modules import Declaration, processors_option
from tidelog.cli.progress import Progress
from tidelog.cli.resetting import Cells, print_resets, reset_options
from tidelog.cli.status import print_status, to_json
from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo
from tidelog.operating.watch import StatusOptions, show_rates, status_options
from tidelog.options.start import StartPosition
from tidelog.topics import TopicError
from tidelog.workers import App, AppError
from tidelog.workers.coordination.member_document import MembersError
from tidelog.workers.operate import control, deletion
from tidelog.workers.operate.control import ResetResult
from tidelog.workers.operate.deletion import AppState
from tidelog.workers.operate.status import AppStatus, read_status

Ask = Drive


@click.group("app")
def app_commands() -> None:
    """Inspect and control a running app.

    \b
      tidelog app status shop:app                         members, owners, and their progress
      tidelog app status shop:app --watch
      tidelog app pause shop:app bill                     start nothing new, until
      tidelog app resume shop:app bill
      tidelog app pause shop:app bill --key ann           one customer only
      tidelog app reset shop:app bill --to earliest       reprocess everything
      tidelog app delete shop                             delete all its state

    APP is the module:name of a Python App object. The current directory is searched first. The server is the one that
    the app names, unless --url is given. delete takes the App's own name and does not import any code.
    """


_app = click.argument("app", type=Declaration[App](App, "shop.orders:app"))
_processor = click.argument("processor")
_partition = click.option("--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")
_url = click.option("--url", help="The server, instead of the app's: redis://, rediss:// or unix://.")


@app_commands.command()
@_app
@_url
@processors_option
@status_options
def status(
    app: App, url: str | None, processors: list[str] | None, watch: bool, interval: float, as_json: bool
) -> None:
    """Show the workers of APP, the owners of its partitions, and the progress of each processor.

    \b
    lag       entries that were not delivered yet
    age       the age of the oldest unfinished entry
    pending   entries that were delivered and not acknowledged, including those of parked keys
    parked    parked keys; "tidelog app resume" resumes them
    in/s      entries appended per second between two readings; out/s: entries finished; --interval 0: not measured
    dead letters   open dead letters in its dead-letter queue, which processors of the same topic share

    The owner "w1 -> w2" means that the partition is moving from w1 to w2.
    """
    with asking(app, url) as ask:

        def read() -> AppStatus:
            seen: AppStatus = ask(read_status(app, processors))
            return seen

        show_rates(StatusOptions(watch, interval, as_json), read, print_status, to_json)


@app_commands.command()
@_app
@_processor
@reset_options
@_partition
@click.option("--force", is_flag=True, help="Reset even while workers run the processor.")
@_url
def reset(
    app: App, processor: str, to: StartPosition, partition: int | None, force: bool, dry_run: bool, yes: bool,
    url: str | None,
) -> None:  # fmt: skip
    """Move PROCESSOR of APP backward or forward, in all partitions or in one.

    \b
    earliest   to the oldest entry
    latest     after the newest entry: only entries that are sent from now on
    ID         such as 1795354158671.0: after this entry
    TIME       such as 2026-11-21T08:00Z: to the first entry from that time on

    Before you confirm, the command shows how many entries will be read again or skipped.

    Pending messages are dropped: those after the new position are delivered as new entries, those before it are not
    delivered again. Parked keys stay parked, and paused partitions stay paused.

    The command fails while workers run the processor, because they would still finish the entries in flight while their
    partitions are moved one by one. Stop them first, or use --force.
    """
    with asking(app, url) as ask:
        if dry_run or not yes:
            _print_reset(ask(control.preview_reset(app, processor, to, partition, force)))
        if dry_run:
            return
        if not yes:
            where = "all partitions" if partition is None else f"partition {partition}"
            click.confirm(f"Reset {processor} of {app.name} to {to}, in {where}?", abort=True)
        moved = ask(control.reset(app, processor, to, partition, force), alone=True)
        if yes:
            _print_reset(moved)
        echo(f"{processor}: {counted(len(moved), 'partition')} reset")


def _print_reset(found: Sequence[ResetResult]) -> None:
    first: Cells = {"partition": lambda each: str(each.partition)}
    print_resets(found, first, {"pending dropped": lambda each: each.dropped, "to read": lambda each: each.left})


@app_commands.command()
@_app
@_processor
@_partition
@click.option("--key", help="Only events with this key; requires ordering='key'.")
@click.option("--reason", default="by hand", show_default=True, help="The reason that status shows.")
@_url
def pause(
    app: App, processor: str, partition: int | None, key: str | None, reason: str, url: str | None
) -> None:  # fmt: skip
    """Pause PROCESSOR of APP: all of it, one partition, or one key.

    Workers are notified immediately. They finish the current events and start no new ones until "tidelog app resume",
    even if workers are started or stopped meanwhile. The events wait on the server.
    """
    with asking(app, url) as ask:
        paused = ask(control.pause(app, processor, partition, key, reason))
        echo(f"{processor}: {', '.join(paused)} paused" if paused else f"{processor}: paused already")


@app_commands.command()
@_app
@_processor
@_partition
@click.option("--key", help="Only this key.")
@_url
def resume(app: App, processor: str, partition: int | None, key: str | None, url: str | None) -> None:
    """Resume PROCESSOR of APP: all that is paused, parked or halted, or only one partition or key.

    It makes no difference whether a person or a failure policy (Park, Pause, Halt) has paused it. A failed event is
    retried first.
    """
    with asking(app, url) as ask:
        found = ask(control.resume(app, processor, partition, key))
        for each in found:
            echo(f"{processor}: {each} resumed")
        if not found:
            raise click.ClickException(f"{processor}: nothing to resume. tidelog app status shows what is paused")


@app_commands.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@url_option
def delete(name: str, dry_run: bool, yes: bool, url: str) -> None:
    """Delete the state that the app NAME keeps on the server.

    The state consists of the positions of its processors, their members, what is paused, and the last executions of
    timers.

    NAME is the app's own name, such as shop; its code is not needed. Topics, their entries and dead letters stay. If
    the app runs again, it starts from the beginning. The counter app:NAME:epoch also stays, so that epochs keep
    increasing.

    The command fails while workers run the app.
    """
    with connected(url) as client, Progress() as progress:
        try:
            progress.show_text(f"searching for the state of {name}")
            found = deletion.find_state(client, name)
            progress.end()
            if not (found.keys or found.seen or found.groups):
                raise click.ClickException(f"the server has no state of an app {name!r}")
            _list(found)
            if dry_run:
                return
            if not yes:
                click.confirm(f"Delete this state of {name}?", abort=True)
            progress.show_text(f"deleting the state of {name}")
            gone = deletion.delete(client, name)
            progress.end()
        except AppError as error:
            raise click.ClickException(str(error)) from None
    keys = counted(len(gone.keys) + len(gone.seen), "key")
    echo(f"{keys} and {counted(len(gone.groups), 'group')} deleted")


def _list(found: AppState) -> None:
    for key in found.keys:
        echo(f"key    {printable(key)}")
    if found.seen:
        echo(f"keys   {len(found.seen):,} of deduplicate")
    for group in found.groups:
        pending = f", {group.pending:,} pending" if group.pending else ""
        echo(f"group  {printable(group.name)} on {group.topic}:{group.partition}{pending}")
    if found.alive:
        echo(f"-- live workers: {', '.join(map(printable, found.alive))}", err=True)


# -- connecting -----------------------------------------------------------------------------------------------
@contextmanager
def asking(app: App, url: str | None) -> Iterator[Ask]:
    """Yield a function that drives operations on the app's server; errors become messages of the CLI."""
    with reported(url or app.access.places):
        access = choose(url, app.access, app.url is None, f"app {app.name!r}") or app.access
        with driving(access, "tidelog-app", (AppError, TopicError, MembersError)) as ask:
            yield ask
