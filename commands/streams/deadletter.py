"""What a message becomes when it is given up: its fields, followed by where it came from and why [23]."""

from __future__ import annotations

from commands.streams.entries import entry_wire, id_bulk, wire_values
from storage.groups.pending import PendingRow
from storage.ids import format_id


def dead_letter(
    ms: int, seq: int, wire: bytes | None, key: bytes, group: bytes, row: PendingRow, reason: str
) -> bytes:
    """The entry ms.seq of the dead letter stream. ``wire`` is the message's own entry, None if eviction has taken
    it."""
    values = wire_values(wire) if wire is not None else []
    values += (
        b"__stream", key, b"__group", group, b"__id", format_id(row.id),
        b"__deliveries", b"%d" % row.deliveries, b"__reason", reason.encode(),
    )  # fmt: skip
    return entry_wire(id_bulk(ms, seq), values)
