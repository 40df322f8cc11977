"""Users in files: the ACL file (``aclfile``), and the ``user`` lines of the configuration.

An ACL file has Redis's format: a line for each user, as ACL LIST shows it. It contains no quotes, because no rule
contains a space. Blank lines are skipped::

    user default off
    user app on #f64551fc... ~jobs:* &* -@all +@stream +@connection
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from commands import registry  # noqa: F401  (rules name commands)
from commands.acl import rules
from commands.acl.rules import RuleError
from commands.users.user import User
from respserver.config.conffile import ConfigError
from respserver.config.rewrite import replace
from respserver.config.values import Values

TWO_PLACES = (
    "aclfile: users are defined in the configuration and in an ACL file as well: define them in one place, either by "
    "user lines or in the ACL file"
)
NOTHING_CHANGED = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed"

Users = dict[bytes, User]


def configured(config: Values) -> Users:
    """Return the users at startup; always includes ``default``. Raises ConfigError."""
    if config.aclfile:
        if config.user:
            raise ConfigError(TWO_PLACES)
        return read(config)
    users = {user.name: user for user in (_from_text(name, text) for name, text in config.user.items())}
    return {b"default": default(config), **users}


def warnings(users: Iterable[User]) -> list[str]:
    """Return a line for each user with rules that have no effect in tidelog."""
    found: list[str] = []
    for user in users:
        names = rules.without_effect(user)
        if names:
            found.append(
                f"User '{_shown(user.name)}': these rules have no effect, since tidelog has no such commands: "
                f"{' '.join(names)}"
            )
    return found


def default(config: Values) -> User:
    """Return the user ``default`` with the password of ``requirepass``, without other rules."""
    user = rules.open_default()
    return rules.build_user(user.name, password_words(config), user)


def password_words(config: Values) -> list[bytes]:
    """Return the rules that set the password of ``requirepass``, or none."""
    return [b"resetpass", b">" + config.password() if config.requirepass else b"nopass"]


def _from_text(name: str, text: str) -> User:
    words = text.encode("utf-8", "surrogateescape").split(b" ")
    return rules.build_user(name.encode("utf-8", "surrogateescape"), words)


def texts(users: Users, config: Values) -> dict[str, str]:
    """Return the users as a value of ``user``. Omits ``default`` if it only has the password of ``requirepass``."""
    found: dict[str, str] = {}
    for name, user in sorted(users.items()):
        words = rules.describe(user)
        if name == b"default" and "default" not in config.user and words == rules.describe(default(config)):
            continue
        found[name.decode("utf-8", "surrogateescape")] = b" ".join(words).decode("utf-8", "surrogateescape")
    return found


# -- the ACL file ------------------------------------------------------------------------------------------------
def read(config: Values) -> Users:
    """Return the users of the ACL file, and always ``default``. Raises ConfigError, which lists all invalid lines."""
    try:
        with open(config.aclfile, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError as exc:
        raise ConfigError(f"Error loading ACLs, opening file '{config.aclfile}': {exc.strerror}") from None
    users: Users = {}
    wrong: list[str] = []
    for number, line in enumerate(lines, 1):
        words = [word for word in line.strip().split(b" ") if word]
        if not words:
            continue
        try:
            _take(users, words)
        except RuleError as exc:
            wrong.append(f"{config.aclfile}:{number}: {exc}. ")
    if wrong:
        raise ConfigError("".join(wrong) + NOTHING_CHANGED)
    return {b"default": default(config), **users}


def _take(users: Users, words: list[bytes]) -> None:
    if words[0] != b"user" or len(words) == 1:
        raise RuleError("should start with user keyword followed by the username", words[0])
    name = words[1]
    if name in users:
        raise RuleError(rules.DUPLICATE, name)
    try:
        users[name] = rules.build_user(name, words[2:])
    except RuleError as exc:
        raise RuleError(f"{_shown(exc.word)}: {exc}", exc.word) from None


def _shown(word: bytes) -> str:
    return word.decode("utf-8", "backslashreplace")


def write(users: Users, path: str) -> None:
    """Replace the ACL file atomically. Raises OSError."""
    lines = [b" ".join([b"user", name, *rules.describe(user)]) + b"\n" for name, user in sorted(users.items())]
    if not os.path.exists(path):  # the file was removed: only the server's own user needs to read it
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    replace(path, b"".join(lines).decode("utf-8", "surrogateescape"))
