"""Publishes the rows of an epoch to streams of several groups of a cluster, exactly once: semantics [111].

    TAPPEND <name>:{fence}:intents m {"epoch": 7, "run": "5f0c", "stages": {"{orders:3}": [...]}, ...}
    TPUBLISH fence 7 CHECK <check> <no stage>               -NOSTAGE: the epoch is undecided
    TPERSIST <name>:{orders:3}:...                          on the group of each stream
    TPUBLISH fence 7 CHECK <check> <stage of the marker>    the decision: the marker is in <name>:{fence}:log
    TPUBLISH <name>:{orders:3}:<fence> 7 CHECK 5f0c ...     on the group of each stream

Rule 1: the check identifies the content of an epoch, as with one group. What is published is always what the last
        marker names, which can be another attempt of the same epoch.
Rule 2: rows are staged with a time to live before ``commit``. Streams with one hash tag have one fence, so their
        stages are published in one step.
Rule 3: every step may be repeated, and any number of programs may run them at the same time.
Rule 4: after a failure in ``commit``, its stages are not dropped by the caller: the epoch may have been decided.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final
from uuid import uuid4

import msgspec

from tidelog.client import calls, strings
from tidelog.client.entries import Entry
from tidelog.client.publish import CLAIM_MS, NO_REPLICA_ACKS, Publisher, ReplicaAcks, StagedRows
from tidelog.client.steps import Steps, checked
from tidelog.transport.access import Access
from tidelog.transport.call import Call
from tidelog.transport.errors import ConflictError, ReplyError, message_of
from tidelog.transport.leader import LeaderConnection
from tidelog.transport.slots import hash_tag

MARKER_MS: Final = 3_600_000  # the time to live of a staged marker
INTENTS_AT_ONCE: Final = 100
FIELD: Final = b"m"


class StageExpiredError(Exception):
    """Rows expired before they could be published. Nothing of the epoch was published."""


class CommitMarker(msgspec.Struct, frozen=True):
    """A decided epoch, or the intent to decide it."""

    epoch: int
    run: str
    stages: dict[str, list[str]]  # by hash tag
    marker: str  # the stage of the marker


class DividedCommit:
    """The epochs of one fence. ``name`` is a prefix for the names of all keys, stages, and fences, without braces."""

    def __init__(self, name: str, fence: str) -> None:
        self._name, self.fence = name, fence
        home = hash_tag(fence)
        self.log = f"{name}:{home}:log"
        self._intents = f"{name}:{home}:intents"

    @property
    def keys(self) -> tuple[str, str]:
        """The streams of the markers and of the intents."""
        return self.log, self._intents

    def commit(self, epoch: int, check: str, stages: Mapping[str, Sequence[str]]) -> Steps[bool]:
        """Publish the stages, by hash tag, once for each epoch. Returns False if another attempt has published it.

        Raises StaleEpochError, ConflictError, and StageExpiredError; nothing of the epoch was published then.
        """
        run = uuid4().hex
        yield from self.recover()
        if (yield from self._decided(epoch, check)):
            yield from self.drop(stages)
            return False
        own = CommitMarker(epoch, run, {tag: list(names) for tag, names in stages.items()}, f"{self.log}:{run}")
        checked((yield [calls.tappend(self._intents, {FIELD: msgspec.json.encode(own)})]))
        if not (yield from self._decided(epoch, check)):
            yield from self._keep(stages)
            yield from self._decide(own, check)
        last = yield from self.recover()
        return last is not None and last.run == run

    def recover(self) -> Steps[CommitMarker | None]:
        """Complete what was decided, drop what was not, and return the last marker.

        There are several markers if an epoch was decided that does not follow the last one, such as the epoch that
        closes a fence.
        """
        (found,) = checked((yield [calls.trange(self.log)]))
        last: CommitMarker | None = None
        for entry in found:
            last = _marker(entry)
            yield from self._publish(last)
        if last is not None:
            yield from self._clean(last.epoch, last.run)
            checked((yield [calls.ttrim(self.log, before=found[-1].id)]))
        return last

    def close(self, epoch: int, check: str) -> Steps[None]:
        """Publish the last epoch of the fence, which has no rows, and drop the stages of all other attempts.

        The epoch need not follow the last one. What was decided before is published, too. There is no intent: it would
        protect those of lower epochs behind it if this program ended here.
        """
        yield from self.recover()
        if not (yield from self._decided(epoch, check)):
            run = uuid4().hex
            yield from self._decide(CommitMarker(epoch, run, {}, f"{self.log}:{run}"), check)
        last = yield from self.recover()
        yield from self._clean(epoch, last.run if last is not None else "")

    def drop(self, stages: Mapping[str, Sequence[str]]) -> Steps[None]:
        """Drop stages that will not be published."""
        checked((yield [calls.tdrop(*names) for names in stages.values()]))

    def _decided(self, epoch: int, check: str) -> Steps[bool]:
        """Return whether the epoch was decided. The server compares epoch and check before it looks for the stage."""
        (reply,) = yield [calls.tpublish(self.fence, epoch, f"{self.log}:none", check=check)]
        if _is_refusal(reply, "NOSTAGE"):
            return False
        checked([reply])
        return True

    def _decide(self, own: CommitMarker, check: str) -> Steps[None]:
        checked((yield [calls.tstage(own.marker, MARKER_MS, self.log, [FIELD], [[msgspec.json.encode(own)]])]))
        checked((yield [calls.tpublish(self.fence, own.epoch, own.marker, check=check)]))

    def _keep(self, stages: Mapping[str, Sequence[str]]) -> Steps[None]:
        kept = checked((yield [calls.tpersist(*names) for names in stages.values()]))
        if kept != list(map(len, stages.values())):
            raise StageExpiredError("rows have expired before they were published: nothing was published")

    def _publish(self, last: CommitMarker) -> Steps[None]:
        replies = yield [
            calls.tpublish(f"{self._name}:{tag}:{self.fence}", last.epoch, *names, check=last.run)
            for tag, names in last.stages.items()
        ]
        # STALE: another program has published this epoch, and a later one
        checked([reply for reply in replies if not _is_refusal(reply, "STALE")])

    def _clean(self, epoch: int, run: str) -> Steps[None]:
        """Drop the stages that other attempts of this and of earlier epochs have left."""
        while True:
            (entries,) = checked((yield [calls.trange(self._intents, count=INTENTS_AT_ONCE)]))
            done: list[Entry] = []
            for entry in entries:
                intent = _marker(entry)
                if intent.epoch > epoch:
                    break
                done.append(entry)
                if intent.run != run:
                    yield from self.drop({**intent.stages, "": [intent.marker]})
            if done:
                end = done[-1].id
                checked((yield [calls.ttrim(self._intents, before=end._replace(seq=end.seq + 1))]))
            if len(done) < INTENTS_AT_ONCE:
                break


def _is_refusal(reply: object, code: str) -> bool:
    return isinstance(reply, Exception) and message_of(reply).partition(" ")[0] == code


def _marker(entry: Entry) -> CommitMarker:
    return msgspec.json.decode(dict(entry.pairs)[FIELD], type=CommitMarker)


def commit_once(by: Publisher, name: str, fence: str, stages: Mapping[str, Sequence[str]]) -> None:
    """Publish stages, by hash tag, for a writer that is never repeated. ``name``: as for DividedCommit.

    Such writers share fences, because a fence is never deleted: the first one of ``<fence>:<host name>:<number>`` that
    no writer has claimed. The key ``...:claim`` expires after CLAIM_MS, if the writer dies. The next writer with this
    fence then publishes what the dead one had decided. Raises the errors of ``DividedCommit.commit``.
    """
    token = uuid4().hex.encode()
    for number in count():
        own = f"{fence}:{socket.gethostname()}:{number}"
        claim = f"{own}:claim"
        (holder,) = checked(by.ask(strings.set_absent(claim, token, CLAIM_MS)))
        if holder in (None, token):  # the reply to an earlier attempt may have been lost
            break
    (last,) = checked(by.ask(calls.tfence(own)))
    epoch = 1 if last is None else last + 1
    if not by.run(DividedCommit(name, own).commit(epoch, token.decode(), stages)):
        raise ConflictError(f"CONFLICT epoch {epoch} of fence {own!r} was published by another program")
    by.ask(strings.delete_equal(claim, token))


class DividedStager:
    """Stages the rows of one writer on the groups of their streams. Not thread-safe.

    ``connection`` is the name of its connections in CLIENT LIST; the names of stages begin with ``name`` and the hash
    tag of the stream, and end with ``last`` and a unique part. ``stages`` has them by hash tag, in the order of rows.
    """

    def __init__(
        self, access: Access, connection: str, name: str, last: str, ttl_ms: int,
        copies: ReplicaAcks = NO_REPLICA_ACKS, servers: LeaderConnection | None = None,
    ) -> None:  # fmt: skip
        """Use the connection ``servers`` of the caller, which makes one attempt; None: open a new one."""
        self.stages: dict[str, list[str]] = {}
        self._own = servers is None
        self._servers = servers or LeaderConnection(access.single_attempt(access.read_ms), connection)
        self._retrying = LeaderConnection(access, connection)  # only its attempts
        self._name, self._last, self._ttl_ms, self._copies = name, last, ttl_ms, copies

    def stage(self, parts: Iterable[StagedRows]) -> None:
        """Stage some rows. Raises ReplyError, UnreachableError, NotReplicatedError."""
        left: dict[str, list[StagedRows]] = {}
        for part in parts:
            left.setdefault(hash_tag(part.key.decode()), []).append(part)
        self._retrying.attempts(lambda: self._stage(left))

    def close(self) -> None:
        """Close its own connection."""
        if self._own:
            self._servers.close()

    def _stage(self, parts: Mapping[str, list[StagedRows]]) -> None:
        """Stage rows under new names: without a reply, it is unknown which rows a stage has."""
        names = {tag: f"{self._name}:{tag}:{self._last}:{uuid4().hex}" for tag in parts}
        commands = [(tag, part) for tag, own in parts.items() for part in own]
        sent: list[Call[int]] = []
        for tag, part in commands:
            words = ("TSTAGE", names[tag], self._ttl_ms, part.key)
            sent.append(Call(words, int, packed=part.command(names[tag], self._ttl_ms)))
        wait = [self._copies.call] if self._copies.replicas else []
        replies = self._servers.ask(*sent, *wait)
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        held = dict(zip([tag for tag, _ in commands], replies, strict=False))  # the last reply of each stage
        for tag, own in parts.items():
            if held[tag] != sum(part.rows for part in own):
                raise ConnectionError(f"stage {names[tag]} has {held[tag]} rows: it has expired, and is staged again")
        if wait and replies[-1] < self._copies.replicas:
            self._copies.missed(replies[-1])
            self._copies = NO_REPLICA_ACKS
        for tag, stage in names.items():
            self.stages.setdefault(tag, []).append(stage)
