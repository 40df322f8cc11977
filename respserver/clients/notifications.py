"""What clients are told of changes: the keyspace collects it (``storage.keyspace.events``), here it is sent.

Rule 1: it is queued right after the command, in the order in which things happened, and leaves with the tick: nobody
hears of a change that is not on disk, and a subscriber hears of a change before it can hear of the next one.
Rule 2: events are not relayed to replicas. They would come twice where the two servers' subscribers are the same
programs, and a replica's state at that moment is another one.
"""

from __future__ import annotations

from commands.declare import Command
from commands.session import Session
from respserver.clients.clients import Clients
from respserver.clients.pubsub import PubSub
from respserver.clients.tracking import Tracking
from respserver.config.config import Config
from respserver.runtime.data import Data
from respserver.runtime.ticks import Ticks
from storage.keyspace import events


class Notifications:
    """Implements ``NoticesPart``."""

    def __init__(self, config: Config, data: Data, clients: Clients, ticks: Ticks, pubsub: PubSub) -> None:
        self._config = config
        self._data = data
        self._pubsub = pubsub
        self.tracking = Tracking(config, data, clients, ticks)
        self._classes = 0

    def configure(self) -> None:
        """Apply ``notify-keyspace-events``; the data knows which of the classes fire."""
        self._classes = events.parse_classes(self._config.notify_keyspace_events)

    def tell(self, session: Session | None) -> None:
        ks = self._data.ks
        happened = ks.events
        ks.events = []
        for event, key in happened:
            if event == events.CHANGED:
                self.tracking.changed(key, session)
            elif event == events.FLUSHED:
                self.tracking.flushed()
            else:
                self._publish(event, key)

    def ran(self, session: Session, command: Command, argv: list[bytes], parked: bool) -> None:
        """A client with CLIENT TRACKING has called a command. ``parked``: it waits for its reply.

        What has changed until now is told first, even within EXEC, or a read after a change would be taken for one
        before it. But the client's own messages come after its reply.
        """
        if self._data.ks.events and session.transport is not None:
            session.transport.hold_pushes()
            self.tell(session)
        self.tracking.ran(session, command, argv, parked)

    def end_tick(self) -> None:
        """Called before replies leave, if there is something to tell."""
        self.tell(None)
        self.tracking.broadcast()

    def _publish(self, event: bytes, key: bytes) -> None:
        if self._classes & events.KEYSPACE:
            self._pubsub.deliver(b"__keyspace@0__:" + key, event)
        if self._classes & events.KEYEVENT:
            self._pubsub.deliver(b"__keyevent@0__:" + event, key)
