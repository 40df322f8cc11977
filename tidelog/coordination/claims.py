"""``Claim``: a key that belongs to the holder of a lease for as long as that lease lasts.

    app:shop:owner:bill:3 = "app:shop:lease:w1|w1:17|42"      lease key, lease value, claim epoch
    app:shop:owner:bill:3 = "||42"                            released; the epoch stays

Rule 1: a claim is valid while the lease key that it names holds exactly the value that it names. It has no time of its
        own, so renewing the lease doesn't touch it, and a WATCH on it fails only if somebody else has taken it.
Rule 2: a claim changes hands by SET IFEQ on exactly the value that was found dead or released. No value occurs twice,
        so of many who try one succeeds.
Rule 3: the claim epoch grows with each claim of a key: it is taken from the counter after the value was read that it
        replaces. For the same reason a released claim leaves its epoch behind, and the key is not deleted.
Rule 4: a claim that names one's own tenure is one's own: a reply was lost. It is swapped for one with a new epoch, so
        that what is still under way with the old one can't succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination.epochs import add_epochs
from tidelog.coordination.lease import Lease, LeaseLostError, Tenure
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.call import Call
from tidelog.transport.errors import is_denied, is_retryable

_unreadable: Final = UnreadableDocuments(logging.getLogger(__name__))
REFUSED_MS: Final = 5000  # until a key of another type is looked at again
UNENDING: Final = 1000  # ms that count as left where somebody has made a lease's key last for ever


@dataclass(slots=True, eq=False)
class Claim:
    """A claim that was taken. ``epoch`` and ``value`` change if it is claimed again."""

    key: str
    partition: int
    tenure: Tenure
    epoch: int  # of the claim; grows with each claim of the key: the fencing token
    value: bytes  # of the key
    lost: bool = False  # somebody else has it, or it is gone
    inherited: bool = False  # whoever had it before has not released it: it has died, or was taken for dead

    @property
    def held(self) -> bool:
        """Whether the claim is valid at this moment. Checked before each effect that needs it."""
        return not self.lost and self.tenure.held


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a claim that could not be taken."""

    partition: int
    lease: str  # the key of the lease; empty: it changed hands at this moment, so try again
    left: int  # milliseconds until that lease ends, unless it is renewed


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """What came of ``take``."""

    claims: list[Claim]
    held: list[Holder]


def take(lease: Lease, wanted: Sequence[tuple[str, int]]) -> Steps[ClaimResult]:
    """Claim keys, each with its partition. Those of living leases of others are left alone.

    An invalid claim is reported, and its key is free: its owner, if there is one, finds another's claim there. A key
    that the server refuses because of its type is reported and left out.

    Raises LeaseLostError if ``lease`` is not held.
    """
    tenure = lease.tenure
    if not tenure.held:
        raise LeaseLostError(f"lease {lease.key} is not held")
    if not wanted:
        return ClaimResult([], [])
    (values,) = checked((yield [strings.mget(*[key for key, _ in wanted])]))
    named = {key: _lease_of(key, value) for (key, _), value in zip(wanted, values, strict=True)}
    ours = _name(lease.key, tenure)
    others = sorted({name for name in named.values() if name not in (b"|", ours)})
    living = yield from _living(others)
    free = [
        (key, partition, value)
        for (key, partition), value in zip(wanted, values, strict=True)
        if named[key] not in living
    ]
    held = [
        Holder(partition, named[key].partition(b"|")[0].decode(), living[named[key]])
        for key, partition in wanted
        if named[key] in living
    ]
    if not free:
        return ClaimResult([], held)
    last = yield from add_epochs(lease.epochs, len(free))
    claims = [
        Claim(key, partition, tenure, epoch, b"%s|%d" % (ours, epoch), inherited=named[key] != b"|")
        for epoch, (key, partition, _) in enumerate(free, last - len(free) + 1)
    ]
    swaps = [_swap(claim, old) for claim, (_, _, old) in zip(claims, free, strict=True)]
    found = yield swaps
    for claim, there in zip(claims, found, strict=True):
        if isinstance(there, Exception):
            if is_retryable(there) or is_denied(there):
                raise there
            _unreadable.tell(claim.key, there)
            held.append(Holder(claim.partition, claim.key, REFUSED_MS))
    claims = [claim for claim, there in zip(claims, found, strict=True) if not isinstance(there, Exception)]
    free = [each for each, there in zip(free, found, strict=True) if not isinstance(there, Exception)]
    found = [there for there in found if not isinstance(there, Exception)]
    taken = [claim for claim, there, (_, _, old) in zip(claims, found, free, strict=True) if there == old]
    beaten = {claim.partition for claim in claims} - {claim.partition for claim in taken}
    return ClaimResult(taken, held + [Holder(partition, "", 0) for partition in sorted(beaten)])


