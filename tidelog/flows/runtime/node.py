"""An entity of a running flow: a source, an operator, a sink. Each is one task.

Rule 1: ``step`` does one thing and never waits: control first, then contraflow, then what was held back, then a batch.
Rule 2: nobody awaits room in a channel. What doesn't fit is held, and while anything is held no batch is taken. So
        contraflow is handled although the way forward is blocked, and a flow without circles can't lock up.
Rule 3: after each step the task lets others run.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from tidelog.flows.api.event import BATCH, Event, EventPredicate, extract
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import Restore, Signal, Trigger
from tidelog.flows.api.tokens import DISCARD, LostTokenError, SettledTwiceError, Token, TokenGroup, settle_all
from tidelog.flows.runtime.channel import EventChannel

CONTRAFLOW: Final = 1024  # settlements handled in one step

log = logging.getLogger("tidelog.flows")


def fail(error: BaseException) -> None:
    """Raise it: called by a node's task, it ends the flow."""
    raise error


class FlowNode:
    """What sources, operators and sinks have in common."""

    kind = ""

    def __init__(self, name: str, context: FlowContext) -> None:
        self.name = name
        self.context = context
        self.debug = context.debug
        self.inputs: list[EventChannel] = []
        self.outputs: dict[str, list[EventChannel]] = {}
        self.done: list[Token] = []  # contraflow: tokens of this node that are settled
        self.standing: dict[str, Trigger] = {}  # reasons that this node owns
        self.counts: dict[str, int] = {}  # what happened here, by name
        self.error: BaseException | None = None  # what ended its task
        self.draining = False  # DRAIN came from all inputs
        self._calls: deque[Callable[[], None]] = deque()
        self._upward: dict[str, int] = {}  # of each reason's newest message that went up
        self._contra: deque[tuple[Trigger | Restore, EventChannel]] = deque()
        self._held: deque[tuple[EventChannel, list[Event] | Signal]] = deque()
        self._turn = 0  # the input that is looked at first
        self._awake = False
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._tasks: set[asyncio.Task[Any]] = set()

    # -- the task --------------------------------------------------------------------------------------------
    async def main(self) -> None:
        """Until ``end`` is called. An exception is a bug of the node: the flow fails, and nothing is settled by it."""
        while not self._ended:
            self._awake = False
            if self.step():
                await asyncio.sleep(0)
            elif not self._awake:
                await self._sleep()

    def end(self) -> list[asyncio.Task[Any]]:
        """At once. What is under way stays unsettled. Returns tasks that are about to end."""
        self._ended = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        self.wake()
        return tasks

    def forget(self) -> None:
        """All of the flow has ended: let go of events and tokens. The collector of circles doesn't look at them, and
        they lead back here.
        """
        self.done = []
        self._held.clear()
        self._calls.clear()
        self._contra.clear()

    def wake(self) -> None:
        if not self._awake:
            self._awake = True
            waiter, self._waiter = self._waiter, None
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _sleep(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def step(self) -> bool:
        """Whether there was something to do."""
        if self._calls:
            self._calls.popleft()()
            return True
        if self._contra:
            message, channel = self._contra.popleft()
            self.on_breaker(message, channel)
            return True
        if self.done:
            done = self.done
            if len(done) <= CONTRAFLOW:
                self.done = []
            else:
                self.done = done[CONTRAFLOW:]
                del done[CONTRAFLOW:]
            self.on_settled(done)
            return True
        if self._held:
            return self._flush()
        return self._take(signals_only=not self.ready())

    def later(self, call: Callable[[], None]) -> None:
        """Have the node's task call this, before anything else."""
        self._calls.append(call)
        self.wake()

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """The same after a time (TICK)."""
        return asyncio.get_running_loop().call_later(seconds, self.later, call)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this node's, cancelled with it. An exception in it ends the node."""
        task = asyncio.get_running_loop().create_task(work, name=f"{self.context.flow}/{self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.later(partial(fail, error))

    # -- forward ---------------------------------------------------------------------------------------------
    def ready(self) -> bool:
        """Whether a batch may be taken."""
        return True

    def _take(self, *, signals_only: bool = False) -> bool:
        """signals_only: nothing that stands behind events. A drain waits for events, not for who can take none."""
        inputs = self.inputs
        for number in range(len(inputs)):
            channel = inputs[(self._turn + number) % len(inputs)]
            if channel.items and (not signals_only or isinstance(channel.items[0], Signal)):
                self._turn = (self._turn + number + 1) % len(inputs)
                self._take_from(channel)
                return True
        return False

    def _take_from(self, channel: EventChannel) -> None:
        """What comes next on one of the inputs."""
        item = channel.take()
        if isinstance(item, Signal):
            channel.drained = True
            if all(each.drained for each in self.inputs):
                self.draining = True
                self.on_drain()
        else:
            self.on_batch(item, channel)

    def on_batch(self, events: list[Event], channel: EventChannel) -> None:
        raise NotImplementedError

    def on_drain(self) -> None:
        """All inputs have ended. Flush, then pass it on."""
        self.emit_signal(Signal.DRAIN)

    def emit(self, events: list[Event], port: str = "out") -> None:
        """Send events out of a port. One that leads nowhere discards them. The list is the channel's from now on."""
        channels = self.outputs.get(port)
        if not channels:
            self.count("unconnected", len(events))
            settle_all(events, DISCARD, f"nothing is connected to {self.name}.{port}")
            return
        while len(events) > BATCH:
            self._send(channels, events[:BATCH])
            events = events[BATCH:]
        if events:
            self._send(channels, events)

    def _send(self, channels: list[EventChannel], events: list[Event]) -> None:
        if len(channels) == 1 and channels[0].authoritative:
            self._put(channels[0], events)
            return
        counted = [each for each in channels if each.authoritative]
        batches = [(each, [event.fork() for event in events]) for each in counted[1:]]
        others = [each for each in channels if not each.authoritative]
        batches += [(each, [event.fork(counted=False) for event in events]) for each in others]
        if counted:
            self._put(counted[0], events)
        else:
            settle_all(events)
        for channel, batch in batches:
            self._put(channel, batch)

    def _put(self, channel: EventChannel, item: list[Event] | Signal) -> None:
        if self._held and any(each is channel for each, _ in self._held):
            self._held.append((channel, item))
        elif isinstance(item, Signal) or not channel.full:  # a signal takes no room: there is one in a channel's life
            channel.put(item)
        elif channel.authoritative:
            self._held.append((channel, item))
        else:
            channel.dropped += len(item)

    def emit_signal(self, signal: Signal) -> None:
        for channels in self.outputs.values():
            for channel in channels:
                self._put(channel, signal)

    def _flush(self) -> bool:
        """Move what is held to channels that have room. Whether something moved."""
        moved = False
        blocked: set[int] = set()  # order within a channel stays
        for _ in range(len(self._held)):
            channel, item = self._held.popleft()
            if id(channel) in blocked or (channel.full and not isinstance(item, Signal)):
                blocked.add(id(channel))
                self._held.append((channel, item))
            else:
                channel.put(item)
                moved = True
        return moved

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        """Take back events that wait before this entity, or for room behind it, and that nothing was done with.

        Their tokens are the caller's to settle.
        """
        found: list[Event] = []
        for channel in self.inputs:
            found += channel.withdraw(wanted)
        if self._held:
            kept = list(self._held)
            self._held.clear()
            for channel, item in kept:
                left = item if isinstance(item, Signal) else extract(item, wanted, found)
                if left:
                    self._held.append((channel, left))
        return found

    @property
    def held(self) -> int:
        """Events that found no room."""
        return sum(len(item) for _, item in self._held if not isinstance(item, Signal))

    # -- back ------------------------------------------------------------------------------------------------
    def contra(self, message: Trigger | Restore, channel: EventChannel) -> None:
        """A breaker message came back on one of the outputs."""
        self._contra.append((message, channel))
        self.wake()

    def on_breaker(self, message: Trigger | Restore, channel: EventChannel) -> None:  # noqa: ARG002 - operators look at it
        """What is not this node's own affair goes further up."""
        self.upward(message)

    def on_settled(self, tokens: list[Token]) -> None:
        """Tokens of this node were settled. By default each one's parent hears the same."""
        for token in tokens:
            if token.parent is not None:
                token.parent.settle(token.status, token.reason)

    def upward(self, message: Trigger | Restore) -> None:
        """Further up: once, where it comes on several ways, and not if there was a newer one."""
        if message.version <= self._upward.get(message.reason, 0):
            return
        self._upward[message.reason] = message.version
        for channel in self.inputs:
            channel.producer.contra(message, channel)

    def trigger(self, kind: str, detail: str = "") -> None:
        """Tell all sources above to stop, because of this node. Any number of times."""
        reason = f"{kind}:{self.name}"
        if reason not in self.standing:
            self.standing[reason] = message = Trigger(reason, self.context.version(), detail)
            self.count(f"trigger_{kind}")
            self.upward(message)

    def restore(self, kind: str, *, probe: bool = False) -> None:
        """Take the reason back. Any number of times."""
        reason = f"{kind}:{self.name}"
        if self.standing.pop(reason, None) is not None:
            self.upward(Restore(reason, self.context.version(), probe))

    # -- what is told of it ----------------------------------------------------------------------------------
    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    def settled_twice(self, token: Token | TokenGroup) -> None:
        self.count("settled_twice")
        if self.debug:
            error = SettledTwiceError(f"{self.context.flow}: {self.name}: {token!r} was settled before")
            self.later(partial(fail, error))  # whoever did it may catch what is raised
            raise error
        log.error("%s: %s: %r was settled twice: ignored", self.context.flow, self.name, token)

    def lost_unsettled(self, text: str) -> None:
        """In debug mode: a token of this node was collected before it was settled. The flow fails."""
        if self._ended:
            return
        self.context.lost.append(f"{self.name}: {text}")

        text = f"{self.context.flow}: {self.name}: {text} was let go of before it was settled"
        self.later(partial(fail, LostTokenError(text)))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"
