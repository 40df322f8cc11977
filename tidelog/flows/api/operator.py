"""``Operator``: the base class of all operators, and ``OperatorRuntime``: what the runtime offers them.

An operator's class declares its ``type`` and its ``Options``. One object is created for each position in a pipeline of
each instance of a flow. It is called by a single task, so it needs no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.flowcontext import FlowContext
from tidelog.flows.api.signals import Restore, Trigger
from tidelog.flows.api.tokens import Settleable, Token, TokenOwner


class OutputChannel(Protocol):
    """A channel to the next entity."""

    authoritative: bool  # False: a full channel drops events, and their settlement does not count

    @property
    def full(self) -> bool: ...


class OperatorRuntime(TokenOwner, Protocol):
    """The entity of an operator (``runtime.operatornode``)."""

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
    """Takes batches, emits batches. Every event that it takes it emits, drops, fails, or keeps with its token."""

    type: ClassVar[str] = ""  # its name in flow files
    guards: ClassVar[bool] = False
    # It answers breaker messages of its outputs itself: sources above have starting:<this> until it restores that.

    gathers: ClassVar[bool] = False  # It keeps events until others have come: ``gathered`` and ``release``.

    transparent: ClassVar[bool] = False  # What leaves by ``out`` is what came, its value, its meta and its token.

    last: ClassVar[bool] = False  # nothing leaves by ``out``, so there is nothing for an operator after it

    node: OperatorRuntime  # set by the runtime before anything is called

    def ports(self) -> tuple[str, ...]:
        """Ports besides ``out`` and ``err``."""
        return ()

    def required(self) -> tuple[str, ...]:
        """Those of its ports that must lead somewhere."""
        return ()

    def needs_server(self) -> bool:
        """Whether it keeps things on the tidelog server (``node.context.server``)."""
        return False

    def start(self) -> None:
        """The flow is about to start: the loop runs, nothing has come."""

    def process(self, events: list[Event]) -> None:
        """A batch: the list and its events are the operator's own."""
        raise NotImplementedError

    def busy(self) -> bool:
        """True: no batch is taken now. The operator wakes its node when that changes. ``drain`` may come meanwhile."""
        return False

    def drain(self) -> None:
        """Nothing more comes, except what is tried again: flush, and from now on keep nothing back."""

    def drained(self) -> bool:
        """Whether nothing is kept any more. Asked after ``drain``, whenever the node was woken."""
        return not self.kept()

    def kept(self) -> int:
        """Events that it holds, for ``unsettled``."""
        return 0

    def gathered(self) -> Iterable[Settleable | None]:
        """Tokens of events that it keeps until others have come, as those of a batch that isn't full."""
        return ()

    def release(self) -> None:
        """Send on what is gathered: its source reads nothing more until something is settled, and all waits here."""

    def withdraw(self, wanted: EventPredicate) -> list[Event]:  # noqa: ARG002 - others keep something
        """Events that are kept and wanted by an operator before this one: it takes them back. They are kept no more,
        and their tokens are settled by the caller. What can't be given back goes on, and is taken back further down.
        """
        return []

    def settled(self, tokens: list[Token]) -> None:
        """Tokens that this operator made (owner: its node) were settled. Passes them on to their parents."""
        for token in tokens:
            if token.parent is not None:
                token.parent.settle(token.status, token.reason)

    def breaker(self, message: Trigger | Restore, port: str) -> bool:  # noqa: ARG002 - others look at them
        """A breaker message came back on one of the ports. False: it goes further up."""
        return False

    def stop(self) -> None:
        """The flow ends: cancel timers, close what is open. Nothing can be emitted any more."""

    def forget(self) -> None:
        """All of the flow has ended: let go of events that are kept. The collector of circles doesn't look at events,
        and they lead back here.
        """

    # -- what operators do with events -----------------------------------------------------------------------
    def emit(self, events: list[Event], port: str = "out") -> None:
        """Send events on. The list is not the operator's any more."""
        self.node.emit(events, port)

    def drop(self, events: list[Event], reason: str) -> None:
        """End events on purpose."""
        self.node.drop(events, reason)

    def fail(self, event: Event, error: BaseException) -> None:
        """An event that can't be processed: to ``err`` with ``meta["error"]``, or where that leads nowhere it is
        rejected, or given back if the error is a RetryError.
        """
        self.node.fail(event, error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A task of this operator's, cancelled when the flow stops."""
        return self.node.spawn(work)
