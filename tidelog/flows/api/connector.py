"""``Source`` and ``Sink``: the base classes of all connectors.

A connector's class declares its ``type`` and its ``Options`` (``tidelog.options``). One object is created for
each instance of a flow. On the left side of an edge, the runtime pulls events from it; on the right side, it writes
events to it. A connector on both sides has a single connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.tokens import Token

Outcome: TypeAlias = "int | tuple[int, str] | Sequence[tuple[int, str]]"
# the outcome of one event: a status (``tokens``), a status with a reason, or one of these for each member of a group


class Deferred:
    """Returned by ``write`` if the sink calls ``context.answer(event, status, reason)`` later."""


DEFERRED: Final = Deferred()


class Connector:
    """The life cycle of a connector: created, connected, reconnected after errors, closed."""

    type: ClassVar[str] = ""  # its name in flow files

    context: ConnectorContext  # set by the runtime before any method is called

    @classmethod
    def option_server(cls, options: Any) -> bool:  # noqa: ARG003 - most connectors do not
        """Return whether the connector stores data on the tidelog server of the flow with these options."""
        return False

    @classmethod
    def option_errors(cls, options: Any, *, source: bool) -> list[str]:  # noqa: ARG003 - most connectors have none
        """Return the reasons why valid options cannot work in a source (``source``), or in a sink."""
        return []

    @classmethod
    def option_warnings(cls, options: Any, *, source: bool) -> list[str]:  # noqa: ARG003
        """Return the reasons why options do not work on this machine at the moment, for ``tidelog flow check``."""
        return []

    async def connect(self) -> None:
        """Open the connection. After any exception, the runtime tries again according to the ``reconnect`` option."""

    async def close(self) -> None:
        """Release all resources. Also called after an error, and can be called several times."""


class Source(Connector):
    """A source of events."""

    remembers: bool = True
    # The runtime stores events that must be retried and sends them again after an increasing delay. False: such events
    # are given up (udp, metronome), which means that they are logged and become dead letters.
    owns_policy: bool = False
    # ``settled`` gets all tokens, whatever their status, and implements retries and dead letters itself.
    # Both can also be set by ``__init__``, from options.

    @classmethod
    def option_errors(cls, options: Any, *, source: bool) -> list[str]:
        policy = options.on_error
        if not source or cls.remembers or policy.is_default:
            return []
        why = "is not possible, because the source can't send an event again"
        if policy.action in ("pause", "halt"):
            return [f"on_error: {policy.action} {why}: use dead_letter"]
        if policy.retry is not None:
            return [f"on_error: retry {why}: use on_error: {policy.action}, and the operator retry in a pipeline"]
        return []

    def __init__(self) -> None:
        self._interrupted = asyncio.Event()

    @property
    def backlog(self) -> int:
        """The number of events that were read from the peer and cannot be read again. A drain sends them first."""
        return 0

    @property
    def stored(self) -> int:
        """The number of events that the source itself stores and that have not been pulled, for display."""
        return self.backlog

    @property
    def lag(self) -> int | None:
        """The number of events that the peer has and that were not pulled, for display. None: unknown."""
        return None

    @property
    def room(self) -> int | None:
        """The number of events that may be pulled before others are settled. None: unlimited.

        For a source that can only acknowledge a position: events after the first unsettled event are delivered again
        after a crash, even if they are settled. The runtime reads the property again after ``settled``.
        """
        return None

    async def pull(self, limit: int) -> list[Event] | None:
        """Wait for events and return at most ``limit`` (1 or more) of them. None: there will be no further events.

        ``event.id`` identifies the event for ``settled``. The runtime sets the token, the ingest time, and the attempt,
        unless the connector sets it. The runtime does not cancel a pull, except for an immediate stop: a connector
        returns an empty list soon after ``interrupt`` was called. After ConnectionError or OSError the runtime
        reconnects.
        """
        raise NotImplementedError

    def interrupt(self) -> None:
        """Make the current pull return, because the flow drains or the source is paused."""
        self._interrupted.set()

    async def wait(self, work: Awaitable[Any]) -> bool:
        """Wait for ``work`` in ``pull``. Return True if it is done, or False if ``interrupt`` was called and it was
        cancelled.

        Exceptions of ``work`` are raised.
        """
        task = asyncio.ensure_future(work)
        other = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait((task, other), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()  # raises the exception of ``work``
                return True
            self._interrupted.clear()  # not if both happened at once: the next wait must notice the interruption
            return False
        finally:
            other.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, other, return_exceptions=True)

    async def settled(self, tokens: Sequence[Token]) -> None:
        """Process the settlement of events. ``token.key`` is the event's ID, ``token.status`` the outcome: OK or
        DISCARD, unless ``owns_policy`` is set.

        There is one call at a time, with all tokens that were settled since the last one, so that they can be
        acknowledged together. An exception is logged, and the tokens are passed again later. After ConnectionError or
        OSError the runtime also reconnects.
        """


class Sink(Connector):
    """A destination of events."""

    concurrency: int = 1  # concurrent calls of ``write``; if above 1, the order of events is lost; can change

    async def write(self, events: list[Event]) -> Deferred | Sequence[Outcome] | None:
        """Write events. Return None if all were written, or an outcome for each event, in order.

        RejectError: the events can never be written. ConnectionError or OSError: the runtime reconnects, and the events
        are retried. Any other exception: the events are retried.
        """
        raise NotImplementedError

    def withdraw(self, wanted: EventPredicate) -> Sequence[Event]:  # noqa: ARG002 - others write events one by one
        """Return those events of the current writes that are not yet being processed and for which ``wanted`` is true.

        ``write`` must not process them any more. Any outcome that it returns for them is ignored.
        """
        return ()

    async def flush(self) -> None:
        """Complete deferred work. Called when the flow is draining and no further events will come."""
