"""Routes calls to the members of a cluster of several groups. It does no I/O: ``clusterpools`` sends the calls.

``routed`` is a generator. It yields steps (send these batches, wait, read the map) and receives their results. For each
attempt, it divides the remaining calls by the leader of their slots, with one batch for each member.

Rule 1: calls for one member are sent in their order. Calls for different members run at the same time.
Rule 2: a call is repeated only if its reply proves that the member did not execute it: MOVED, ASK, TRYAGAIN, or
        CLUSTERDOWN. A lost connection is an error of the calls that were sent on it; their effect is unknown.
Rule 3: a transaction (MULTI to EXEC) is sent to one member, and repeated only as a whole.
Rule 4: a call without keys is sent to the member of the call before it. WAIT and WAITAOF are sent to all members with
        calls before them, and again to members to which such calls are redirected. Commands whose tips say so are
        sent to all leaders (DBSIZE), or divided by keys (MGET, DEL). This is not one step.
Rule 5: readers of streams (XREAD, TWAIT) with streams of several members are sent to each of them. If they block, the
        first reply counts. The others are abandoned, which loses nothing, because these commands change nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.exceptions import AskError, ClusterDownError, ExecAbortError, MasterDownError, MovedError, TryAgainError

from tidelog.transport.backoff import Backoff
from tidelog.transport.call import Call, Value
from tidelog.transport.divided import merged, part_of
from tidelog.transport.errors import CrossGroupError
from tidelog.transport.keyspecs import CommandKeys, CommandTable, FoundKeys
from tidelog.transport.rawcalls import LOST
from tidelog.transport.slots import MemberAddress, SlotOwners, key_bytes, member_at, slot_of

ATTEMPTS: Final = 16  # further attempts, as in redis-py; with BACKOFF, 5 s for TRYAGAIN and CLUSTERDOWN
BACKOFF: Final = Backoff(first=0.02, most=0.5)
_WAITS: Final = frozenset({b"wait", b"waitaof"})
NO_SLOT: Final = "Hash slot not served"


@dataclass(slots=True)
class MemberBatch:
    """Calls for one member, in order."""

    member: MemberAddress
    calls: list[Call[Any]] = field(default_factory=list)
    asking: bool = False  # whether ASKING precedes each of them


@dataclass(slots=True)
class Send:
    """Send batches at the same time. The result is a list of replies for each batch.

    An error takes the place of a reply; after a lost connection, of all replies of its batch. With ``race``, the
    batches have one call each. The first reply that is an error or not null is sufficient; the others are then None.
    """

    batches: list[MemberBatch]
    race: bool = False


@dataclass(slots=True)
class Delay:
    """Wait."""

    seconds: float


@dataclass(slots=True)
class Reload:
    """Read the map from a member, this one first, and pass it to ``Routes.learn``."""

    first: MemberAddress | None = None


Step = Send | Delay | Reload
Routing = Generator[Step, Any, list[Any]]


class Routes:
    """What a client knows about a cluster. Threads may share it."""

    def __init__(self) -> None:
        self.map: SlotOwners | None = None
        self.table = CommandTable(())
        self.stale = True  # whether the map must be read before the next request

    def learn(self, slots: Any, commands: Any, asked: MemberAddress) -> None:
        """Take over the replies of CLUSTER SLOTS and COMMAND (None: the commands are known)."""
        if commands is not None:
            self.table = CommandTable(commands)
        self.map = SlotOwners(slots, asked)
        self.stale = False

    @property
    def leaders(self) -> list[MemberAddress]:
        """The leaders of all groups that have slots."""
        return list(self.map.leaders) if self.map is not None else []

    def owner(self, key: Value) -> MemberAddress:
        """Return the leader of a key's slot. Raises ClusterDownError if the slot is unassigned."""
        found = self.map.owner(slot_of(key)) if self.map is not None else None
        if found is None:
            raise ClusterDownError(NO_SLOT, status_code="CLUSTERDOWN")
        return found

    def single_owner(self, args: Sequence[Value]) -> MemberAddress | None:
        """Return the leader of the only key of a call; None if the call needs more than that to be routed."""
        command = self.table.of(args)
        if command is None or self.stale or self.map is None:
            return None
        found = command.keys(args)
        return self.map.owner(slot_of(args[found.at[0]])) if found is not None and len(found.at) == 1 else None

    def redirected(self, error: MovedError, asked: MemberAddress) -> None:
        """Record what MOVED says. The whole map is read before the next request."""
        if self.map is not None:
            self.map.move(error.slot_id, member_at(error.host, error.port, asked))
        self.stale = True

    def keys_of(self, args: Sequence[Value]) -> list[Value]:
        """Return the keys of a call; none if only the server knows them."""
        command = self.table.of(args) if args else None
        found = command.keys(args) if command is not None else None
        return [args[at] for at in found.at] if found is not None else []

    def owner_of_calls(self, calls: Sequence[Call[Any]]) -> MemberAddress | None:
        """Return the leader of all keys of calls that must be executed on one member; None if they have no keys.

        Raises CrossGroupError, ClusterDownError.
        """
        owners: dict[MemberAddress, Value] = {}
        for call in calls:
            for key in self.keys_of(call.args):
                owners.setdefault(self.owner(key), key)
        if len(owners) > 1:
            raise cross_group((), owners, "a transaction")
        return next(iter(owners), None)


