"""``HistoryRecorder``: appends a sample at each interval, as a logged-in user who may do so.

Rule 1: without a logged-in user, nothing is recorded, because the console has no rights of its own.
        In a cluster, a sample has the sums over the leaders of all groups. While one does not reply, none is recorded.
Rule 2: the permission of a user who lacked it is checked again after RECHECK, because permissions can change.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic, time
from typing import Final

from tidelog.console import history
from tidelog.console.errors import GroupUnavailableError, SessionEndedError, UnavailableError
from tidelog.console.infotext import ServerInfo, summed
from tidelog.console.sessions import ConsoleSession, ConsoleSessions
from tidelog.transport.call import Call
from tidelog.transport.errors import message_of

RECHECK: Final = 60.0  # s
FRESH: Final = 0.8  # of the interval: a newer sample makes another one unnecessary
DISABLED: Final = "The console was started with --no-history."

log = logging.getLogger("tidelog.console")


class HistoryRecorder:
    """Records while it runs: ``await HistoryRecorder(sessions).run()``."""

    def __init__(self, sessions: ConsoleSessions, interval: float = history.INTERVAL) -> None:
        self._sessions = sessions
        self._interval = interval

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for session in self._sessions:
                if await self.record(session):
                    break

    async def record(self, session: ConsoleSession) -> bool:
        """Append a sample as this user, unless the newest one is recent. Returns False if the user can't do that."""
        if session.history_problem and monotonic() - session.history_checked < RECHECK:
            return False
        try:
            session.history_problem = await self._record(session)
        except SessionEndedError:
            self._sessions.end(session)
            return False
        except UnavailableError as error:
            session.history_problem = ""  # it is not known
            log.debug("no sample: %s", error)
            return False
        except Exception as error:  # a sample must not prevent a login
            log.error("no sample: %s", error, exc_info=error)
            session.history_problem = f"Internal error: {type(error).__name__}. The log of the console has more."
        session.history_checked = monotonic()
        return not session.history_problem

    async def _record(self, session: ConsoleSession) -> str:
        """Append a sample. Returns why it can't be appended, empty if it was."""
        connection = session.connection
        (newest,) = await connection.poll(history.newest_call())
        info, leaders = Call(("INFO",), ServerInfo.parse), await connection.leaders()
        infos = [reply for (reply,) in await asyncio.gather(*(connection.poll(info, at=each) for each in leaders))]
        for reply, what in (*((each, "INFO") for each in infos), (newest, f"to read {history.KEY}")):
            if isinstance(reply, GroupUnavailableError):
                raise UnavailableError(str(reply))
            if isinstance(reply, Exception):
                return f"The server refuses {what}: {message_of(reply)}"
        if not all(each.leads for each in infos):
            return "This server is a replica. Only its leader can record."
        now = int(time() * 1000)
        if newest is not None and now - newest < FRESH * 1000 * self._interval:
            return ""
        (reply,) = await connection.change(history.append_call(history.sample_of(summed(infos), now)))
        return f"The server refuses to append to {history.KEY}: {message_of(reply)}" if _refused(reply) else ""


def _refused(reply: object) -> bool:
    return isinstance(reply, Exception)
