"""With ``cluster-enabled``: the keys of a call must have the same slot, and a replica sends clients to the leader.

Rule 1: as in Redis, the keys of a transaction have the same slot, too.
Rule 2: a client that sent CLIENT MULTISLOT ON may use keys of different slots, because the leader has all of them.
Rule 3: a replica serves calls with keys that change nothing to clients that sent READONLY. As it does not forward
messages to its leader, SPUBLISH is always redirected, unlike in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence

from commands.context import ClusterPart, Context
from commands.declare import Command, lookup
from commands.session import Session
from commands.slots import slot_of
from resp import errors
from resp.errors import CommandError


def check(ctx: Context, command: Command, session: Session, argv: list[bytes]) -> None:
    """Raise CommandError (CROSSSLOT, MOVED) if another server must run the call, or no server can. If the call is EXEC,
    the transaction is discarded then."""
    if "runs_queue" in command.traits:
        calls = [(lookup(queued), queued) for queued in session.queued]
    elif command.key_specs:
        calls = [(command, argv)]
    else:
        return
    keys = [call[at] for each, call in calls for at, _ in each.keys(call, real=False)]
    if not keys:
        return
    try:
        slot = slot_of(keys[0]) if session.multislot else common_slot(keys)
        if ctx.ks.follower and not (session.readonly and not any(_for_leader(*each) for each in calls)):
            raise moved(ctx.server.cluster, session, slot)
    except CommandError:
        if "runs_queue" in command.traits:
            session.end_transaction(ctx.ks)
        raise


def _for_leader(command: Command, argv: list[bytes]) -> bool:
    """Return whether only the leader can run the call."""
    return command.changes(argv) or "reaches_replicas" in command.traits


def common_slot(keys: Sequence[bytes]) -> int:
    """Return the slot of the keys. Raises CommandError if they have different ones."""
    slot = slot_of(keys[0])
    for key in keys[1:]:
        if slot_of(key) != slot:
            raise CommandError(errors.CROSS_SLOT)
    return slot


def moved(cluster: ClusterPart, session: Session, slot: int) -> CommandError:
    """Return the error that sends the client to the leader of this replica."""
    host, port = cluster.leader(session)
    return CommandError(f"MOVED {slot} {host}:{port}")
