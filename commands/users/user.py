"""One user: flags, passwords, commands, keys and channels.

Rule 1: only ``commands.acl.rules`` changes users. This module decides what a user may do.
Rule 2: passwords are stored only as hashes. Every comparison takes the same time, whether it succeeds or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from commands.users.patterns import Matcher, Pattern

# Memory of a user's objects, a password, a command rule, and an element of a set of commands.
USER_BYTES: Final = 1000
PASSWORD_BYTES: Final = 200
RULE_BYTES: Final = 150
COMMAND_BYTES: Final = 40


class User:
    """A user. A new one is off, has no password, and may do nothing."""

    __slots__ = (
        "_channels", "_keys", "all_channels", "all_commands", "all_keys", "channels", "commands", "enabled", "keys",
        "name", "nopass", "passwords", "rules", "unrestricted", "widens",
    )  # fmt: skip

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.enabled = False  # may log in
        self.nopass = False  # any password is accepted
        # SHA-256 in lower-case hex, in the order in which they were added
        self.passwords: dict[bytes, None] = {}
        self.commands: frozenset[str] = frozenset()  # names of allowed commands and subcommands, as declared
        self.all_commands = False
        # how ``commands`` was derived, for ACL LIST: from all (True) or none (False), then the words in ``rules``
        self.widens = False
        self.rules: list[str] = []
        self.all_keys = False
        self.keys: dict[bytes, Pattern] = {}  # keyed by pattern
        self.all_channels = False
        self.channels: dict[bytes, Pattern] = {}
        self._keys, self._channels = Matcher(()), Matcher(())  # built from ``keys`` and ``channels``
        self.unrestricted = False  # may do everything, so no check is necessary

    def adopt(self, other: User) -> None:
        """Copy everything except the name from ``other``. Clients that have logged in keep this object."""
        for field in self.__slots__:
            if field != "name":
                setattr(self, field, getattr(other, field))
        self.passwords, self.rules = other.passwords.copy(), list(other.rules)
        self.keys, self.channels = other.keys.copy(), other.channels.copy()

    def refresh(self) -> None:
        """Recompute ``unrestricted`` and the matchers."""
        self.unrestricted = self.all_commands and self.all_keys and self.all_channels
        self._keys, self._channels = Matcher(self.keys.values()), Matcher(self.channels.values())

    def memory_bytes(self) -> int:
        """Return the approximate memory of the user in bytes, including its text for CONFIG REWRITE."""
        size = USER_BYTES + 2 * len(self.name) + PASSWORD_BYTES * len(self.passwords) + RULE_BYTES * len(self.rules)
        if not self.all_commands:
            size += COMMAND_BYTES * len(self.commands)
        patterns = [*self.channels.values(), *self.keys.values()]
        return size + sum([each.glob.memory_bytes() + len(each.glob.pattern) for each in patterns])

    # -- passwords -------------------------------------------------------------------------------------------
    def accepts(self, password: bytes) -> bool:
        """Return whether the user may log in with the password."""
        right = matches_any(password, self.passwords)
        return self.enabled and (right or self.nopass)

    @property
    def open(self) -> bool:
        """Whether the user may log in without a password."""
        return self.enabled and self.nopass

    # -- keys and channels -----------------------------------------------------------------------------------
    def may_touch(self, key: bytes, reads: bool, writes: bool) -> bool:
        """Return whether one pattern allows all of this access to the key; without access, whether one matches."""
        if self.all_keys:
            return True
        for pattern in self._keys.matching(key):
            if (pattern.read or not reads) and (pattern.write or not writes):
                return True
        return False

    def may_subscribe(self, channel: bytes, pattern: bool) -> bool:
        """Return whether the channel may be used. A ``pattern`` (of PSUBSCRIBE) must equal a pattern of the user."""
        if self.all_channels:
            return True
        if pattern:
            return channel in self.channels
        return next(self._channels.matching(channel), None) is not None


def hashed(password: bytes) -> bytes:
    """Return the SHA-256 in lower-case hex, the form in which Redis stores passwords."""
    return sha256(password).hexdigest().encode()


def matches_any(password: bytes, hashes: Iterable[bytes]) -> bool:
    """Return whether the password has one of the hashes. All of them are compared."""
    given = hashed(password)
    found = False
    for each in hashes:
        found = compare_digest(given, each) | found
    return found


def superuser() -> User:
    """Return a user who may do everything and belongs to no registry, for this server's link to its leader."""
    user = User(b"(superuser)")
    user.enabled = user.nopass = user.all_commands = user.widens = user.all_keys = user.all_channels = True
    user.refresh()
    return user
