"""``GatewayUsers``: the users whose requests are served, each with connections that are authenticated as this user.

Rule 1: the server decides everything. A request is executed on a connection of its user.
Rule 2: a name and a password are verified by a login on the server, and again after VERIFIED seconds. In the meantime,
        a keyed digest of the password identifies the user. The password is stored only here, because each new
        connection needs it, and only while the user is in use.
        The server accepts any password for a default user without one, so the gateway checks whether it has one.
Rule 3: failed logins of an address are limited. Users that the gateway already knows are not affected.
Rule 4: a request has a connection of its own while it is executed, so that an error of the connection concerns no other
        request. A user has at most CONNECTIONS of them for requests; further requests wait.
Rule 5: calls that can be repeated without effect are repeated for PATIENCE seconds if the leader changes or the server
        does not answer. Other calls are sent once.
Rule 6: if several groups of a cluster share the slots, a connection is one to each leader that it has used
        (``routedconnection``). A leader may refuse the login of a user when the first call is sent to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from time import monotonic
from typing import Any, Final

import redis

from tidelog.client.entries import Batch
from tidelog.gateway.errors import ProblemError, ServerUnavailableError, no_password, problem_of, unavailable
from tidelog.gateway.limits import READS, USERS
from tidelog.operating.loginfailures import FAILURES, WINDOW, LoginFailures
from tidelog.operating.tasks import BackgroundTasks
from tidelog.transport.access import Access
from tidelog.transport.asyncconnection import AsyncConnection, LostError, needs_no_password
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.call import Call, plain
from tidelog.transport.errors import is_denied, is_temporary
from tidelog.transport.routedconnection import connect_to_groups

NAME: Final = "tidelog-gateway"  # of the connections, in CLIENT LIST
ANSWER_MS: Final = 10_000  # timeout of connecting and of each reply
DEFAULT_USER: Final = "default"
VERIFIED: Final = 30.0  # s
AGAIN: Final = 2.0  # s after which a login that the server did not answer is repeated
CONNECTIONS: Final = 16
PATIENCE: Final = 10.0  # s
IDLE: Final = 60.0  # s after which an unused user is forgotten
BACKOFF: Final = Backoff(first=0.05, most=1.0, jitter=0.3)


class GatewayUser:
    """One user. ``in_use`` counts what needs it apart from requests: tokens and readers."""

    def __init__(self, access: Access, name: str, password: str, reads: asyncio.Semaphore | None = None) -> None:
        """reads: limits the pages that are read at the same time, for all users."""
        self.name = name
        self._reads = reads or asyncio.Semaphore(READS)
        given: str | None = password
        if name == DEFAULT_USER and not password:
            given = None  # without AUTH: the server decides whether its default user needs a password
        self._access = replace(access, username=name, password=given).single_attempt(ANSWER_MS)
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._own_reads = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[AsyncConnection] = []
        self._verifying = asyncio.Lock()
        self.closed = False
        self.open_to_all = given is None  # the server accepts this user without a password; determined by ``verify``
        self.verified = -VERIFIED  # monotonic: the last login
        self._unanswered = -math.inf  # monotonic: when the server did not answer a login
        self.used = monotonic()
        self.in_use = 0

    @property
    def authentication(self) -> list[Call[Any]]:
        """The call that logs in again on a connection; none for a default user without a password."""
        password = self._access.password
        return [] if password is None else [plain("AUTH", self.name, password)]

    async def verify(self) -> None:
        """Log in on the server unless that was done recently. Raises ProblemError, ServerUnavailableError."""
        async with self._verifying:
            if monotonic() - self.verified < VERIFIED:
                return
            if monotonic() - self._unanswered < AGAIN:
                raise ServerUnavailableError("the server does not answer")
            try:
                connection = await self.open()
                try:
                    if connection.several_groups:  # no leader may have been sent the password yet
                        await _logged_in(connection)
                    if self.name == DEFAULT_USER and self._access.password is not None:
                        self.open_to_all = await self._needs_no_password()
                except BaseException:
                    connection.close()
                    raise
            except ServerUnavailableError:
                self._unanswered = monotonic()
                raise
            self.verified = monotonic()
            if self._idle:  # the new connection replaces the oldest one
                self._idle.pop(0).close()
            self._put_back(connection)

    async def open(self) -> AsyncConnection:
        """Open a connection, which the caller closes. Raises ProblemError, ServerUnavailableError."""
        if self.closed:
            raise unavailable("The gateway is closing the connections of this user. Try again.")
        try:
            return await connect_to_groups(self._access, NAME)
        except redis.ResponseError as error:
            self.verified = -VERIFIED
            if is_temporary(error):
                raise ServerUnavailableError(str(error)) from None
            raise problem_of(error) from None
        except (OSError, TimeoutError) as error:
            if is_denied(error):  # the user has no permission to read the map of a cluster
                self.verified = -VERIFIED
                raise problem_of(error) from None
            raise ServerUnavailableError(f"no answer from {self._access.places}: {str(error) or 'timeout'}") from None

    async def _needs_no_password(self) -> bool:
        try:
            return await needs_no_password(self._access, NAME)
        except (OSError, TimeoutError) as error:
            raise ServerUnavailableError(str(error) or "timeout") from None

    async def repeat(self, *calls: Call[Any]) -> list[Any]:
        """Send calls that can be repeated (Rule 5). Returns their results, including error replies.

        Raises ProblemError.
        """
        delays, until = Delays(BACKOFF), monotonic() + PATIENCE
        while True:
            try:
                async with self._connection() as connection:
                    return await replies_of(connection, calls)
            except (LostError, ServerUnavailableError) as error:
                if monotonic() >= until:
                    raise unavailable(str(error)) from None
            await asyncio.sleep(delays.next())

    async def read(self, call: Call[Any]) -> Any:
        """Send one call that can be repeated. Raises ProblemError, also for an error reply."""
        return result_of((await self.repeat(call))[0])

    async def read_page(self, call: Call[Batch]) -> Batch:
        """Send a call as ``read`` does. The reply may be large."""
        async with self._own_reads, self._reads:
            found: Batch = await self.read(call)
            return found

    async def once(self, *calls: Call[Any]) -> list[Any]:
        """Send calls once, as ``repeat`` does. Raises ProblemError: the calls may have been executed."""
        try:
            async with self._connection() as connection:
                return await replies_of(connection, calls)
        except ServerUnavailableError as error:
            raise unavailable(str(error)) from None
        except LostError as error:
            if error.refusal:
                raise unavailable(str(error), _server_text(error).partition(" ")[0]) from None
            raise unavailable(
                f"{error}. The request may have been executed. With an Idempotency-Key, it can be repeated safely."
            ) from None  # fmt: skip

    def close(self) -> None:
        """Close the connections, and forget the password."""
        self.closed = True
        self._access = replace(self._access, password=None)
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count a use until the context ends."""
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1
            self.used = monotonic()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        async with self._slots:
            self.used = monotonic()
            connection = None
            while self._idle and connection is None:
                last = self._idle.pop()
                connection = last if last.lost is None else None
            connection = connection or await self.open()
            try:
                yield connection
            finally:
                self._put_back(connection)

    def _put_back(self, connection: AsyncConnection) -> None:
        if self.closed:
            connection.close()
        elif connection.lost is None:
            self._idle.append(connection)


