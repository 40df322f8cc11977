"""Publishing rows exactly once: they are staged invisibly on the server, then published in one step.

    any number of Stagers    TSTAGE a rows ...   TSTAGE b rows ...    in separate processes, concurrently
    one Publisher            TPUBLISH fence epoch a b ...             one record in the log: all rows appear together

Rule 1: the name of a stage is never used twice. Rows are staged in chunks, each under a new name. If a reply is lost,
        it is unknown which rows the server has under that name: the chunk is staged again under another new name. The
        first stage is never published, and expires.
Rule 2: TPUBLISH is repeated, with the same epoch, until there is a reply. The server skips an epoch that was already
        published.
Rule 3: with ``ReplicaAcks``, a chunk counts as staged, and publish() returns, once replicas have it too (WAIT).
        Acknowledged rows therefore survive a failover to one of them.
Rule 4: dropping stages only frees memory early. Nothing depends on it, so its failure is logged, not raised.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

import redis

from tidelog.client import calls
from tidelog.client.entries import Published
from tidelog.client.packedrows import tstage_packed
from tidelog.client.steps import Steps, checked, drive
from tidelog.transport.access import Access
from tidelog.transport.call import Call, Name
from tidelog.transport.errors import ConflictError, ReplyError, StaleEpochError, is_denied, is_temporary, translated
from tidelog.transport.leader import LeaderConnection

AHEAD: Final = 3  # chunks sent before their replies are read: the server works while the caller builds the next one
CHUNK: Final = 500  # commands per chunk. Unread replies must fit into the socket buffers, or both ends would block
CLAIM_MS: Final = 600_000  # how long an epoch remains claimed; a job that takes longer to publish it fails

T = TypeVar("T")

log = logging.getLogger(__name__)


class NotReplicatedError(Exception):
    """Rows were staged or published, but too few replicas acknowledged them in time."""


@dataclass(frozen=True)
class ReplicaAcks:
    """The number of replicas that must have a write before it counts as complete."""

    replicas: int = 0
    wait_ms: int = 30_000
    needed: bool = True  # False: if too few replicas answer in time, this is logged, and the work continues

    @property
    def call(self) -> Call[int]:
        return Call(("WAIT", self.replicas, self.wait_ms), int)

    def missed(self, replicas: int) -> None:
        """Handle a missing acknowledgement: raises NotReplicatedError if it is needed, otherwise logs it."""
        text = f"{replicas} of {self.replicas} replicas have acknowledged the write after {self.wait_ms} ms"
        if self.needed:
            raise NotReplicatedError(text)
        log.warning("%s; continuing without it", text)


NO_REPLICA_ACKS: Final = ReplicaAcks()


@dataclass(frozen=True)
class StagedRows:
    """Rows for one stream that have the same fields: one TSTAGE command."""

    key: bytes
    fields: tuple[bytes, ...]
    rows: int
    values: bytes  # RESP bulk strings, row by row: rows * len(fields) of them

    def command(self, stage: str, ttl_ms: int) -> bytes:
        """Return the TSTAGE command in RESP."""
        packed = tstage_packed(stage, ttl_ms, self.key, self.fields, self.rows, self.values).packed
        assert packed is not None  # noqa: S101
        return packed


class Stager:
    """Stages the rows of one writer. Not thread-safe.

    ``name`` is the name of its connection in CLIENT LIST. Names of stages begin with ``prefix``. A stage that is not
    published expires ``ttl_ms`` after its last rows.

    After ``finish``, ``names`` has the stages to publish, in the order of the rows, and ``rows`` the number of rows.
    """

    def __init__(
        self, access: Access, name: str, prefix: str, ttl_ms: int, copies: ReplicaAcks = NO_REPLICA_ACKS,
        servers: LeaderConnection | None = None,
    ) -> None:  # fmt: skip
        """Use the connection ``servers`` of the caller, who closes it, exclusively; None: open and close a new one."""
        self.copies = copies
        self.prefix = prefix
        self.ttl_ms = ttl_ms
        self.names: list[str] = []
        self.rows = 0
        self._servers = servers or LeaderConnection(access, name)
        self._own = servers is None
        # chunks whose replies have not been read yet: stage, content, whether a WAIT follows
        self._waiting: list[tuple[str, Sequence[StagedRows], bool]] = []

    def stage(self, parts: Sequence[StagedRows]) -> None:
        """Stage some rows.

        Raises ReplyError if the server refuses rows, UnreachableError if it does not answer, and NotReplicatedError if
        too few replicas have them. Replies are read later, so the error may concern the rows of an earlier call.
        """
        for at in range(0, len(parts), CHUNK):
            self._stage(parts[at : at + CHUNK])

    def finish(self) -> None:
        """Return when all rows are staged, and close its own connection. Raises the errors of ``stage``."""
        try:
            while self._waiting:
                self._settle_first()
        except (OSError, ReplyError) as error:
            self._again(error)
        finally:
            if self._own:
                self._servers.close()

    def _stage(self, parts: Sequence[StagedRows]) -> None:
        self._waiting.append((self._new_name(), parts, self.copies.replicas > 0))
        self.rows += sum(part.rows for part in parts)
        try:
            self._send(*self._waiting[-1])
            if len(self._waiting) > AHEAD:
                self._settle_first()
        except (OSError, ReplyError) as error:
            self._again(error)

    def _new_name(self) -> str:
        return f"{self.prefix}:{uuid4().hex}"

    def _send(self, name: str, parts: Sequence[StagedRows], waits: bool) -> None:
        wire = self._servers.leader()
        for part in parts:
            wire.send_raw(part.command(name, self.ttl_ms))
        if waits:
            wire.send(self.copies.call.args)

    def _settle_first(self) -> None:
        """Read the replies to the oldest chunk."""
        name, parts, waits = self._waiting[0]
        wire = self._servers.leader()
        replies = [wire.take() for _ in parts]
        replicas = wire.reply() if waits else 0
        for part, reply in zip(parts, replies, strict=True):
            if not isinstance(reply, int):
                raise ReplyError(f"{reply} (stream {part.key.decode('utf-8', 'backslashreplace')!r})")
        if replies[-1] != sum(part.rows for part in parts):
            raise AssertionError(f"stage {name} holds {replies[-1]} rows")
        if waits and replicas < self.copies.replicas:
            self.copies.missed(replicas)
            self.copies = NO_REPLICA_ACKS
        self.names.append(name)
        del self._waiting[0]

    def _again(self, error: OSError | ReplyError) -> None:
        """Stage the chunks without a reply again, under new names (Rule 1)."""
        if isinstance(error, ReplyError) and not is_temporary(error):
            raise error
        log.warning("staging rows again, since there was no reply: %s", error)
        self._servers.close()

        def once() -> None:
            self._waiting = [(self._new_name(), parts, waits) for _, parts, waits in self._waiting]
            while self._waiting:
                self._send(*self._waiting[0])
                self._settle_first()

        self._servers.attempts(once)


class Publisher:
    """Publishes or drops stages, and evicts. It is a context manager; ``close`` closes its connection.

    ``name`` is the name of the connection in CLIENT LIST. Unless documented otherwise, every method raises
    UnreachableError if no leader answers, and ReplyError if the server refuses the command.
    """

    def __init__(self, access: Access, name: str, copies: ReplicaAcks = NO_REPLICA_ACKS) -> None:
        self.copies = copies
        self._servers = LeaderConnection(access, name)

    def publish(self, fence: str, epoch: int, stages: Sequence[str], check: str = "") -> Published:
        """Append the rows of the stages, in order and in one step, once for each epoch of a fence.

        ``check`` identifies the content of the epoch, in up to 64 bytes. ``now`` is False in the result if this epoch
        was published earlier. The stages are deleted.

        Raises ConflictError if the epoch was published with another ``check``, StaleEpochError if a later epoch of the
        fence was published, and ReplyError with the code NOSTAGE if a stage does not exist; nothing has changed then.
        Raises NotReplicatedError if the rows were published but too few replicas have them; a repeated call is skipped.
        Raises ValueError without stages.
        """
        publish = calls.tpublish(fence, epoch, *stages, check=check)
        reply, *replicas = self._servers.ask(publish, *([self.copies.call] if self.copies.replicas else []))
        if isinstance(reply, ReplyError):
            if reply.code == "STALE":
                raise StaleEpochError(str(reply))
            if reply.code == "CONFLICT":
                raise ConflictError(str(reply))
            raise reply
        published: Published = reply
        if replicas and replicas[0] < self.copies.replicas:
            self.copies.missed(replicas[0])
        return published

    def publish_once(self, prefix: str, stages: Sequence[str]) -> None:
        """Publish stages under a fence and an epoch that no other job uses, for a job that is never repeated.

        Jobs on one machine share a fence, ``<prefix>:<host name>``, so that fences do not accumulate on the server. An
        epoch is the time in nanoseconds. The server would treat a second job with the same epoch as a repetition and
        drop its rows. A job therefore claims its epoch first: it sets the key ``<fence>:<epoch>``, which expires after
        CLAIM_MS. If another job has published a later epoch in the meantime, the next attempt uses a new one.
        """
        fence = f"{prefix}:{socket.gethostname()}"
        for attempt in range(5):
            try:
                epoch = self.claim_epoch(fence)
                if not self.publish(fence, epoch, stages).now:
                    log.debug("epoch %d was already published by this job; the reply was lost", epoch)
                return
            except StaleEpochError:
                if attempt == 3:  # another machine with this name has a clock that is ahead
                    fence = f"{fence}:{uuid4().hex}"
            except ReplyError as error:
                if error.code == "NOSTAGE" and attempt:
                    return  # the previous attempt published the stages, and its reply was lost
                raise
        raise AssertionError("a new fence has no epoch")

    def ask(self, *calls: Call[Any]) -> list[Any]:
        """Send calls that may be repeated to the leader; see ``LeaderConnection.ask``."""
        return self._servers.ask(*calls)

    def several_groups(self) -> bool:
        """Return whether several groups of a cluster share the slots. The map is read each time."""
        try:
            return len(self._servers.attempts(self._servers.leaders)) > 1
        except ReplyError as error:  # the user cannot read the map: if there are several groups, writing fails
            if not is_denied(error):
                raise
            return False

    def run(self, steps: Steps[T]) -> T:
        """Run an operation whose calls may be repeated. With ``ReplicaAcks``, replicas have the writes of each step.

        Raises the errors of ``publish``, and those of the operation.
        """

        def ask(sent: Sequence[Call[Any]]) -> list[Any]:
            wait = [self.copies.call] if self.copies.replicas and sent else []
            replies = self._servers.ask(*sent, *wait)
            if wait:
                (replicas,) = checked([replies.pop()])
                if replicas < self.copies.replicas:
                    self.copies.missed(replicas)
                    self.copies = NO_REPLICA_ACKS
            return [_typed(reply) for reply in replies]

        return drive(ask, steps)

    def drop(self, stages: Sequence[str]) -> None:
        """Drop stages that will not be published. Raises nothing, since stages also expire by themselves (Rule 4)."""
        try:
            self._servers.ask(*([calls.tdrop(*stages)] if stages else []))
        except (OSError, ReplyError) as error:
            log.warning("stages were not dropped; they will expire: %s", error)

    def evict(self, keys: Iterable[Name], *, count: int | None = None, ms: int | None = None) -> None:
        """Evict from each stream all but the newest ``count`` entries, or all entries that are ``ms`` old or older.

        Raises TypeError unless exactly one of the two is given. The call may be repeated.
        """
        for reply in self._servers.ask(*[calls.ttrim(key, count=count, ms=ms) for key in keys]):
            if isinstance(reply, ReplyError):
                raise reply

    def close(self) -> None:
        self._servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def claim_epoch(self, fence: str) -> int:
        """Return an epoch that no other job uses: the time in ns, claimed by a key with a unique token."""
        token = uuid4().hex.encode()
        while True:
            epoch = time.time_ns()
            claim = f"{fence}:{epoch}"

            def claimed(claim: str = claim) -> bool:
                wire = self._servers.leader()
                wire.send(("SET", claim, token, "NX", "PX", CLAIM_MS), ("GET", claim))
                wire.reply()
                return bool(wire.reply() == token)  # also True if the reply to an earlier attempt was lost

            if self._servers.attempts(claimed):
                return epoch


def _typed(reply: Any) -> Any:
    """Return a reply; an error as an instance of the class for its code, if there is one."""
    if not isinstance(reply, ReplyError):
        return reply
    known = translated(redis.ResponseError(str(reply)))
    return reply if type(known) is redis.ResponseError else known
