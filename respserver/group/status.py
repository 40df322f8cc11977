"""The status of a server group as one member knows it: one JSON document for TMEMBER STATUS.

Only the leader knows the log offsets of the other members. The document contains the leader's address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from respserver.group.document import DIFFERENT, MemberRecord, ServerGroupState
from respserver.group.insync import InSync
from respserver.group.membership import GroupMembership
from respserver.group.services import without_password

SKEW: Final = 500  # ms by which clocks may differ without a warning
EVENTS: Final = 20  # shown


class GroupCommands:
    """TMEMBER. Implements ``GroupPart``."""

    def __init__(self, membership: GroupMembership) -> None:
        self._membership = membership

    def status(self) -> dict[str, object]:
        """Return the status. Its problem is that of the last reading of the coordinator; the next one starts now."""
        self._membership.read_again()
        return self.last_known()

    def last_known(self) -> dict[str, object]:
        """Return the status without a reading of the coordinator."""
        return describe(self._membership)

    def fail_over(self, target: str, timeout_ms: int) -> None:
        self._membership.fail_over(target, timeout_ms)

    def removal(self, name: str) -> Callable[[], str | None]:
        return self._membership.removal(name)


def describe(group: GroupMembership) -> dict[str, object]:
    """Return the document."""
    config, state, in_sync = group.config, group.store.state, group.in_sync
    leads, least = in_sync.leading, group.least
    found: dict[str, object] = {
        "group": config.group, "member": group.name, "address": group.address, "phase": group.standing.phase,
        "problem": group.problem, "coordinator": without_password(config.coordinator),
        "coordinator_read_ms": group.read_ms,
        "replica_acks": "insync" if least else "0", "min_in_sync": least or config.min_in_sync,
        "lease_ms": config.group_lease, "lease_left_ms": max(0, int(group.presence.seconds_left * 1000)),
        "longest_stall_ms": int(group.longest_stall * 1000), "offset": group.end, "warnings": _warnings(group),
    }  # fmt: skip
    if state is not None:
        leader = state.members.get(state.leader)
        found |= {
            "group_id": state.group_id, "epoch": state.epoch,
            "leader": state.leader if group.standing.leader is not None else "",
            "leader_address": leader.address if leader is not None and group.standing.leader is not None else "",
            "in_sync": list(state.in_sync),
            "members": [_member(group, state, name) for name in sorted(state.members)],
            "events": [
                {"time": each.time, "epoch": each.epoch, "what": each.what, "why": each.why}
                for each in state.events[-EVENTS:]
            ],
        }  # fmt: skip
    if leads:
        found["confirmed"] = max(0, in_sync.confirmed())
        found |= group.withheld()
    return found


def _member(group: GroupMembership, state: ServerGroupState, name: str) -> dict[str, object]:
    """Return one member. Only the leader and the member itself know its offset and lag."""
    record, in_sync = state.members[name], group.in_sync
    found: dict[str, Any] = {
        "name": name, "address": record.address, "id": record.id, "version": record.version,
        "min_in_sync": record.min_in_sync, "in_sync": name in state.in_sync, "state": "unknown",
    }  # fmt: skip
    if name == group.name:
        found |= {"state": group.standing.phase, "offset": group.end}
    elif in_sync.leading:
        found |= _as_leader_sees(in_sync, name, group.end)
        if name in group.skews:
            found["clock_ms"] = group.skews[name]
    return found


def _as_leader_sees(in_sync: InSync, name: str, end: int) -> dict[str, object]:
    feed = in_sync.feed(name)
    if feed is None:
        copying = in_sync.copying(name)
        return {"state": "receiving a copy" if copying else "not connected"}
    lag = max(0, end - feed.on_disk)
    return {
        "state": "following", "offset": feed.on_disk, "lag_bytes": lag,
        "lag_seconds": in_sync.seconds_behind(name) if lag else 0.0,
    }  # fmt: skip


def _warnings(group: GroupMembership) -> list[str]:
    """Return the warnings for the operator."""
    state, config = group.store.state, group.config
    found = []
    lease, stall = config.group_lease, int(1000 * group.longest_stall)
    if 2 * stall > lease:
        found.append(
            f"the event loop stalled for {stall} ms in the last ten minutes, and a leader that stalls for longer than"
            f" its lease ({lease} ms) is replaced: set group-lease to more than twice the longest stall"
        )
    if state is None:
        return found
    count, least = len(state.members), group.least
    if least > count:
        found.append(
            f"min-in-sync is {least}, and the group has {count} member{'s' if count > 1 else ''}: writes"
            " fail with NOREPLICAS until you start more members or lower min-in-sync"
        )
    elif least > len(state.in_sync):
        found.append(
            f"only {len(state.in_sync)} of {count} members are in sync, and min-in-sync is {least}: writes fail with"
            " NOREPLICAS"
        )
    if not least:
        found.append("replica-acks is 0: a failover can lose acknowledged writes")
    found += _damage(group, state)
    if settings := state.differences(MemberRecord.settings):
        found.append(DIFFERENT.format(settings))
    if versions := state.differences(lambda member: member.version):
        found.append(f"the members run different versions ({versions}): complete the upgrade")
    for name, skew in sorted(group.skews.items()):
        if abs(skew) > SKEW:
            found.append(
                f"the clock of {name} is {abs(skew)} ms {'ahead' if skew > 0 else 'behind'}. This is allowed, because"
                " leases measure durations, but clocks must not differ in speed by more than 5 %. After a failover, IDs"
                " and times to live follow the new leader's clock"
            )
    return found


def _damage(group: GroupMembership, state: ServerGroupState) -> list[str]:
    """Return which stores are damaged. That of another member is known to the leader."""
    found = []
    if group.damaged:
        found.append(
            "the store of this member is damaged: until the damage is repaired, it leads only if the stores of all"
            " members in sync are damaged; see its log (Scrub)"
            + ("" if group.config.scrub_rate else ". Repairs are off: set scrub-rate to a value above 0")
        )
    if group.in_sync.leading:
        found += [
            f"the store of {name} is damaged: it is not in sync until the damage is repaired; see its log (Scrub)"
            for name in sorted(state.members)
            if group.in_sync.damaged(name)
        ]
    return found
