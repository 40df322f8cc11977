"""``LeaseLoop``: executes turns while the lease of a worker is held: after hints, and after given times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import redis

from tidelog.client.steps import LOST, CallSender, Steps, arun
from tidelog.coordination import Lease, LeaseLostError
from tidelog.coordination.controlstream import ControlStream
from tidelog.operating.errortexts import FailureLog, text_of
from tidelog.operating.tasks import set_within
from tidelog.transport.asyncconnection import LostError
from tidelog.workers import logs
from tidelog.workers.coordination.member_document import MembersError

log = logs.get(__name__)
AGAIN: Final = 1.0  # seconds until a failed operation is retried


class LeaseLoop:
    """The loop of an ownership, and of the leadership. ``name`` is for log messages.

    A message of ``control`` about ``subject`` is a hint, and so is a change of the lease. ``denied`` is called with
    each error.
    """

    def __init__(
        self, name: str, subject: str, lease: Lease, link: CallSender, control: ControlStream,
        denied: Callable[[BaseException], None] | None = None,
    ) -> None:  # fmt: skip
        self._name = name
        self._subject = subject
        self._lease = lease
        self._link = link
        self._control = control
        self._denied = denied
        self._wake = asyncio.Event()
        self._hinted = True
        self._doubt = False  # whether claims must be compared with the server
        self._trouble = FailureLog(log)
        self._stopping = False
        self._runner: asyncio.Task[None] | None = None
        self._undo: list[Callable[[], None]] = []

    def turn(self, hinted: bool, doubt: bool) -> Steps[float]:
        """Do what is due; returns the seconds until the next turn, unless there is a hint before.

        ``doubt``: compare the claims with the server, as after a lost connection.
        """
        raise NotImplementedError

    def lease_changed(self) -> None:
        """React to the loss of the lease, or to a new tenure."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the loop."""
        self._undo = [self._control.subscribe(self._subject, self.hint)]
        self.watch(self._lease)
        self._runner = asyncio.create_task(self._run(), name=self._name)

    def watch(self, lease: Lease) -> None:
        """Call ``lease_changed`` when this lease is acquired or lost."""
        loop = asyncio.get_running_loop()

        def changed() -> None:  # in the lease's thread
            loop.call_soon_threadsafe(self.lease_changed)

        self._undo.append(lease.watch(changed))

    def hint(self, doubt: bool = False) -> None:
        """Request a turn soon. ``doubt``: see ``turn``."""
        self._hinted = True
        self._doubt |= doubt
        self._wake.set()

    def unsubscribe(self) -> None:
        """Receive no more hints."""
        for undo in self._undo:
            undo()

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            wait = await self._try_turn() if self._lease.held else self._lease.ttl
            if not self._stopping:
                await set_within(self._wake, wait)

    async def _try_turn(self) -> float:
        hinted, doubt = self._hinted, self._doubt
        self._hinted = self._doubt = False
        try:
            wait = await arun(self._link, self.turn(hinted, doubt))
        except LeaseLostError:
            return self._lease.ttl
        except (*LOST, redis.ResponseError, MembersError) as error:
            if not isinstance(error, LostError):  # already logged by the connector
                self._trouble.warn(f"{self._name}: {text_of(error)}; trying again")
            if self._denied is not None:
                self._denied(error)
            self._hinted = True
            self._doubt |= doubt or isinstance(error, LOST)
            return AGAIN
        except Exception:
            log.exception("%s: unexpected error in a turn; trying again", self._name)
            self._hinted = self._doubt = True
            return AGAIN
        self._trouble.succeeded()
        return wait
