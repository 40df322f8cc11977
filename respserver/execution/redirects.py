"""With ``cluster-enabled``: the keys of a call must have the same slot, and another server may have to run it.

Rule 1: as in Redis, the keys of a transaction have the same slot, too.
Rule 2: a client that sent CLIENT MULTISLOT ON may use keys of different slots, if this server's group owns all of them.
Rule 3: a replica serves calls with keys that change nothing to clients that sent READONLY. As it does not forward
messages to its leader, SPUBLISH is always redirected, unlike in Redis. While its map is older than its data, it serves
no such calls.
Rule 4: the keys of a long call are compared in slices, before it runs. A million keys take 130 ms without C. In a
transaction there are no slices. A command that runs in slices can't block, so the calls that can block are compared at
once: they have at most 10,000 keys.
Rule 5: in a cluster of several groups, the map decides (``runtime.ownership``). The checks and their errors have the
order of Redis: an unassigned slot, an incomplete map, the slot of another group, a replica.

Here the server decides which calls it serves. ASK, for a slot whose keys are being moved, would be decided here, too.
"""

from __future__ import annotations

from typing import Final

from commands.context import Await, Block, Chunks, Context, Slices
from commands.declare import Command, lookup
from commands.serverparts import ClusterPart
from commands.session import Session
from commands.slots import ALL_SLOTS, NO_SLOTS, one_slot, slot_of, sole_key, unserved
from coordinator.slotmap import SlotRange
from resp import errors
from resp.errors import CommandError
from respserver.runtime.ownership import MOST_NOTED, SlotOwnership, either, table, without

LONG: Final = 10_000  # words
LONG_BLOCKING: Final = 20_100  # of a command that can block: it refuses more than 10,000 keys, each with an ID
_NONE: Final = -1  # no slot: there are no keys, or keys of different slots
_AT_ONCE: Final = 2_000  # keys of a slice, which takes some hundred microseconds


def check(ctx: Context, slots: SlotOwnership, command: Command, session: Session, argv: list[bytes]) -> None:
    """Raise CommandError (CROSSSLOT, MOVED, CLUSTERDOWN, TRYAGAIN) if another server must run the call, or no server
    can. If the call is EXEC, the transaction is discarded then."""
    if "runs_queue" in command.traits:
        try:
            check_calls(ctx, slots, session, _queued(session))
        except CommandError:
            session.end_transaction(ctx.ks)
            raise
    elif command.key_specs:
        check_calls(ctx, slots, session, [(command, argv)])


def _queued(session: Session) -> list[tuple[Command, list[bytes]]]:
    return [(lookup(queued), queued) for queued in session.queued]


def check_calls(
    ctx: Context, slots: SlotOwnership, session: Session, calls: list[tuple[Command, list[bytes]]]
) -> None:  # fmt: skip
    """Do the same as check() for calls that run together."""
    slot = _NONE
    for command, argv in calls:
        any_slots = session.multislot or is_long(command, session, argv)
        slot = slot_of_call(command, argv, slot, any_slots)
    if slot == _NONE:
        return
    if slots.mapped and not (session.multislot and _all_served(slots, calls)):
        _check_owner(ctx, slots, session, calls, _deciding(slots, calls) if session.multislot else [slot])
    if ctx.ks.follower:
        if not session.readonly or slots.outdated() or any(_for_leader(*each) for each in calls):
            raise moved(ctx.server.cluster, session, slot)
    elif slots.noting != NO_SLOTS:
        _note(slots, calls)


def _check_owner(
    ctx: Context, slots: SlotOwnership, session: Session, calls: list[tuple[Command, list[bytes]]], wanted: list[int]
) -> None:  # fmt: skip
    """Raise CommandError if the map does not give these slots to the group of this server (Rule 5)."""
    if slots.map is None:
        raise CommandError(errors.CLUSTER_DOWN)
    owners = [slots.map.owner(slot) for slot in wanted]
    if not all(owners):
        raise CommandError(errors.SLOT_UNASSIGNED)
    if slots.down and not all(command.group == "pubsub" for command, _ in calls):
        if not ctx.server.cluster.reads_when_down:
            raise CommandError(errors.CLUSTER_DOWN)
        if any(command.changes(argv) for command, argv in calls):
            raise CommandError(errors.CLUSTER_READS_ONLY)
    for slot, owner in zip(wanted, owners, strict=True):
        if owner != slots.group and not slots.waits(slot):
            host, port = ctx.server.cluster.leader_of(owner, session)
            raise CommandError(f"MOVED {slot} {host}:{port}")
    if ctx.ks.follower:
        return
    held = any(slots.held[slot] for slot in wanted)
    if not (slots.leads or slots.preparing) or (held and not slots.waiting):
        raise CommandError(errors.CLUSTER_DOWN)
    if held and len(wanted) > 1:
        raise CommandError(errors.TRY_AGAIN)


def must_wait(ctx: Context, slots: SlotOwnership, command: Command, session: Session, argv: list[bytes]) -> bool:
    """Return whether a call that check() has accepted must wait, because a slot is about to leave this server, or this
    server is about to begin to serve."""
    if ctx.ks.follower:
        return False
    calls = _queued(session) if "runs_queue" in command.traits else [(command, argv)] if command.key_specs else []
    waiting = NO_SLOTS if slots.preparing else slots.unheld if slots.waiting and slots.leads else ALL_SLOTS
    return _first_outside(waiting, calls) != _NONE


