"""``Operator``: the base class of all operators, and ``OperatorRuntime``: what the runtime offers them.

An operator's class declares its ``type`` and its ``Options``. One object is created for each position in a pipeline of
each instance of a flow. It is called by a single task, so it needs no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from tidelog.flows.api.event import Event, EventPredicate, extract
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import Restore, Trigger
from tidelog.flows.api.tokens import Settleable, Token, TokenOwner


class OutputChannel(Protocol):
    """A channel to the next entity."""

    authoritative: bool  # False: a full channel drops events, and their settlement is ignored

    @property
    def full(self) -> bool: ...


class OperatorRuntime(TokenOwner, Protocol):
    """The entity of an operator, implemented by ``runtime.operatornode``."""

    name: str
    context: FlowContext
    draining: bool  # DRAIN has arrived on all inputs

    @property
    def outputs(self) -> Mapping[str, Sequence[OutputChannel]]: ...  # by port; a port without channels is not connected
    @property
    def held(self) -> int: ...  # emitted events that wait for room in a channel

    def emit(self, events: list[Event], port: str = "out") -> None: ...
    def drop(self, events: list[Event], reason: str) -> None: ...
    def fail(self, event: Event, error: BaseException) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...
    def later(self, call: Callable[[], None]) -> None: ...
    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle: ...
    def count(self, name: str, more: int = 1) -> None: ...
    def started(self) -> None: ...
    def trigger(self, kind: str, detail: str = "") -> None: ...
    def restore(self, kind: str, *, probe: bool = False) -> None: ...
    def direct(self, port: str) -> bool: ...
    def recall(self, port: str) -> list[Event]: ...


class Operator:
    """The base class of operators. An operator emits, drops or fails each event, or stores it together with its token.
    """

    type: ClassVar[str] = ""  # name in flow files
    guards: ClassVar[bool] = False
    # The operator handles the breaker messages of its outputs. Sources above have the reason starting:<operator> until
    # the operator restores it.
    gathers: ClassVar[bool] = False  # stores events until others arrive; implements ``gathered`` and ``release``
    transparent: ClassVar[bool] = False  # emits events on ``out`` with value, meta and token unchanged
    last: bool = False  # emits nothing on ``out``, so no operator can follow

    node: OperatorRuntime  # set by the runtime before any method is called
    buffer: list[Event] = ()  # type: ignore[assignment] # stored events: an operator that has some assigns a list

    def ports(self) -> tuple[str, ...]:
        """Return the ports in addition to ``out`` and ``err``."""
        return ()

    def required(self) -> tuple[str, ...]:
        """Return the ports that must be connected."""
        return ()

    def needs_server(self) -> bool:
        """Return whether the operator stores data on the tidelog server (``node.context.server``)."""
        return False

    def start(self) -> None:
        """Prepare for the start of the flow. The event loop runs, and no event has arrived."""

    def process(self, events: list[Event]) -> None:
        """Process a batch. The list and its events belong to the operator."""
        raise NotImplementedError

    def busy(self) -> bool:
        """Return whether the operator accepts no batch at the moment. It wakes its node when this changes. ``drain``
        can be called meanwhile.
        """
        return False

    def drain(self) -> None:
        """Flush the buffered events and stop buffering. Only retries can still arrive."""

    def drained(self) -> bool:
        """Return whether no events are buffered. Called after ``drain``, each time the node is woken."""
        return not self.kept()

    def kept(self) -> int:
        """Return the number of buffered events, for ``unsettled``."""
        return len(self.buffer)

    def gathered(self) -> Iterable[Settleable | None]:
        """Return the tokens of events that are stored until others arrive, such as those of an incomplete batch."""
        return ()

    def release(self) -> None:
        """Emit the gathered events: the source reads nothing until events are settled, and all unsettled events are
        stored here.
        """

    def withdraw(self, wanted: EventPredicate) -> list[Event]:
        """Return buffered events that an operator above recalls. They are no longer buffered here.

        The caller settles their tokens. Events that can't be returned are emitted and recalled further down.
        """
        found: list[Event] = []
        self.buffer = extract(self.buffer, wanted, found)
        return found

    def settled(self, tokens: list[Token]) -> None:
        """Process the settlement of tokens that this operator created. By default, forward it to their parents."""
        for token in tokens:
            if token.parent is not None:
                token.parent.settle(token.status, token.reason)

    def breaker(self, message: Trigger | Restore, port: str) -> bool:  # noqa: ARG002 - others look at them
        """Handle a breaker message from one of the ports. Return False to forward it upward."""
        return False

    def stop(self) -> None:
        """Close connections, because the flow ends. No event can be emitted any more. The runtime cancels timers
        (``node.after``) and tasks (``node.spawn``).
        """

    def forget(self) -> None:
        """Release all stored events after the flow has ended. The cyclic garbage collector does not track events, and
        they refer to this operator.
        """
        self.buffer = []

    # -- operations on events --------------------------------------------------------------------------------
    def emit(self, events: list[Event], port: str = "out") -> None:
        """Emit events on a port. The list no longer belongs to the operator. An empty list has no effect."""
        if events:
            self.node.emit(events, port)

    def drop(self, events: list[Event], reason: str) -> None:
        """Discard events intentionally."""
        if events:
            self.node.drop(events, reason)

    def divert(self, events: list[Event], port: str, reason: str) -> None:
        """Count events under the name of a port and emit them there. If it is not connected, discard them."""
        if events:
            self.node.count(port, len(events))
        if self.node.outputs.get(port):
            self.emit(events, port)
        else:
            self.drop(events, reason)

    def fail(self, event: Event, error: BaseException) -> None:
        """Report an event that can't be processed. It is emitted on ``err`` with ``meta["error"]``, or rejected if
        ``err`` is not connected. After a RetryError, the event is returned to its source for a retry in both cases.
        """
        self.node.fail(event, error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Start a task of this operator, which is cancelled when the flow stops."""
        return self.node.spawn(work)
