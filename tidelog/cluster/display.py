"""The status of a cluster as text and as JSON."""

from __future__ import annotations

import json
import string
from collections import Counter
from typing import Any, Final

from tidelog.cluster.slots import SLOTS, counts
from tidelog.cluster.view import ClusterView, GroupView, MemberView
from tidelog.operating.tables import counted, duration, size, table, utc
from tidelog.operating.terminal import echo

HEAD: Final = ("group", "slots", "epoch", "member", "address", "state", "in sync", "lag")
CELLS: Final = 64  # of the picture of the slots; 256 slots each
EVENTS: Final = 6  # shown without --json
_MARKS: Final = string.digits[1:] + string.ascii_lowercase + string.ascii_uppercase


def print_cluster(view: ClusterView) -> None:
    """Print the state of a cluster, at most 80 columns wide if the names and addresses are short."""
    unassigned = view.owners.count("")
    echo(
        f"cluster {view.status['cluster']}: {counted(len(view.groups), 'group')}, map version {view.map['version']}, "
        + ("all slots are assigned" if not unassigned else f"{counted(unassigned, 'slot')} NOT ASSIGNED")
    )
    for warning in warnings(view):
        echo(f"warning: {warning}")
    echo()
    _print_slots(view)
    echo()
    owned = counts(view.owners, view.groups)
    table(HEAD, [row for group in view.groups.values() for row in _rows(group, owned[group.name])])
    if events := events_of(view)[-EVENTS:]:
        echo()
        for time, text in events:
            echo(f"{utc(time)}  {text}")


def to_json(view: ClusterView) -> str:
    """Return the documents of the servers as one JSON object."""
    return json.dumps({
        "cluster": view.status["cluster"], "map": view.map, "unassigned": view.owners.count(""),
        "warnings": warnings(view),
        "groups": {
            name: {
                "slots": view.owners.count(name),
                "leader": group.status["member"] if group.led and group.status else None,
                "status": group.status,
                "problems": group.problems,
            }
            for name, group in view.groups.items()
        },
    })  # fmt: skip


def warnings(view: ClusterView) -> list[str]:
    """Return what an operator should know."""
    found = [*map(str, view.status.get("warnings", ()))]
    if view.status.get("problem"):
        found.append(f"{view.status.get('member')}: {view.status['problem']}")
    for group in view.groups.values():
        if not group.led:
            found.append(f"group {group.name} has no leader that replies: its slots are not served")
        found += [f"group {group.name}: {problem}" for problem in group.problems]
        if group.status is not None:
            if problem := group.status.get("problem"):
                found.append(f"{group.status['member']}: {problem}")
            found += [f"group {group.name}: {text}" for text in group.status.get("warnings", ())]
    return found


def _print_slots(view: ClusterView) -> None:
    """Print one character for each 256 slots: the mark of the group that owns most of them."""
    marks = {name: name if len(name) == 1 else "" for name in view.groups}
    free = iter([mark for mark in _MARKS if mark not in marks.values()])
    marks |= {name: next(free, "*") for name, mark in marks.items() if not mark}
    width = SLOTS // CELLS
    cells = [Counter(view.owners[at : at + width]).most_common(1)[0][0] for at in range(0, SLOTS, width)]
    echo(f"slots  {''.join(marks.get(owner, '.') for owner in cells)}")
    echo(f"       0{SLOTS - 1:>{CELLS - 1}}")
    if legend := [f"{mark} = {name}" for name, mark in marks.items() if mark != name]:
        echo(f"       {', '.join(legend)}")


def _rows(group: GroupView, owned: int) -> list[list[str]]:
    reported = {each["name"]: each for each in (group.status or {}).get("members", ())}
    first = [group.name, f"{owned:,}", str((group.status or {}).get("epoch", group.epoch))]
    found: list[list[str]] = []
    for name in sorted(group.members):
        cells = _cells(group, group.members[name], reported.get(name, {}))
        found.append([*(["", "", ""] if found else first), *cells])
    return found


def _cells(group: GroupView, member: MemberView, reported: dict[str, Any]) -> list[str]:
    leads = group.led and group.status is not None and group.status["member"] == member.name
    state = "leading" if leads else str(reported.get("state", "unknown"))
    if any(problem.startswith(f"{member.name} ") for problem in group.problems):
        state = "no reply"
    lag, since = reported.get("lag_bytes"), int(1000 * reported.get("lag_seconds", 0))
    behind = "-" if lag is None else size(lag) + (f", {duration(since)}" if since else "")
    return [member.name, member.address, state, "yes" if reported.get("in_sync") else "NO", behind]


def events_of(view: ClusterView) -> list[tuple[int, str]]:
    """Return the changes of the map and of all groups by time."""
    found = [(each["time"], f"map {each['version']}  {each['what']}: {each['why']}") for each in view.map["events"]]
    for group in view.groups.values():
        events = (group.status or {}).get("events", ())
        found += [(each["time"], f"group {group.name}  {each['what']}: {each['why']}") for each in events]
    return sorted(found)
