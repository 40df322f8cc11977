"""The state of a cluster: its groups and members, as they report it, and sums over the groups.

The map is that of one member (TCLUSTER STATUS). Each member in it is sent INFO and TMEMBER STATUS.

Rule 1: a member has at most one request in flight. ``read`` waits for the replies for a limited time. A member that has
        not replied by then is shown as such, and its reply is used when it arrives.
Rule 2: sums are those of the leaders, so that each key counts once. They say over how many groups they are.
Rule 3: at most MEMBERS members are asked.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Final

from tidelog.cluster import slots
from tidelog.cluster.display import events_of
from tidelog.cluster.view import ClusterView, GroupView, MemberView, add_unmapped
from tidelog.console.connection import UserConnection
from tidelog.console.errors import GroupUnavailableError, SessionEndedError, UnavailableError
from tidelog.console.infotext import ServerInfo, SlowCommand, slow_commands, summed
from tidelog.operating.tables import counted
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import message_of
from tidelog.transport.slots import MemberAddress

MEMBERS: Final = 200
SLOW: Final = 20  # slow commands shown
EVENTS: Final = 8  # recent changes shown
LATE: Final = 3.0  # s after which a member that has not replied yet counts as one that does not reply
FORMS: Final = (KeyError, TypeError, ValueError, AttributeError, RecursionError)  # errors of replies of other versions


@dataclass(frozen=True)
class MemberReply:
    """What a member has replied. An error takes the place of a reply."""

    info: Any  # a ServerInfo
    status: Any  # a dict; None: the server has no TMEMBER
    slow: Any = ()  # of a leader: slow commands, newest first
    problem: str = ""  # why there is no reply


@dataclass(frozen=True)
class ClusterMemberRow:
    """A row of the list of members."""

    name: str
    group: str
    address: MemberAddress
    role: str  # "leading", "following", or another phase; "unknown"
    level: str  # good, wait, or bad
    in_sync: bool | None  # None: not known
    lag_bytes: int | None
    lag_ms: int
    info: ServerInfo | None
    version: str = ""
    problem: str = ""  # of this member; the reason if it does not reply


@dataclass(frozen=True)
class ClusterGroupRow:
    """A row of the list of groups."""

    name: str
    slots: int
    ranges: str
    epoch: int | None
    leader: ClusterMemberRow | None  # None: none replies
    members: Sequence[ClusterMemberRow]
    problem: str = ""

    @property
    def in_sync(self) -> int:
        return sum(each.in_sync is True for each in self.members)


@dataclass(frozen=True)
class ClusterState:
    """A cluster. ``total`` has the sums over the leaders that have replied."""

    name: str  # "" if the user may not read the map
    version: int | None  # of the map
    groups: Sequence[ClusterGroupRow]
    total: ServerInfo
    summed: int  # groups in ``total``
    problems: Sequence[str] = ()
    moves: Sequence[str] = ()  # slots that move now
    events: Sequence[tuple[int, str]] = ()  # newest first: time in ms, text
    slow: Sequence[SlowCommand] = ()  # newest first
    slow_problem: str = ""  # why the slow log of a group can't be read
    left_out: int = 0  # members that were not asked
    notice: str = ""  # what the user may not read

    @property
    def owners(self) -> Sequence[ClusterGroupRow]:
        """The groups that own slots."""
        return [each for each in self.groups if each.slots]

    @property
    def complete(self) -> bool:
        """Whether all groups that own slots are in the sums."""
        return self.summed == len(self.owners)

    def member(self, name: str) -> ClusterMemberRow | None:
        return next((each for group in self.groups for each in group.members if each.name == name), None)


@dataclass
class _Poll:
    task: asyncio.Task[MemberReply]
    began: float  # monotonic


@dataclass
class ClusterReader:
    """Reads the state of a cluster as one user. The pages of a session share it."""

    connection: UserConnection  # of the user
    _polls: dict[MemberAddress, _Poll] = field(default_factory=dict)
    _latest: dict[MemberAddress, MemberReply] = field(default_factory=dict)
    _pages: int = 0  # that follow the state
    _source: MemberAddress | None = None  # the member that has sent the map

    async def read(self, wait: float) -> ClusterState:
        """Return the state after at most ``wait`` s for the members, and as long again for the map.

        Raises UnavailableError if no member answers, SessionEndedError.
        """
        view, refusal = await self._map(wait)
        if view is None:
            return await self._without_map(wait, refusal)
        members = [each for group in view.groups.values() for each in group.members.values()]
        leaders = {MemberAddress(each.host, each.port) for group in view.groups.values()
                   if (each := group.members.get(group.leader)) is not None}  # fmt: skip
        addresses = {id(each): MemberAddress(each.host, each.port) for each in members}
        replies = await self._ask([addresses[id(each)] for each in members[:MEMBERS]], leaders, wait)
        return _state(view, {each.name: replies[addresses[id(each)]] for each in members[:MEMBERS]}, len(members))

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Keep the connections for monitoring until the last page that follows the state is closed."""
        self._pages += 1
        try:
            yield
        finally:
            self._pages -= 1
            if not self._pages:
                for poll in self._polls.values():
                    poll.task.cancel()
                self._polls.clear()
                self._latest.clear()
                self.connection.end_monitoring()

    # -- reading -----------------------------------------------------------------------------------------------------
    async def _map(self, wait: float) -> tuple[ClusterView | None, str]:
        """Return the map as a member has it, or why the user can't read it."""
        known = [each for each in await self.connection.leaders() if each is not None]
        if self._source in known:
            known.insert(0, self._source)
        refusal = "no member replied in time"
        for member in dict.fromkeys(known):
            try:
                async with asyncio.timeout(wait):
                    (reply,) = await self.connection.monitoring().poll(plain("TCLUSTER", "STATUS"), at=member)
            except TimeoutError:
                continue
            if isinstance(reply, GroupUnavailableError):
                continue
            if isinstance(reply, Exception):  # no permission, or a redis-server
                return None, message_of(reply)
            try:
                found = self.connection.cluster_view(json.loads(reply))
            except FORMS as error:
                refusal = f"{member} sent a map of another version ({error!r})"
                continue
            self._source = member
            return found, ""
        return None, refusal

    async def _ask(
        self, members: Sequence[MemberAddress], leaders: Container[MemberAddress], wait: float
    ) -> dict[MemberAddress, MemberReply]:
        """Return the replies of members (Rule 1)."""
        polls = {}
        for member in members:
            if member not in self._polls:
                task = asyncio.create_task(self._polled(member, member in leaders))
                self._polls[member] = _Poll(task, monotonic())
            polls[member] = self._polls[member]
        if polls:
            await asyncio.wait([poll.task for poll in polls.values()], timeout=wait)
        for member, poll in polls.items():
            waited = monotonic() - poll.began
            if poll.task.done() and not poll.task.cancelled():
                self._latest[member] = poll.task.result()
            elif waited > LATE:
                self._latest[member] = MemberReply(None, None, problem=f"no reply for {waited:.0f} s")
            if poll.task.done() and self._polls.get(member) is poll:
                del self._polls[member]
        return {member: self._latest.get(member, MemberReply(None, None)) for member in polls}

    async def _polled(self, member: MemberAddress, leads: bool) -> MemberReply:
        calls: list[Call[Any]] = [Call(("INFO",), ServerInfo.parse), plain("TMEMBER", "STATUS")]
        if leads:
            calls.append(Call(("SLOWLOG", "GET", SLOW), slow_commands))
        try:
            info, status, *slow = await self.connection.monitoring().poll(*calls, at=member)
        except (UnavailableError, SessionEndedError) as error:
            return MemberReply(None, None, problem=str(error))
        if isinstance(info, GroupUnavailableError):
            return MemberReply(None, None, problem=info.reason)
        try:
            status = json.loads(status) if not isinstance(status, Exception) else status
        except FORMS:
            status = None
        return MemberReply(info, status, slow[0] if slow else ())

    async def _without_map(self, wait: float, refusal: str) -> ClusterState:
        """Return the state of the leaders, without names of groups and without replicas."""
        counts = self.connection.slots_of_leaders()
        leaders = [each for each in counts if counts[each]][:MEMBERS]
        replies = await self._ask(leaders, leaders, wait)
        groups = []
        for leader in leaders:
            member = _member(
                MemberView(str(leader), leader.host, leader.port, "", ""), str(leader), replies[leader], {}
            )
            groups.append(ClusterGroupRow(str(leader), counts[leader], "", None, member, [member], _no_reply(member)))
        slow, refused = _slow({str(leader): replies[leader].slow for leader in leaders})
        return _summed(ClusterState(
            "", None, groups, ServerInfo({}), 0, problems=[each.problem for each in groups if each.problem],
            notice=f"Names of groups, replicas, and changes can't be shown: {refusal}",
            slow=slow, slow_problem=refused,
        ))  # fmt: skip