def cross_group(args: Sequence[Value], owners: dict[MemberAddress, Value], what: str = "") -> CrossGroupError:
    """Return the error for a call, or a transaction, whose keys are on different members."""
    named = " and ".join(f"{key_bytes(key).decode(errors='replace')!r} ({member})" for member, key in owners.items())
    title = what or key_bytes(args[0]).decode(errors="replace").upper()
    return CrossGroupError(
        f"CROSSSLOT {title}: the keys {named} are on different groups of the cluster. Give them one hash tag, as in"
        " {tag}:name, or use one call for each group"
    )


def is_redirection(reply: Any) -> bool:
    """Return whether a reply proves that the member did not execute the call, and that it may succeed later."""
    return isinstance(reply, MovedError | AskError | TryAgainError | ClusterDownError) and not isinstance(
        reply, MasterDownError
    )


@dataclass(slots=True)
class _Unit:
    """Calls that are sent together: one call, a part of a call, or a transaction."""

    at: int  # the index of the first call in the request
    calls: Sequence[Call[Any]]
    keys: tuple[int, ...] | None = None  # of a divided call: the positions of this part's keys
    member: MemberAddress | None = None
    pinned: bool = False  # whether a redirection has determined the member
    asking: bool = False  # whether ASKING precedes the call
    reply: Any = None  # of a transaction: a list


