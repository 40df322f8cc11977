"""What every connector is: a source, a sink, or both, and the runtime's side of it.

A connector's class names its ``type`` and the structure of its ``Options`` (``tidelog.options``). It is made once for
each instance of a flow. Where it stands on the left of a connection the runtime pulls from it, on the right it writes
to it; one that does both is connected once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from tidelog.flows.api.connectorcontext import ConnectorContext
from tidelog.flows.api.event import Event, EventPredicate
from tidelog.flows.api.tokens import Token

Outcome: TypeAlias = "int | tuple[int, str] | Sequence[tuple[int, str]]"
# of one event: a status of tokens.py; with a reason; for an event made of several, one of these for each member


class Deferred:
    """What ``write`` returns when it will answer itself, by ``context.answer(event, status, reason)``."""


DEFERRED: Final = Deferred()


class Connector:
    """The life of a connector: made, connected, and after an error connected again, closed."""

    type: ClassVar[str] = ""  # its name in flow files

    context: ConnectorContext  # set by the runtime before anything is called

    @classmethod
    def option_server(cls, options: Any) -> bool:  # noqa: ARG003 - most connectors do not
        """Whether the connector stores data on the flow's server, with these options."""
        return False

    @classmethod
    def option_errors(cls, options: Any, *, source: bool) -> list[str]:  # noqa: ARG003 - most connectors have none
        """Return the reasons why valid options cannot work in a source, or else in a sink."""
        return []

    @classmethod
    def option_warnings(cls, options: Any, *, source: bool) -> list[str]:  # noqa: ARG003
        """Return what does not work on this machine at the moment, for ``tidelog flow check``."""
        return []

    async def connect(self) -> None:
        """Open what is needed. Whatever it raises, the runtime tries again by the ``reconnect`` option."""

    async def close(self) -> None:
        """Give back what is open. Called after an error too, and more than once."""


class Source(Connector):
    """Where events come from."""

    remembers: bool = True  # these two may be set by __init__, from options
    # Events that are to be tried again are kept by the runtime, and sent again after a delay that grows.
    # False: they are given up (udp, metronome): logged, and dead letters. Or ``owns_policy``: the connector sees to it.
    owns_policy: bool = False

    # ``settled`` gets all tokens, whatever their status, and does what is to be done: give back, dead letters.
    def __init__(self) -> None:
        self._interrupted = asyncio.Event()

    @property
    def backlog(self) -> int:
        """Events that were read and can't be read again, for pulls to come. A drain sends them first."""
        return 0

    @property
    def stored(self) -> int:
        """Number of events that the source itself stores, for display: they have not been pulled yet."""
        return self.backlog

    @property
    def room(self) -> int | None:
        """Events that may be pulled before others are settled, where their order limits that; None: it doesn't.

        For a source that can only say "I am done up to here": what lies behind an event that is not settled comes again
        after a crash, settled or not. It is looked at again after ``settled``.
        """
        return None

    async def pull(self, limit: int) -> list[Event] | None:
        """Wait for events and return at most ``limit`` (1 or more) of them; None: there will never be one again.

        ``event.id`` is what ``settled`` needs to know the event by. The runtime sets token, attempt (unless the
        connector did) and ingest time. It never cancels a pull, except at a hard stop: a connector returns an empty
        list soon after ``interrupt`` was called. Raising ConnectionError or OSError means: connect again.
        """
        raise NotImplementedError

    def interrupt(self) -> None:
        """Make the pull under way return. The flow is draining, or the source is paused."""
        self._interrupted.set()

    async def wait(self, work: Awaitable[Any]) -> bool:
        """For ``pull``: wait for ``work`` or an interruption. Whether ``work`` is done; if not it is cancelled.

        What it raises is raised.
        """
        task = asyncio.ensure_future(work)
        other = asyncio.ensure_future(self._interrupted.wait())
        try:
            await asyncio.wait((task, other), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()  # what it raised
            return task.done()
        finally:
            self._interrupted.clear()
            other.cancel()
            if not task.done():
                task.cancel()
            await asyncio.gather(task, other, return_exceptions=True)

    async def settled(self, tokens: Sequence[Token]) -> None:
        """``token.key`` is an event's ID, ``token.status`` what became of it: ok or discard, unless ``owns_policy``.

        One call at a time, with everything that was settled since the last: acknowledge in bulk here. An exception is
        logged, and the same tokens come again later. ConnectionError or OSError means besides: connect again.
        """


class Sink(Connector):
    """Where events go."""

    concurrency: int = 1  # calls of ``write`` at a time; more than one gives up order. May change at any time.

    async def write(self, events: list[Event]) -> Deferred | Sequence[Outcome] | None:
        """Deliver events. None: all are. A list: an outcome for each, in their order.

        RejectError: none of them will ever work. ConnectionError or OSError: connect again; they are given back. Any
        other exception gives them back.
        """
        raise NotImplementedError

    def withdraw(self, wanted: EventPredicate) -> Sequence[Event]:  # noqa: ARG002 - others write events one by one
        """Those events of writes under way that nothing was done for yet, and that are wanted elsewhere. ``write`` must
        not do anything for them any more; an outcome that it returns for them is ignored.
        """
        return ()

    async def flush(self) -> None:
        """The flow is draining and nothing more will come: finish what was put off."""
