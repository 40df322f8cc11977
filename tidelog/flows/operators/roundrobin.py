"""``roundrobin``: distributes events to several outputs in turn, and omits outputs that cannot accept any.

Rule 1: An output is out of rotation while it has a reason (a TRIGGER arrived from it), and for a time after several
        consecutive failures. After that time, or after a reason that ended by time, it gets one event, then more.
Rule 2: The breaker messages of the outputs end here. Sources above get a TRIGGER when no output is left, and a RESTORE
        with the first output that can be used again. They start when the first output can be used.
Rule 3: Events that an output out of rotation has not begun to process are recalled and distributed to the others. This
        does not count as an attempt. If operators are in between, a copy of each event in its original form is retained
        for that.
Rule 4: An output with ``most`` events in flight gets none until some are settled, so an output that hangs blocks no
        more than these.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Mapping
from typing import Final

from tidelog.flows.api.breaker import Breaker
from tidelog.flows.api.event import Event
from tidelog.flows.api.flowcontext import now
from tidelog.flows.api.gathering import GatheredRelease
from tidelog.flows.api.operator import Operator
from tidelog.flows.api.signals import Restore, Trigger
from tidelog.flows.api.tokens import RETRY, Token, Withdrawn
from tidelog.flows.edges import check_port
from tidelog.flows.operators.copies import RecallableBatch, RecallableEvent
from tidelog.flows.operators.hops import (
    Recall,
    ReturnedTokens,
    SendWindow,
    SentBatch,
    runs,
    send,
    stalled,
    unmarked,
)
from tidelog.options.limits import AtLeastOne
from tidelog.options.structs import Struct
from tidelog.options.units import PositiveDuration

ROUNDROBIN: Final = "roundrobin"  # the kind of its reason
PROBE_MOST: Final = 30.0  # s: maximum time between probes of a failing output, unless ``probe_after`` is longer


class RoundrobinOptions(Struct):
    """The options of ``roundrobin``."""

    outputs: list[str]  # Names of ports, which must be connected. The short form: `roundrobin: [a, b]`.
    failures: AtLeastOne = 3  # After this many consecutive events that must be retried, an output is out of rotation.
    probe_after: PositiveDuration = PositiveDuration(1.0)
    # How long an output is out of rotation. It then gets one event. If it fails, the time is doubled, up to 30 s; if
    # not, the output gets two events, then four, and so on.
    most: AtLeastOne = 1000  # Maximum number of events in flight at one output.

    def __post_init__(self) -> None:
        if not self.outputs or len(set(self.outputs)) < len(self.outputs):
            raise ValueError("outputs must be different names of ports, at least one, such as [a, b]")
        for each in self.outputs:
            check_port(each, "outputs", "out")


class RoundrobinOutput:
    """The state of one output."""

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.breaker = Breaker()
        self.window = SendWindow(most)
        self.direct = True  # events are not changed before they are written, so no copies are necessary
        self.failed = 0  # consecutive failures
        self.rest: float = 0.0  # s: the last time out of rotation
        self.timer: TimerHandle | None = None  # set while out of rotation after failures

    @property
    def usable(self) -> bool:
        return not self.breaker and self.timer is None

    @property
    def in_flight(self) -> int:
        return self.window.in_flight + self.window.earlier

    @property
    def why(self) -> str:
        reasons = [each.reason for each in self.breaker.reasons]
        if self.timer is not None:
            reasons.append(f"failed {self.failed} times in a row")
        return f"{self.name}: {', '.join(reasons)}"


class RoundrobinOperator(Operator):
    """Implements ``roundrobin``."""

    type = "roundrobin"
    short = "outputs"
    guards = True
    last = True
    Options = RoundrobinOptions

    def __init__(self, options: RoundrobinOptions) -> None:
        self._options = options
        self.outputs = {name: RoundrobinOutput(name, options.most) for name in options.outputs}
        self._order = list(self.outputs.values())
        self._turn = 0  # number of the next output
        self.buffer = []  # events without an output: at most a batch, and recalled events
        self._began = False
        self._open = False  # whether the sources above may send
        self._stalled = GatheredRelease(lambda: self.node, "most", self._full, self._stuck_on)
        self._recall = Recall(self, self._lost, self._taken_back)

    def ports(self) -> tuple[str, ...]:
        return tuple(self._options.outputs)

    def required(self) -> tuple[str, ...]:
        return self.ports()

    def start(self) -> None:
        for each in self._order:
            each.direct = self.node.direct(each.name)
        self._began = True
        self._look()

    # -- forward ---------------------------------------------------------------------------------------------
    def busy(self) -> bool:
        """Called whenever the node is woken, for example when a channel has room again."""
        if self.buffer:
            self._route()
        return bool(self.buffer) or not self._open

    def process(self, events: list[Event]) -> None:
        self.buffer = events
        self._route()

    def _route(self) -> None:
        """Distribute the waiting events to the outputs in turn."""
        kept = self.buffer
        order = self._order
        rooms = [self._room(each, len(kept)) for each in order]
        dealt: list[list[Event]] = [[] for _ in order]
        place = 0
        while place < len(kept) and any(rooms):
            turn = self._turn
            self._turn = (turn + 1) % len(order)
            if rooms[turn]:
                rooms[turn] -= 1
                dealt[turn].append(kept[place])
                place += 1
        self.buffer = kept[place:]
        if self.buffer:
            self._stalled.watch()
        clock = now()
        for output, events in zip(order, dealt, strict=True):
            if events:
                self._send(output, events, clock)

    def _send(self, output: RoundrobinOutput, events: list[Event], clock: float) -> None:
        window = output.window
        if output.direct:
            window.sent(send(self.node, events, clock, window.generation, output.name))
        elif RecallableBatch.fits(events):
            batch = RecallableBatch(events, clock, window.generation, output.name)
            events = batch.sent(self.node)
            window.sent(batch)
        else:
            for place, event in enumerate(events):
                lent = RecallableEvent(event, clock, window.generation, output.name)
                events[place] = lent.sent(self.node)
                window.sent(lent)
        self.emit(events, output.name)

    def _room(self, output: RoundrobinOutput, wanted: int) -> int:
        channels = self.node.outputs.get(output.name, ())
        if not output.usable or any(each.full and each.authoritative for each in channels):
            return 0
        return output.window.room(wanted)

    def _full(self) -> list[tuple[str, SendWindow]]:
        waiting = self._order if self.buffer else []
        return [(each.name, each.window) for each in waiting if each.usable and not each.window.room(1)]

    def _stuck_on(self, gathered: Mapping[int, Token]) -> set[int]:
        return stalled(self._full(), gathered)

    # -- back ------------------------------------------------------------------------------------------------
    def settled(self, tokens: list[Token]) -> None:
        again: list[Event] = []
        for token in tokens:
            if token.status == RETRY and self._own(token.reason):
                if isinstance(token.key, RecallableBatch):
                    again.append(token.key.event(token))
                    continue
                if isinstance(token.key, RecallableEvent):
                    token.key.back(token)
                    continue
            if token.parent is not None:
                token.parent.settle(token.status, token.reason)
        for run in runs(tokens):
            output = self.outputs[run.sent.way]
            output.window.back(run)
            self._judge(output, run)
            if not run.sent.left and isinstance(run.sent, RecallableEvent):
                event = run.sent.returned()
                if event is not None:
                    again.append(event)
        self._look()
        self._deal_again(again)

    def _own(self, reason: str) -> bool:
        """Return whether this operator recalled the event."""
        return isinstance(reason, Withdrawn) and reason.by is self.node

    def _lost(self) -> list[str]:
        """Return the outputs that can't be used, whose events can be sent to another one."""
        if not self._open:
            return []
        return [each.name for each in self._order if not each.usable and each.in_flight > 0]

    def _taken_back(self, port: str, events: list[Event]) -> None:
        output = self.outputs[port]
        again: list[Event] = []
        for event in events:
            tokens = unmarked(self.node, event) if output.direct else []
            if not tokens:
                if event.token is not None:
                    event.token.settle(RETRY, Withdrawn(f"{self.node.name}: {output.why}", self.node))
                continue
            for token in tokens:
                sent: SentBatch = token.key
                sent.left -= 1
                output.window.back(ReturnedTokens(sent, 1, answered=False, retry=None, withdrawn=True))
            again.append(event)
        self._deal_again(again)

    def _deal_again(self, events: list[Event]) -> None:
        if events:
            self.buffer = [each.derive(each.value) for each in events] + self.buffer
            self._route()

    def _judge(self, output: RoundrobinOutput, run: ReturnedTokens) -> None:
        if run.sent.generation != output.window.generation:  # sent before it was out of rotation
            return
        if run.retry is None:
            if run.answered:
                output.failed = 0
                if not output.window.limit:
                    output.rest = 0.0
            return
        output.failed += run.size
        if output.usable and (output.window.limit or output.failed >= self._options.failures):
            least = self._options.probe_after
            output.rest = min(output.rest * 2 or least, max(PROBE_MOST, least))
            output.window.begin()
            output.timer = self.node.after(output.rest, lambda: self._rested(output))
            self.node.count("out_of_rotation")

    def _rested(self, output: RoundrobinOutput) -> None:
        output.timer = None
        self._look()

    def breaker(self, message: Trigger | Restore, port: str) -> bool:
        output = self.outputs.get(port)
        if output is None:
            return False
        if isinstance(message, Trigger):
            if output.breaker.trigger(message, now() if self._began else 0.0) and self._began:
                self.node.count("out_of_rotation")
        elif output.breaker.restore(message) and not output.breaker:
            output.failed = 0
            if message.probe:
                output.window.begin()
        self._look()
        return True

    def _look(self) -> None:
        """Update the state after a change of an output."""
        if not self._began:
            return
        usable = [each for each in self._order if each.usable]
        if usable and not self._open:
            self._open = True
            self.node.started()
            self.node.restore(ROUNDROBIN, probe=all(each.window.limit for each in usable))
        elif not usable and self._open:
            self._open = False
            self.node.trigger(ROUNDROBIN, "; ".join(each.why for each in self._order))
        self._recall.look()
