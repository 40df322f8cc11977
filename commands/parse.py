"""Parses numbers and IDs in argv. Numbers are parsed as strictly as in Redis, with its error texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from resp import errors
from resp.errors import CommandError
from storage.model.ids import MASK64, PARSED, parse_id

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1

MOST_FIELDS: Final = 32_768  # maximum fields of an entry
MOST_STREAMS: Final = 5000  # maximum streams of an XREAD or XREADGROUP
LONGEST_NAME: Final = 4096  # bytes of the name of a new group or consumer, which replies and records repeat
LONGEST_SPAN: Final = 1 << 62  # ms
LONGEST_TIMEOUT: Final = INT_MAX - (1 << 41)  # ms; added to the current time, it is still a 64-bit number

_LONGEST: Final = 20  # characters of the lowest 64-bit number
_SHORT: Final = 18  # a number with this many digits is always below 2**63

_SEQS: Final = {b"%d" % n: n.to_bytes(8, "big") for n in range(1000)}  # the most frequent sequence numbers


def is_integer(raw: bytes) -> bool:
    """Return whether ``raw`` is a signed 64-bit number as Redis accepts it: no ``+``, space or leading zero."""
    try:
        integer(raw)
    except CommandError:
        return False
    return True


def check_group_name(name: bytes) -> None:
    """Raise CommandError if a new group can't have this name."""
    if len(name) > LONGEST_NAME:
        raise errors.long_name("group", len(name), LONGEST_NAME)


def integer(raw: bytes, text: str = errors.NOT_INTEGER) -> int:
    """Parse a signed 64-bit number. Raises CommandError with ``text``."""
    if raw.isdigit() and len(raw) <= _SHORT and (raw[0] != 48 or len(raw) == 1):
        return int(raw)
    if 0 < len(raw) <= _LONGEST:
        try:
            value = int(raw)
        except ValueError:
            raise CommandError(text) from None
        # int() accepts too much (" 1", "+1", "1_0", "01"): compare with the printed number
        if INT_MIN <= value <= INT_MAX and b"%d" % value == raw:
            return value
    raise CommandError(text)


def check_database(raw: bytes, text: str = "") -> None:
    """Raise CommandError unless it is 0, the number of the only database. ``text``: the error if it is not a number."""
    index = integer(raw, text or errors.NOT_INTEGER)
    if not -(1 << 31) <= index < 1 << 31:
        raise CommandError(text or errors.NOT_INT)
    if index:
        raise CommandError(errors.NO_SUCH_DATABASE)


def positive(raw: bytes) -> int:
    """Parse a number of at least 0, which Redis calls positive. Raises CommandError."""
    value = integer(raw)
    if value < 0:
        raise CommandError(errors.NOT_POSITIVE)
    return value


def span(raw: bytes, least: int = 0, text: str = errors.NOT_POSITIVE) -> int:
    """Parse a number of ms from now. Raises CommandError, with ``text`` if it is below ``least``. The maximum is
    LONGEST_SPAN, because the time itself, in ms since epoch, must be a signed 64-bit number in replies."""
    value = integer(raw)
    if value < least:
        raise CommandError(text)
    if value > LONGEST_SPAN:
        raise CommandError(errors.NOT_INTEGER)
    return value


def timeout_ms(raw: bytes) -> int:
    """Parse the ms of a BLOCK option; 0: no timeout. Raises CommandError."""
    value = integer(raw, errors.BAD_TIMEOUT)
    if value < 0:
        raise CommandError(errors.NEGATIVE_TIMEOUT)
    if value > LONGEST_TIMEOUT:
        raise CommandError(errors.LONG_TIMEOUT)
    return value


def each_option(
    argv: list[bytes], at: int, sizes: dict[bytes, int], refused: Callable[[bytes], CommandError] | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the options in argv from ``at`` on: the word in upper case, and the index of its first value.

    ``sizes``: the number of values by word. ``refused``: the error for a word that is unknown or lacks a value; None:
    a syntax error.
    """
    while at < len(argv):
        word = argv[at].upper()
        size = sizes.get(word, -1)
        if size < 0 or at + size >= len(argv):
            raise errors.syntax() if refused is None else refused(argv[at])
        yield word, at + 1
        at += 1 + size


def position_after(token: bytes, argv: Sequence[bytes], at: int, sizes: dict[bytes, int]) -> int:
    """Return the position after ``token`` in a call whose options begin at ``at``; 0 if it has no such word, or its
    options can't be parsed. ``sizes``: the number of words of an option, including itself."""
    while at + 1 < len(argv):
        word = argv[at].upper()
        if word == token:
            return at + 1
        if word not in sizes:
            return 0
        at += sizes[word]
    return 0


def keys_of(argv: list[bytes], start: int, command: str, words: str) -> list[bytes]:
    """Return the keys of an XREAD or XREADGROUP, from ``start`` on; as many IDs follow. ``words``: alternatives to an
    ID, for the error. Raises CommandError."""
    count, odd = divmod(len(argv) - start, 2)
    if odd:
        raise errors.unbalanced(command, words)
    if count > MOST_STREAMS:
        raise errors.too_many_keys(command.upper(), count, MOST_STREAMS)
    return argv[start : start + count]


def id_parts(text: bytes) -> tuple[int, int]:
    """Parse an ID into (ms, seq), like parse_id() but without a large int. Raises CommandError."""
    ms, dot, seq = text.partition(b".")
    if dot and len(ms) <= _SHORT and len(seq) <= _SHORT and ms.isdigit() and seq.isdigit():
        return int(ms), int(seq)
    whole = parse_id(text)
    return whole >> 64, whole & MASK64


class _LastStem:
    """An ID up to its dot, and its ms as bytes. Messages that are acknowledged together often share them."""

    __slots__ = ("high", "text")

    def __init__(self) -> None:
        self.text = self.high = b""


_stem: Final = _LastStem()


def raw_ids(texts: list[bytes], start: int = 0) -> list[bytes]:
    """Parse IDs from ``start`` on, like parse_id(), and return each as 16 bytes, big-endian. Raises CommandError."""
    if PARSED is not None:
        parsed = PARSED(texts, start)
        if parsed is not None:
            return parsed
    raws: list[bytes] = []
    last = _stem
    for text in texts[start:]:
        if last.text and text.startswith(last.text):
            low = _SEQS.get(text[len(last.text) :])
            if low is not None:
                raws.append(last.high + low)
                continue
        raw = parse_id(text).to_bytes(16, "big")
        raws.append(raw)
        size = max(text.find(b"."), text.find(b"-")) + 1  # a valid ID contains at most one of them, once
        if size:
            last.text, last.high = text[:size], raw[:8]
    return raws


def is_host(text: str) -> bool:
    """Return whether this can be a host name or address: at most 255 bytes, without separators and quotes."""
    if not text or not text.isprintable() or len(text.encode("utf-8", "surrogateescape")) > 255:
        return False
    return not any(character in text for character in " \"'\\,")


def invalid_expire(command: str) -> CommandError:
    """Return Redis's error for a time that can't be an expiry. ``command``: its name in lower case."""
    return CommandError(f"ERR invalid expire time in '{command}' command")
