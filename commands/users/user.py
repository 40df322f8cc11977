"""One user: flags, passwords, commands, keys and channels.

Rule 1: ``rules`` changes users. Here is what a user may do.
Rule 2: passwords are kept as hashes only. Every comparison takes the same time, whether it succeeds or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from commands.users.patterns import Matcher, Pattern

# Memory of a user's objects, a password, a rule for commands, and a place in a set of commands.
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
        self.nopass = False  # any password is right
        # SHA-256 in lower-case hex, in the order in which they were added
        self.passwords: dict[bytes, None] = {}
        self.commands: frozenset[str] = frozenset()  # names of allowed commands and subcommands, as declared
        self.all_commands = False
        # how ``commands`` came to be, for ACL LIST: all (True) or none (False), then the words in ``rules``
        self.widens = False
        self.rules: list[str] = []
        self.all_keys = False
        self.keys: dict[bytes, Pattern] = {}  # by pattern
        self.all_channels = False
        self.channels: dict[bytes, Pattern] = {}
        self._keys, self._channels = Matcher(()), Matcher(())  # of the two
        self.unrestricted = False  # may do everything: nothing needs to be checked

    def adopt(self, other: User) -> None:
        """Become like ``other``, except for the name. Clients that have logged in keep this object."""
        for field in self.__slots__:
            if field != "name":
                setattr(self, field, getattr(other, field))
        self.passwords, self.rules = other.passwords.copy(), list(other.rules)
        self.keys, self.channels = other.keys.copy(), other.channels.copy()

    def refresh(self) -> None:
        """Recompute ``unrestricted``, and what finds patterns."""
        self.unrestricted = self.all_commands and self.all_keys and self.all_channels
        self._keys, self._channels = Matcher(self.keys.values()), Matcher(self.channels.values())

    def memory_bytes(self) -> int:
        """What the user takes in memory, roughly, with its text for CONFIG REWRITE."""
        size = USER_BYTES + 2 * len(self.name) + PASSWORD_BYTES * len(self.passwords) + RULE_BYTES * len(self.rules)
        if not self.all_commands:
            size += COMMAND_BYTES * len(self.commands)
        patterns = [*self.channels.values(), *self.keys.values()]
        return size + sum([each.glob.memory_bytes() + len(each.glob.pattern) for each in patterns])

    # -- passwords -------------------------------------------------------------------------------------------
    def opens(self, password: bytes) -> bool:
        """Whether the user may log in with it."""
        right = fits(password, self.passwords)
        return self.enabled and (right or self.nopass)

    @property
    def open(self) -> bool:
        """Whether the user may log in without knowing a password."""
        return self.enabled and self.nopass

    # -- keys and channels -----------------------------------------------------------------------------------
    def may_touch(self, key: bytes, reads: bool, writes: bool) -> bool:
        """Whether one of the patterns gives all of this access to the key. Without access: whether one matches it."""
        if self.all_keys:
            return True
        for pattern in self._keys.matching(key):
            if (pattern.read or not reads) and (pattern.write or not writes):
                return True
        return False

    def may_hear(self, channel: bytes, pattern: bool) -> bool:
        """Whether the channel may be used. ``pattern``: of PSUBSCRIBE, which must be one of the user's, literally."""
        if self.all_channels:
            return True
        if pattern:
            return channel in self.channels
        return next(self._channels.matching(channel), None) is not None


def hashed(password: bytes) -> bytes:
    """SHA-256 in lower-case hex, which is how Redis keeps passwords."""
    return sha256(password).hexdigest().encode()


def fits(password: bytes, hashes: Iterable[bytes]) -> bool:
    """Whether the password has one of the hashes; all of them are compared."""
    given = hashed(password)
    found = False
    for each in hashes:
        found = compare_digest(given, each) | found
    return found


def superuser() -> User:
    """A user who may do everything, and belongs to no registry: this server's link to its leader."""
    user = User(b"(superuser)")
    user.enabled = user.nopass = user.all_commands = user.widens = user.all_keys = user.all_channels = True
    user.refresh()
    return user
