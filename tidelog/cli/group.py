"""``tidelog group``: status and control of a server group."""

from __future__ import annotations

import json
from typing import Any, Final
from urllib.parse import urlsplit

import click

from tidelog.cli.connect import url_option
from tidelog.cluster.asking import at, member_status
from tidelog.operating.tables import counted, duration, size, table, utc
from tidelog.operating.terminal import echo
from tidelog.operating.watch import StatusOptions, show_status, status_options
from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError

ANSWER_MS: Final = 5000  # timeout of connecting and of each reply
EVENTS: Final = 5  # shown without --json
HEAD: Final = ("member", "address", "state", "in sync", "lag", "since", "version")
NAME: Final = "tidelog-group"  # of the connections


@click.group("group")
def group_commands() -> None:
    """Inspect and control a server group.

    \b
      tidelog group status                    show members, in-sync set, lag, and recent changes
      tidelog group status --watch            refresh the output
      tidelog group failover                  hand over leadership to another member
      tidelog group failover host:7002        hand over leadership to this member
      tidelog group remove host:7003          remove a member that is no longer running

    --url can name any member, or several members: redis://a,b,c. The command finds the leader.
    """


@group_commands.command()
@url_option
@status_options
def status(url: str, watch: bool, interval: float, as_json: bool) -> None:
    """Show the members of a server group.

    The leader reports the status. If the leader can't be reached, the first member that replies reports it.

    \b
    in sync   the member has all acknowledged data, and can become the leader
    lag       size of the part of the log that the member does not have on disk
    since     time since the member last had the whole log
    """
    members = Members(url)
    show_status(StatusOptions(watch, interval, as_json), members.status, print_group, json.dumps)


@group_commands.command()
@click.argument("member", default="")
@url_option
@click.option(
    "--timeout", type=click.IntRange(1), metavar="MS", help="Abort the failover after this time in milliseconds."
)
def failover(member: str, url: str, timeout: int | None) -> None:
    """Hand over leadership to another member.

    The default is the most up-to-date member. The leader hands over as soon as that member has all writes. New writes
    wait in the meantime, normally for some milliseconds. "tidelog group status" shows the result.
    """
    words: list[str | int] = ["TMEMBER", "FAILOVER"]
    words += ["TO", member] if member else []
    words += ["TIMEOUT", timeout] if timeout else []
    Members(url).send_to_leader(*words)
    target = member or "the most up-to-date member"
    echo(f"failover to {target} started; to see the result: tidelog group status")


@group_commands.command()
@click.argument("member")
@url_option
def remove(member: str, url: str) -> None:
    """Remove MEMBER, which must not be running. Another member can then use its name."""
    Members(url).send("TMEMBER", "REMOVE", member)
    echo(f"{member} was removed from the group")


class Members:
    """The members that a URL names. Requests are sent to the leader if it can be reached."""

    def __init__(self, url: str) -> None:
        try:
            self._access = Access.of(url).single_attempt(ANSWER_MS)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def status(self) -> dict[str, Any]:
        """Return the status from the leader, or from the first member that replies if the leader can't be reached."""
        return self._leader_and_status()[1]

    def send_to_leader(self, *words: str | int) -> None:
        """Send a command to the leader."""
        url, seen = self._leader_and_status()
        if seen["phase"] != "leading":
            raise click.ClickException(f"group {seen['group']} has no reachable leader; see: tidelog group status")
        self._ask(url, *words)

    def send(self, *words: str | int) -> None:
        """Send a command to the leader, or to the first member that replies if there is no leader."""
        self._ask(self._leader_and_status()[0], *words)

    def _leader_and_status(self) -> tuple[str, dict[str, Any]]:
        problem = "the URL names no server"
        for url in self._access.urls:
            try:
                seen = self._status(url)
            except OSError as error:
                problem = f"no answer from {urlsplit(url).netloc.rpartition('@')[2]}: {error.__cause__ or error}"
                continue
            if seen["phase"] != "leading" and seen.get("leader_address"):
                host, _, port = seen["leader_address"].rpartition(":")
                leader = at(url, host, port)
                try:
                    return leader, self._status(leader)
                except OSError as error:
                    seen["warnings"].append(f"the leader {seen['leader_address']} does not answer: {error}")
            return url, seen
        raise click.ClickException(problem)

    def _status(self, url: str) -> dict[str, Any]:
        try:
            return member_status(self._access, url)
        except ReplyError as error:
            raise click.ClickException(f"the server replied: {error}") from None

    def _ask(self, url: str, *words: str | int) -> Any:
        connection = BlockingConnection(self._access, url, NAME)
        try:
            return connection.ask(*words)
        except ReplyError as error:
            raise click.ClickException(f"the server replied: {error}") from None
        finally:
            connection.close()


def print_group(seen: dict[str, Any]) -> None:
    """Print a status."""
    leader = seen.get("leader") or "none"
    echo(f"group {seen['group']}: epoch {seen.get('epoch', '-')}, leader: {leader}")
    known = seen.get("members", [])
    echo(
        f"in sync: {len(seen.get('in_sync', []))} of {counted(len(known), 'member')}, at least {seen['min_in_sync']}"
        f" for writes; replica-acks {seen['replica_acks']}; lease {duration(seen['lease_ms'])}"
        + (f", valid for {duration(seen['lease_left_ms'])}" if seen["phase"] == "leading" else "")
    )
    if seen.get("withheld_clients"):
        since = duration(seen["withheld_ms"])
        echo(f"the replies of {counted(seen['withheld_clients'], 'client')} have been withheld for {since}")
    if seen["problem"]:
        echo(f"{seen['member']}: {seen['problem']}")
    for warning in seen["warnings"]:
        echo(f"warning: {warning}")
    if known:
        echo()
        table(HEAD, [_row(seen, each) for each in known])
    if seen.get("events"):
        echo()
        for each in seen["events"][-EVENTS:]:
            echo(f"{utc(each['time'])}  epoch {each['epoch']}  {each['what']}: {each['why']}")


def _row(seen: dict[str, Any], each: dict[str, Any]) -> list[str]:
    leads = each["name"] == seen.get("leader")
    lag, since = each.get("lag_bytes"), int(1000 * each.get("lag_seconds", 0))
    return [
        each["name"], each["address"], "leading" if leads else each["state"], "yes" if each["in_sync"] else "NO",
        "-" if lag is None else size(lag), duration(since), each["version"],
    ]  # fmt: skip