def _slots_of(calls: list[tuple[Command, list[bytes]]]) -> list[int]:
    """Return the slots of the keys, each once."""
    found: dict[int, None] = {}
    for command, argv in calls:
        for positions, _ in command.key_ranges(argv, real=False):
            for at in positions:
                found[slot_of(argv[at])] = None
    return list(found)


def _deciding(slots: SlotOwnership, calls: list[tuple[Command, list[bytes]]]) -> list[int]:
    """Return the slots of the keys that decide what _check_owner() does: for short calls, all of them. For a million
    keys, _slots_of() would take 60 to 90 ms, and this takes 30 ms."""
    if sum(len(argv) for _, argv in calls) <= _AT_ONCE or slots.map is None:
        return _slots_of(calls)
    own = either(table(slots.map.ranges(slots.group)), ALL_SLOTS if slots.preparing else NO_SLOTS)
    if slots.waiting and slots.leads:
        own = either(own, slots.held)
    first = _first_outside(NO_SLOTS, calls)
    others = (without(ALL_SLOTS, table(slots.map.unassigned())), own, slots.unheld, table([SlotRange(first, first)]))
    found = [first, *(_first_outside(each, calls) for each in others)]
    return list(dict.fromkeys(slot for slot in found if slot != _NONE))


def _first_outside(inside: bytes, calls: list[tuple[Command, list[bytes]]]) -> int:
    """Return the slot of the first key whose slot is not in a table; _NONE if there is none. A million keys take 7 ms,
    unless the server is interpreted without C."""
    for command, argv in calls:
        for positions, _ in command.key_ranges(argv, real=False):
            slot = _outside(inside, argv, positions)
            if slot != _NONE:
                return slot
    return _NONE


def _outside(inside: bytes, argv: list[bytes], positions: range) -> int:
    """Do the same for the keys at some positions."""
    if not positions:
        return _NONE
    words = argv if positions.stop >= len(argv) else argv[: positions.stop]
    return unserved(inside, words, positions.start, positions.step)


def _all_served(slots: SlotOwnership, calls: list[tuple[Command, list[bytes]]]) -> bool:
    """Return whether this server serves the slots of all keys."""
    return _first_outside(slots.served, calls) == _NONE


def _note(slots: SlotOwnership, calls: list[tuple[Command, list[bytes]]]) -> None:
    """Note the keys of calls that write to slots in which the server searches for keys."""
    for command, argv in calls:
        if slots.too_many:
            return
        if command.changes(argv):
            for positions, _ in command.key_ranges(argv):
                if len(positions) <= MOST_NOTED:
                    slots.noted.update([argv[at] for at in positions if slots.noting[slot_of(argv[at])]])
                elif _outside(slots.unnoted, argv, positions) != _NONE:
                    slots.too_many = True
            slots.too_many = slots.too_many or len(slots.noted) > MOST_NOTED


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


def may_run(session: Session, slots: SlotOwnership, command: Command, argv: list[bytes]) -> bool:
    """Return whether a leader can run a call of a command with several keys without check(), because its keys have the
    same slot, which this server serves. It is false for a long call, whose keys are compared in slices."""
    words = len(argv)
    if command.key_step:
        if words <= command.first + command.key_step:
            return slots.whole or unserved(slots.served, argv, command.first, 0) == _NONE
        if session.multislot:
            return slots.whole or (
                words <= LONG and unserved(slots.served, argv, command.first, command.key_step) == _NONE
            )
        if words > LONG:
            return False
        slot = one_slot(argv, command.first, command.key_step)
        return slot != _NONE and (slots.whole or slots.served[slot] != 0)
    if session.multislot and slots.whole:
        return True
    if words > LONG:
        return False
    if command.keys_then_ids:
        at = sole_key(argv, command.keys_then_ids)
        if at:
            return slots.whole or unserved(slots.served, argv, at, 0) == _NONE
    return _share_a_slot(session, slots, command, argv)


def _share_a_slot(session: Session, slots: SlotOwnership, command: Command, argv: list[bytes]) -> bool:
    """Do the same as may_run() for keys at any positions."""
    ranges = [positions for positions, _ in command.key_ranges(argv, real=False) if positions]
    if len(ranges) == 1 and len(ranges[0]) == 1:
        return slots.whole or unserved(slots.served, argv, ranges[0].start, 0) == _NONE
    if session.multislot:
        return _all_served(slots, [(command, argv)])
    slot = _NONE
    for positions in ranges:
        found = _slot_at(argv, positions)
        if found == _NONE or slot not in (_NONE, found):
            return False
        slot = found
    return slots.whole or slot == _NONE or slots.served[slot] != 0


def has_served_key(slots: SlotOwnership, command: Command, argv: list[bytes]) -> bool:
    """Return whether a call of a command with at most one key has no key, or one whose slot this server serves. It is
    false if the position of the key depends on the call."""
    first = command.first
    if first == 0:
        return not command.key_specs
    return unserved(slots.served, argv, first, 0) == _NONE


def _for_leader(command: Command, argv: list[bytes]) -> bool:
    """Return whether only the leader can run the call."""
    return command.changes(argv) or "reaches_replicas" in command.traits


def moved(cluster: ClusterPart, session: Session, slot: int) -> CommandError:
    """Return the error that sends the client to the leader of this replica."""
    host, port = cluster.leader(session)
    return CommandError(f"MOVED {slot} {host}:{port}")
