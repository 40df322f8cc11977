"""Validation of batches from another server, before any of their records is applied.

This covers what can be checked without the state; ``replay`` checks the rest. Readers receive the bytes of an entry
unchanged. Invalid bytes would therefore break the protocol of every client that reads the entry.
"""

from __future__ import annotations

from typing import Final

from resp.errors import CorruptError
from storage.keyspace.replay import KNOWN
from storage.keyspace.replayparts import DAMAGE, part
from storage.model import records
from storage.model.entries import SIZES

# Number of parts of an entry split at each CRLF, by the first part. An entry has an ID and pairs: an odd number.
PIECES: Final = {b"*%d" % n: 2 * n + 2 for n in range(3, 1024, 2)}

_STAGED_ID: Final = b"1.0"
_STAGED_ID_BULK: Final = b"\r\n$3\r\n1.0"


def check(batch: bytes) -> None:
    """Validate the records of a batch and their entries. Raises CorruptError if one is invalid."""
    at, end = 0, len(batch)
    try:
        while at < end:
            op, size = records.HEAD.unpack_from(batch, at)
            stop = at + 5 + size
            if stop > end:
                raise CorruptError("a record that ends beyond its batch")
            if op not in KNOWN:
                raise CorruptError(f"a record of unknown kind {op}: written by a newer version?")
            if op == records.APPEND:
                _, _, klen, ms, seq = records.APPEND_HEAD.unpack_from(batch, at)
                _check_one(part(batch, at + records.APPEND_HEAD.size + klen, stop), ms, seq)
            elif op == records.RUN:
                _check_run(batch, at)
            elif op == records.DELAY:
                _, _, klen, ms, seq = records.APPEND_HEAD.unpack_from(batch, at)
                _check_one(part(batch, at + records.APPEND_HEAD.size + klen, stop), ms, seq)
            elif op == records.JOIN:
                _check_join(batch, at)
            elif op == records.DROP:
                _check_drop(batch, at, stop)
            elif op == records.STAGE:
                _check_stage(batch, at)
            at = stop
    except DAMAGE as error:
        raise CorruptError(f"an invalid record ({error!r})") from error


def _check_one(wire: bytes, ms: int, seq: int) -> None:
    if not is_entry(wire, b"%d.%d" % (ms, seq)):
        raise CorruptError(f"the entry {ms}.{seq} has invalid bytes")


def _check_run(batch: bytes, at: int) -> None:
    _, _, klen, ms, seq, n = records.RUN_HEAD.unpack_from(batch, at)
    start = at + records.RUN_HEAD.size + klen
    here = start + 4 * n
    for number, size in enumerate(records.unpack_sizes(batch[start:here])):
        _check_one(batch[here : here + size], ms, seq + number)
        here += size


def _check_join(batch: bytes, at: int) -> None:
    _, _, klen, *_, n = records.JOIN_HEAD.unpack_from(batch, at)
    start = at + records.JOIN_HEAD.size + klen + 8 * n
    here = start + 4 * n
    for size in records.unpack_sizes(batch[start:here]):
        wire = batch[here : here + size]
        if not is_entry(wire, b"".join(wire.split(b"\r\n", 3)[2:3])):
            raise CorruptError("a delayed entry has invalid bytes")
        here += size


def _check_drop(batch: bytes, at: int, stop: int) -> None:
    _, _, klen, glen, dlen, _, _, ms, seq = records.DROP_HEAD.unpack_from(batch, at)
    if dlen:
        _check_one(part(batch, at + records.DROP_HEAD.size + klen + glen + dlen, stop), ms, seq)


def _check_stage(batch: bytes, at: int) -> None:
    _, _, nlen, klen, _, _, n = records.STAGE_HEAD.unpack_from(batch, at)
    start = at + records.STAGE_HEAD.size + nlen + klen
    here = start + 4 * n
    for size in records.unpack_sizes(batch[start:here]):
        bare = batch[here : here + size]
        if not is_entry(bare.replace(b"\r\n", _STAGED_ID_BULK, 1), _STAGED_ID):
            raise CorruptError("a staged entry has invalid bytes")
        here += size


def is_entry(wire: bytes, entry_id: bytes) -> bool:
    """Return whether ``wire`` is one entry with this ID (as text), as ``entries`` encodes it."""
    words = wire.split(b"\r\n")
    last = len(words) - 1
    if PIECES.get(words[0]) == last + 1 and not words[last] and words[2] == entry_id:
        at = 2
        while at < last and len(words[at]) < 4096 and words[at - 1] == SIZES[len(words[at])]:
            at += 2
        if at > last:
            return True
    return _is_entry(wire, entry_id)  # a value contains a CRLF or is long


def _is_entry(wire: bytes, entry_id: bytes) -> bool:
    """Return is_entry() for any entry, step by step."""
    end = wire.find(b"\r\n")
    count = _number(wire[1:end]) if wire[:1] == b"*" and end > 0 else 0
    at = end + 2
    for number in range(count):
        end = wire.find(b"\r\n", at)
        size = _number(wire[at + 1 : end]) if wire[at : at + 1] == b"$" and end > 0 else -1
        start = end + 2
        at = start + size + 2
        if size < 0 or wire[at - 2 : at] != b"\r\n" or (not number and wire[start : at - 2] != entry_id):
            return False
    return count >= 3 and count % 2 == 1 and at == len(wire)


def _number(text: bytes) -> int:
    """Parse a canonical decimal number; -1 if it is invalid."""
    if not text.isdigit() or len(text) > 10 or (text[:1] == b"0" and len(text) > 1):
        return -1
    return int(text)
