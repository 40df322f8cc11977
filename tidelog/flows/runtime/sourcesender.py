"""``SourceSender``: sends batches of a source, with a new token for each event and attempt."""

from __future__ import annotations

from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.tokens import REJECT, Token, WatchedToken
from tidelog.flows.runtime.node import FlowNode
from tidelog.flows.runtime.sourcewindow import SourceWindow


class SourceSender:
    """Sends the events of one source. Events that the codec could not read are sent on ``err``."""

    def __init__(self, node: FlowNode, window: SourceWindow, *, settles: bool, copies: bool) -> None:
        self._node = node
        self._window = window
        self._settles = settles  # False: events have no tokens
        self._copies = copies  # the keys of tokens are copies of events, for retries or for dead letters
        self._token = WatchedToken if node.debug else Token
        self._path = f"{node.name}.out"
        self._unreadable = f"{node.name}.err"  # the path of events that the codec could not read

    def send(self, events: list[Event]) -> None:
        """Send new events."""
        now_ns = self._node.context.now_ns()
        self._node.count("out", len(events))
        path = self._path
        bad = False
        for event in events:
            if not event.ingest_ns:
                event.ingest_ns = now_ns
            if not event.path:
                event.path = path
            elif event.path == "err":
                event.path = self._unreadable
                bad = True
        if self._settles:
            since = now()
            make, owner = self._token, self._node
            if self._copies:
                tokens = [make(owner, event.remembered()) for event in events]
            else:
                tokens = [make(owner, event.id) for event in events]
            for event, token in zip(events, tokens, strict=True):
                event.token = token
            self._window.sent(since, tokens, new=True)
        if bad:
            self._send_unreadable(events)
        else:
            self._node.emit(events)

    def send_again(self, copies: list[Event]) -> None:
        """Send copies of events, which are retried."""
        self._node.count("again", len(copies))
        since = now()
        events = []
        tokens = []
        for each in copies:
            each.attempt += 1
            event = each.remembered()
            event.token = token = self._token(self._node, each)
            tokens.append(token)
            events.append(event)
        self._window.sent(since, tokens, new=False)
        bad = [each for each in events if each.path == self._unreadable]
        if bad:
            events = [each for each in events if each.path != self._unreadable]
            self._node.emit(bad, "err")
        self._node.emit(events)

    def _send_unreadable(self, events: list[Event]) -> None:
        """Send new events, some of which the codec could not read."""
        node = self._node
        bad = [each for each in events if each.path == self._unreadable]
        node.emit([each for each in events if each.path != self._unreadable])
        node.count("unreadable", len(bad))
        if node.outputs.get("err"):
            node.emit(bad, "err")
            return
        for event in bad:
            node.give_up(event, REJECT, str(event.meta.get("error", "")))
