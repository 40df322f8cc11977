"""Sends keyspace events and invalidations, which the keyspace collects (``storage.keyspace.events``), and lines of
MONITOR.

Rule 1: events and invalidations are queued right after the command, in the order in which the changes happened, and
sent with the tick. So no client is notified of a change that is not on disk, and a subscriber is notified of changes in
order.
Rule 2: events are not relayed to replicas. They would arrive twice at programs that subscribe to both servers, and the
replica may not have the change yet.
"""

from __future__ import annotations

from commands.declare import Command
from commands.session import Session
from respserver.clients.clients import Clients
from respserver.clients.monitor import Monitors
from respserver.clients.pubsub import PubSub
from respserver.clients.tracking import Tracking
from respserver.runtime.parts import RuntimeParts, ServerPart
from storage.keyspace import events


class Notifications(ServerPart):
    """Implements ``NotificationsPart``."""

    def __init__(self, parts: RuntimeParts, clients: Clients, pubsub: PubSub, monitors: Monitors) -> None:
        super().__init__(parts)
        self._pubsub = pubsub
        self._monitors = monitors
        self.tracking = Tracking(parts, clients)
        self._classes = 0

    def configure(self) -> None:
        """Apply ``notify-keyspace-events``; the keyspace decides which of the classes it publishes."""
        self._classes = events.parse_classes(self._config.notify_keyspace_events)

    def send(self, session: Session | None) -> None:
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
        """Send an executed command to the monitors, and record it if the client has enabled CLIENT TRACKING.

        ``parked``: the client waits for its reply. For tracking, earlier changes are sent first, even within EXEC;
        otherwise, a read after a change would be treated as one before it. The client's own messages are sent after its
        reply.
        """
        self._monitors.show(session, command, argv)
        if session.caching is None:
            return
        if self._data.ks.events and session.transport is not None:
            session.transport.hold_pushes()
            self.send(session)
        self.tracking.ran(session, command, argv, parked)

    def end_tick(self) -> None:
        """Send pending notifications. Called before replies are sent, if there are changes."""
        self.send(None)
        self.tracking.broadcast()

    def _publish(self, event: bytes, key: bytes) -> None:
        if self._classes & events.KEYSPACE:
            self._pubsub.deliver(b"__keyspace@0__:" + key, event)
        if self._classes & events.KEYEVENT:
            self._pubsub.deliver(b"__keyevent@0__:" + event, key)
