"""The checks before a command runs: its name, its arguments, the client's permissions, and the gates (``Gates``).

They run in the order of Redis (processCommand).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from commands.acl.check import denied
from commands.context import Context
from commands.declare import Command, find, lookup
from commands.session import Session
from resp import errors
from resp.errors import CommandError
from respserver.clients.connection import Connection
from respserver.execution import redirects
from respserver.runtime.gates import Gates
from respserver.runtime.memory import Memory
from respserver.runtime.ownership import SlotOwnership
from storage.streams.stream import Stream

HTTP_WORDS: Final = frozenset((b"post", b"host:"))  # sent by a browser: the commands after it must not run


class Checks:
    """The checks of the dispatcher. ``ctx``: the context of the command that is checked."""

    def __init__(self, ctx: Context, gates: Gates, memory: Memory, slots: SlotOwnership) -> None:
        self._ctx = ctx
        self._gates = gates
        self._memory = memory
        self._slots = slots

    def found(self, conn: Connection, argv: list[bytes]) -> Command:
        """Return the command that argv calls. Raises CommandError if it is unknown or called with a wrong arity."""
        session = conn.session
        try:
            return lookup(argv)
        except CommandError as error:
            refused = find(argv[:2])
            if refused is not None:
                refused.rejected += 1
                if "runs_queue" in refused.traits:
                    session.end_transaction(self._ctx.ks)
                    why = error.text.removeprefix("ERR ")
                    raise CommandError(f"EXECABORT Transaction discarded because of: {why}") from None
            elif argv[0].lower() in HTTP_WORDS:
                conn.cut("it speaks HTTP: somebody may be using a browser to attack this server")
            if session.multi:
                session.exec_abort = True
            raise

    def may_run(self, command: Command, session: Session, argv: list[bytes]) -> None:
        """Raise the CommandError of Redis if the command must not run now."""
        gates = self._gates
        if not session.authenticated and "no_auth" not in command.flags:
            raise CommandError(errors.NOAUTH)
        denial = denied(session.user, command, argv, self._ctx.ks)
        if denial is not None:
            self._ctx.server.users.note(session, denial.reason, denial.what)
            raise denial.error()
        if self._ctx.server.cluster.enabled:
            redirects.check(self._ctx, self._slots, command, session, argv)
        if gates.out_of_memory and self._memory.check():
            self._refuse(command, session, argv, Command.grows, errors.OOM)
            if session.multi and "immediate" not in command.traits:  # as in Redis: queueing takes memory
                _prolong(self._ctx, command, argv)
                raise CommandError(errors.OOM)
        against = self._against_writes()
        if against:
            self._refuse(command, session, argv, Command.changes, against)
        if session.proto == 2 and session.subscribed and "subscribed" not in command.traits:
            raise CommandError(
                f"ERR Can't execute '{command.called}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET"
                " are allowed in this context"
            )
        if gates.stale:
            self._refuse(command, session, argv, lambda each, _: "stale" not in each.flags, errors.MASTERDOWN)
        if gates.no_data:
            self._refuse(command, session, argv, lambda each, _: "stale" not in each.flags, gates.no_data)
        if gates.loading:
            self._refuse(command, session, argv, lambda each, _: "loading" not in each.flags, errors.LOADING)
        if session.multi and "no_multi" in command.flags:
            raise CommandError("ERR Command not allowed inside a transaction")

    def _against_writes(self) -> str:
        """Return the error line for commands that write; empty if they may run."""
        if self._gates.readonly:  # a replica does not check its disk and its replicas
            return errors.READONLY
        return self._gates.unwritable or (errors.NO_REPLICAS if self._gates.too_few else "")

    def _refuse(
        self, command: Command, session: Session, argv: list[bytes], concerned: Callable[[Command, list[bytes]], bool],
        why: str,
    ) -> None:  # fmt: skip
        """Raise ``why`` if the command is ``concerned``, or is an EXEC of such a command, whose transaction is then
        discarded."""
        if concerned(command, argv):
            _prolong(self._ctx, command, argv)
            raise CommandError(why)
        if "runs_queue" in command.traits and any(concerned(lookup(queued), queued) for queued in session.queued):
            for queued in session.queued:
                _prolong(self._ctx, lookup(queued), queued)
            session.end_transaction(self._ctx.ks)
            raise CommandError(f"EXECABORT Transaction discarded because of: {why}")

    @staticmethod
    def queue_shows_data(session: Session) -> bool:
        """Return whether the reply to EXEC may show data (``replica-acks``). Promotion by Sentinel is a transaction
        without data, and must be answered although nothing is confirmed then."""
        return bool(session.watching) or any(lookup(queued).shows_data for queued in session.queued)

    def must_wait(self, command: Command, session: Session, argv: list[bytes]) -> bool:
        """Return whether CLIENT PAUSE or a FAILOVER delays the call."""
        gates = self._gates
        if "unpausable" in command.traits or session.replica is not None:
            return False
        if gates.paused and not gates.pause_writes_only:
            return True
        if "runs_queue" in command.traits:
            if gates.held_reads and self.queue_shows_data(session):
                return True
            return any(lookup(queued).changes(queued) for queued in session.queued)
        if gates.held_reads and command.shows_data:
            return True
        return "reaches_replicas" in command.traits or command.changes(argv)


def _prolong(ctx: Context, command: Command, argv: list[bytes]) -> None:
    """Extend the time to live of the groups, or of the stage, of a call that is refused for a reason on the server's
    side: too few replicas, a full disk, no free memory. The clients that send such calls are alive [15], [32].

    As for other calls, this is not logged. The arguments are not checked. An invalid call extends nothing.
    """
    ks = ctx.ks
    if "sign_of_life" not in command.traits or ks.follower:
        return
    served = ctx.served()
    if command.name == "tstage":
        stage = ks.stages.by_name.get(argv[1])
        if stage is not None:
            stage.touch(served)
        return
    for at, _ in command.keys(argv):
        stream = ks.keys.get(argv[at])
        name = _group(command, argv, at)
        group = stream.groups.get(name) if isinstance(stream, Stream) and name is not None else None
        if group is not None:
            group.touch(served)


def _group(command: Command, argv: list[bytes], key: int) -> bytes | None:
    """Return the name of the group. It follows the word GROUP if the command has that word, otherwise the key."""
    at = key + 1
    if command.name in ("tread", "twait", "xreadgroup"):
        first = {"tread": 4, "twait": 2, "xreadgroup": 1}[command.name]
        at = next((at + 1 for at in range(first, len(argv)) if argv[at].upper() == b"GROUP"), len(argv))
    return argv[at] if at < len(argv) else None