def release(claims: Sequence[Claim], also: Sequence[Call[Any]] = ()) -> Steps[None]:
    """Give claims up; ``also``: calls that are sent behind. Claims that others have taken stay theirs."""
    for claim in claims:
        claim.lost = True
    freed = [strings.set_equal(each.key, b"||%d" % each.epoch, each.value) for each in claims]
    for each, reply in zip(claims, (yield [*freed, *also]), strict=False):  # what is sent behind are hints
        if isinstance(reply, Exception):
            if is_retryable(reply) or is_denied(reply):
                raise reply
            _unreadable.tell(each.key, reply)  # it is nobody's claim any more


def check(claims: Sequence[Claim]) -> Steps[list[Claim]]:
    """Compare claims with the server; those that aren't there any more become lost, and are returned."""
    if not claims:
        return []
    (values,) = checked((yield [strings.mget(*[claim.key for claim in claims])]))
    gone = [claim for claim, value in zip(claims, values, strict=True) if value != claim.value]
    for claim in gone:
        claim.lost = True
    return gone


def reclaim(lease: Lease, claim: Claim) -> Steps[bool]:
    """Claim again what is one's own, under a new epoch; False if it is lost.

    When it returns, a transaction that watched the key with the old epoch has happened or never will.
    """
    ours = _name(lease.key, claim.tenure)
    epoch = yield from add_epochs(lease.epochs, 1)
    value = b"%s|%d" % (ours, epoch)
    old = claim.value
    while not claim.lost:
        (there,) = checked((yield [strings.set_equal(claim.key, value, old)]))
        if there == old:
            claim.epoch, claim.value = epoch, value
            break
        if there is None or _lease_of(claim.key, there) != ours:
            claim.lost = True
        old = there or b""  # an attempt before this one, whose reply was lost
    return claim.held


def _swap(claim: Claim, old: bytes | None) -> Call[bytes | None]:
    if old is None:
        return strings.set_absent(claim.key, claim.value)
    return strings.set_equal(claim.key, claim.value, old)


def _name(lease_key: str, tenure: Tenure) -> bytes:
    return b"%s|%s" % (lease_key.encode(), tenure.value)


def _lease_of(key: str, value: bytes | None) -> bytes:
    """The part of a claim that names a tenure; ``|`` if the key is free. What is no claim is reported, and is free."""
    if value is None:
        return b"|"
    name, _, epoch = value.rpartition(b"|")
    try:
        if name.count(b"|") == 1 and epoch.isdigit() and (name == b"|" or name.decode()[0] != "|"):
            return name
    except UnicodeDecodeError:
        pass
    _unreadable.tell(key, f"{value[:60]!r} is no claim")
    return b"|"


def _living(names: Sequence[bytes]) -> Steps[dict[bytes, int]]:
    """Those tenures whose leases last, with the milliseconds that are left of them."""
    if not names:
        return {}
    keys = [name.partition(b"|")[0].decode() for name in names]
    replies = checked((yield [call for key in keys for call in (strings.get(key), strings.remaining_ms(key))]))
    return {
        name: left if left >= 0 else UNENDING
        for name, there, left in zip(names, replies[::2], replies[1::2], strict=True)
        if there == name.partition(b"|")[2]
    }
