"""Arguments and results of handlers.

A handler is a plain function ``handler(ctx, argv) -> Reply``; ``argv[0]`` is the name of the command as sent. It does
no I/O, reads no clock and never waits: ``ctx.now`` is the time, and a ``Block`` makes the client wait. It uses the
running server through its parts: ``ctx.server.clients``, ``ctx.server.config`` ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from commands.serverparts import (
    CheckpointsPart,
    ClientsPart,
    ClockPart,
    ClusterPart,
    ConfigPart,
    GroupPart,
    MapPart,
    MonitorsPart,
    NotificationsPart,
    PausesPart,
    PubSubPart,
    ReplicasPart,
    RolesPart,
    ServedTimePart,
    StatsPart,
    TieringPart,
    TimingsPart,
    TrackingPart,
    UsersPart,
    WritesPart,
)
from commands.session import Session
from storage.groups.group import Group
from storage.keyspace.keyspace import Keyspace


def nothing() -> None:
    """Do nothing: there is nothing to release."""


class Chunks:
    """A streamed reply: ``pieces`` yields encoded bytes, and ``close()`` releases the resources that it needs.

    The connection takes the next piece when the socket's buffer has room, so memory is bounded: a piece has at most
    about ``stream-node-max-bytes``. ``held``: approximate memory that the reply takes until it is sent, in bytes.
    ``pinned()``: size of the data that it retains in memory although the keyspace may have dropped it.
    """

    __slots__ = ("close", "held", "pieces", "pinned")

    def __init__(
        self, pieces: Iterator[bytes], close: Callable[[], None], held: int = 0, pinned: Callable[[], int] | None = None
    ) -> None:  # fmt: skip
        self.pieces = pieces
        self.close = close
        self.held = held
        self.pinned = pinned

    def memory_bytes(self) -> int:
        """Return the memory that it takes now, in bytes."""
        return self.held if self.pinned is None else self.held + self.pinned()


# Which pending messages a blocked group reader waits for (Block.wants). Other values are a minimum idle time in ms: the
# reader waits for messages of consumers that have been idle for at least that long.
NO_PENDING: Final = -1
DUE_MESSAGES: Final = -2


def next_pending(group: Group, wants: int) -> int | None:
    """Return when the next pending message that a reader ``wants`` becomes available, or None if there is none.

    The time is served time for WHAT_IS_DUE, and otherwise ms since epoch, because Redis measures idle time by the wall
    clock.
    """
    if wants == DUE_MESSAGES:
        return group.pending.next_due()
    if wants == NO_PENDING:
        return None
    first = group.pending.first_idle()
    return first + wants if first else first  # 0: a returned message, which any reader may take


class Block:
    """Returned if the client must wait until one of ``keys`` has new entries. Subclasses build the reply.

    ``keys``: at least one, without duplicates. ``group``: the group of each stream that the client waits for, or None.
    ``in_turn``: the messages that this client gets are no longer available to the other readers of its group, so these
    are served one after another, in the order in which they blocked; otherwise all clients are served.
    ``timeout_reply`` is sent at ``deadline`` (ms since epoch; 0: never). ``wants``: see above. ``by_name``: the group
    may be deleted and recreated while the client waits, and serve() is called even if the group does not exist;
    otherwise a new group of the same name ends the wait with an error.
    """

    __slots__ = ("by_name", "deadline", "group", "in_turn", "keys", "timeout_reply", "wants")

    def __init__(
        self, keys: Sequence[bytes], group: bytes | None, in_turn: bool, deadline: int, timeout_reply: bytes
    ) -> None:  # fmt: skip
        self.keys = keys
        self.group = group
        self.in_turn = in_turn
        self.deadline = deadline
        self.timeout_reply = timeout_reply
        self.wants = DUE_MESSAGES
        self.by_name = False

    def serve(self, ctx: Context, key: bytes) -> bytes | Chunks | None:
        """Return the reply, or None to continue waiting.

        It is called when ``key`` is signalled, and when a pending message that the client wants becomes available. If
        it returns None, it has read no other key. Raises CommandError, which ends the wait.
        """
        raise NotImplementedError

    def same(self, other: Block) -> bool:  # noqa: ARG002
        """Return whether serve() of both returns the same for a key that both wait for, with the same group (or none)
        and the same protocol. They then share one reply. Not called for clients that are served one after another."""
        return False


class Await:
    """Returned if the client must wait for replicas or the disk (WAIT, WAITAOF, SAVE).

    ``check()`` returns the reply, or None to continue waiting. It is called when a replica has acknowledged, the log
    was synced, or a checkpoint has ended. ``at_timeout()`` returns the reply at ``deadline`` (ms since epoch; 0:
    never). ``firm``: neither CLIENT UNBLOCK nor a change of this server's role ends the wait.
    """

    __slots__ = ("at_timeout", "check", "deadline", "firm")

    def __init__(
        self, deadline: int, check: Callable[[], bytes | None], at_timeout: Callable[[], bytes], firm: bool = False
    ) -> None:
        self.firm = firm
        self.deadline = deadline
        self.check = check
        self.at_timeout = at_timeout


class DelayedReply(Await):
    """Returned if the call must not be answered before ``deadline`` (a login after failures); at_timeout() returns the
    reply. at_timeout() may raise CommandError. Only the end of the connection ends the wait earlier."""

    __slots__ = ()

    def __init__(self, deadline: int, at_timeout: Callable[[], bytes]) -> None:
        super().__init__(deadline, lambda: None, at_timeout)


class Slices:
    """Returned if a command takes longer than other clients should wait: their commands run between its slices.

    ``step(ctx)`` runs the next slice, which takes some milliseconds at most. The last one returns the reply, the others
    None; a CommandError ends the command. A command that has begun is finished even if its client disconnects. Until
    then no other command of the client runs. ``writes``: whether slices change data, which only a leader may do.
    ``close()`` releases resources if the command ends without a reply. Inside EXEC, all slices run immediately.
    ``resumes``: after a step has raised AbsentNodeError, the next call continues.

    For the data, such a command is a sequence of shorter ones: others see the effect of the slices so far.
    """

    __slots__ = ("close", "resumes", "step", "writes")

    def __init__(
        self, step: Callable[[Context], bytes | Chunks | None], writes: bool, close: Callable[[], None] = nothing,
        resumes: bool = False,
    ) -> None:  # fmt: skip
        self.resumes = resumes
        self.step = step
        self.writes = writes
        self.close = close


Reply = bytes | Chunks | Block | Await | Slices


class Context:
    """The data, and the client that sent the command. The dispatcher reuses it, so a handler must not store it."""

    __slots__ = ("in_exec", "ks", "now", "server", "session")

    ks: Keyspace
    now: int  # ms since epoch; one reading for each command
    session: Session
    server: ServerParts
    in_exec: bool  # inside EXEC, where commands must not block

    def __init__(self, ks: Keyspace, server: ServerParts, session: Session, now: int = 0) -> None:
        self.ks = ks
        self.server = server
        self.session = session
        self.now = now
        self.in_exec = False

    def served(self) -> int:
        """Return the served time (Rule 6 of ``Keyspace``), by which groups, stages and messages expire or fall due.

        If too much time has passed since the server last checked, it must first determine whether it was unavailable.
        This may shift the served time and log the shift.
        """
        ks = self.ks
        at = self.now - ks.away
        if ks.served_from <= at <= ks.served_to:
            return at
        self.server.served_time.update()
        return ks.served(self.now)

    def served_for_deadline(self) -> int:
        """Return the served time for a deadline that will be logged, after any shift of it up to now has been logged.

        Without the shift, the deadline would be early on the next leader if this one has no valid lease.
        """
        self.served()
        self.ks.keep_in_step(self.now)
        return self.now - self.ks.away

    def touch(self, group: Group) -> None:
        """Record activity of the group's readers [15]."""
        if group.ttl:
            group.deadline = self.served() + group.ttl


