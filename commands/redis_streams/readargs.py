"""The arguments of XREADGROUP."""

from __future__ import annotations

from typing import Final

from commands.context import NO_PENDING
from commands.parse import integer, keys_of, timeout_ms
from commands.redis_streams.ids import strict_id
from commands.redis_streams.limits import ReplyLimits, check_maxcount, limits_of, positive_limit
from resp import errors
from resp.errors import CommandError
from storage.model.ids import MAX_ID
from storage.model.timers import NEVER

NEW: Final = MAX_ID  # ``>``: entries that were never delivered; as in Redis, the highest ID means the same
NO_BLOCK: Final = -1
NO_CLAIM: Final = NO_PENDING


class GroupReadArgs:
    """A call of XREADGROUP. id_of() parses an ID, after the groups were found."""

    __slots__ = (
        "argv", "block", "claim", "consumer", "count", "first", "group", "ids", "keys", "maxcount", "maxsize", "noack",
    )  # fmt: skip

    def __init__(self, argv: list[bytes], same: GroupReadArgs | None = None) -> None:
        """Parse the arguments. ``same``: the arguments of a call with the same words. Raises CommandError."""
        self.argv = argv
        self.group = self.consumer = b""
        self.count = 0  # of each key; 0: no limit
        self.maxcount = self.maxsize = 0  # entries and bytes of the whole reply; 0: no limit
        self.block = NO_BLOCK  # ms; 0: no timeout
        self.claim = NO_CLAIM  # minimum idle time of messages in ms
        self.noack = False
        self.first = 0  # index of the first ID in argv
        self.keys: list[bytes] = []
        self.ids: list[int] = []  # NEW, or the ID after which the consumer's history begins
        if same is None:
            self._read(argv)
        else:
            self.group, self.consumer, self.count, self.block = same.group, same.consumer, same.count, same.block
            self.claim, self.noack, self.first, self.keys = same.claim, same.noack, same.first, same.keys
            self.maxcount, self.maxsize = same.maxcount, same.maxsize

    def _read(self, argv: list[bytes]) -> None:
        at, end, grouped = 1, len(argv), False
        while at < end:
            word = argv[at].upper()
            more = end - 1 - at
            if word == b"STREAMS" and more:
                self._keys(argv, at + 1)
                break
            if word == b"GROUP" and more >= 2:
                self.group, self.consumer, grouped = argv[at + 1], argv[at + 2], True
                at += 3
            elif word == b"COUNT" and more:
                self.count = max(0, integer(argv[at + 1]))
                at += 2
            elif (word == b"MAXCOUNT" or word == b"MAXSIZE") and more:
                self._limit(word, argv[at + 1])
                at += 2
            elif word == b"BLOCK" and more:
                self.block = timeout_ms(argv[at + 1])
                at += 2
            elif word == b"CLAIM" and more:
                self.claim = integer(argv[at + 1], errors.BAD_MIN_IDLE)
                if self.claim < 0:
                    raise CommandError(errors.NEGATIVE_MIN_IDLE)
                at += 2
            elif word == b"NOACK":
                self.noack = True
                at += 1
            else:
                raise errors.syntax()
        if not self.first:
            raise errors.syntax()
        if not grouped:
            raise CommandError(errors.MISSING_GROUP)
        check_maxcount(self.maxcount, self.count)

    def _limit(self, word: bytes, value: bytes) -> None:
        if word == b"MAXCOUNT":
            self.maxcount = positive_limit(value, errors.BAD_MAXCOUNT)
        else:
            self.maxsize = positive_limit(value, errors.BAD_MAXSIZE)

    def _keys(self, argv: list[bytes], start: int) -> None:
        self.keys = keys_of(argv, start, "xreadgroup", "ID or '>'")
        self.first = start + len(self.keys)

    def id_of(self, number: int) -> int:
        """Return the ID for the key with this index. Raises CommandError."""
        text = self.argv[self.first + number]
        if text == b">":
            return NEW
        if text == b"$" or text == b"+":
            raise errors.meaningless_id(text.decode())
        return strict_id(text)

    def limits(self, proto: int) -> ReplyLimits | None:
        return limits_of(self.maxcount, self.maxsize, proto)

    def deadline(self, now: int) -> int:
        return now + self.block if self.block else NEVER


MOST: Final = 256  # cached calls
REMEMBERED: Final = 1024  # maximum size of the words of a cached call
# The latest calls, by the fourth word, which usually is the consumer's name: readers repeat their calls, and the
# readers of a group alternate.
_recent: Final[dict[bytes, GroupReadArgs]] = {}


def read_args(argv: list[bytes]) -> GroupReadArgs:
    """Return the arguments of this call; the caller may change them. Raises CommandError."""
    same = _recent.get(argv[3])
    if same is not None and argv == same.argv:
        return GroupReadArgs(argv, same)
    read = GroupReadArgs(argv)
    if len(argv) <= 16 and sum([len(word) for word in argv]) <= REMEMBERED:
        if len(_recent) >= MOST:
            _recent.clear()
        _recent[argv[3]] = GroupReadArgs(argv.copy(), read)
    return read
