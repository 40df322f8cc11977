"""Groups that join a cluster, and leave it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.cluster import asking
from tidelog.cluster.errors import ClusterError
from tidelog.cluster.folder import ClusterFolder
from tidelog.cluster.plan import ClusterPlan
from tidelog.cluster.ports import url
from tidelog.cluster.view import ClusterView, GroupView, in_parallel, read, read_map
from tidelog.transport.access import Access
from tidelog.transport.errors import ReplyError

TURN: Final = 0.1  # s between two readings
STOPS_WITHIN: Final = 90.0  # s for the members of a group that is removed
RELEASES_WITHIN: Final = 15.0  # s until a stopped group no longer counts as running; a lease expires earlier

Progress = Callable[[str], None]


def access_of(plan: ClusterPlan) -> Access:
    """Return the servers of a cluster on this machine."""
    return Access(tuple(url(plan.bind, each.port) for each in plan.members), password=plan.password)


def wait_for(access: Access, names: Sequence[str], timeout: float, progress: Progress) -> ClusterView:
    """Wait until groups have joined and have leaders; without names, until those that have joined have leaders.

    Raises ClusterError after ``timeout`` seconds.
    """
    until = time.monotonic() + timeout
    while True:
        try:
            view = read(access)
            missing = [name for name in names or view.groups if name not in view.groups or not view.groups[name].led]
            if not missing:
                return view
            problem = f"group {missing[0]} has not joined, or has no leader: is it running with this coordinator?"
        except ClusterError as error:
            problem = str(error)
        if time.monotonic() > until:
            raise ClusterError(f"{problem} (after {timeout:g} s)")
        progress(f"waiting: {problem}")
        time.sleep(TURN)


def check_is_empty(view: ClusterView) -> None:
    """Raise ClusterError if a group has keys."""

    def keys(group: GroupView) -> int:
        leader = group.leading()
        try:
            return int(asking.ask(view.access, leader.url, "DBSIZE"))
        except (OSError, ReplyError) as error:
            raise ClusterError(f"{leader.name} ({leader.address}): {error}") from None

    for group, count in zip(view.groups, in_parallel(keys, view.groups.values()), strict=True):
        if count:
            raise ClusterError(
                f"group {group} has keys already: tidelog cluster rebalance distributes the slots that are empty"
            )


# -- clusters on this machine ----------------------------------------------------------------------------------------
def extend(folder: ClusterFolder) -> str:
    """Add a group to the plan, which the supervisor starts; return its name. Raises ClusterError."""
    _require_supervisor(folder)
    with folder.editing() as plan:
        longer = plan.extended(len(plan.groups) + 1, plan.replicas)
        folder.save(longer)
    return str(longer.last_group)


def shrink(folder: ClusterFolder, group: str, progress: Progress) -> None:
    """Stop the members of a group that owns no slots, and remove it from the plan and the map. Raises ClusterError."""
    _require_supervisor(folder)
    with folder.editing() as plan:
        shorter = plan.without(group)
        _check_owns_nothing(read_map(access_of(plan)), group)
        folder.save(shorter)
    until = time.monotonic() + STOPS_WITHIN
    while any(folder.member(name) for name in plan.groups[group]):
        if time.monotonic() > until:
            raise ClusterError(f"the members of group {group} have not stopped within {STOPS_WITHIN:g} s: try again")
        progress(f"stopping group {group}")
        time.sleep(TURN)
    try:
        remove(access_of(shorter), group, RELEASES_WITHIN)
    except ClusterError:
        with folder.editing() as now:  # it is started again: it may own slots since
            folder.save(now.with_group(group, plan.groups[group]))
        raise


def remove(access: Access, group: str, patience: float = 0.0) -> None:
    """Remove a group from the map. patience: s to repeat the request while it is refused. Raises ClusterError."""
    view = read_map(access)
    _check_owns_nothing(view, group)
    until = time.monotonic() + patience
    while True:
        try:
            asking.ask(access, view.url, "TCLUSTER", "REMOVE", group)
            return
        except (OSError, ReplyError) as error:
            if time.monotonic() > until:
                raise ClusterError(f"group {group} was not removed: {error}") from None
        time.sleep(TURN)


def _check_owns_nothing(view: ClusterView, group: str) -> None:
    if group not in view.groups:
        raise ClusterError(f"there is no group {group}: the groups are {', '.join(view.groups)}")
    if count := view.owners.count(group):
        raise ClusterError(
            f"group {group} owns {count:,} slots: move them to other groups first"
            f" (tidelog cluster rebalance --without {group}, or tidelog cluster move)"
        )


def _require_supervisor(folder: ClusterFolder) -> None:
    folder.load()
    supervisor = folder.supervisor()
    if supervisor is None:
        raise ClusterError(f"the cluster does not run: start it with tidelog cluster up --dir {folder.path}")
    supervisor.close()
