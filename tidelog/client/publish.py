"""Putting rows aside on the server, and publishing them: all at once, and once only.

    tasks:   TSTAGE a -> rows      TSTAGE b -> rows ...             invisible
    driver:  TPUBLISH fence epoch a b ...                           one record of the log: there, for all to see

Rule 1: stages are never used twice. What is staged together is a chunk, under a name of its own; if a reply is lost,
        it is not known what the server has under that name, so the chunk is staged again under another one, and the
        old name goes without saying when its time is over.
Rule 2: publishing is repeated under the same epoch until there is an answer: the server skips what was done already.
Rule 3: dropping a stage is a kindness. Nothing depends on it, so its failure is none.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import uuid4

from tidelog.client import calls
from tidelog.client.calls import Call
from tidelog.client.entries import Published
from tidelog.client.servers import Servers
from tidelog.client.wire import PASSING, ReplyError
from tidelog.spark.commands import Part
from tidelog.spark.options import Sink

AHEAD: Final = 3  # chunks sent whose replies are awaited: the server works while the next one is made
CHUNK: Final = 500  # commands a chunk: replies that nobody reads yet must fit into the sockets, or both ends would wait
NAME: Final = "spark-tidelog-sink"
CLAIM_MS: Final = 600_000  # how long an epoch is nobody else's; by then the fence is beyond it, or its job has failed

log = logging.getLogger(__name__)


class StaleError(Exception):
    """A later batch of this query, or a later version of this application, was published before."""


class Stager:
    """What one task stages, chunk by chunk; ``names`` are the stages in order once ``finish`` was called."""

    def __init__(self, sink: Sink, prefix: str) -> None:
        self.sink = sink
        self.prefix = prefix
        self.names: list[str] = []
        self.rows = 0
        self.servers = Servers(sink.access, f"{NAME}-task")
        self._waiting: list[tuple[str, list[Part]]] = []

    def stage(self, parts: list[Part]) -> None:
        """Stage some rows. ReplyError where the server refuses them, UnreachableError where nobody answers."""
        for at in range(0, len(parts), CHUNK):
            self._stage(parts[at : at + CHUNK])

    def _stage(self, parts: list[Part]) -> None:
        self._waiting.append((self._new_name(), parts))
        self.rows += sum(part.rows for part in parts)
        try:
            self._send(*self._waiting[-1])
            if len(self._waiting) > AHEAD:
                self._settle_first()
        except (OSError, ReplyError) as error:
            self._again(error)

    def finish(self) -> None:
        """Return when everything is staged, and close the connection."""
        try:
            while self._waiting:
                self._settle_first()
        except (OSError, ReplyError) as error:
            self._again(error)
        finally:
            self.servers.close()

    def _new_name(self) -> str:
        return f"{self.prefix}:{uuid4().hex}"

    def _send(self, name: str, parts: list[Part]) -> None:
        wire = self.servers.leader()
        for part in parts:
            wire.send_raw(part.command(name, self.sink.stage_ttl_ms))

    def _settle_first(self) -> None:
        """Take the replies for the chunk that was sent first."""
        name, parts = self._waiting[0]
        wire = self.servers.leader()
        replies = [wire.take() for _ in parts]
        for reply in replies:
            if not isinstance(reply, int):
                raise ReplyError(str(reply))
        if replies[-1] != sum(part.rows for part in parts):
            raise AssertionError(f"stage {name} holds {replies[-1]} rows")
        self.names.append(name)
        del self._waiting[0]

    def _again(self, error: OSError | ReplyError) -> None:
        """Stage what has no answer yet once more, under new names."""
        if isinstance(error, ReplyError) and error.code not in PASSING:
            raise error
        log.warning("staging again what has no answer: %s", error)
        self.servers.close()

        def once() -> None:
            self._waiting = [(self._new_name(), parts) for _, parts in self._waiting]
            while self._waiting:
                self._send(*self._waiting[0])
                self._settle_first()

        self.servers.attempts(once)


def publish(sink: Sink, fence: str, epoch: int, stages: Sequence[str]) -> Published:
    """Publish stages under an epoch of a fence. StaleError where a later epoch was, ReplyError for other refusals."""
    servers = Servers(sink.access, f"{NAME}-driver")
    try:
        (reply,) = servers.ask(calls.tpublish(fence, epoch, *stages))
    finally:
        servers.close()
    if isinstance(reply, ReplyError):
        if reply.code == "STALE":
            raise StaleError(str(reply))
        raise reply
    published: Published = reply
    return published


def publish_once(sink: Sink, stages: Sequence[str]) -> None:
    """Publish stages of a job that no other job repeats: it needs no fence, but TPUBLISH does.

    The fence is this machine's, its epochs are the time: so fences don't pile up on the server. Two jobs must not have
    one epoch, or the server would take the second for a repetition and drop its rows: each claims its own first. A job
    that was overtaken by another one takes a new epoch; if its stages are gone by then, the attempt before had got
    through.
    """
    fence = f"{NAME}:jobs:{socket.gethostname()}"
    for attempt in range(5):
        try:
            epoch = _claimed(sink, fence)
            if not publish(sink, fence, epoch, stages).now:
                log.debug("epoch %d had been published: by us, and the reply was lost", epoch)
            return
        except StaleError:
            if attempt == 3:
                fence = f"{fence}:{uuid4().hex}"  # a machine of the same name has another time
        except ReplyError as error:
            if error.code == "NOSTAGE" and attempt:
                return
            raise
    raise AssertionError("a fence that is new has no epoch")


def _claimed(sink: Sink, fence: str) -> int:
    """A nanosecond that no other job has: a key says whose it is, for as long as others could read the same time."""
    token = uuid4().hex.encode()
    servers = Servers(sink.access, f"{NAME}-driver")
    try:
        while True:
            epoch = time.time_ns()
            claim = f"{fence}:{epoch}"

            def claimed(claim: str = claim) -> bool:
                wire = servers.leader()
                wire.send(("SET", claim, token, "NX", "PX", CLAIM_MS), ("GET", claim))
                wire.reply()
                return bool(wire.reply() == token)  # ours too if the reply to an earlier attempt was lost

            if servers.attempts(claimed):
                return epoch
    finally:
        servers.close()


def drop(sink: Sink, stages: Sequence[str]) -> None:
    """Drop stages that will not be published."""
    servers = Servers(sink.access, f"{NAME}-driver")
    try:
        servers.ask(*([calls.tdrop(*stages)] if stages else []))
    except (OSError, ReplyError) as error:
        log.warning("stages were not dropped, their time will be over in %d ms: %s", sink.stage_ttl_ms, error)
    finally:
        servers.close()


def evict(sink: Sink, keys: Iterable[bytes]) -> None:
    """Evict from streams as ``maxlen`` or ``maxage`` say; doing it again does no harm."""
    if sink.maxlen is None and sink.maxage_ms is None:
        return
    trims: list[Call[int]] = [calls.ttrim(key, count=sink.maxlen, ms=sink.maxage_ms) for key in sorted(keys)]
    servers = Servers(sink.access, f"{NAME}-driver")
    try:
        for reply in servers.ask(*trims):
            if isinstance(reply, ReplyError):
                raise reply
    finally:
        servers.close()