def _state(view: ClusterView, replies: Mapping[str, MemberReply], members: int) -> ClusterState:
    """Return the state of a cluster from the replies of its members, by name."""
    for group in view.groups.values():
        _add_status(group, replies)
        add_unmapped(group, view.url)
    groups = [_group(view, group, replies) for group in view.groups.values()]
    slow, refused = _slow({
        name: replies[group.leader].slow for name, group in view.groups.items() if group.leader in replies
    })  # fmt: skip
    return _summed(ClusterState(
        view.status["cluster"], view.map["version"], groups, ServerInfo({}), 0, problems=_problems(view, groups),
        moves=_moves(view), events=_events(view), slow=slow, slow_problem=refused,
        left_out=max(0, members - len(replies)),
    ))  # fmt: skip


def _add_status(group: GroupView, replies: Mapping[str, MemberReply]) -> None:
    """Set the status of a group: that of its leader, or else of any member."""
    for name in sorted(group.members, key=lambda each: each != group.leader):
        reply = replies.get(name)
        status = reply.status if reply is not None else None
        if isinstance(status, dict) and (group.status is None or status.get("phase") == "leading"):
            group.status = status


def _group(view: ClusterView, group: GroupView, replies: Mapping[str, MemberReply]) -> ClusterGroupRow:
    reported = {each["name"]: each for each in (group.status or {}).get("members", ())}
    members = [
        _member(member, group.name, replies.get(name), reported.get(name, {}))
        for name, member in sorted(group.members.items())
    ]
    leader = next((each for each in members if each.role == "leading"), None)
    owned = [slot for slot, owner in enumerate(view.owners) if owner == group.name]
    problem = ""
    if leader is None and not any(each.level == "wait" or each.role == "unknown" for each in members):
        reasons = [f"{each.name}: {each.problem}" for each in members if each.problem]
        consequence = "its slots are not served" if owned else "it owns no slots"
        problem = f"group {group.name} has no leader that replies, {consequence} ({'; '.join(reasons[:3])})"
    epoch = (group.status or {}).get("epoch", group.epoch)
    return ClusterGroupRow(group.name, len(owned), slots.shown(owned), epoch, leader, members, problem)