class _Request:
    """One request: its calls, and the replies so far."""

    def __init__(self, routes: Routes, calls: Sequence[Call[Any]]) -> None:
        self.routes = routes
        self.calls = calls
        self.replies: list[Any] = [None] * len(calls)
        self.parts: dict[int, list[_Unit]] = {}  # of divided calls, by index: the parts that are done
        self.found: dict[int, FoundKeys | None] = {}  # by index: keys that only the server knew
        self.race = False
        self.fresh = False  # whether the map was read during this request

    def units(self) -> Iterator[_Unit]:
        """Yield the units of the request."""
        at = 0
        while at < len(self.calls):
            size = 1
            if _is(self.calls[at], b"MULTI"):
                while at + size < len(self.calls) and not _is(self.calls[at + size - 1], b"EXEC", b"DISCARD"):
                    size += 1
            yield _Unit(at, self.calls[at : at + size])
            at += size

    # -- placing ---------------------------------------------------------------------------------------------------
    def place(self, units: Iterable[_Unit]) -> tuple[list[_Unit], list[_Unit]]:
        """Return the units with their members, and those that can't be sent, which have an error as the reply.

        A call for several members becomes several units.
        """
        placed: list[_Unit] = []
        failed: list[_Unit] = []
        homeless: list[_Unit] = []  # without keys, at the beginning
        self.race = False
        for unit in units:
            try:
                made = self._placed(unit, placed)
            except (CrossGroupError, ClusterDownError) as error:
                unit.reply = error if len(unit.calls) == 1 else [error] * len(unit.calls)
                failed.append(unit)
                continue
            if made is None:
                homeless.append(unit)
                continue
            placed += made
        first = placed[0].member if placed else next(iter(self.routes.leaders), None)
        for unit in homeless:
            unit.member = first
            if first is None:
                unit.reply = ClusterDownError(NO_SLOT, status_code="CLUSTERDOWN")
        if first is None:
            return placed, failed + homeless
        return homeless + placed, failed

    def _placed(self, unit: _Unit, before: list[_Unit]) -> list[_Unit] | None:
        """Return the units in which a unit is sent; None if any member will do."""
        if unit.pinned:
            return [unit]
        if len(unit.calls) > 1:
            return self._at(unit, self.routes.owner_of_calls(unit.calls), before)
        args = unit.calls[0].args
        command = self.routes.table.of(args)
        found = self.found.get(unit.at) or (command.keys(args) if command is not None else None)
        if command is None or found is None or not found.at:
            return self._without_keys(unit, command, before)
        divided: dict[MemberAddress, list[int]] = {}
        for at in unit.keys or found.at:
            divided.setdefault(self.routes.owner(args[at]), []).append(at)
        if len(divided) == 1 and unit.keys is None:
            unit.member = next(iter(divided))
            return [unit]
        blocks = command.reads_streams and (unit.calls[0].block is not None or _blocks(args))
        if not command.divisible or (blocks and len(self.calls) > 1):
            error = cross_group(args, {member: args[at[0]] for member, at in divided.items()})
            raise CrossGroupError(f"{error}. If it blocks, send it alone") if command.divisible else error
        self.race = blocks and len(divided) > 1
        return [
            _Unit(unit.at, [part_of(unit.calls[0], found, positions)], tuple(positions), member)
            for member, positions in divided.items()
        ]

    def _without_keys(self, unit: _Unit, command: CommandKeys | None, before: list[_Unit]) -> list[_Unit] | None:
        members: list[MemberAddress] = []
        if command is not None and command.name == b"scan":
            raise CrossGroupError("ERR SCAN returns the keys of one member only. Use scan_iter, which asks all of them")
        if command is not None and command.name in _WAITS:
            members = sorted({each.member for each in before if each.at < unit.at and each.member is not None})
            if not members and unit.at in self.parts:
                return []
        if command is not None and not members and command.request in ("all_shards", "all_nodes"):
            members = self.routes.leaders if command.response != "special" else []
        if members:
            return [_Unit(unit.at, unit.calls, (), member) for member in members]
        return self._at(unit, None, before)

    @staticmethod
    def _at(unit: _Unit, member: MemberAddress | None, before: list[_Unit]) -> list[_Unit] | None:
        unit.member = member or (before[-1].member if before else None)
        return [unit] if unit.member is not None else None

    # -- replies ---------------------------------------------------------------------------------------------------
    def settle(self, units: Sequence[_Unit], last: bool = False) -> list[_Unit]:
        """Take over replies, and return the units to send again. With ``last``, there is no further attempt."""
        left: list[_Unit] = []
        executed: set[MemberAddress | None] = set()
        for unit in units:
            if left and _is(unit.calls[0], b"WAIT", b"WAITAOF"):  # another one must cover the calls that are repeated
                if unit.member in executed:  # this one covers what was written over the same connection
                    unit.keys = ()
                    self.finish(unit)
                if left[-1].at != unit.at:
                    left.append(_Unit(unit.at, unit.calls))
            elif not last and self._redirected(unit):
                if unit.keys != () or not left or left[-1].at != unit.at:  # once, if it is sent to all leaders
                    left.append(unit)
            else:
                executed.add(unit.member)
                self.finish(unit)
        if left and self.race:  # the other replies were abandoned
            self.parts.clear()
            return [_Unit(0, self.calls, reply=left[0].reply)]
        for unit in left:
            if unit.keys == ():
                self.parts.pop(unit.at, None)
        return left

    def _redirected(self, unit: _Unit) -> bool:
        """Return whether to send a unit again, and prepare that."""
        reply, asked = unit.reply, unit.member
        if isinstance(reply, CrossGroupError) and not self.fresh and unit.member is None:
            self.routes.stale = True  # the map may be older than a move that joined the keys
            return len(unit.calls) == 1
        if len(unit.calls) > 1:
            reply = next(filter(is_redirection, unit.reply), None)
            if reply is None or not isinstance(unit.reply[-1], ExecAbortError | type(reply)):
                return False
        elif not is_redirection(reply):
            return False
        unit.pinned = unit.asking = False
        unit.member = None
        if isinstance(reply, ClusterDownError):
            self.routes.stale = True
        elif asked is not None and isinstance(reply, AskError):
            self._redirect(unit, reply, asked)
        if unit.keys is not None and not unit.pinned:  # a part is divided again: its keys may have different members
            unit.calls = [self.calls[unit.at]]
        return True

    def _redirect(self, unit: _Unit, reply: AskError, asked: MemberAddress) -> None:
        """Handle MOVED and ASK."""
        moved = isinstance(reply, MovedError)
        if isinstance(reply, MovedError):
            self.routes.redirected(reply, asked)
        if len(unit.calls) == 1 and (not moved or not (unit.keys or self.routes.keys_of(unit.calls[0].args))):
            unit.member, unit.pinned, unit.asking = member_at(reply.host, reply.port, asked), True, not moved

    def abandon(self, units: Sequence[_Unit], error: Exception) -> None:
        """Give calls that were redirected this error as their reply."""
        for unit in units:
            unit.reply = error if len(unit.calls) == 1 else [error] * len(unit.calls)
            self.finish(unit)

    def finish(self, unit: _Unit) -> None:
        """Take over the reply of a unit."""
        if len(unit.calls) > 1:
            self.replies[unit.at : unit.at + len(unit.calls)] = unit.reply
        elif unit.keys is None:
            self.replies[unit.at] = unit.reply
        else:
            self.parts.setdefault(unit.at, []).append(unit)

    def results(self) -> list[Any]:
        """Return a reply, or an error, for each call."""
        for at, parts in self.parts.items():
            command = self.routes.table.of(self.calls[at].args)
            self.replies[at] = merged(command, [(part.keys or (), part.reply) for part in parts])
        return self.replies


