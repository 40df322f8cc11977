"""``tidelog cluster check``: the problems of a cluster, each with its remedy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tidelog.cluster import asking, slots
from tidelog.cluster.display import warnings
from tidelog.cluster.view import ClusterView, GroupView, MemberView, ask_members, in_parallel
from tidelog.transport.errors import ReplyError

#: Directives that should have the same value at all members: a failover, or a move of slots, would change behavior.
ALIKE: Final = (
    "appendfsync", "cluster-allow-reads-when-down", "cluster-require-full-coverage", "group-lease", "in-sync-timeout",
    "maxmemory", "maxmemory-policy", "min-in-sync", "replica-acks",
)  # fmt: skip


def problems(view: ClusterView) -> list[str]:
    """Return the problems. It sends requests to all members."""
    ask_members(view)
    settings: dict[str, dict[str, str]] = {}
    in_parallel(lambda member: settings.update({member.name: _settings(view, member)}), view.members)
    found = [
        *_slots(view), *_maps(view), *_members(view), *_leaders(view), *_machines(view), *_settings_differ(settings),
        *warnings(view),
    ]  # fmt: skip
    return list(dict.fromkeys(found))


def _slots(view: ClusterView) -> Iterator[str]:
    taken: dict[int, str] = {}
    for first, last, group in view.map["slots"]:
        if group not in view.groups:
            yield f"the map gives {first}-{last} to the unknown group {group}: restore the map (TCLUSTER RESTORE)"
        both = [slot for slot in range(first, last + 1) if slot in taken]
        if both:
            yield f"{slots.shown(both)} belong to group {taken[both[0]]} and to group {group}: restore the map"
        taken |= dict.fromkeys(range(first, last + 1), group)
    if missing := [slot for slot, owner in enumerate(view.owners) if not owner]:
        yield f"{slots.shown(missing)} belong to no group: assign them with tidelog cluster rebalance"
    for name, owned in slots.counts(view.owners, view.groups).items():
        if not owned:
            yield f"group {name} owns no slots: tidelog cluster rebalance gives it empty ones"


def _maps(view: ClusterView) -> Iterator[str]:
    for member in view.members:
        if member.reply is None:
            yield f"{_named(member)}: {member.problem}"
            continue
        found = member.reply.get("map")
        if found is None:
            why = member.reply.get("problem") or "check its connection to the coordinator"
            yield f"{_named(member)} does not know the map: {why}"
        elif found["cluster_id"] != view.map["cluster_id"]:
            yield f"{_named(member)} belongs to another cluster: use the same cluster-name and coordinator"
        elif found["version"] < view.map["version"]:
            why = member.reply.get("problem") or "check its connection to the coordinator"
            yield f"{_named(member)} has version {found['version']} of the map: {why}"


def _members(view: ClusterView) -> Iterator[str]:
    for member in view.members:
        if member.group_problem:
            yield f"{_named(member)}: {member.group_problem}"
    for group in view.groups.values():
        reported: list[dict[str, Any]] = (group.status or {}).get("members", [])
        for each in reported:
            if not each["in_sync"]:
                yield f"group {group.name}: {each['name']} is not in sync ({each['state']})"
            elif not group.members[each["name"]].mapped:
                yield f"group {group.name}: the map does not have the member {each['name']} yet"


def _leaders(view: ClusterView) -> Iterator[str]:
    """Return the warnings that the leaders report, for example keys that a group had before it joined the cluster."""
    for member in view.members:
        if member.reply is not None and member.reply.get("leads"):
            yield from map(str, member.reply.get("warnings", ()))


def _machines(view: ClusterView) -> Iterator[str]:
    """Members of one group on one machine, unless the whole cluster is on it; and copied directories."""
    hosts = {member.host for member in view.members}
    for group in view.groups.values():
        together = _same(group, "host")
        for host, names in together.items() if len(hosts) > 1 else ():
            yield f"group {group.name}: {', '.join(names)} are on the machine {host}: its loss would end all of them"
    by_id: dict[str, list[str]] = defaultdict(list)
    for member in view.members:
        by_id[member.node_id].append(member.name)
    for names in by_id.values():
        if len(names) > 1:
            yield (
                f"{', '.join(names)} have the same node ID: the directory of one is a copy. Delete the files 'node' and"
                " 'group' in the copy"
            )


def _same(group: GroupView, attribute: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for member in group.members.values():
        found[getattr(member, attribute)].append(member.name)
    return {value: names for value, names in found.items() if len(names) > 1}


def _settings(view: ClusterView, member: MemberView) -> dict[str, str]:
    """Return the settings of a member; none if it does not reply, or does not permit the request."""
    try:
        found = asking.ask(view.access, member.url, "CONFIG", "GET", *ALIKE)
    except (OSError, ReplyError):
        return {}
    words = [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in found]
    return dict(zip(words[::2], words[1::2], strict=False))


def _settings_differ(settings: dict[str, dict[str, str]]) -> Iterator[str]:
    for name in ALIKE:
        values: dict[str, list[str]] = defaultdict(list)
        for member in sorted(settings):
            if name in settings[member]:
                values[settings[member][name]].append(member)
        if len(values) > 1:
            least = min(values.items(), key=lambda item: len(item[1]))
            rest = next(value for value in values if value != least[0])
            yield (
                f"{name} is {least[0]!r} at {', '.join(least[1][:3])} and {rest!r} at others: use one value for all"
                " members"
            )


def _named(member: MemberView) -> str:
    return f"{member.name} ({member.address})"