class GatewayUsers:
    """All users in use. ``clock`` returns seconds that only increase."""

    def __init__(self, access: Access, clock: Callable[[], float] = monotonic) -> None:
        self._access = access
        self._failures = LoginFailures(clock)
        self._users: dict[tuple[str, bytes], GatewayUser] = {}
        self._logins: dict[tuple[str, bytes, bool], asyncio.Task[GatewayUser]] = {}
        self._tasks = BackgroundTasks(_retrieve)
        self._reads = asyncio.Semaphore(READS)
        self._secret = secrets.token_bytes(32)

    async def log_in(self, name: str, password: str, address: str, on_machine: bool = True) -> GatewayUser:
        """Return a user. Raises ProblemError.

        address: that of the client; empty: a failure does not count. on_machine: the client is on this machine, so the
        default user needs no password.
        """
        key = name, hmac.digest(self._secret, password.encode(), hashlib.sha256)
        known = self._users.get(key)
        if known is not None:
            return _checked(await self.verified(known), on_machine)
        login = self._logins.get((*key, on_machine))
        if login is None:
            login = self._tasks.spawn(self._log_in(key, password, address, on_machine))
            self._logins[*key, on_machine] = login
            login.add_done_callback(lambda _: self._logins.pop((*key, on_machine), None))
        try:
            return await asyncio.shield(login)
        except ServerUnavailableError as error:
            raise unavailable(str(error)) from None

    async def verified(self, user: GatewayUser) -> GatewayUser:
        """Log in again if that is due. If the server does not answer, the user's own requests report that."""
        try:
            await user.verify()
        except ServerUnavailableError:
            pass
        except ProblemError:
            self._forget(user)
            raise
        return user

    @property
    def count(self) -> int:
        """The number of users in use."""
        return len(self._users)

    def sweep(self) -> None:
        """Forget users that are not in use."""
        now = monotonic()
        for user in [user for user in self._users.values() if not user.in_use and now - user.used > IDLE]:
            self._forget(user)

    def close(self) -> None:
        for user in list(self._users.values()):
            self._forget(user)

    async def _log_in(
        self, key: tuple[str, bytes], password: str, address: str, on_machine: bool
    ) -> GatewayUser:  # fmt: skip
        if address and not await self._failures.admits(address):
            text = f"{FAILURES} logins from this address have failed. Try again in a minute."
            raise ProblemError(429, "too-many-failures", text, {"Retry-After": f"{WINDOW:.0f}"})
        user = GatewayUser(self._access, key[0], password, self._reads)
        with self._failures.attempt(address, ProblemError) if address else nullcontext():
            await user.verify()
            if user.open_to_all and not on_machine:
                user.close()
            _checked(user, on_machine)
        if len(self._users) >= USERS:
            unused = min((each for each in self._users.values() if not each.in_use), key=_used, default=None)
            if unused is None:
                user.close()
                raise unavailable(f"The gateway has the maximum of {USERS} users. Try again later.", "full")
            self._forget(unused)
        self._users[key] = user
        return user

    def _forget(self, user: GatewayUser) -> None:
        for key in [key for key, each in self._users.items() if each is user]:
            del self._users[key]
        user.close()


