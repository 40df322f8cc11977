"""``tidelog cluster``: runs a cluster on one machine, and inspects and changes clusters."""

from __future__ import annotations

from pathlib import Path

import click

from tidelog.cli.clustermap import COMMANDS, directory_option, reported
from tidelog.cli.progress import Progress
from tidelog.cluster import operation, settings
from tidelog.cluster.operation import UpOptions
from tidelog.operating.terminal import echo, try_echo


@click.group("cluster")
def cluster_commands() -> None:
    """Run a cluster on this machine, and inspect and change clusters.

    \b
      tidelog cluster up --dir ./cluster                one group for each core, on the ports 7000, 7001, ...
      tidelog cluster up --dir ./cluster --replicas 2   each group has two replicas
      tidelog cluster down --dir ./cluster              stop it, from another terminal
      tidelog cluster status --dir ./cluster            show groups, slots, members, and recent changes
      tidelog cluster check --url redis://10.0.0.1      search for problems
      tidelog cluster create 1 2 3 --url ...            divide the slots of a new cluster on several machines
      tidelog cluster add --dir ./cluster               add a group
      tidelog cluster rebalance --dir ./cluster         distribute the slots evenly
      tidelog cluster move 0-4095 --to 2 --url ...      move slots with their keys
      tidelog cluster remove 3 --dir ./cluster          remove a group that owns no slots

    A cluster divides its keys over several groups of servers by the hash slots of Redis Cluster.
    """


@cluster_commands.command(context_settings={"ignore_unknown_options": False})
@directory_option(True, "Directory of the cluster; created if missing.")
@click.option("--groups", type=click.IntRange(1), help="Number of groups. Default: one for each core.")
@click.option("--replicas", type=click.IntRange(0), help="Replicas of each group. Default: 0.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the first member. Default: 7000.")
@click.option("--bind", help="Address, or addresses separated by blanks. Default: 127.0.0.1.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A directive for all members; can be repeated."
)
@click.argument("words", nargs=-1, metavar="[-- --NAME VALUE ...]")
def up(
    directory: Path, groups: int | None, replicas: int | None, port: int | None, bind: str | None,
    assignments: tuple[str, ...], words: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a cluster on this machine until Ctrl-C.

    \b
      tidelog cluster up --dir ./cluster
      tidelog cluster up --dir ./cluster --groups 4 --replicas 2 --port 7000
      tidelog cluster up --dir ./cluster --set appendfsync=everysec --set maxmemory=1gb
      tidelog cluster up --dir ./cluster -- --appendfsync everysec --maxmemory 1gb

    One process runs for each member of each group. A process that ends is started again. The directory has the data and
    the log of each member (1a/data, 1a/server.log), the coordinator of all groups, and the options, which a later start
    need not repeat.

    Ctrl-C, SIGTERM, or "tidelog cluster down" stops all members in order. If this program is killed, the members
    continue. A new start supervises them again.

    A later start with more --groups adds groups without slots; "tidelog cluster rebalance" then divides the slots.
    """
    with reported(), Progress() as progress:

        def say(text: str) -> None:
            progress.end()
            try_echo(text)

        given = settings.parse(assignments, words)
        operation.up(UpOptions(directory, groups, replicas, port, bind, given), say, progress.show_text)


@cluster_commands.command()
@directory_option(True, "Directory of the cluster.")
def down(directory: Path) -> None:
    """Stop a cluster on this machine.

    Replicas stop first, and then the leaders. The command returns when all processes have ended. It also stops the
    members of a "tidelog cluster up" that was killed.
    """
    with reported(), Progress() as progress:

        def say(text: str) -> None:
            progress.end()
            echo(text)

        operation.down(directory, say, progress.show_text)


for _command in COMMANDS:
    cluster_commands.add_command(_command)
