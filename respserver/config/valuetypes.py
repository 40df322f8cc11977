"""Values that have several words or need a special check, and the parsers of their words.

The error texts are those of Redis, except for hosts, which Redis does not check.
"""

from __future__ import annotations

import re
from math import nan
from typing import NamedTuple, cast

from commands.glob import check_length
from commands.parse import is_host
from commands.streams.policy import policy_of
from resp.errors import CommandError
from respserver.config.conffile import parse_memory
from storage.streams.retention import RetentionPolicy
from storage.streams.tierafter import MOST, TierAfter

GROUP_NAME = re.compile(r"[0-9A-Za-z._:@-]{1,64}", re.ASCII)  # the name of a server group, or of a member
_ESCAPED = re.compile(r"\\.", re.DOTALL)
LONGEST = 2**31 - 1  # seconds of ``tier-after``
INSYNC = -1  # the value of ``replica-acks insync``
LISTS = frozenset(("words", "hosts", "percentiles", "save", "limits", "leader", "policies"))  # kinds of several words
_CLIENT_CLASSES = {"normal": "normal", "slave": "replica", "replica": "replica", "pubsub": "pubsub"}


class Limits(NamedTuple):
    """Limits for the replies that wait for a slow client; 0 means no limit."""

    hard: int  # bytes
    soft: int  # bytes, exceeded for more than ``seconds``
    seconds: int


SavePoint = tuple[int, int]  # seconds, changes
Value = bool | int | str | list[str] | list[SavePoint] | dict[str, Limits] | dict[str, str]


def parse_save(words: list[str], before: Value) -> list[SavePoint]:
    """Parse ``900 1 300 10`` to pairs, which are added to the earlier ones; no words clear these. Raises ValueError."""
    if not words:
        return []
    numbers = [int(w) if w.isascii() and w.isdigit() else -1 for w in words]
    points = list(zip(numbers[::2], numbers[1::2], strict=False))
    if len(numbers) % 2 or any(seconds < 1 or changes < 0 for seconds, changes in points):
        raise ValueError("Invalid save parameters")
    return cast(list[SavePoint], before or []) + points


def parse_limits(words: list[str], before: Value) -> dict[str, Limits]:
    """Update the earlier limits by ``normal 0 0 0 pubsub 32mb 8mb 60``. Raises ValueError."""
    limits = dict(cast(dict[str, Limits], before))
    if not words or len(words) % 4:
        raise ValueError("Wrong number of arguments in buffer limit configuration.")
    for i in range(0, len(words), 4):
        name = _CLIENT_CLASSES.get(words[i].lower())
        if name is None:
            raise ValueError("Invalid client class specified in buffer limit configuration.")
        last = words[i + 3]
        try:
            hard, soft = parse_memory(words[i + 1]), parse_memory(words[i + 2])
        except ValueError:
            hard = soft = -1
        seconds = int(last) if last.isascii() and last.isdigit() else -1
        if hard < 0 or soft < 0 or seconds < 0:
            raise ValueError("Error in hard, soft or soft_seconds setting in buffer limit configuration.")
        limits[name] = Limits(hard, soft, seconds)
    return limits


def parse_host(text: str) -> str:
    """Return the text if it can be a host name or an address: printable, without blanks, quotes and commas.

    Raises ValueError. The text is written to the configuration file and to lines of INFO, which other programs parse.
    """
    if not is_host(text):
        raise ValueError("Invalid host name or address")
    return text


def parse_pattern(text: str) -> str:
    """Return the text if it is a complete glob pattern. Raises ValueError.

    Commands accept incomplete patterns, as in Redis. Here, nobody would see that the pattern does not match as meant.
    """
    try:
        check_length(text.encode("utf-8", "surrogateescape"))
    except CommandError as error:
        raise ValueError(str(error).removeprefix("ERR ")) from None
    rest = _ESCAPED.sub("", text)
    if rest.endswith("\\"):
        raise ValueError("the pattern ends with a backslash, which escapes nothing: write '\\\\' for a backslash")
    if "[" in rest.rpartition("]")[2]:
        raise ValueError("the pattern has a '[' without ']': add the ']', or write '\\[' for the character itself")
    return text


