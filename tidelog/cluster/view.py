"""What the members of a cluster report: the map of one member, and the state of each group, mostly from its leader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from tidelog.cluster import asking
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.slots import SLOTS, Owners
from tidelog.transport.access import Access, without_credentials
from tidelog.transport.errors import ReplyError

T = TypeVar("T")
AT_ONCE: Final = 32  # requests in flight


@dataclass
class MemberView:
    """A member as the map and its group name it."""

    name: str
    host: str
    port: int
    url: str
    node_id: str
    mapped: bool = True  # False: the map does not have it, because it is not connected to its leader
    reply: dict[str, Any] | None = None  # to TCLUSTER STATUS; None: it was not requested, or there was none
    problem: str = ""  # why there is no reply
    group_problem: str = ""  # why it can't continue as a member of its group, for example without the coordinator

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class GroupView:
    """A group, and the status that its leader reports; that of another member if the leader does not reply."""

    name: str
    epoch: int
    leader: str  # as the map has it
    members: dict[str, MemberView]
    status: dict[str, Any] | None = None  # the reply to TMEMBER STATUS
    problems: list[str] = field(default_factory=list)  # members that sent no reply, until one did

    @property
    def led(self) -> bool:
        """Whether the status is that of a leader."""
        return self.status is not None and self.status["phase"] == "leading"

    def leading(self) -> MemberView:
        """Return the member that leads. Raises ClusterError."""
        if self.status is None or not self.led:
            why = f": {self.problems[0]}" if self.problems else ""
            raise ClusterError(f"group {self.name} has no leader that replies{why}")
        return self.members[self.status["member"]]

    def check_writable(self) -> None:
        """Raise ClusterError if no member leads, or if fewer than ``min-in-sync`` members are in sync."""
        self.leading()
        assert self.status is not None  # noqa: S101 - a member leads
        if self.status.get("replica_acks") != "insync":
            return
        count = len(self.status["in_sync"])
        least = max(each.get("min_in_sync", 1) for each in self.status["members"])  # the strictest one counts
        if count < least:
            raise ClusterError(
                f"group {self.name} is not in sync: {count} of its members are, and min-in-sync is {least}, so it would"
                " refuse all writes to the slots. Start its other members, and wait until they have caught up"
            )


@dataclass
class ClusterView:
    """A cluster. All documents are those of the servers."""

    access: Access
    url: str  # of the member that has reported the map
    status: dict[str, Any]  # its reply to TCLUSTER STATUS
    map: dict[str, Any]
    groups: dict[str, GroupView]
    owners: Owners

    @property
    def members(self) -> list[MemberView]:
        return [member for group in self.groups.values() for member in group.members.values()]


def read_map(access: Access) -> ClusterView:
    """Return the map as the first server that replies has it, without the state of the groups. Raises ClusterError."""
    problems = []
    for url in access.urls:
        try:
            status = asking.ask_json(access, url, "TCLUSTER", "STATUS")
        except (OSError, ReplyError) as error:
            problems.append(f"{_place(url)}: {_text(error)}")
            continue
        if not status.get("map"):
            why = status.get("problem") or "no leader has created it yet"
            problems.append(f"{_place(url)} does not know the map: {why}")
            continue
        try:
            return view_of(access, url, status)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"{_place(url)} sent a map of another form ({error!r}): use the tidelog of the servers")
    raise ClusterError("; ".join(problems[:3]) + (f" ({len(problems)} servers)" if len(problems) > 3 else ""))


def read(access: Access) -> ClusterView:
    """Return the map and the state of each group. Raises ClusterError if no server has the map."""
    view = read_map(access)
    _ = in_parallel(lambda group: _ask_group(access, group), view.groups.values())
    for group in view.groups.values():
        add_unmapped(group, view.url)
    return view


def add_unmapped(group: GroupView, url: str) -> None:
    """Add the members that only the status of their group has: the map has those that were connected recently."""
    for each in (group.status or {}).get("members", ()):
        name = each["name"]
        if name not in group.members:
            host, _, port = str(each.get("address", "")).rpartition(":")
            host = host.strip("[]")
            group.members[name] = MemberView(
                name, host, int(port or 0), asking.at(url, host, port), each.get("id", ""), mapped=False
            )


def ask_members(view: ClusterView) -> None:
    """Request the view of each member."""
    _ = in_parallel(lambda member: _ask_member(view.access, member), view.members)


def in_parallel(call: Callable[[T], object], items: Iterable[T]) -> list[object]:
    """Call a function with each item, in threads."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(call, items))


def view_of(access: Access, url: str, status: dict[str, Any]) -> ClusterView:
    """Return what a reply to TCLUSTER STATUS says. Raises KeyError, TypeError, ValueError, AttributeError."""
    found = status["map"]
    groups = {
        name: GroupView(name, each["epoch"], each["leader"], {
            member: _member(access, url, member, facts) for member, facts in each["members"].items()
        })
        for name, each in sorted(found["groups"].items(), key=lambda item: (len(item[0]), item[0]))
    }  # fmt: skip
    owners = [""] * SLOTS
    for first, last, group in found["slots"]:
        owners[first : last + 1] = [str(group)] * (last - first + 1)
    if len(owners) != SLOTS:
        raise ValueError("slots")
    return ClusterView(access, url, status, found, groups, owners)


def _member(access: Access, url: str, name: str, facts: dict[str, Any]) -> MemberView:
    port = facts["tls_port"] if access.secure and facts["tls_port"] else facts["port"] or facts["tls_port"]
    host = facts["hostname"] if access.secure and facts["hostname"] else facts["host"]
    return MemberView(name, host, port, asking.at(url, host, port), facts["id"])


def _ask_group(access: Access, group: GroupView) -> None:
    """Request the status of a group from its leader; from the other members if it does not reply, or does not lead."""
    order = sorted(group.members.values(), key=lambda member: member.name != group.leader)
    for member in order:
        try:
            status = asking.member_status(access, member.url)
        except (OSError, ReplyError) as error:
            group.problems.append(f"{member.name} ({member.address}): {_text(error)}")
            continue
        if status.get("group") != group.name or status.get("member") not in group.members:
            group.problems.append(f"{member.name} ({member.address}) is a member of another group")
            continue
        if group.status is None or status["phase"] == "leading":
            group.status = status
        if status["phase"] == "leading":
            return


def _ask_member(access: Access, member: MemberView) -> None:
    try:
        member.reply = asking.ask_json(access, member.url, "TCLUSTER", "STATUS")
        member.group_problem = str(asking.member_status(access, member.url)["problem"])
    except (OSError, ReplyError) as error:
        member.problem = _text(error)


def _place(url: str) -> str:
    return without_credentials(url).partition("://")[2] or url


def _text(error: Exception) -> str:
    if isinstance(error, ReplyError):
        return f"the server replied: {error}"
    hint = ": a leader that cannot reach its coordinator sends no replies" if isinstance(error, TimeoutError) else ""
    return f"no reply ({error.__cause__ or error}){hint}"
