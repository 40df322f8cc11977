"""How much recent history of a stream stays local if history is copied to an object store (docs/history.md).

    0      1        9
    +------+--------+
    | kind | number |         kind  1: an age in ms; 2: a size in bytes, of the stream's nodes in the store
    +------+--------+

Numbers are big-endian, u64. 0: only the active node stays, which is never copied.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from resp.errors import CorruptError

_FORM: Final = Struct(">BQ")
SIZE: Final = _FORM.size
_AGE: Final = 1
_BYTES: Final = 2
MOST: Final = (1 << 62) - 1


class TierAfter:
    """An age or a size. It is never changed; a stream gets another one."""

    __slots__ = ("in_bytes", "number")

    def __init__(self, in_bytes: bool, number: int) -> None:
        self.in_bytes = in_bytes
        self.number = number  # ms or bytes

    def words(self) -> bytes:
        """Return the arguments of TCFG TIER that set it."""
        return (b"BYTES %d" if self.in_bytes else b"AGE %d") % self.number

    def pack(self) -> bytes:
        return _FORM.pack(_BYTES if self.in_bytes else _AGE, self.number)


def unpack(raw: bytes) -> TierAfter:
    """Return the object of pack(). Raises CorruptError if it is damaged."""
    if len(raw) != SIZE:
        raise CorruptError("a tier-after that is damaged, or of a newer tidelog")
    kind, number = _FORM.unpack(raw)
    if kind not in (_AGE, _BYTES) or number > MOST:
        raise CorruptError("a tier-after that is invalid, or of a newer tidelog")
    return TierAfter(kind == _BYTES, number)
