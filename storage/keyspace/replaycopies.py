"""Replay of the records of keys that are copied from another group (see ``replay``)."""

from __future__ import annotations

from typing import Final

from resp.errors import CorruptError
from storage.groups.group import Group
from storage.groups.pendingformat import assemble, head
from storage.groups.rangerow import OWNED
from storage.keyspace import copymutators
from storage.keyspace.keyspace import Keyspace
from storage.keyspace.replayparts import Appliers, check_times, need_group, need_stream, part, split_names
from storage.model import records
from storage.model.records import split_ids
from storage.nodes.reference import is_reference

NO_MESSAGES: Final = bytes(assemble(head(0, 0, [], False)))  # the dump of an empty pending list


def _apply_imports(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    copymutators.set_imports(ks, batch[at + 5 : stop])


def _apply_copied(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, complete = records.COPIED_HEAD.unpack_from(batch, at)
    start = at + records.COPIED_HEAD.size
    key, meta = batch[start : start + klen], part(batch, start + klen, stop)
    if complete > 1 or (key in ks.keys) != bool(complete):
        raise CorruptError("a COPIED record for a key that exists, or for one that does not")
    if complete:
        copymutators.complete(ks, key, need_stream(ks, key), meta)
    else:
        copymutators.begin(ks, key, meta)


def _apply_node(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, first, end, n = records.NODE_HEAD.unpack_from(batch, at)
    start = at + records.NODE_HEAD.size
    key, middle = batch[start : start + klen], start + klen + n * records.BORDERS.size
    dead = list(records.BORDERS.iter_unpack(part(batch, start + klen, middle)))
    borders = [border for pair in dead for border in pair]
    if (
        end >> 63
        or sum([high - low for low, high in dead]) > copymutators.MOST_DEAD
        or any(map(int.__ge__, borders, borders[1:]))
    ):
        raise CorruptError("a NODE record with invalid ordinals")
    blob = part(batch, middle, stop)
    if is_reference(blob) != (batch[at] == records.NODEREF):
        raise CorruptError("a NODE record with a reference, or a NODEREF record without one")
    copymutators.add_node(ks, key, need_stream(ks, key), first, end, dead, blob)


def _apply_group_copy(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = split_names(batch, at + records.IDS_HEAD.size, klen, glen)
    stream = need_stream(ks, key)
    if not name or name in stream.groups:
        raise CorruptError("a GROUPCOPY record for a group that exists")
    copymutators.add_group(ks, key, stream, Group.restore(name, part(batch, start, stop), NO_MESSAGES))


def _apply_pending(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    fields = records.PENDING_HEAD.unpack_from(batch, at)
    (_, _, klen, glen, dlen, first, due, expire, retry, deliveries, most, owner, kind) = fields
    check_times(first, due, expire, retry, deliveries)
    key, name, start = split_names(batch, at + records.PENDING_HEAD.size, klen, glen)
    deadletter, ids = batch[start : start + dlen], split_ids(part(batch, start + dlen, stop))
    stream, group = need_group(ks, key, name)
    if (
        not ids
        or any(map(bytes.__ge__, ids, ids[1:]))
        or group.pending.present(ids)
        or (kind == OWNED and (dlen or (owner and owner not in group.owners)))
        or (kind != OWNED and (kind or owner or deliveries >> 32))
    ):
        raise CorruptError("a PENDING record that does not fit its group")
    times = (first, due, expire, retry)
    copymutators.add_pending(ks, key, stream, group, deadletter, times, deliveries, most, owner, kind, ids)


def _apply_producer(ks: Keyspace, batch: bytes, at: int, stop: int) -> None:
    _, _, klen, plen = records.IDS_HEAD.unpack_from(batch, at)
    key, name, start = split_names(batch, at + records.IDS_HEAD.size, klen, plen)
    copymutators.add_producer(ks, key, need_stream(ks, key), name, part(batch, start, stop))


APPLY: Final[Appliers] = {
    records.IMPORTS: _apply_imports,
    records.COPIED: _apply_copied,
    records.NODE: _apply_node,
    records.NODEREF: _apply_node,
    records.GROUPCOPY: _apply_group_copy,
    records.PENDING: _apply_pending,
    records.PRODUCER: _apply_producer,
}
