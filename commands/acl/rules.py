"""The words of ACL SETUSER, ``user`` lines and ACL files, and the description of a user by such words.

Words, meaning and error texts are those of Redis. Two features of Redis are refused: selectors, and the first argument
of a command that has no subcommands (``+select|0``). A rule about a command that Redis has and tidelog does not have is
stored, but has no effect: see ``without_effect()``.

The commands of a user follow from the words in their order. ``User.rules`` stores those that still matter, as Redis 7.2
does: a word about a command replaces earlier words about it and about its subcommands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from commands.acl.unsupported import MODULE_CATEGORIES, is_absent
from commands.declare import DECLARED
from commands.users.patterns import Pattern
from commands.users.user import User, hashed

# Redis's categories, including those without a command here, so that rules written for Redis can be used.
CATEGORIES: Final = (
    "keyspace", "read", "write", "set", "sortedset", "list", "hash", "string", "bitmap", "hyperloglog", "geo", "stream",
    "pubsub", "admin", "fast", "slow", "blocking", "dangerous", "connection", "transaction", "scripting",
)  # fmt: skip

UNKNOWN_COMMAND: Final = "Unknown command or category name in ACL"
SYNTAX: Final = "Syntax error"
KEYS_TAKEN: Final = (
    "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any effect. "
    "Try 'resetkeys' to start with an empty list of patterns"
)
CHANNELS_TAKEN: Final = (
    "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any effect. "
    "Try 'resetchannels' to start with an empty list of channels"
)
NO_SUCH_PASSWORD: Final = "The password you are trying to remove from the user does not exist"
BAD_HASH: Final = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
BAD_NAME: Final = "Usernames can't contain spaces or null characters"
DUPLICATE: Final = "Duplicate user found. A user can only be defined once in config files"
NO_SELECTORS: Final = "Selectors are not supported: give the rules to the user itself, or create another user"
FIRST_ARG_OF_SUB: Final = "Allowing first-arg of a subcommand is not supported"
NO_FIRST_ARGS: Final = "Allowing the first argument of a command is not supported, except for subcommands"

MOST_OF_A_KIND: Final = 10_000  # maximum passwords, key patterns, or channel patterns of a user

_SPACE: Final = frozenset(b" \t\n\v\f\r\0")
_HEX: Final = frozenset(b"0123456789abcdef")


class RuleError(ValueError):
    """Raised for a word that is not a rule or can't be applied. The text is Redis's reason; ``word`` is the word."""

    def __init__(self, reason: str, word: bytes) -> None:
        super().__init__(reason)
        self.word = word


def check_name(name: bytes) -> None:
    """Raise RuleError if a user can't have this name."""
    if not _SPACE.isdisjoint(name):
        raise RuleError(BAD_NAME, name)


def build_user(name: bytes, words: Iterable[bytes] = (), base: User | None = None) -> User:
    """Return a user with these rules, applied to a new user or to a copy of ``base``. Raises RuleError."""
    check_name(name)
    user = User(name)
    if base is not None:
        user.adopt(base)
    for word in words:
        _apply(user, word)
    user.refresh()
    return user


def open_default() -> User:
    """Return the user ``default`` of a server without any configuration: it may do everything."""
    return build_user(b"default", (b"on", b"nopass", b"~*", b"&*", b"+@all"))


def describe(user: User) -> list[bytes]:
    """Return words that create an equal user: the line of ACL LIST after the name."""
    words = [b"on" if user.enabled else b"off"]
    if user.nopass:
        words.append(b"nopass")
    words += [b"#" + each for each in user.passwords]
    words += key_words(user)
    if user.all_channels:
        words.append(b"&*")
    else:
        words += [b"resetchannels", *channel_words(user)]
    return [*words, *command_words(user)]


def key_words(user: User) -> list[bytes]:
    return [b"~*"] if user.all_keys else [pattern.word() for pattern in user.keys.values()]


def channel_words(user: User) -> list[bytes]:
    return [b"&*"] if user.all_channels else [b"&" + pattern for pattern in user.channels]


def command_words(user: User) -> list[bytes]:
    return [b"+@all" if user.widens else b"-@all", *[rule.encode() for rule in user.rules]]


def without_effect(user: User) -> list[str]:
    """Return the user's rules about commands and categories of Redis that have no commands here."""
    return [rule for rule in user.rules if not _has_commands(rule[1:])]


def _has_commands(name: str) -> bool:
    return bool(members(name[1:])) if name.startswith("@") else name in DECLARED


# -- one word ----------------------------------------------------------------------------------------------------
def _apply(user: User, word: bytes) -> None:
    plain = _WORDS.get(word.lower())
    if plain is not None:
        for name, value in plain.items():
            setattr(user, name, value() if callable(value) else value)
        return
    prefixed = _PREFIXES.get(word[:1])
    if prefixed is None:
        raise RuleError(NO_SELECTORS if word[:1] == b"(" else SYNTAX, word)
    prefixed(user, word)


