"""The commands of ``tidelog cluster`` that inspect the cluster, and move slots between its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from tidelog.cli.connect import url_option
from tidelog.cli.progress import Progress
from tidelog.cluster import checks, display, membership, moving, slots
from tidelog.cluster.errors import ClusterError, MoveInterruptedError
from tidelog.cluster.folder import ClusterFolder
from tidelog.cluster.membership import access_of
from tidelog.cluster.moving import Rebalanced
from tidelog.cluster.slots import SlotMove
from tidelog.cluster.view import ClusterView, read
from tidelog.operating.tables import counted
from tidelog.operating.terminal import echo
from tidelog.operating.watch import StatusOptions, show_status, status_options
from tidelog.transport.access import Access

F = TypeVar("F", bound=Callable[..., Any])
DIRECTORY: Final = click.Path(path_type=Path, file_okay=False)
JOINS_WITHIN: Final = 60.0  # s, the default of --timeout
_timeout = click.option(
    "--timeout", type=click.FloatRange(0), default=JOINS_WITHIN, show_default=True, metavar="SECONDS",
    help="Maximum time to wait for groups to join.",
)  # fmt: skip


@contextmanager
def reported() -> Iterator[None]:
    """Convert errors to error messages of the CLI."""
    try:
        yield
    except (ClusterError, MoveInterruptedError) as error:
        raise click.ClickException(str(error)) from None


def directory_option(required: bool, text: str) -> Callable[[F], F]:
    return click.option("--dir", "directory", type=DIRECTORY, required=required, help=text)


def where(command: F) -> F:
    """Add the options --url and --dir, one of which names the cluster."""
    return url_option(directory_option(False, 'Directory of "tidelog cluster up", instead of --url.')(command))


def chosen(url: str, directory: Path | None) -> Access:
    """Return the servers of a cluster. Raises UsageError, ClusterError."""
    if directory is not None:
        if click.get_current_context().get_parameter_source("url") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--dir and --url exclude each other")
        return access_of(ClusterFolder(directory).load())
    try:
        return Access.of(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@click.command()
@where
@status_options
def status(url: str, directory: Path | None, watch: bool, interval: float, as_json: bool) -> None:
    """Show the groups of a cluster, their slots, members, and recent changes.

    --url can name any member of any group, or several members: redis://a,b,c. Each group's leader is asked for its
    members.

    \b
    slots     number of hash slots that the group owns, of 16384; the picture shows who owns which
    in sync   the member has all acknowledged data, and can become the leader
    lag       size of the part of the log that the member does not have on disk
    """
    with reported():
        access = chosen(url, directory)
        show_status(
            StatusOptions(watch, interval, as_json), lambda: read(access), display.print_cluster, display.to_json
        )


@click.command()
@where
def check(url: str, directory: Path | None) -> None:
    """Search a cluster for problems. The exit code is 1 if there are any.

    \b
    - slots that belong to no group, or to several
    - members that do not reply, are not in sync, or have an old map
    - groups whose members share a machine while the cluster has several, and copied data directories
    - settings that differ between members
    - the warnings of the servers
    """
    with reported(), Progress() as progress:
        progress.show_text("asking all members")
        view = read(chosen(url, directory))
        found = checks.problems(view)
        progress.end()
    for each in found:
        echo(f"- {each}")
    if found:
        raise click.ClickException(f"{counted(len(found), 'problem')} found")
    echo(
        f"no problems: {counted(len(view.groups), 'group')}, {counted(len(view.members), 'member')}, all slots assigned"
    )


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP]...")
@where
@_timeout
def create(names: tuple[str, ...], url: str, directory: Path | None, timeout: float) -> None:
    """Divide all slots evenly over the groups of a new cluster.

    \b
      tidelog-server --bind 10.0.0.1 --cluster-enabled yes --coordinator etcd://... --group 1      on each machine
      tidelog cluster create 1 2 3 --url redis://10.0.0.1

    The group that starts first owns all slots, until this command divides them. The command waits until the named
    groups have joined; without names, it uses the groups that have joined. It refuses a cluster that has keys, which
    "tidelog cluster rebalance" accepts. "tidelog cluster up" divides the slots itself.
    """
    with reported(), Progress() as progress:
        access = chosen(url, directory)
        membership.wait_for(access, names, timeout, progress.show_text)
        membership.check_is_empty(read(access))
        done = moving.divide(access, progress.show_text)
        progress.end()
        _report(done)


@click.command()
@click.argument("group", required=False)
@where
@_timeout
def add(group: str | None, url: str, directory: Path | None, timeout: float) -> None:
    """Add a group without slots.

    \b
      tidelog cluster add --dir ./cluster                 start another group of a cluster on this machine
      tidelog cluster add 4 --url redis://10.0.0.1        wait until group 4 has joined

    On several machines, start the members of the group with the settings of the others and a new --group. Its leader
    adds the group to the map. "tidelog cluster rebalance" then assigns slots to it.
    """
    with reported(), Progress() as progress:
        access = chosen(url, directory)
        if directory is not None:
            if group is not None:
                raise click.UsageError("with --dir, the next number is the name of the group: omit GROUP")
            group = membership.extend(ClusterFolder(directory))
        if group is None:
            raise click.UsageError("name the GROUP, or the --dir of a cluster on this machine")
        view = membership.wait_for(access, [group], timeout, progress.show_text)
        progress.end()
    members = ", ".join(f"{each.name} ({each.address})" for each in view.groups[group].members.values())
    echo(f"group {group} has joined: {members}")
    if group not in view.owners:
        echo("It owns no slots. To give it its share: tidelog cluster rebalance")


@click.command()
@click.argument("group")
@where
def remove(group: str, url: str, directory: Path | None) -> None:
    """Remove GROUP, which must own no slots.

    \b
      tidelog cluster rebalance --without 3      first, move its slots to the other groups
      tidelog cluster remove 3

    With --dir, the command stops the members of the group first. On several machines, stop them yourself: a group that
    runs would join again. The data directories remain.
    """
    with reported(), Progress() as progress:
        access = chosen(url, directory)
        if directory is not None:
            membership.shrink(ClusterFolder(directory), group, progress.show_text)
        else:
            membership.remove(access, group)
        progress.end()
    echo(f"group {group} was removed")


@click.command()
@click.argument("ranges", nargs=-1, required=True, metavar="SLOTS...")
@click.option("--to", "target", required=True, metavar="GROUP", help="The group that gets the slots.")
@where
def move(ranges: tuple[str, ...], target: str, url: str, directory: Path | None) -> None:
    """Move slots to another group, with their keys.

    \b
      tidelog cluster move 0-4095 --to 2
      tidelog cluster move 0-4095 9000 9002-9005 --to 2

    Clients can use the slots meanwhile. At the end, calls for them wait for some ten milliseconds, at most for
    move-pause. Ctrl-C aborts the move, which then has no effect.
    """
    count = 0

    def moved(request: SlotMove) -> None:
        nonlocal count
        count += len(request.slots)
        progress.end()
        _print_move(request)

    with reported(), Progress() as progress:
        wanted = slots.parse(ranges)
        progress.show_text(f"moving {counted(len(wanted), 'slot')}")
        moving.move(chosen(url, directory), wanted, target, moved, progress.show_text)
        progress.end()
    if count < len(wanted):
        echo(f"{counted(len(wanted) - count, 'slot')} already belonged to group {target}")


@click.command()
@where
@click.option("--without", default="", metavar="GROUP", help="Move the slots of this group to the others.")
@click.option("--dry-run", is_flag=True, help="Only show what would be moved.")
@click.option("--only-empty", is_flag=True, help="Leave slots that have keys where they are.")
def rebalance(url: str, directory: Path | None, without: str, dry_run: bool, only_empty: bool) -> None:
    """Distribute the slots evenly over all groups.

    Slots without an owner are assigned, too. The command searches the keys of the groups that own too many slots, and
    moves as few slots as possible: empty ones first, and then others with their keys, while clients use them.
    """
    with reported(), Progress() as progress:
        done = moving.rebalance(chosen(url, directory), progress.show_text, dry_run, without, only_empty)
        progress.end()
        if dry_run:
            _print_moves(done.moves, "would move")
            return
        _report(done)


def _report(done: Rebalanced) -> None:
    """Print the outcome. Raises ClickException if requests were refused."""
    _print_moves(done.moves)
    _print_distribution(done.view, done)
    for each in done.refusals:
        echo(each, err=True)
    if done.refusals:
        raise click.ClickException(f"{counted(len(done.refusals), 'request')} refused; try again later")


def _print_moves(moves: list[SlotMove], what: str = "moved") -> None:
    for each in moves:
        _print_move(each, what)
    if not moves:
        echo("nothing to move")


def _print_move(move: SlotMove, what: str = "moved") -> None:
    source = f"from group {move.source}" if move.source else "without an owner"
    echo(f"{what} {counted(len(move.slots), 'slot')} {source} to group {move.target}: {slots.shown(move.slots)}")


def _print_distribution(view: ClusterView, done: Rebalanced) -> None:
    owned = slots.counts(view.owners, view.groups)
    echo(f"slots: {', '.join(f'group {name}: {count:,}' for name, count in owned.items())}")
    for name, used in done.used.items():
        stay = owned[name] - done.targets[name]
        if stay > 0 and used:
            echo(
                f"group {name} owns {counted(stay, 'slot')} more than its share: {counted(len(used), 'slot')}"
                " with keys stay where they are"
            )


COMMANDS: Final = (status, check, create, add, remove, move, rebalance)
