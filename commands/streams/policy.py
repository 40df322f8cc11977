"""The words of a retention policy, for TCFG and the directive ``stream-retention``, and those of TCFG TIER."""

from __future__ import annotations

from typing import Final

from commands.parse import each_option, integer
from resp import errors
from resp.errors import CommandError
from storage.streams.retention import MOST, RetentionPolicy
from storage.streams.tierafter import TierAfter

_LIMITS: Final = (b"COUNT", b"AGE", b"BYTES", b"LIMIT")
_SIZES: Final = dict.fromkeys(_LIMITS, 1) | {b"GROUPS": 0, b"EXACT": 0, b"~": 0, b"DRY": 0}


def policy_of(argv: list[bytes], at: int) -> RetentionPolicy:
    """Return the policy in argv from ``at`` on. Raises CommandError if it is invalid."""
    numbers = dict.fromkeys(_LIMITS, 0)
    words: set[bytes] = set()
    for word, value_at in each_option(argv, at, _SIZES, _refused):
        if word in words:
            raise CommandError(f"ERR RETAIN: {word.decode()} is given twice")
        words.add(word)
        if word in numbers:
            numbers[word] = number = integer(argv[value_at])
            if not 0 < number <= MOST:
                raise CommandError(f"ERR RETAIN: {word.decode()} must be between 1 and {MOST}; NONE removes the policy")
        elif word == b"DRY" and value_at != len(argv):
            raise CommandError("ERR RETAIN: DRY must be the last word, as in RETAIN COUNT 1000 DRY")
    count, limit = numbers[b"COUNT"], numbers[b"LIMIT"]
    if not (count or numbers[b"AGE"] or numbers[b"BYTES"]):
        raise CommandError("ERR RETAIN needs a limit: COUNT, AGE or BYTES, as in RETAIN COUNT 1000, or NONE")
    if limit and b"GROUPS" not in words:
        raise CommandError("ERR RETAIN: LIMIT belongs to GROUPS, as in RETAIN COUNT 1000 GROUPS LIMIT 5000")
    if limit and limit < count:
        raise CommandError("ERR RETAIN: LIMIT must not be below COUNT, as in RETAIN COUNT 1000 GROUPS LIMIT 5000")
    if b"EXACT" in words and b"~" in words:
        raise CommandError("ERR RETAIN: EXACT and ~ exclude each other; ~ is the default")
    return RetentionPolicy(count, numbers[b"AGE"], numbers[b"BYTES"], b"GROUPS" in words, limit, b"EXACT" in words)


def tier_after_of(argv: list[bytes], at: int) -> TierAfter | None:
    """Return the value of TCFG TIER in argv from ``at`` on; None: DEFAULT. Raises CommandError if it is invalid."""
    if at == len(argv):
        raise errors.syntax()
    word = argv[at].upper()
    if word == b"DEFAULT" and len(argv) == at + 1:
        return None
    if word not in (b"AGE", b"BYTES") or len(argv) != at + 2:
        raise CommandError("ERR TIER needs one of AGE, BYTES and DEFAULT, as in TIER AGE 3600000")
    number = integer(argv[at + 1])
    if not 0 <= number <= MOST:
        raise CommandError(f"ERR TIER: {word.decode()} must be between 0 and {MOST}; DEFAULT removes the setting")
    return TierAfter(word == b"BYTES", number)


def _refused(word: bytes) -> CommandError:
    if word.upper() == b"NONE":
        return CommandError("ERR RETAIN: NONE removes the policy and stands alone, as in TCFG key RETAIN NONE")
    return errors.syntax()
