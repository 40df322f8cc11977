"""``replica-acks insync``: the members that replies wait for, and changes of the in-sync set.

Rule 1: a log offset is confirmed once every member of the in-sync set has the log up to this offset on disk. No reply
is released without a valid lease.
Rule 2: replies wait for a member that leaves the set until the coordinator has confirmed the smaller set. Replies wait
for a member that joins as soon as the larger set is sent: if the coordinator's reply is lost, the member may be in the
set.
Rule 3: a member joins once it has all data that was released. Replies wait for it shortly before that. Under load, the
other members would otherwise always be slightly ahead of it.
Rule 4: if fewer than min-in-sync members are left, unconfirmed replies wait for a member to return, for at most
in-sync-timeout. Their clients are then disconnected, because the outcome of their commands is unknown.
Rule 5: a member whose store is damaged leaves the set, and joins again after the damage is repaired. It notifies the
leader before it acknowledges anything else.
Rule 6: the strictest replica-acks and min-in-sync of all members count, not only those of the leader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from replication.feed import ReplicaFeed
from respserver.config.config import Config
from respserver.config.valuetypes import INSYNC
from respserver.group.document import ServerGroupState
from respserver.roles.link import LeaderLink
from respserver.roles.replicas import Replicas
from respserver.runtime.confirmation import Confirmation
from respserver.runtime.parts import RuntimeParts, ServerPart

JOINING_MS = 500  # for which a member that has not caught up counts; then it waits, twice as long each time
NEAR = 1 << 20  # bytes that a member may lack when it begins to join
TOO_FEW = "too few members are in sync, and the outcome of its command is unknown (min-in-sync)"


def own_least(config: Config) -> int:
    """Return the min-in-sync of this member; 0 if its replica-acks is 0."""
    return config.min_in_sync if config.replica_acks == INSYNC else 0


class InSync(ServerPart, Confirmation):
    """The in-sync set of the leader, and the confirmation of its log. ``wake``: called when the set should change."""

    def __init__(
        self, parts: RuntimeParts, replicas: Replicas, link: LeaderLink, valid: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(parts)
        self._replicas = replicas
        self._link = link
        self._valid = valid
        self._wake = wake
        self.leading = False  # this member leads, and may release replies while its lease is valid
        self.names: frozenset[str] = frozenset()  # the others in the set, as the coordinator has it
        self.least = own_least(self._config)  # members that must be in sync for writes (Rule 6); 0: replies do not wait
        self._own = self.least  # as last applied
        # as ``least``, by the settings of all members at the coordinator; None: not read since the start
        self._others: int | None = None
        self._ids: dict[str, str] = {}  # by member: of its directory
        self._sent: list[tuple[int, frozenset[str]]] = []  # version replaced, set: changes of unknown outcome
        # members that count although they are not in the set yet, and since when, in ms (monotonic)
        self._joining: dict[str, int] = {}
        self._waits: dict[str, tuple[int, int]] = {}  # by member: until when it does not count, how long, in ms
        self._confirmed = 0  # log offset
        self._begun = 0  # log offset at which this member began to lead: earlier leaders released no more than that
        self._met: set[str] = set()  # members that have connected since this one leads
        self._moved: dict[str, tuple[int, int]] = {}  # by member: log offset on disk, ms (monotonic) since when
        self._even: dict[str, int] = {}  # by member: ms (monotonic) when it last had the whole log
        self._holding = 0  # ms (monotonic) since which Rule 4 applies; 0: it does not
        self._ticks.confirmation = self

    # -- Confirmation --------------------------------------------------------------------------------------------
    def needed(self) -> bool:
        # a leader needs its lease with replica-acks 0, too
        return not self._data.follower or self._follower_withholds()

    def each(self) -> bool:
        return self._follower_withholds() if self._data.follower else self.least > 0

    def _follower_withholds(self) -> bool:
        """Return whether the replies of a follower wait for the leader, which may be silent (Rule 6)."""
        if self._others is None:
            return self._link.withholds(True)  # other members may require it
        return self.least > 0 or self._link.withholds(False)

    def confirmed(self) -> int:
        if self._data.follower:
            return self._link.confirmed  # as received from the leader
        if not (self.leading and self._valid()):
            return -1
        if not self.least:
            return self._data.disk.offset
        if not (self.names or self._joining or self._sent or self._holding):
            self._confirmed = max(self._confirmed, self._data.disk.synced)  # a member that joins must have it
        return self._confirmed

    # -- the set as the coordinator has it -----------------------------------------------------------------------
    def begin(self, state: ServerGroupState, me: str, version: int) -> None:
        """This member leads now, from this version of the state on. What an earlier leader has confirmed is not known.

        If it was only silent, a change that it sent before may still happen: it continues to count.
        """
        mono = self._clock.mono()
        self.names = frozenset(state.in_sync) - {me}
        self._ids = {name: each.id for name, each in state.members.items()}
        self._sent = [each for each in self._sent if each[0] >= version]
        self._joining, self._waits, self._met = {}, {}, set()
        self._confirmed, self._begun = 0, self._data.disk.offset
        self._moved = dict.fromkeys(self.names, (0, mono))
        self._holding = 0
        self._replicas.too_few_in_sync = False
        self.leading = True
        self.learn(state)

    def silence(self) -> None:
        """Stop releasing replies, because this member gives up leadership. Its confirmed offset remains confirmed."""
        if self.leading:
            self.leading = False
            self._link.confirmed_up_to(self._confirmed)

    def sending(self, names: Collection[str], me: str, replaces: int) -> None:
        """A change of the set is sent, which replaces this version of the state."""
        change = replaces, frozenset(names) - {me}
        if change not in self._sent:
            self._sent.append(change)

    def adopt(self, state: ServerGroupState, me: str, version: int) -> None:
        """The coordinator has this state at this version. Changes of earlier versions can't happen any more."""
        before, self.names = self.names, frozenset(state.in_sync) - {me}
        self._sent = [each for each in self._sent if each[0] >= version]
        mono = self._clock.mono()
        for name in self.names - before:  # only a connected member was added
            self._met.add(name)
            self._moved[name] = (0, mono)
            self._joining.pop(name, None)
            self._waits.pop(name, None)
        ids = {name: each.id for name, each in state.members.items()}
        if ids != self._ids:
            self._ids = ids
            self._joining = {name: since for name, since in self._joining.items() if self.feed(name) is not None}
            for feed in tuple(self._replicas.feeds):  # perhaps of a member that was not known when it acknowledged
                self.heard(feed)
        self.learn(state)

    def learn(self, state: ServerGroupState) -> None:
        """The coordinator has these settings of the members. Called after each reading, also on followers."""
        self._others = state.least
        self.configure()

    def configure(self) -> None:
        """Apply a change of the settings of this member or of the others (Rule 6)."""
        own, waited = own_least(self._config), self.least
        self.least = max(own, self._others or 0)
        if self.leading and bool(self.least) != bool(waited):
            self._replicas.ask()  # also notifies the replicas whether to acknowledge each tick
        if own != self._own:
            self._own = own
            self._wake()  # the record of this member is updated
        if self.leading:
            self.recount()
        else:
            self._ticks.confirmed_changed()  # also at the start: a follower withholds before it has read the state

    # -- offsets -------------------------------------------------------------------------------------------------
    def feed(self, name: str) -> ReplicaFeed | None:
        """Return the connection of a member that has the most on disk; None if it is not connected."""
        feeds = (feed for feed in self._feeds(name) if feed.state == "online")
        return max(feeds, key=lambda feed: feed.on_disk, default=None)

    def connected(self, name: str) -> bool:
        """Return whether a process with the name of this member is connected."""
        return bool(self._feeds(name, replaced=True))

    def _feeds(self, name: str, replaced: bool = False) -> list[ReplicaFeed]:
        """Return the connections of a member. ``replaced``: also those with another directory than the known one."""
        own = self._ids.get(name)
        feeds = [feed for feed in self._replicas.feeds if feed.group_member == name]
        return feeds if replaced else [feed for feed in feeds if feed.member_id == own]

    def heard(self, feed: ReplicaFeed) -> None:
        """Process an acknowledgement of a member."""
        name = feed.group_member
        if not self.leading or not name or feed.state != "online" or feed.member_id != self._ids.get(name):
            return
        if feed.on_disk >= self._data.disk.offset or name not in self._even:
            self._even[name] = self._clock.mono()
        if feed.damaged:
            self._joining.pop(name, None)
            if name in self.names:
                self._wake()
        if name not in self.names:
            self._consider(feed, name)
        else:
            self._met.add(name)
            if feed.on_disk > self._moved.get(name, (0, 0))[0]:
                self._moved[name] = feed.on_disk, self._clock.mono()
        self.recount()

    def _consider(self, feed: ReplicaFeed, name: str) -> None:
        """Let a member join that has nearly caught up (Rule 3)."""
        if feed.damaged or self._clock.mono() < self._waits.get(name, (0, 0))[0]:
            return
        if name in self._joining or (feed.live and feed.on_disk + NEAR >= self._data.disk.offset):
            self._joining.setdefault(name, self._clock.mono())
            if self._has_everything(feed):
                self._wake()
        elif not feed.live and feed.on_disk + NEAR >= self._data.disk.offset:
            feed.alive(wanted=True)  # it acknowledges when it has everything

    def _has_everything(self, feed: ReplicaFeed) -> bool:
        """Return whether a member has all data that this leader and earlier leaders have released."""
        return feed.on_disk >= max(self._confirmed, self._begun)

    def recount(self) -> None:
        """Confirm the log offset that all required members have on disk, and release replies."""
        if not self.leading:
            return
        self._data.sync_all(self.least > 0)
        small = 1 + len(self.names) < self.least
        waiting = self._ticks.waiting
        if small != self._replicas.too_few_in_sync:
            self._replicas.too_few_in_sync = small
            self._replicas.count()
            self._holding = self._clock.mono() if small and waiting else 0
        elif not waiting:
            self._holding = 0
        low = self._data.disk.synced
        for name in self.names.union(self._joining, *(names for _, names in self._sent)):
            feed = self.feed(name)
            low = min(low, 0 if feed is None else feed.on_disk)
        if self._holding:
            return
        self._confirmed = max(self._confirmed, low)
        self._ticks.confirmed_changed()

    # -- joining and leaving ---------------------------------------------------------------------------------
    def lost(self, feed: ReplicaFeed) -> None:
        """Process the loss of the connection to a member."""
        name = feed.group_member
        if self.leading and name:
            self._joining.pop(name, None)
            self.recount()
            self._wake()

    def wanted(self, me: str) -> tuple[set[str], str]:
        """Return the set as it should be, and the reason for the change."""
        names, why = set(self.names), ""
        for name in sorted(self.names):
            reason = self._leaves(name)
            if reason:
                names.discard(name)
                why = f"{name} {reason}"
        for name in sorted(self._joining):
            feed = self.feed(name)
            if feed is not None and self._has_everything(feed) and not self.damaged(name):
                names.add(name)
                why = why or f"{name} has caught up"
        return {me, *names}, why

    def _leaves(self, name: str) -> str:
        """Return why a member must leave the set; "" if it stays."""
        timeout, mono = self._config.in_sync_timeout, self._clock.mono()
        if self.damaged(name):
            return "has a damaged store"
        if self.copying(name):
            return "receives a copy"
        feed = self.feed(name)
        if feed is None and name in self._met:
            return "has lost its connection"
        on_disk, since = self._moved.get(name, (0, mono))
        withheld = self._ticks.withheld_since()
        if feed is None and mono - since >= timeout:
            return f"has not connected within {timeout} ms (in-sync-timeout)"
        if withheld is None or on_disk >= self._data.disk.synced:
            return ""
        if mono - max(since, withheld) >= timeout:
            return f"has acknowledged nothing for {timeout} ms while replies were withheld (in-sync-timeout)"
        return ""

    def damaged(self, name: str) -> bool:
        """Return whether a member has reported that its store is damaged."""
        return any(feed.damaged for feed in self._feeds(name))

    def successors(self) -> dict[str, ReplicaFeed]:
        """Return the members that this one can hand over to: in the set, connected, and with an undamaged store."""
        feeds = {name: feed for name in sorted(self.names) if (feed := self.feed(name)) is not None}
        return {name: feed for name, feed in feeds.items() if not self.damaged(name)}

    def copying(self, name: str) -> bool:
        """Return whether a member receives a copy."""
        return any(feed.state == "send_bulk" or feed.position < 0 for feed in self._feeds(name, replaced=True))

    def seconds_behind(self, name: str) -> float:
        """Return the seconds since a member last had the whole log."""
        since = self._even.get(name)
        return round((self._clock.mono() - since) / 1000, 3) if since is not None else 0.0

    def must_change(self, me: str) -> bool:
        """Return whether the set should change, or a change may still happen, which must become impossible."""
        return self.leading and (self.unsettled or self.wanted(me)[0] != {me, *self.names})

    @property
    def unsettled(self) -> bool:
        """Whether a change that was sent has an unknown outcome."""
        return bool(self._sent)

    def may_copy(self, name: str) -> bool:
        """Return whether a member may get a copy. It first leaves the set, since it lacks data until it catches up."""
        if self._data.follower or name not in self.names.union(*(names for _, names in self._sent)):
            return True
        self._met.add(name)  # and is not connected: it leaves the set
        self._wake()
        return False

    def on_time(self) -> None:
        """End the waits of Rules 3 and 4. Called several times per second."""
        if not (self.leading and (self._holding or self._joining)):
            return
        mono = self._clock.mono()
        before = mono - self._config.in_sync_timeout
        if self._holding and self._holding <= before and self._valid():
            self._holding = 0
            self._ticks.cut_withheld(TOO_FEW)
        for name, since in tuple(self._joining.items()):
            feed = self.feed(name)
            ready = feed is not None and self._has_everything(feed)  # it waits for the coordinator
            if since <= before or (since <= mono - JOINING_MS and not ready):
                del self._joining[name]  # it is too slow; it counts again when it acknowledges more
                wait = min(2 * self._waits.get(name, (0, JOINING_MS // 2))[1], self._config.in_sync_timeout)
                self._waits[name] = mono + wait, wait
        self.recount()
