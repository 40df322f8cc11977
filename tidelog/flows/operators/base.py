"""What every operator is.

An operator's class names its ``type`` and the structure of its ``Options``. It is made once for each place in a
pipeline of each instance of a flow, and called by one task, so it needs no locks.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

from tidelog.flows.event import Event
from tidelog.flows.runtime.channel import Wanted
from tidelog.flows.runtime.operatornode import OperatorNode
from tidelog.flows.runtime.signals import Restore, Trigger
from tidelog.flows.tokens import Token, Unsettled


class Operator:
    """Takes batches, emits batches. Every event that it takes it emits, drops, fails, or keeps with its token."""

    type: ClassVar[str] = ""  # its name in flow files
    guards: ClassVar[bool] = False
    # It answers breaker messages of its outputs itself: sources above have starting:<this> until it restores that.

    gathers: ClassVar[bool] = False  # It keeps events until others have come: ``gathered`` and ``release``.

    transparent: ClassVar[bool] = False  # What leaves by ``out`` is what came, its value, its meta and its token.

    last: ClassVar[bool] = False  # nothing leaves by ``out``, so there is nothing for an operator after it

    node: OperatorNode  # set by the runtime before anything is called

    def ports(self) -> tuple[str, ...]:
        """Ports besides ``out`` and ``err``."""
        return ()

    def required(self) -> tuple[str, ...]:
        """Those of its ports that must lead somewhere."""
        return ()

    def needs_server(self) -> bool:
        """Whether it keeps things on the tidelog server (``node.around.server``)."""
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

    def gathered(self) -> Iterable[Unsettled | None]:
        """Tokens of events that it keeps until others have come, as those of a batch that isn't full."""
        return ()

    def release(self) -> None:
        """Send on what is gathered: its source reads nothing more until something is settled, and all waits here."""

    def withdraw(self, wanted: Wanted) -> list[Event]:  # noqa: ARG002 - others keep something
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
