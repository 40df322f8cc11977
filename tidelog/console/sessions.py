"""Logged-in users.

Rule 1: a session exists on the console only. The browser has a random cookie, which scripts can't read.
Rule 2: a session ends after IDLE without a request, after LIFETIME in any case, at a logout, and when the server no
        longer accepts the user. Its connection is closed and its password forgotten at the same time.
Rule 3: the number of sessions is limited: PER_USER of one user, of which the least recently used one ends first, and
        TOTAL of all users. The number of failed logins from one address is limited, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from tidelog.console.connection import UserConnection
from tidelog.console.errors import LoginError, UnavailableError
from tidelog.operating.loginfailures import FAILURES, LoginFailures
from tidelog.transport.access import Access

IDLE: Final = 30 * 60.0  # s
LIFETIME: Final = 12 * 3600.0  # s
PER_USER: Final = 20
TOTAL: Final = 500
UNPROTECTED: Final = (
    "A password is required, because other machines can reach the console. If the server's default user has no"
    " password, create a user with one: ACL SETUSER."
)


@dataclass(eq=False)
class ConsoleSession:
    """A logged-in user."""

    token: str = field(repr=False)  # the value of the cookie
    csrf: str = field(repr=False)  # required with each request that changes something
    user: str
    address: str  # of the browser
    connection: UserConnection
    begun: float  # monotonic
    used: float  # monotonic: the last request
    streams: int = 0  # open streams of server-sent events
    searches: int = 0  # in progress
    history_problem: str = ""  # why this user can't record the samples of the plots; empty: none is known
    history_checked: float = 0.0  # monotonic: when ``history_problem`` was determined; 0: not yet
    ended: bool = False


class ConsoleSessions:
    """All sessions of the console. ``clock`` returns seconds that only increase."""

    def __init__(self, access: Access, clock: Callable[[], float] = monotonic) -> None:
        self._access = access
        self._clock = clock
        self._sessions: dict[str, ConsoleSession] = {}
        self._failures = LoginFailures(clock)

    def __iter__(self) -> Iterator[ConsoleSession]:
        """Iterate over the sessions that have not ended, the most recently used one first."""
        self._expire()
        return iter(sorted(self._sessions.values(), key=lambda each: each.used, reverse=True))

    async def log_in(self, user: str, password: str, address: str, on_machine: bool = True) -> ConsoleSession:
        """Start a session. Raises LoginError if the user is refused, UnavailableError if the server is.

        on_machine: the browser is on this machine, so the default user needs no password.
        """
        self._expire()
        if len(self._sessions) >= TOTAL:
            raise UnavailableError(f"{TOTAL} users are logged in, which is the limit. Try again later.")
        if not await self._failures.admits(address):
            raise LoginError(f"{FAILURES} logins from this address have failed. Try again in a minute.")
        connection = UserConnection(self._access, user, password)
        with self._failures.attempt(address, LoginError):
            await connection.log_in()
            try:
                if not on_machine and await connection.needs_no_password():
                    raise LoginError(UNPROTECTED)
            except BaseException:
                connection.close()
                raise
        now = self._clock()
        session = ConsoleSession(
            secrets.token_urlsafe(32), secrets.token_urlsafe(32), user, address, connection, now, now
        )  # fmt: skip
        same = sorted((each for each in self._sessions.values() if each.user == user), key=lambda each: each.used)
        for oldest in same[: max(0, len(same) + 1 - PER_USER)]:
            self.end(oldest)
        self._sessions[session.token] = session
        return session

    def find(self, token: str) -> ConsoleSession | None:
        """Return the session of a cookie, and record its use. None if there is none, or if it has ended."""
        session = self._sessions.get(token)
        if session is None:
            return None
        if self._expired(session):
            self.end(session)
            return None
        session.used = self._clock()
        return session

    def end(self, session: ConsoleSession) -> None:
        """End a session. It can be called more than once."""
        session.ended = True
        self._sessions.pop(session.token, None)
        session.connection.close()

    def end_all(self) -> None:
        for session in tuple(self._sessions.values()):
            self.end(session)

    def _expired(self, session: ConsoleSession) -> bool:
        now = self._clock()
        return now - session.used > IDLE or now - session.begun > LIFETIME

    def _expire(self) -> None:
        for session in tuple(self._sessions.values()):
            if self._expired(session):
                self.end(session)
