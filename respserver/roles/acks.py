"""``replica-acks`` with a number: replies wait until that many replicas have on disk all data that they can show.

Rule 1: a log offset is confirmed once this server and n replicas have the log up to this offset on disk. It remains
confirmed when a replica disconnects.
Rule 2: the offset that another leader confirmed is unknown. A server that starts or becomes the leader therefore
confirms nothing until n replicas have acknowledged its log.
Rule 3: on a replica, replies wait until the leader has sent a confirmed offset that includes the data that they show.
Otherwise, a client of a replica could see data that is lost when the leader fails and another replica takes over.
"""

from __future__ import annotations

from respserver.config.valuetypes import INSYNC
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.confirmation import Confirmation
from respserver.runtime.parts import RuntimeParts, ServerPart


class NumberedAcks(ServerPart, Confirmation):
    """The confirmation by a number of replicas."""

    def __init__(self, parts: RuntimeParts, replicas: Replicas, link: LeaderLink) -> None:
        super().__init__(parts)
        self._replicas = replicas
        self._link = link
        self._confirmed = 0  # log offset
        self._number = 0  # of replicas, as last applied
        self._ticks.confirmation = self

    def needed(self) -> bool:
        required = self._config.replica_acks > 0
        return self._link.withholds(required) if self._data.follower else required

    def confirmed(self) -> int:
        return self._link.confirmed if self._data.follower else self._confirmed

    def acknowledged(self) -> None:
        """Release the replies that are confirmed now. Called when a replica has acknowledged."""
        number = self._config.replica_acks
        if number <= 0 or self._data.follower:  # none, or the in-sync set of a server group
            return
        offsets = sorted(self._replicas.on_disk().values(), reverse=True)
        if len(offsets) >= number:
            confirmed = min(offsets[number - 1], self._data.disk.synced)
            if confirmed > self._confirmed:
                self._confirmed = confirmed
                self._ticks.confirmed_changed()

    def configure(self) -> None:
        """Apply a change of ``replica-acks``. Raises ValueError."""
        number, group = self._config.replica_acks, self._config.group
        if number == INSYNC and not group:
            raise ValueError(
                "insync needs a server group (directives group and coordinator); set a number of replicas instead"
            )
        if number > 0 and group:
            raise ValueError("it must be insync or 0 in a server group")
        if self._config.replica_acks != self._number:
            self._number = self._config.replica_acks
            self._replicas.ask()  # also notifies the replicas whether to acknowledge each tick
            self.reset()

    def reset(self) -> None:
        """Reset the confirmed offset to 0. Also called when this server becomes the leader."""
        self._confirmed = 0
        self.acknowledged()
        self._ticks.confirmed_changed()

    def demoted(self) -> None:
        """Continue as a replica. The offset that this leader has confirmed remains confirmed."""
        self._link.confirmed_up_to(self._confirmed)
        self._ticks.confirmed_changed()
