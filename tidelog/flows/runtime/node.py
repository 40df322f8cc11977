"""``FlowNode``: an entity of a running flow (a source, an operator or a sink), which runs as one task.

Rule 1: ``step`` performs one action and never waits. The order is: control calls, breaker messages, settlements, held
        batches, new batches.
Rule 2: No entity waits for room in a channel. A batch that does not fit is held, and while batches are held no other
        batch is taken. So contraflow is processed while the way forward is blocked, and a flow, which has no cycles,
        cannot deadlock.
Rule 3: After each step, the task yields to others.

Decision: operators are entities with a queue of their own, not calls in a row. An operator that waits for a server or
stores a batch does not delay the contraflow of others, and every queue is bounded and observable. The cost is one
wake-up per batch, which up to 512 events share.

Decision: a process uses one core. All entities are tasks of one event loop, so tokens, channels and breakers need no
locks. To use more cores, run more processes with the same group, or ``python: {in: process}``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from tidelog.flows.api.event import BATCH, Event, EventPredicate, extract
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import Restore, Signal, Trigger
from tidelog.flows.api.tokens import DISCARD, LostTokenError, SettledTwiceError, Token, TokenGroup, settle_all
from tidelog.flows.runtime.channel import EventChannel

CONTRAFLOW: Final = 1024  # maximum number of settlements handled in one step

log = logging.getLogger("tidelog.flows")


def fail(error: BaseException) -> None:
    """Raise the error. Called by a node's task, this ends the flow."""
    raise error


