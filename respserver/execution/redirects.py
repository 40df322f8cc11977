"""With ``cluster-enabled``: the keys of a call must have the same slot, and a replica sends clients to the leader.

Rule 1: as in Redis, the keys of a transaction have the same slot, too.
Rule 2: a client that sent CLIENT MULTISLOT ON may use keys of different slots, because the leader has all of them.
Rule 3: a replica serves calls with keys that change nothing to clients that sent READONLY. As it does not forward
messages to its leader, SPUBLISH is always redirected, unlike in Redis.
Rule 4: the keys of a long call are compared in slices, before it runs. A million keys take 130 ms without C. In a
transaction there are no slices. A command that runs in slices can't block, so the calls that can block are compared at
once: they have at most 10,000 keys.

Here the server decides which calls it serves. It has all slots or none, and slots are not moved, so CROSSSLOT, MOVED
and CLUSTERDOWN are the only answers. ASK and TRYAGAIN, for a slot that is being moved, would be decided here, too.
"""

from __future__ import annotations

from typing import Final

from commands.context import Await, Block, Chunks, ClusterPart, Context, Slices
from commands.declare import Command, lookup
from commands.session import Session
from commands.slots import one_slot, slot_of
from resp import errors
from resp.errors import CommandError

LONG: Final = 10_000  # words
LONG_BLOCKING: Final = 20_100  # of a command that can block: it refuses more than 10,000 keys, each with an ID
_NONE: Final = -1  # no slot: there are no keys, or keys of different slots
_AT_ONCE: Final = 2_000  # keys of a slice, which takes some hundred microseconds


def check(ctx: Context, command: Command, session: Session, argv: list[bytes]) -> None:
    """Raise CommandError (CROSSSLOT, MOVED) if another server must run the call, or no server can. If the call is EXEC,
    the transaction is discarded then."""
    if "runs_queue" in command.traits:
        try:
            _check_calls(ctx, session, [(lookup(queued), queued) for queued in session.queued])
        except CommandError:
            session.end_transaction(ctx.ks)
            raise
    elif command.key_specs:
        _check_calls(ctx, session, [(command, argv)])


def _check_calls(ctx: Context, session: Session, calls: list[tuple[Command, list[bytes]]]) -> None:
    slot = _NONE
    for command, argv in calls:
        any_slots = session.multislot or is_long(command, session, argv)
        slot = slot_of_call(command, argv, slot, any_slots)
    if slot != _NONE and ctx.ks.follower and not (session.readonly and not any(_for_leader(*each) for each in calls)):
        raise moved(ctx.server.cluster, session, slot)


def slot_of_call(command: Command, argv: list[bytes], slot: int, multislot: bool) -> int:
    """Return the slot of the keys of a call; without keys, ``slot``. Raises CommandError if the keys have different
    slots, or another one than ``slot``, unless that is -1.

    ``multislot``: keys of different slots are allowed; returns the slot of the first one.
    """
    for positions, _ in command.key_ranges(argv, real=False):
        if not positions:
            continue
        if multislot:
            return slot_of(argv[positions[0]]) if slot == _NONE else slot
        found = _slot_at(argv, positions)
        if found == _NONE or slot not in (_NONE, found):
            raise CommandError(errors.CROSS_SLOT)
        slot = found
    return slot


def _slot_at(argv: list[bytes], positions: range) -> int:
    """Return the slot of the keys at some positions; _NONE if they have different ones."""
    words = argv if positions.stop >= len(argv) else argv[: positions.stop]
    return one_slot(words, positions.start, positions.step)


def is_long(command: Command, session: Session, argv: list[bytes]) -> bool:
    """Return whether the keys of a call are compared in slices (Rule 4)."""
    if len(argv) <= LONG or session.multi or session.multislot:
        return False
    return len(argv) > LONG_BLOCKING or "blocking" not in command.flags


def in_slices(command: Command, argv: list[bytes]) -> Slices:
    """Return the execution of a long call that has passed check(): its keys are compared first."""
    ranges = [positions for positions, _ in command.key_ranges(argv, real=False) if positions]
    keys = [key for positions in ranges for key in argv[positions.start : positions.stop : positions.step]]
    slot, at = slot_of(keys[0]) if keys else _NONE, 0
    running: Slices | None = None

    def step(ctx: Context) -> bytes | Chunks | None:
        nonlocal argv, at, running
        if running is not None:
            return running.step(ctx)
        if at < len(keys):
            if one_slot(keys[at : at + _AT_ONCE], 0, 1) != slot:
                raise CommandError(errors.CROSS_SLOT)
            at += _AT_ONCE
            return None
        keys.clear()
        answer, words = command.handler(ctx, argv), len(argv)
        argv = []  # the arguments are freed as the slices of the command proceed
        if isinstance(answer, (Block, Await)):  # thousands of its words are repeated options
            raise errors.too_many_arguments(command.name, words - 1, LONG_BLOCKING - 1)
        if isinstance(answer, Slices):
            running = answer
            return None
        return answer

    def close() -> None:
        if running is not None:
            running.close()

    return Slices(step, command.changes(argv), close)


def may_run(session: Session, command: Command, argv: list[bytes]) -> bool:
    """Return whether a leader can run a call of a command with several keys without check(), because its keys have the
    same slot. It is false for a long call, whose keys are compared in slices."""
    words = len(argv)
    if command.key_step:
        if words <= command.first + command.key_step or session.multislot:
            return True
        return words <= LONG and one_slot(argv, command.first, command.key_step) != _NONE
    if session.multislot:
        return True
    if words > LONG:
        return False
    ranges = [positions for positions, _ in command.key_ranges(argv, real=False) if positions]
    if len(ranges) == 1 and len(ranges[0]) == 1:
        return True
    slot = _NONE
    for positions in ranges:
        found = _slot_at(argv, positions)
        if found == _NONE or slot not in (_NONE, found):
            return False
        slot = found
    return True


def _for_leader(command: Command, argv: list[bytes]) -> bool:
    """Return whether only the leader can run the call."""
    return command.changes(argv) or "reaches_replicas" in command.traits


def moved(cluster: ClusterPart, session: Session, slot: int) -> CommandError:
    """Return the error that sends the client to the leader of this replica."""
    host, port = cluster.leader(session)
    return CommandError(f"MOVED {slot} {host}:{port}")
