"""The records of keys that move to another group of a cluster, selected from the log of the group that they leave
[112].

The copies of keys (``copying``) and these records are one sequence. In its order, they recreate the keys:

    gather   the keys to copy are collected. No record is selected. Stages and fences are copied.
    copy     one key after another is copied. The records of a key follow its copy.

Rule 1: a record of a key that is not copied yet is not needed: the copy contains its effect. Keys that are new since
the beginning of copying need no copy.
Rule 2: a record that affects keys that move and keys that stay is reduced to the former. What can't be divided,
because its parts would later be in two groups, ends the move (MoveEndedError).
Rule 3: a published stage can contain entries for keys that are not copied yet. Its record is therefore reduced to the
keys that are copied, and ``importing`` appends their entries and drops the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from storage.model import records


def _heads() -> dict[int, int]:
    """Return the sizes of the heads of records that affect one key, which follows the head, and whose length is its
    first field. (A function, because mypyc can't determine the types earlier.)"""
    return {
        records.APPEND: records.APPEND_HEAD.size, records.RUN: records.RUN_HEAD.size,
        records.EVICT: records.EVICT_HEAD.size, records.SET: records.KEY_TIME_HEAD.size,
        records.EXPIRE: records.KEY_TIME_HEAD.size,
        records.PATCH: records.KEY_TIME_HEAD.size, records.DELETED: records.DELETED_HEAD.size,
        records.SETID: records.SETID_HEAD.size, records.IDEMPOTENT: records.IDEMPOTENT_HEAD.size,
        records.IDMP: records.IDMP_HEAD.size, records.PRODUCED: records.KEY_TIME_HEAD.size,
        records.RETAIN: records.RENAME_HEAD.size, records.TIER: records.RENAME_HEAD.size,
        records.DELAY: records.APPEND_HEAD.size,
        records.JOIN: records.JOIN_HEAD.size, records.CANCEL: records.KEY_TIME_HEAD.size,
        records.GROUP: records.GROUP_HEAD.size, records.DELIVER: records.DELIVER_HEAD.size,
        records.ACK: records.IDS_HEAD.size, records.DUE: records.DUE_HEAD.size, records.DESTROY: records.IDS_HEAD.size,
        records.XGROUP: records.XGROUP_HEAD.size, records.CONSUMER: records.CONSUMER_HEAD.size,
        records.OWN: records.OWN_HEAD.size, records.FORGET: records.FORGET_HEAD.size,
        records.COPIED: records.COPIED_HEAD.size, records.NODE: records.NODE_HEAD.size,
        records.NODEREF: records.NODE_HEAD.size,
        records.GROUPCOPY: records.IDS_HEAD.size, records.PENDING: records.PENDING_HEAD.size,
        records.PRODUCER: records.IDS_HEAD.size,
    }  # fmt: skip


_HEADS: Final[dict[int, int]] = _heads()


class MoveEndedError(Exception):
    """The keys can't be moved now. The text says why."""


class MoveAgainError(MoveEndedError):
    """A move that begins again may succeed."""


class MovedRecords:
    """The selection. ``moves``: whether a key, a stage or a fence has one of the moving slots."""

    def __init__(self, moves: Callable[[bytes], bool]) -> None:
        self._moves = moves
        self.gathering = True
        self.todo: set[bytes] = set()  # keys that are not copied yet
        self.stages: set[bytes] = set()  # copied stages, and new ones
        self.unstaged: set[bytes] = set()  # stages that are not copied yet
        self.grown: set[bytes] = set()  # stages that have got entries for any key, since this was cleared
        self._copying = b""  # the key whose copy is being sent; b"": none
        self._found: list[bytes] = []  # records to send now
        self._later: list[bytes] = []  # records to send after the copy of this key: those of the key
        self._all_later = False  # and all others, too

    # -- copies ------------------------------------------------------------------------------------------------------
    def next_key(self) -> bytes | None:
        """Return a key to copy, as of now; None if all are copied."""
        self._copying = self.todo.pop() if self.todo else b""
        return self._copying or None

    def copied(self) -> list[bytes]:
        """Return the records to send after the copy of next_key()."""
        later, self._later = self._later, []
        self._copying, self._all_later = b"", False
        return later

    # -- records -----------------------------------------------------------------------------------------------------
    def select(self, batch: bytes) -> list[bytes]:
        """Return the records to send now. Raises MoveEndedError."""
        at, end = 0, len(batch)
        unpack, length, heads = records.HEAD.unpack_from, records.LENGTH.unpack_from, _HEADS
        while at < end:
            op, size = unpack(batch, at)
            stop = at + 5 + size
            head = heads.get(op)
            if head is not None:
                start = at + head
                key = batch[start : start + length(batch, at + 5)[0]]
                if self._moves(key):
                    if op == records.DELIVER:
                        self._check_delivery(batch, at, key)
                    self._add(key, batch[at:stop])
            else:
                self._others(op, batch, at, stop)
            at = stop
        found, self._found = self._found, []
        return found

    def _send(self, record: bytes) -> None:
        (self._later if self._all_later else self._found).append(record)

    def _add(self, key: bytes, record: bytes) -> None:
        """Add a record of a key that moves (Rule 1)."""
        if self.gathering:
            self.todo.add(key)
        elif key not in self.todo:
            if key == self._copying:
                self._later.append(record)
            else:
                self._send(record)

    def _gone(self, key: bytes) -> None:
        """Add the deletion of a key that moves."""
        if key in self.todo:
            self.todo.discard(key)  # if it exists again later, it is new
        elif not self.gathering:
            self._add(key, records.delete(key))

    def _others(self, op: int, batch: bytes, at: int, stop: int) -> None:
        """Add a record that affects no key, one whose name is the whole record, or several."""
        body = batch[at + 5 : stop]
        if op == records.DELETE:
            if self._moves(body):
                self._gone(body)
        elif op == records.RENAME:
            klen = records.LENGTH.unpack_from(body)[0]
            self._rename(body[4 : 4 + klen], body[4 + klen :])
        elif op == records.DROP:
            self._drop(batch, at, stop)
        elif op == records.STAGE:
            _, _, nlen, klen, *_ = records.STAGE_HEAD.unpack_from(batch, at)
            start = at + records.STAGE_HEAD.size
            self._stage(batch[start : start + nlen], batch[start + nlen : start + nlen + klen], batch[at:stop])
        elif op == records.UNSTAGE:
            self._unstage(records.unpack_names(body, 0, -1)[0])
        elif op == records.PUBLISH:
            self._publish(b"", body)
        elif op == records.CHECKED:
            (check,), begin = records.unpack_names(body, 0, 1)
            self._publish(check, body[begin:])
        elif op == records.FLUSH:
            raise MoveEndedError("FLUSHALL has deleted all keys during the move (start it again)")
        elif op == records.AWAY:
            raise MoveAgainError("the clock of the server was set, or it was suspended")
        elif op != records.IMPORTS:
            raise MoveEndedError(f"a record of kind {op} can't be moved")

    def _rename(self, key: bytes, new: bytes) -> None:
        """Add a RENAME. The new key is copied if only its name moves, or if it was not copied under its old name."""
        leaves, arrives = self._moves(key), self._moves(new)
        known = self.gathering or {key, new} & {self._copying} or key in self.todo or new in self.todo
        if leaves and arrives and not known:
            self._send(records.rename(key, new))
            return
        if leaves:
            self._gone(key)
        if arrives:
            self._gone(new)
            self.todo.add(new)

    def _drop(self, batch: bytes, at: int, stop: int) -> None:
        _, _, klen, glen, dlen, raw, reason, ms, seq = records.DROP_HEAD.unpack_from(batch, at)
        start = at + records.DROP_HEAD.size
        middle = start + klen + glen
        key, group = batch[start : start + klen], batch[start + klen : middle]
        letter, wire = batch[middle : middle + dlen], batch[middle + dlen : stop]
        if letter:
            self.check_letters(key, letter)
        if not self._moves(key):
            return
        if not letter or not (self.gathering or {key, letter} & {self._copying} or letter in self.todo):
            self._add(key, batch[at:stop])  # if only the key is not copied yet, its dead letter is missing
            if letter and key in self.todo:
                self._add(letter, _append(letter, ms, seq, wire))
            return
        why = records.REASONS[reason]
        self._add(key, records.drop(key, group, int.from_bytes(raw, "big"), why, b"", 0, 0, b""))
        self._add(letter, _append(letter, ms, seq, wire))

    def _check_delivery(self, batch: bytes, at: int, key: bytes) -> None:
        """Raise MoveEndedError if the dead letters of a delivery would go to a key of another group."""
        _, _, klen, glen, dlen, *_ = records.DELIVER_HEAD.unpack_from(batch, at)
        if dlen:
            start = at + records.DELIVER_HEAD.size + klen + glen
            self.check_letters(key, batch[start : start + dlen])

    def check_copy(self, key: bytes, record: bytes) -> None:
        """Do the same for a record of the copy of a key."""
        if record[0] == records.PENDING:
            _, _, klen, glen, dlen, *_ = records.PENDING_HEAD.unpack_from(record)
            start = records.PENDING_HEAD.size + klen + glen
            if dlen:
                self.check_letters(key, record[start : start + dlen])

    def check_letters(self, key: bytes, letter: bytes) -> None:
        """Raise MoveEndedError if one of both keys moves and the other one stays."""
        if self._moves(key) != self._moves(letter):
            raise letters_elsewhere(key, letter)

    # -- stages ------------------------------------------------------------------------------------------------------
    def _stage(self, name: bytes, key: bytes, record: bytes) -> None:
        if not key:  # TPERSIST
            if name in self.stages:
                self._send(record)
            return
        self.grown.add(name)
        if self._moves(key) and name not in self.unstaged:
            self.stages.add(name)
            self._send(record)

    def _unstage(self, names: list[bytes]) -> None:
        self.unstaged.difference_update(names)
        sent = [name for name in names if name in self.stages]
        if sent:
            self.stages.difference_update(sent)
            self._send(records.unstage(sent))

    def _publish(self, check: bytes, body: bytes) -> None:
        flen, epoch, stages, streams = records.PUBLISH_BODY.unpack_from(body)
        body = body[records.PUBLISH_BODY.size :]
        fence = body[:flen]
        names, middle = records.unpack_names(body, flen, stages)
        moving = [each for each in records.unpack_firsts(body, middle, streams) if self._moves(each[0])]
        sent = [name for name in names if name in self.stages]
        self.unstaged.difference_update(names)
        self.stages.difference_update(sent)
        if self.gathering:
            self.todo.update([key for key, _, _ in moving])
        elif self._copying in [key for key, _, _ in moving]:
            self._all_later = True  # its entries are in a stage, which other records may change
        firsts = [each for each in moving if each[0] not in self.todo]
        if not (fence and self._moves(fence)):
            fence, epoch, check = b"", 0, b""
        if sent or firsts or fence:
            self._send(records.publish(fence, epoch, check, sent, firsts))


def _append(key: bytes, ms: int, seq: int, wire: bytes) -> bytes:
    """Return an APPEND record."""
    size = records.APPEND_HEAD.size - records.HEAD.size + len(key) + len(wire)
    return b"".join((records.APPEND_HEAD.pack(records.APPEND, size, len(key), ms, seq), key, wire))


def letters_elsewhere(key: bytes, letter: bytes) -> MoveEndedError:
    """Return the error for a group whose dead letters would be in the slot of another owner."""
    return MoveEndedError(
        f"a group of {_text(key)} has its dead letters in {_text(letter)}, whose slot"
        " does not move with it: move both slots, or acknowledge its messages and use a dead letter key with the same"
        " hash tag"
    )


def _text(key: bytes) -> str:
    return repr(key[:100].decode("utf-8", "backslashreplace"))