def routed(
    routes: Routes, calls: Sequence[Call[Any]], answered: tuple[MemberAddress, Sequence[Any]] | None = None
) -> Routing:
    """Send calls, and return their replies. An error takes the place of a reply.

    ``answered``: a member to which the calls were already sent, and its replies. Only redirected calls are sent then.
    """
    request = _Request(routes, calls)
    left = list(request.units())
    if routes.stale:
        yield Reload()
        request.fresh = True
    if answered is not None:
        for unit in left:
            unit.member = answered[0]
        _distribute(left, answered[1])
        left = request.settle(left)
    yield from _unknown_keys(request, left)
    for attempt in range(ATTEMPTS + 1):
        if routes.stale and left:
            try:
                yield Reload(_moved_to(left, routes))
            except LOST as error:  # no member answers
                request.abandon(left, error)
                break
            request.fresh = True
        placed, failed = request.place(left)
        batches = _batches(placed, request.race)
        if batches:
            answers = yield Send([batch for batch, _ in batches], request.race)
            for (_, units), replies in zip(batches, answers, strict=True):
                _distribute(units, replies)
        left = request.settle(sorted(placed + failed, key=lambda unit: unit.at), last=attempt == ATTEMPTS)
        if not left:
            break
        if any(not isinstance(unit.reply, MovedError | AskError | CrossGroupError) for unit in left) or attempt > 2:
            yield Delay(BACKOFF.delay(attempt + 1))
    return request.results()


def _moved_to(units: Sequence[_Unit], routes: Routes) -> MemberAddress | None:
    """Return the member that a redirection named: it has seen a map with its slot."""
    for unit in units:
        if isinstance(unit.reply, MovedError) and routes.map is not None:
            return routes.map.owner(unit.reply.slot_id)
    return None


def _unknown_keys(request: _Request, units: Sequence[_Unit]) -> Generator[Step, Any, None]:
    """Ask the server for the keys of calls whose specifications do not describe them."""
    table, leaders = request.routes.table, request.routes.leaders
    for unit in units:
        args = unit.calls[0].args
        command = table.of(args)
        if command is None or command.keys(args) is not None or not leaders:
            continue
        asked = MemberBatch(leaders[0], [Call(("COMMAND", "GETKEYS", *args), _unchanged)])
        ((keys,),) = yield Send([asked])
        if isinstance(keys, list):
            words = list(map(key_bytes, args))
            request.found[unit.at] = FoundKeys(tuple(words.index(key, 1) for key in keys))


def _batches(units: Sequence[_Unit], race: bool) -> list[tuple[MemberBatch, list[_Unit]]]:
    """Group units by member, in order."""
    made: dict[tuple[MemberAddress, bool], tuple[MemberBatch, list[_Unit]]] = {}
    for unit in units:
        assert unit.member is not None  # noqa: S101 - it is placed
        batch, own = made.setdefault((unit.member, unit.asking), (MemberBatch(unit.member, [], unit.asking), []))
        batch.calls += unit.calls
        own.append(unit)
    assert not race or all(len(batch.calls) == 1 for batch, _ in made.values())  # noqa: S101 - a race has one call
    return list(made.values())


def _distribute(units: Sequence[_Unit], replies: Sequence[Any]) -> None:
    at = 0
    for unit in units:
        size = len(unit.calls)
        unit.reply = replies[at] if size == 1 else replies[at : at + size]
        at += size


def _blocks(args: Sequence[Value]) -> bool:
    """Return whether XREAD has the option BLOCK."""
    words = [key_bytes(word).upper() for word in args[:5]]
    return b"BLOCK" in words and words[0] == b"XREAD"


def _is(call: Call[Any], *names: bytes) -> bool:
    return bool(call.args) and key_bytes(call.args[0]).upper() in names


def _unchanged(reply: Any) -> Any:
    return reply
