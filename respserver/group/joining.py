"""A member joins its group, or creates it, and reads the group's state.

Rule 1: a member refuses the state of another group, and a state that is older than one that it has seen.
Rule 2: a member whose name was used with another directory joins again before it does anything else.
Rule 3: the state has the settings of each member. A member whose settings were changed updates its record.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from coordinator.interface import CoordinatorError
from replication.members import GroupAnnouncement
from respserver import __version__
from respserver.group import document
from respserver.group.document import GroupStateError, MemberRecord, ServerGroupState
from respserver.group.insync import own_least
from respserver.group.parts import MemberPart, MemberParts
from respserver.group.services import without_password
from respserver.group.standing import MemberStanding
from respserver.runtime.parts import RuntimeParts


class GroupEntry(MemberPart):
    """The state of the group, which this member joins when it reads it first."""

    def __init__(self, parts: RuntimeParts, member: MemberParts, standing: MemberStanding) -> None:
        super().__init__(parts, member)
        self._standing = standing
        self._replicas = member.replicas
        self._warned = ""  # the differences that were logged

    async def current(self) -> ServerGroupState:
        """Return the state, which has this directory. Raises GroupStateError, CoordinatorError, OSError."""
        if self._standing.phase == "joining":
            return await self._joined()
        state = await self.store.read()
        if state is None:
            raise GroupStateError(f"the coordinator has lost the state of the group: {document.REMEDY}")
        self._check_epoch(state)
        record, own = state.members.get(self.name), self._record()
        if record is not None and record.id != own.id:
            # Another process used the name while this one had no lease. Its data was counted, not that of this one.
            self._standing.appointed = 0
            self._standing.resign()
            return await self._joined()
        if record is not None and record != own:

            def decide(found: ServerGroupState) -> ServerGroupState | None:
                known = found.members.get(self.name)
                return document.join(found, self.name, own, self._clock.now()) if known == record else None

            state = await self.store.change(decide) or state
        self._warn(state)
        return state

    def _record(self) -> MemberRecord:
        return MemberRecord(self._member.address, self._member.identity.id, __version__, own_least(self._config))

    def _warn(self, state: ServerGroupState) -> None:
        """Log that the settings of the members differ, once."""
        differences = state.differences(MemberRecord.settings)
        if differences and differences != self._warned:
            self._logger.warning(f"Group {self._config.group}: {document.DIFFERENT.format(differences)}")
        self._warned = differences

    def _check_epoch(self, state: ServerGroupState) -> None:
        """Refuse a state that is older than one that this member has seen: its in-sync set is out of date."""
        if state.epoch < self._standing.epoch:
            self.in_sync.silence()
            raise GroupStateError(
                f"the coordinator has the state of epoch {state.epoch}, but this member has seen epoch"
                f" {self._standing.epoch}: it was restored from a copy that is out of date, and would lose acknowledged"
                f" writes: {document.REMEDY}"
            )

    async def _joined(self) -> ServerGroupState:
        """Join the group, or create it. Raises GroupStateError, CoordinatorError, OSError."""
        store, own = self.store, self._member.identity
        record = self._record()
        seen = document.epoch_of(self._data.disk.history.id)
        if own.group_id:  # otherwise, it was an epoch of another group
            self._standing.epoch = max(self._standing.epoch, seen)
        state = await store.read()
        if state is None:
            if own.group_id:
                raise GroupStateError(
                    f"the coordinator {without_password(self._config.coordinator)} has no state of the group"
                    f" {own.group}, to which this data directory belongs: check the URL. If the state is lost, stop all"
                    " members, delete the file 'group' in the directory of each member, and start the member with the"
                    " most data first"
                )
            own.save(Path(self._config.dir))  # the ID of the directory: a crash must not change it
            state = document.create(secrets.token_hex(20), self.name, record, self._clock.now(), seen + 1)
            if not await store.create(state):
                self._wake()
                raise CoordinatorError("another member has created the group at the same time")
            self._logger.notice(f"Created the group {own.group}, ID {state.group_id}")
        else:
            if own.group_id and own.group_id != state.group_id:
                raise GroupStateError(
                    f"the data directory {self._config.dir} belongs to another group with the name {own.group}"
                    f" (ID {own.group_id}, the coordinator has {state.group_id}): choose another dir or another"
                    " coordinator"
                )
            self._check_epoch(state)
            own.save(Path(self._config.dir))
            weak = self._data.disk.rebooted and self._config.replica_acks == 0 and self._config.appendfsync != "always"

            def decide(state: ServerGroupState) -> ServerGroupState:
                now = self._clock.now()
                state = document.join(state, self.name, record, now)
                if weak:
                    why = "its machine restarted, and some writes may not have been synced"
                    state = document.withdraw(state, self.name, now, why)
                return state

            state = await store.change(decide) or state
            self._standing.epoch = state.epoch
        if not own.group_id:
            own.group_id = state.group_id
            own.save(Path(self._config.dir))
        self._link.group = GroupAnnouncement(own.group_id, self.name, own.id)
        self._replicas.group_id = own.group_id
        self._link.cluster.shard = own.group_id
        self._standing.phase = "waiting"
        return state
