"""IDs in X commands: printed as ``ms-seq``; parsed as ``ms-seq`` or ``ms.seq``, complete or not.

    position                         words besides an ID          ms alone means
    XADD                             *  ms-*                      ms-0
    XREAD, after it                  $  +                         ms-0
    start of a range                 -  +  (id                    ms-0
    end of a range                   -  +  (id                    ms-18446744073709551615
    MINID, XSETID, groups, claims                                 ms-0
"""

from __future__ import annotations

from resp import errors
from resp.errors import CommandError
from storage.model.entries import id_bulk
from storage.model.ids import MASK64, MAX_ID, parse_id


def xid_bulk(id: int) -> bytes:  # noqa: A002
    """Return the ID as a bulk string."""
    return dashed_id(id_bulk(id >> 64, id & MASK64))


def xid_bulks(ids: list[int]) -> bytes:
    """Return IDs as bulk strings, joined."""
    return b"".join([xid_bulk(id) for id in ids])  # noqa: A001


def dashed_id(bulk_id: bytes) -> bytes:
    """Return the dashed form of an ID as a bulk string, from the result of id_bulk()."""
    return bulk_id.replace(b".", b"-") + b"\r\n"


def strict_id(text: bytes, default_seq: int = 0) -> int:
    """Parse an ID, complete or incomplete; special IDs are refused. Raises CommandError."""
    return parse_id(text, default_seq)


def added_id(text: bytes) -> tuple[int, int]:
    """Parse the ID argument of XADD: ms and seq; seq is -1 for ``ms-*``. Raises CommandError."""
    if text.endswith(b"*") and text[-2:-1] in (b"-", b"."):
        return parse_id(text[:-2] + b"-0") >> 64, -1
    id = parse_id(text)  # noqa: A001
    return id >> 64, id & MASK64


def range_start(text: bytes) -> int:
    """Return the first ID of a range that starts at ``text``. Raises CommandError."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    if len(text) > 1 and text[0] == 40:  # "(": exclusive
        start = parse_id(text[1:]) + 1
        if start > MAX_ID:
            raise CommandError(errors.BAD_RANGE_START)
        return start
    return parse_id(text)


def range_end(text: bytes) -> int:
    """Return the last ID of a range that ends at ``text``. Raises CommandError."""
    if text == b"-":
        return 0
    if text == b"+":
        return MAX_ID
    if len(text) > 1 and text[0] == 40:
        end = parse_id(text[1:], MASK64) - 1
        if end < 0:
            raise CommandError(errors.BAD_RANGE_END)
        return end
    return parse_id(text, MASK64)