# the attributes of a user that such words set; a function returns the new value
_Change = dict[str, bool | Callable[[], object]]
_OFF: Final[_Change] = {"enabled": False}
_RESETPASS: Final[_Change] = {"nopass": False, "passwords": dict}
_ALLKEYS: Final[_Change] = {"all_keys": True, "keys": dict}
_RESETKEYS: Final[_Change] = {"all_keys": False, "keys": dict}
_ALLCHANNELS: Final[_Change] = {"all_channels": True, "channels": dict}
_RESETCHANNELS: Final[_Change] = {"all_channels": False, "channels": dict}
_ALLCOMMANDS: Final[_Change] = {
    "widens": True, "all_commands": True, "rules": list, "commands": lambda: frozenset(DECLARED),
}  # fmt: skip
_NOCOMMANDS: Final[_Change] = {"widens": False, "all_commands": False, "rules": list, "commands": frozenset}
# The last three are about features that tidelog does not have: RESTORE, and clearing selectors.
_WORDS: Final[dict[bytes, _Change]] = {
    b"on": {"enabled": True}, b"off": _OFF, b"nopass": {"nopass": True, "passwords": dict}, b"resetpass": _RESETPASS,
    b"reset": _RESETPASS | _RESETKEYS | _RESETCHANNELS | _NOCOMMANDS | _OFF,
    b"allkeys": _ALLKEYS, b"~*": _ALLKEYS, b"%rw~*": _ALLKEYS, b"resetkeys": _RESETKEYS,
    b"allchannels": _ALLCHANNELS, b"&*": _ALLCHANNELS, b"resetchannels": _RESETCHANNELS,
    b"allcommands": _ALLCOMMANDS, b"+@all": _ALLCOMMANDS, b"nocommands": _NOCOMMANDS, b"-@all": _NOCOMMANDS,
    b"sanitize-payload": {}, b"skip-sanitize-payload": {}, b"clearselectors": {},
}  # fmt: skip


# -- words with a prefix -----------------------------------------------------------------------------------------
def _add_password(user: User, word: bytes) -> None:
    given = hashed(word[1:]) if word[:1] == b">" else _hash(word)
    user.passwords[given] = None
    _check_number(len(user.passwords), "passwords", word)
    user.nopass = False


def _remove_password(user: User, word: bytes) -> None:
    given = hashed(word[1:]) if word[:1] == b"<" else _hash(word)
    if given not in user.passwords:
        raise RuleError(NO_SUCH_PASSWORD, word)
    del user.passwords[given]


def _hash(word: bytes) -> bytes:
    if len(word) != 65 or not _HEX.issuperset(word[1:]):
        raise RuleError(BAD_HASH, word)
    return word[1:]


def _add_keys(user: User, word: bytes) -> None:
    if user.all_keys:
        raise RuleError(KEYS_TAKEN, word)
    access, tilde, pattern = word.partition(b"~")
    letters = access[1:].upper() if access else b"RW"
    if not tilde or not letters or sorted(letters) not in (sorted(b"R"), sorted(b"W"), sorted(b"RW")):
        raise RuleError(SYNTAX, word)
    if not _SPACE.isdisjoint(pattern):
        raise RuleError(SYNTAX, word)
    read, write = b"R" in letters, b"W" in letters
    old = user.keys.get(pattern)
    if old is not None:
        read, write = read or old.read, write or old.write
    user.keys[pattern] = Pattern(pattern, read, write)
    _check_number(len(user.keys), "key patterns", word)


def _add_channels(user: User, word: bytes) -> None:
    if user.all_channels:
        raise RuleError(CHANNELS_TAKEN, word)
    pattern = word[1:]
    if not _SPACE.isdisjoint(pattern):
        raise RuleError(SYNTAX, word)
    if pattern not in user.channels:
        user.channels[pattern] = Pattern(pattern)
        _check_number(len(user.channels), "channel patterns", word)


def _check_number(number: int, what: str, word: bytes) -> None:
    if number > MOST_OF_A_KIND:
        raise RuleError(f"A user can have at most {MOST_OF_A_KIND} {what}", word)


def _change_commands(user: User, word: bytes) -> None:
    allow = word[:1] == b"+"
    name = word[1:].decode("utf-8", "replace").lower()
    named = _members(name, word)
    user.commands = user.commands | named if allow else user.commands - named
    user.all_commands = len(user.commands) == len(DECLARED)
    kept = [rule for rule in user.rules if rule[1:] != name and not rule[1:].startswith(name + "|")]
    user.rules = [*kept, ("+" if allow else "-") + name]


def _members(name: str, word: bytes) -> frozenset[str]:
    """Return the commands of a category, or a command and its subcommands. Raises RuleError."""
    if name.startswith("@"):
        if name[1:] not in CATEGORIES and name[1:] not in MODULE_CATEGORIES:
            raise RuleError(UNKNOWN_COMMAND, word)
        return members(name[1:])
    found = DECLARED.get(name)
    if found is None and is_absent(name):
        return frozenset()
    if found is None:
        raise RuleError(_why_unknown(name) if word[:1] == b"+" else UNKNOWN_COMMAND, word)
    return frozenset((name, *[sub.name for sub in found.subcommands.values()]))


def _why_unknown(name: str) -> str:
    if name.rpartition("|")[0].count("|") and name.rpartition("|")[0] in DECLARED:
        return FIRST_ARG_OF_SUB
    top = DECLARED.get(name.partition("|")[0])
    return NO_FIRST_ARGS if top is not None and "|" in name and not top.subcommands else UNKNOWN_COMMAND


def members(category: str) -> frozenset[str]:
    """Return the names of the commands and subcommands in a category."""
    return frozenset(name for name, command in DECLARED.items() if category in command.acl_categories)


_PREFIXES: Final[dict[bytes, Callable[[User, bytes], None]]] = {
    b">": _add_password, b"#": _add_password, b"<": _remove_password, b"!": _remove_password,
    b"~": _add_keys, b"%": _add_keys, b"&": _add_channels, b"+": _change_commands, b"-": _change_commands,
}  # fmt: skip