def parse_percentiles(name: str, words: list[str]) -> list[str]:
    """Normalize ``50 99.9`` to the form that is shown, without redundant digits. Raises ValueError."""
    shown = []
    for word in words:
        try:
            number = float(word)
        except ValueError:
            number = nan
        if number != number or "_" in word:
            raise ValueError(f"Invalid {name} parameters")
        if not 0.0 <= number <= 100.0:
            raise ValueError(f"{name} parameters should sit between [0.0,100.0]")
        shown.append(repr(abs(number)).removesuffix(".0"))
    return shown


def parse_policies(words: list[str]) -> list[str]:
    """Check ``log:* RETAIN COUNT 1000 job:* RETAIN AGE 60000``, see policies(). Raises ValueError."""
    policies(words)
    return words


def policies(words: list[str]) -> list[tuple[bytes, RetentionPolicy]]:
    """Return the policies in words, each with the pattern of its keys, which is before RETAIN. Raises ValueError."""
    raws = [word.encode("utf-8", "surrogateescape") for word in words]
    starts = [at - 1 for at, raw in enumerate(raws) if raw.upper() == b"RETAIN"]
    if not words:
        return []
    if starts[:1] != [0]:
        raise ValueError("a pattern of keys, RETAIN and limits are needed, as in: log:* RETAIN COUNT 1000")
    found: list[tuple[bytes, RetentionPolicy]] = []
    for start, stop in zip(starts, [*starts[1:], len(raws)], strict=True):
        parse_pattern(words[start])
        given = raws[start + 2 : stop]
        try:
            if b"DRY" in map(bytes.upper, given):
                raise ValueError("DRY belongs to TCFG")
            found.append((raws[start], policy_of(given, 0)))
        except CommandError as error:
            raise ValueError(f"{words[start]}: {str(error).removeprefix('ERR ')}") from None
    return found


def parse_span(word: str) -> str:
    """Check ``tier-after``, see tier_after(). Raises ValueError."""
    tier_after(word)
    return word.lower()


def tier_after(word: str) -> TierAfter:
    """Parse an age in seconds, ``3600``, or a size with a unit, ``1gb``. Raises ValueError."""
    if word.isascii() and word.isdigit() and (seconds := int(word)) <= LONGEST:
        return TierAfter(False, seconds * 1000)
    try:
        size = -1 if word[-1:].isdigit() else parse_memory(word)
    except ValueError:
        size = -1
    if not 0 <= size <= MOST:
        raise ValueError(
            f"argument must be an age in seconds, 0 to {LONGEST}, or a size with a unit, as in 3600 or 1gb"
        )
    return TierAfter(True, size)


def parse_acks(word: str) -> int:
    """Parse ``replica-acks``: a number of replicas, or INSYNC. Raises ValueError."""
    if word.lower() == "insync":
        return INSYNC
    if not (word.isascii() and word.isdigit() and len(word) <= 4):
        raise ValueError("argument must be a number of replicas from 0 to 9999, or insync")
    return int(word)


def parse_leader(words: list[str]) -> list[str]:
    """Parse ``10.0.0.1 6379`` to [host, port], and ``no one`` and no words to []. Raises ValueError."""
    if not words:
        return []
    if len(words) != 2:
        raise ValueError("wrong number of arguments")
    if [word.lower() for word in words] == ["no", "one"]:
        return []
    host, port = words
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError("Invalid master port")
    return [parse_host(host), str(int(port))]


def parse_rename(words: list[str], before: Value) -> dict[str, str]:
    """Add ``old new`` to the earlier renames. Raises ValueError."""
    if len(words) != 2:
        raise ValueError("wrong number of arguments")
    return {**cast(dict[str, str], before), words[0].lower(): words[1]}


def parse_user(words: list[str], before: Value) -> dict[str, str]:
    """Add a user to the earlier ones (name -> rules as ACL LIST shows them). Raises ValueError."""
    # imported here: rules name commands, most servers have no such line, and the table would delay their start
    from commands import registry  # noqa: F401
    from commands.acl import rules

    if not words:
        raise ValueError("wrong number of arguments")
    users = cast(dict[str, str], before)
    if words[0] in users:
        raise ValueError(rules.DUPLICATE)
    try:
        name, *others = [word.encode("utf-8", "surrogateescape") for word in words]
        user = rules.build_user(name, others)
    except rules.RuleError as exc:
        word = exc.word.decode("utf-8", "surrogateescape")
        raise ValueError(f"Error in user declaration '{word}': {exc}") from None
    return {**users, words[0]: b" ".join(rules.describe(user)).decode("utf-8", "surrogateescape")}