def _checked(user: GatewayUser, on_machine: bool) -> GatewayUser:
    """Return a user. Raises ProblemError if it needs no password, and the client is not on this machine."""
    if user.open_to_all and not on_machine:
        raise no_password()
    return user


async def _logged_in(connection: AsyncConnection) -> None:
    """Send a call to a leader, so that it has accepted the password. Raises ProblemError, ServerUnavailableError."""
    try:
        result_of((await replies_of(connection, [plain("PING")]))[0])
    except LostError as error:
        raise ServerUnavailableError(str(error)) from None


async def replies_of(connection: AsyncConnection, calls: Sequence[Call[Any]]) -> list[Any]:
    """Send calls, and return their results, including error replies.

    Raises LostError, and ProblemError if a leader refuses the login, or if the user may not read the map of a cluster.
    """
    try:
        return await connection.send(calls)
    except LostError as error:
        text = _server_text(error)
        if is_denied(text):
            raise problem_of(redis.ResponseError(text)) from None
        if connection.advice and text.startswith("MOVED "):
            raise ProblemError(403, "NOPERM", text) from None
        raise


def _server_text(error: LostError) -> str:
    """Return the error reply that closed a connection, without the URL of the server before it."""
    place, colon, text = str(error).partition(": ")
    return text if colon and "://" in place else str(error)


def _used(user: GatewayUser) -> float:
    return user.used


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark the exception of a login as handled if every client that waited for it has disconnected."""
    if not task.cancelled():
        task.exception()


def result_of(result: Any) -> Any:
    """Return a result. Raises ProblemError for an error reply."""
    if isinstance(result, Exception):
        raise problem_of(result)
    return result