class ServerParts(Protocol):
    """The parts, as attributes. ``respserver.server`` builds them."""

    @property
    def clients(self) -> ClientsPart: ...
    @property
    def users(self) -> UsersPart: ...
    @property
    def pauses(self) -> PausesPart: ...
    @property
    def monitors(self) -> MonitorsPart: ...
    @property
    def pubsub(self) -> PubSubPart: ...
    @property
    def tracking(self) -> TrackingPart: ...
    @property
    def notifications(self) -> NotificationsPart: ...
    @property
    def config(self) -> ConfigPart: ...
    @property
    def writes(self) -> WritesPart: ...
    @property
    def checkpoints(self) -> CheckpointsPart: ...
    @property
    def roles(self) -> RolesPart: ...
    @property
    def replicas(self) -> ReplicasPart: ...
    @property
    def cluster(self) -> ClusterPart: ...
    @property
    def group(self) -> GroupPart | None:
        """None: this server is in no group."""

    @property
    def slot_map(self) -> MapPart | None:
        """None: this server has all slots, because it is in no group, or cluster-enabled is no."""

    @property
    def stats(self) -> StatsPart: ...
    @property
    def timings(self) -> TimingsPart: ...
    @property
    def transactions(self) -> TransactionsPart: ...
    @property
    def clock(self) -> ClockPart: ...
    @property
    def served_time(self) -> ServedTimePart: ...
    @property
    def tiering(self) -> TieringPart: ...
    def random(self) -> float:
        """A random number in [0, 1)."""

    def stop(self, save: bool, now: bool) -> None:
        """Shut down the server. ``save``: write a checkpoint. ``now``: do not wait for replicas."""

    def reload(self, session: Session, save: bool) -> None:
        """Reload everything from disk. ``save``: write a checkpoint first. Raises CommandError."""


class TransactionsPart(Protocol):
    """The queued commands, for EXEC."""

    def run_queued(self, ctx: Context) -> Reply:
        """Run ``session.queued`` in order. The reply is an array; it is Chunks if one of its parts is."""