def _member(member: MemberView, group: str, reply: MemberReply | None, reported: Mapping[str, Any]) -> ClusterMemberRow:
    """reported: what the leader says about it."""
    status = reply.status if reply is not None and isinstance(reply.status, dict) else {}
    info = reply.info if reply is not None and isinstance(reply.info, ServerInfo) else None
    role = str(status.get("phase") or reported.get("state") or "unknown")
    problem, level = str(status.get("problem") or ""), "good"
    in_sync = reported.get("in_sync")
    if reply is not None and reply.problem:
        role, problem, level = "no reply", reply.problem, "bad"
    elif reply is None or (info is None and not status and not isinstance(reply.info, Exception)):
        role, level = ("not asked" if reply is None else "no reply yet"), "wait"
        if not member.mapped:
            role, problem = (
                str(reported.get("state", "unknown")),
                "it joins, or was disconnected: the map does not have it",
            )
            level = "bad" if in_sync is False else "wait"
    elif problem or in_sync is False:
        level = "bad"
    elif not status and info is not None:  # a redis-server, or a user without the permission
        role = "leading" if info.leads else "following"
    elif role not in ("leading", "following"):
        level = "wait"
    lag = reported.get("lag_bytes")
    return ClusterMemberRow(
        member.name, group, MemberAddress(member.host, member.port), role, level, in_sync,
        None if lag is None else int(lag), int(1000 * reported.get("lag_seconds", 0)), info,
        str(reported.get("version") or (info.word("tidelog_version") if info is not None else "")), problem,
    )  # fmt: skip


def _no_reply(member: ClusterMemberRow) -> str:
    return f"the leader {member.name} does not reply: {member.problem}" if member.level == "bad" else ""


def _problems(view: ClusterView, groups: Sequence[ClusterGroupRow]) -> list[str]:
    """Return what a person should know. The same problem of several members is one line."""
    found = [*map(str, view.status.get("warnings", ()))]
    if missing := [slot for slot, owner in enumerate(view.owners) if not owner]:
        found.append(f"{counted(len(missing), 'slot')} without a group: {slots.shown(missing)}")
    found += [each.problem for each in groups if each.problem]
    by_text: dict[str, list[str]] = {}
    for group in groups:
        for member in group.members:
            if member.problem and not group.problem:
                what = f"does not reply: {member.problem}" if member.role == "no reply" else member.problem
                by_text.setdefault(what, []).append(member.name)
    if problem := view.status.get("problem"):
        by_text.setdefault(str(problem), []).append(str(view.status.get("member")))
    found += [f"{', '.join(names)}: {text}" for text, names in by_text.items()]
    for name, each in view.groups.items():
        found += [f"group {name}: {text}" for text in (each.status or {}).get("warnings", ())]
    return list(dict.fromkeys(found))


def _events(view: ClusterView) -> list[tuple[int, str]]:
    return [(time, text.replace("  ", ": ", 1)) for time, text in reversed(events_of(view)[-EVENTS:])]


def _moves(view: ClusterView) -> list[str]:
    found = []
    for each in view.map.get("moves", ()):
        owned = [slot for first, last in each["slots"] for slot in range(first, last + 1)]
        ending = ": the old owner deletes its copies" if each["moved"] else ""
        found.append(f"slots {slots.shown(owned)} move from group {each['source']} to group {each['target']}{ending}")
    return found


def _slow(found: Mapping[str, Any]) -> tuple[list[SlowCommand], str]:
    """Return the newest slow commands of all groups, and why one can't be read. found: those of each group."""
    refused = next((message_of(each) for each in found.values() if isinstance(each, Exception)), "")
    rows = [replace(each, group=name) for name, some in found.items() if not isinstance(some, Exception)
            for each in some]  # fmt: skip
    return sorted(rows, key=lambda row: -row.time)[:SLOW], refused


def _summed(state: ClusterState) -> ClusterState:
    """Return a state with its sums."""
    infos = [each.leader.info for each in state.owners if each.leader is not None and each.leader.info is not None]
    return replace(state, total=summed(infos), summed=len(infos))