class FlowNode:
    """The base class of the entities."""

    kind = ""

    def __init__(self, name: str, context: FlowContext) -> None:
        self.name = name
        self.context = context
        self.debug = context.debug
        self.inputs: list[EventChannel] = []
        self.outputs: dict[str, list[EventChannel]] = {}
        self.done: list[Token] = []  # contraflow: settled tokens of this node
        self.active: dict[str, Trigger] = {}  # the active reasons of this node
        self.counts: dict[str, int] = {}  # counters by name
        self.error: BaseException | None = None  # the error that ended the task
        self.draining = False  # DRAIN has arrived on all inputs
        self._calls: deque[Callable[[], None]] = deque()
        self._upward: dict[str, int] = {}  # by reason: the version of the newest message that was forwarded
        self._contra: deque[tuple[Trigger | Restore, EventChannel]] = deque()
        self._held: deque[tuple[EventChannel, list[Event] | Signal]] = deque()
        self._next_input = 0  # the input that is polled first
        self._awake = False
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._timers: WeakSet[asyncio.TimerHandle] = WeakSet()

    # -- the task --------------------------------------------------------------------------------------------
    async def main(self) -> None:
        """Run until ``end`` is called. An exception is a bug of the node: the flow fails, and no event is settled."""
        while not self._ended:
            self._awake = False
            if self.step():
                await asyncio.sleep(0)
            elif not self._awake:
                await self._sleep()

    def end(self) -> list[asyncio.Task[Any]]:
        """Stop immediately; events in flight stay unsettled. Return the tasks that are about to end."""
        self._ended = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        for timer in self._timers:
            timer.cancel()
        self.wake()
        return tasks

    def forget(self) -> None:
        """Release all events and tokens after the flow has ended. The cyclic garbage collector does not track them, and
        they refer to this node.
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
        """Perform one action. Return whether there was one."""
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
        """Call this from the node's task, before any other action."""
        self._calls.append(call)
        self.wake()

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call this from the node's task after a delay, unless the node has ended by then."""
        timer = asyncio.get_running_loop().call_later(seconds, self.later, call)
        self._timers.add(timer)
        return timer

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that is cancelled with the node. An exception in it ends the node."""
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
        """Return whether a batch can be taken."""
        return True

    def _take(self, *, signals_only: bool = False) -> bool:
        """Take the next item of an input. With ``signals_only``, only a signal at the front: a drain waits for events,
        but not for an entity that accepts none.
        """
        inputs = self.inputs
        for number in range(len(inputs)):
            channel = inputs[(self._next_input + number) % len(inputs)]
            if channel.items and (not signals_only or isinstance(channel.items[0], Signal)):
                self._next_input = (self._next_input + number + 1) % len(inputs)
                self._take_from(channel)
                return True
        return False

    def _take_from(self, channel: EventChannel) -> None:
        """Process the next item of an input."""
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
        """Flush, then forward the signal. Called when all inputs have ended."""
        self.emit_signal(Signal.DRAIN)

    def emit(self, events: list[Event], port: str = "out") -> None:
        """Send events on a port. If it is not connected, they are discarded. The list then belongs to the channel."""
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
        elif isinstance(item, Signal) or not channel.full:  # a channel has a single signal
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
        """Move held batches to channels with room. Return whether one was moved."""
        moved = False
        blocked: set[int] = set()  # preserves the order within a channel
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
        """Remove and return events that wait in front of this entity, or for room behind it, and are not being
        processed.

        The caller settles their tokens.
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
    def connected_ports(self) -> Collection[str]:
        return self.outputs.keys()

    @property
    def held(self) -> int:
        """The number of events that found no room."""
        return sum(len(item) for _, item in self._held if not isinstance(item, Signal))

    # -- back ------------------------------------------------------------------------------------------------
    def contra(self, message: Trigger | Restore, channel: EventChannel) -> None:
        """Receive a breaker message from one of the outputs."""
        self._contra.append((message, channel))
        self.wake()

    def on_breaker(self, message: Trigger | Restore, channel: EventChannel) -> None:  # noqa: ARG002 - operators use it
        """Process a breaker message. By default, forward it."""
        self.upward(message)

    def on_settled(self, tokens: list[Token]) -> None:
        """Process settled tokens of this node."""
        raise NotImplementedError

    def upward(self, message: Trigger | Restore) -> None:
        """Forward a breaker message to the inputs. A message that arrives on several paths is forwarded once, and
        outdated messages are dropped.
        """
        if message.version <= self._upward.get(message.reason, 0):
            return
        self._upward[message.reason] = message.version
        for channel in self.inputs:
            channel.producer.contra(message, channel)

    def trigger(self, kind: str, detail: str = "") -> None:
        """Add a reason of this node, which stops all sources above. Has no effect if it is active."""
        reason = f"{kind}:{self.name}"
        if reason not in self.active:
            self.active[reason] = message = Trigger(reason, self.context.version(), detail)
            self.count(f"trigger_{kind}")
            self.upward(message)

    def restore(self, kind: str, *, probe: bool = False) -> None:
        """Remove a reason of this node. Has no effect if it is not active."""
        reason = f"{kind}:{self.name}"
        if self.active.pop(reason, None) is not None:
            self.upward(Restore(reason, self.context.version(), probe))

    def give_up(self, event: Event, status: int, reason: str) -> None:
        """Settle an event that has failed. Without a token, in a flow without settlement, it is logged."""
        if event.token is not None:
            event.token.settle(status, reason)
        else:
            self.context.given_up.add(self.name, reason, event.id, event.value)

    # -- observation -----------------------------------------------------------------------------------------
    def count(self, name: str, more: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + more

    def settled_twice(self, token: Token | TokenGroup) -> None:
        self.count("settled_twice")
        if self.debug:
            error = SettledTwiceError(f"{self.context.flow}: {self.name}: {token!r} was settled before")
            self.later(partial(fail, error))  # the entity that settled the token may catch the exception
            raise error
        log.error("%s: %s: %r was settled twice: ignored", self.context.flow, self.name, token)

    def lost_unsettled(self, text: str) -> None:
        """Called in debug mode if a token of this node was collected before it was settled. The flow fails."""
        if self._ended:
            return
        self.context.lost.append(f"{self.name}: {text}")

        text = f"{self.context.flow}: {self.name}: {text} was dropped before it was settled"
        self.later(partial(fail, LostTokenError(text)))

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}>"
