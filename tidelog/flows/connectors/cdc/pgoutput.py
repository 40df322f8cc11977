"""Decodes the messages of pgoutput, the output plugin of PostgreSQL, in version 1 of its protocol.

    B  final LSN (8), commit time (8), xid (4)                        a transaction begins
    C  flags (1), commit LSN (8), end LSN (8), commit time (8)        it ends
    R  OID (4), schema\\0, table\\0, identity (1), columns (2), for each: flags (1), name\\0, type (4), modifier (4)
    I  OID (4), N, row
    U  OID (4), [K or O, row], N, row
    D  OID (4), K or O, row
    T  tables (4), options (1), OIDs (4 each)
    row: columns (2), then for each: n (null), u (unchanged), or t, size (4), text

Rule 1: A transaction is sent when it is committed, in the order of commits. So the final LSN of a transaction and the
        number of a change in it identify the change.
Rule 2: The server sends R before the first change of a table, and again after its columns have changed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from tidelog.flows.connectors.cdc.columntext import Converter, converter

EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
KEY: Final = 1  # flag of a column that is part of the replica identity


class Begin(NamedTuple):
    """The beginning of a transaction."""

    lsn: int  # final LSN of the transaction
    time: str  # ISO 8601
    xid: int


class Commit(NamedTuple):
    """The end of a transaction."""

    end: int  # LSN after the transaction


class Change(NamedTuple):
    """The change of a row or a table. ``before``: the old key, or the old row, if the server has sent it."""

    operation: str  # insert, update, delete, truncate
    table: str  # schema.table
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    unchanged: tuple[str, ...] = ()  # columns that are not in ``after``: large values that have not changed


Decoded = Begin | Commit | Sequence[Change]


class _Column(NamedTuple):
    name: str
    convert: Converter
    key: bool


class _Relation(NamedTuple):
    table: str
    columns: tuple[_Column, ...]


class _Message:
    """Reads the fields of one message. Raises ValueError if it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, form: str) -> tuple[int, ...]:
        try:
            found = struct.unpack_from(form, self._data, self._at)
        except struct.error:
            raise ValueError("a message of pgoutput ends within a field") from None
        self._at += struct.calcsize(form)
        return found

    def mark(self) -> str:
        return chr(self.numbers("!B")[0])

    def name(self) -> str:
        end = self._data.index(b"\0", self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def text(self) -> str:
        (size,) = self.numbers("!i")
        found = self._data[self._at : self._at + size].decode()
        self._at += size
        return found


class ChangeDecoder:
    """Decodes the messages of one connection."""

    def __init__(self) -> None:
        self._relations: dict[int, _Relation] = {}

    def decode(self, data: bytes) -> Decoded | None:
        """Return what a message contains. None: it is not needed. Raises ValueError if it is not valid."""
        message = _Message(data)
        kind = message.mark()
        if kind == "B":
            lsn, microseconds, xid = message.numbers("!qqI")
            return Begin(lsn, time_of(microseconds), xid)
        if kind == "C":
            return Commit(message.numbers("!Bqqq")[2])
        if kind == "R":
            self._relation(message)
        elif kind in "IUD":
            return [self._change(kind, message)]
        elif kind == "T":
            tables, _ = message.numbers("!IB")
            oids = message.numbers(f"!{tables}I")
            return [Change("truncate", self._relations[each].table, None, None) for each in oids]
        return None

    def _relation(self, message: _Message) -> None:
        (oid,) = message.numbers("!I")
        schema, table = message.name() or "pg_catalog", message.name()
        _, count = message.numbers("!BH")
        columns = []
        for _ in range(count):
            (flags,) = message.numbers("!B")
            name = message.name()
            kind, _ = message.numbers("!Ii")
            columns.append(_Column(name, converter(kind), bool(flags & KEY)))
        self._relations[oid] = _Relation(f"{schema}.{table}", tuple(columns))

    def _change(self, kind: str, message: _Message) -> Change:
        (oid,) = message.numbers("!I")
        relation = self._relations.get(oid)
        if relation is None:
            raise ValueError(f"pgoutput sent a change of a table with the unknown OID {oid}")
        before, mark = None, message.mark()
        if mark in "KO":
            before, _ = self._row(relation, message, keys=mark == "K")
            if kind == "D":
                return Change("delete", relation.table, before, None)
            mark = message.mark()
        after, unchanged = self._row(relation, message)
        for name in [each for each in unchanged if before is not None and each in before]:
            after[name] = (before or {})[name]  # of a table with REPLICA IDENTITY FULL
            unchanged.remove(name)
        return Change("insert" if kind == "I" else "update", relation.table, before, after, tuple(unchanged))

    def _row(self, relation: _Relation, message: _Message, *, keys: bool = False) -> tuple[dict[str, Any], list[str]]:
        """Return the values of a row, and the names of unchanged columns. keys: only the key was sent."""
        row: dict[str, Any] = {}
        unchanged: list[str] = []
        (count,) = message.numbers("!H")
        for column in relation.columns[:count]:
            mark = message.mark()
            value = None
            if mark == "t":
                value = column.convert(message.text())
            elif mark == "u":
                unchanged.append(column.name)
                continue
            if column.key or not keys:
                row[column.name] = value
        return row, unchanged


def time_of(microseconds: int) -> str:
    """Return a time of the protocol, in us since 2000, as ISO 8601."""
    return (EPOCH + timedelta(microseconds=microseconds)).isoformat()


def lsn_of(text: str) -> int:
    """Return an LSN as a number."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
