"""TMAPPEND and TSTAGE for rows that the caller has already packed: the values are not inspected again.

*8 TMAPPEND orders FIELDS 2 id item VALUES  $1 7 $3 tea ...
built here                                  from the caller: RESP bulk strings, row by row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import hiredis

from tidelog.client.calls import read_span
from tidelog.client.entries import Span
from tidelog.transport.call import Call, Name, Value

T = TypeVar("T")


def tmappend_packed(key: Name, fields: Sequence[Name], rows: int, values: bytes) -> Call[Span]:
    """Return ``calls.tmappend`` for packed rows: ``values`` has ``rows * len(fields)`` RESP bulk strings."""
    return _packed_rows(("TMAPPEND", key), fields, rows, values, read_span)


def tstage_packed(
    stage: Name, ttl: int, key: Name, fields: Sequence[Name], rows: int, values: bytes
) -> Call[int]:  # fmt: skip
    """Return ``calls.tstage`` for packed rows: ``values`` has ``rows * len(fields)`` RESP bulk strings."""
    return _packed_rows(("TSTAGE", stage, ttl, key), fields, rows, values, int)


def _packed_rows(
    head: tuple[Value, ...], fields: Sequence[Name], rows: int, values: bytes, read: Callable[[Any], T]
) -> Call[T]:
    args: tuple[Value, ...] = (*head, "FIELDS", len(fields), *fields, "VALUES")
    start: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # its annotation is wrong: any length
    count = len(args) + rows * len(fields)
    return Call(args, read, packed=b"*%d%s%s" % (count, start[start.index(b"\r\n") :], values))
