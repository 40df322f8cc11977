"""The users of a server: logins, changes, and the effect of a change on connected clients.

Rule 1: a name has the same ``User`` object as long as it exists. Sessions refer to it, so changed rules apply to their
next call.
Rule 2: after a change, clients that are no longer permitted are closed immediately: those whose user was deleted or
disabled, and those that subscribe to a channel, monitor, or replicate without permission. Blocked calls are checked
again (``on_change``).
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Callable

from commands.acl import rules
from commands.acl.rules import RuleError
from commands.admin.clientlist import client_line
from commands.session import Session
from commands.users.denials import Denials
from commands.users.throttle import FREE, LoginThrottle
from commands.users.user import User, hashed, matches_any
from resp import errors
from resp.errors import CommandError
from respserver.clients.clients import Clients
from respserver.clients.listeners import is_loopback
from respserver.config import aclfile
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.observe.logs import Logger
from respserver.runtime.clock import Clock

_NOBODY = [hashed(b"")]  # compared with the password if the user does not exist


class Users:
    """Implements ``UsersPart``. The constructor raises ConfigError."""

    def __init__(self, config: Config, clock: Clock, clients: Clients, logger: Logger) -> None:
        self._config = config
        self._clock = clock
        self._clients = clients
        self._logger = logger
        self._by_name = aclfile.configured(config)
        self._throttle = LoginThrottle()
        self.default = self._by_name[b"default"]
        self.denials = Denials(config.acllog_max_len)
        self.on_change: Callable[[], None] = lambda: None  # called after users have changed
        self._requirepass = config.requirepass
        self._user_bytes = -1  # memory of the users; -1: must be recomputed
        self._warn(self._by_name)

    @property
    def held_bytes(self) -> int:
        """The approximate memory size of the users and of ACL LOG."""
        if self._user_bytes < 0:
            self._user_bytes = sum([user.memory_bytes() for user in self._by_name.values()])
        return self._user_bytes + self.denials.memory_bytes()

    def get(self, name: bytes) -> User | None:
        return self._by_name.get(name)

    def all(self) -> list[User]:
        return [user for _, user in sorted(self._by_name.items())]

    def configure(self) -> None:
        self.denials.resize(self._config.acllog_max_len)
        if self._config.requirepass != self._requirepass:
            self._requirepass = self._config.requirepass
            words = aclfile.password_words(self._config)
            self._adopt({b"default": rules.build_user(b"default", words, self.default)}, None)

    # -- logging in ------------------------------------------------------------------------------------------
    def greet(self, session: Session) -> None:
        session.user = self.default
        session.authenticated = self.default.open
        session.refresh()

    def wait(self, session: Session) -> int:
        source, local = login_source(session)
        return self._throttle.wait(source, local, self._clock.mono())

    def log_in(self, session: Session, name: bytes, password: bytes, command: bytes) -> None:
        user = self._by_name.get(name)
        if user is None:
            matches_any(password, _NOBODY)  # takes as long as for an existing user
        elif user.accepts(password):
            session.user = user
            session.authenticated = True
            session.refresh()
            return
        source, _ = login_source(session)
        if self._throttle.failed(source, self._clock.mono()) == FREE:
            self._logger.warning(f"{FREE} logins from {source} failed; further logins from there are delayed")
        self.note(session, "auth", command, name)
        raise CommandError(errors.BAD_CREDENTIALS)

    def note(self, session: Session, reason: str, what: bytes, user: bytes | None = None) -> None:
        """Add a denial to ACL LOG. ``user``: the name that a failed login gave."""
        context = "multi" if session.multi else "toplevel"
        now, name = self._clock.now(), session.user.name if user is None else user
        self.denials.note(reason, context, what, name, client_line(session, now, []), now)

    def secret(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    # -- changes ---------------------------------------------------------------------------------------------
    def change(self, caller: Session, name: bytes, words: list[bytes]) -> None:
        try:
            rules.check_name(name)
        except RuleError as exc:
            raise CommandError(f"ERR {exc}") from None
        try:
            user = rules.build_user(name, words, self._by_name.get(name))
        except RuleError as exc:
            raise errors.bad_rule(exc.word, str(exc)) from None
        self._warn({name: user})
        self._adopt({name: user}, caller)

    def delete(self, caller: Session, names: list[bytes]) -> int:
        if b"default" in names:
            raise CommandError(errors.DEFAULT_USER_STAYS)
        gone = self._remove(set(names) & self._by_name.keys())
        self._changed(gone, caller)
        return len(gone)

    def _remove(self, names: set[bytes]) -> set[User]:
        gone = {self._by_name.pop(name) for name in names}
        for user in gone:
            user.adopt(User(user.name))  # removes all permissions, also for the rest of a transaction
        return gone

    def load(self, caller: Session) -> None:
        if not self._config.aclfile:
            raise CommandError(errors.NO_ACL_FILE)
        try:
            users = aclfile.read(self._config)
        except ConfigError as exc:
            raise CommandError(f"ERR {exc.text}") from None
        self._warn(users)
        self._adopt(users, caller, *self._remove(self._by_name.keys() - users.keys()))

    def save(self) -> None:
        if not self._config.aclfile:
            raise CommandError(errors.NO_ACL_FILE)
        try:
            aclfile.write(self._by_name, self._config.aclfile)
        except OSError as exc:
            self._logger.warning(f"The ACL file {self._config.aclfile} can't be written: {exc.strerror}")
            raise CommandError(errors.ACL_NOT_SAVED) from None

    def _warn(self, users: aclfile.Users) -> None:
        for line in aclfile.warnings(users.values()):
            self._logger.warning(line)

    def _adopt(self, users: aclfile.Users, caller: Session | None, *others: User) -> None:
        """Adopt these rules for the users of the same names. ``others`` have changed already."""
        changed = set(others)
        for name, new in users.items():
            user = self._by_name.setdefault(name, new)
            if user is not new:
                user.adopt(new)
            changed.add(user)
        self._changed(changed, caller)

    def _changed(self, users: set[User], caller: Session | None) -> None:
        """Close clients that are no longer permitted. ``caller`` gets its reply first."""
        self._user_bytes = -1
        if not self._config.aclfile:
            self._config.user = aclfile.texts(self._by_name, self._config)  # for CONFIG REWRITE
        for session in self._clients.all():
            if session.user not in users:
                continue
            if not session.authenticated:
                session.authenticated = self.default.open
            elif self._by_name.get(session.user.name) is not session.user or _exceeds(session):  # deleted, or limited
                if session is caller:
                    session.close_after_reply = True
                elif session.transport is not None:
                    session.transport.kill()
            session.refresh()
        self.on_change()


def _exceeds(session: Session) -> bool:
    """Return whether the client has a subscription or role that its user does not permit."""
    user = session.user
    if user.unrestricted:
        return False
    return (
        not all(user.may_subscribe(channel, pattern=False) for channel in session.channels)
        or not all(user.may_subscribe(pattern, pattern=True) for pattern in session.patterns)
        or not all(user.may_subscribe(channel, pattern=False) for channel in session.shards)
        or (session.monitoring and "monitor" not in user.commands)
        or (session.replica is not None and "psync" not in user.commands)
    )


def login_source(session: Session) -> tuple[str, bool]:
    """Return the source by which failed logins are counted, and whether it is this machine. For IPv6, the source is the
    network, because a client often has all addresses of its network."""
    if session.unix:
        return "the unix socket", True
    host = session.addr.rpartition(":")[0]
    if host.startswith("["):
        address = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
        if address.ipv4_mapped is not None:
            host = str(address.ipv4_mapped)
        elif not address.is_loopback:
            host = str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return host, is_loopback(session.addr)
