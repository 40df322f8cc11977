"""``Claim``: a key that belongs to the holder of a lease for as long as the lease lasts.

    app:shop:owner:bill:3 = "app:shop:lease:w1|w1:17|42"      lease key, lease value, claim epoch
    app:shop:owner:bill:3 = "||42"                            released; the epoch remains

Rule 1: a claim is valid while the lease key that it names has exactly the value that it names. It does not expire by
        itself, so renewing the lease does not change it, and a WATCH on it fails only if another process has taken it.
Rule 2: a claim is taken by SET IFEQ on exactly the expired or released value that was read. No value occurs twice, so
        only one of several processes succeeds.
Rule 3: the claim epoch increases with each claim of a key: it is taken from the counter after the previous value was
        read. For the same reason, a released key is not deleted but retains its epoch.
Rule 4: a claim that names the process's own tenure is its own: a reply was lost. It is replaced by one with a new
        epoch, so that requests in flight with the old epoch can't succeed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.client import strings
from tidelog.client.steps import Steps, checked
from tidelog.coordination.epochs import add_epochs
from tidelog.coordination.lease import Lease, LeaseLostError, Tenure, read_leases
from tidelog.operating.errortexts import UnreadableDocuments
from tidelog.transport.call import Call
from tidelog.transport.errors import is_denied, is_retryable

_unreadable: Final = UnreadableDocuments(logging.getLogger(__name__))
REFUSED_MS: Final = 5000  # until a key of another type is checked again
UNENDING: Final = 1000  # ms that count as remaining if a lease's key was made persistent


@dataclass(slots=True, eq=False)
class Claim:
    """A claim of this process. ``epoch`` and ``value`` change if it is claimed again."""

    key: str
    partition: int
    tenure: Tenure
    epoch: int  # the fencing token: it increases with each claim of the key
    value: bytes  # of the key
    lost: bool = False  # another process has it, or it was deleted
    inherited: bool = False  # the previous owner did not release it: it died, or its lease expired

    @property
    def held(self) -> bool:
        """Whether the claim is valid now. It is checked before each effect that requires it."""
        return not self.lost and self.tenure.held


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a claim that could not be taken."""

    partition: int
    lease: str  # the key of the lease; empty: another process has just taken the claim, so try again
    left: int  # milliseconds until that lease expires, unless it is renewed


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The result of ``take``."""

    claims: list[Claim]  # those that were taken
    held: list[Holder]  # the owners of the others


def take(lease: Lease, wanted: Sequence[tuple[str, int]]) -> Steps[ClaimResult]:
    """Claim keys, each with its partition, except those that valid leases of other processes hold.

    An invalid claim is reported, and its key counts as free: its owner, if any, then finds another claim. A key that
    has another type is reported and skipped.

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
            _unreadable.report(claim.key, there)
            held.append(Holder(claim.partition, claim.key, REFUSED_MS))
    claims = [claim for claim, there in zip(claims, found, strict=True) if not isinstance(there, Exception)]
    free = [each for each, there in zip(free, found, strict=True) if not isinstance(there, Exception)]
    found = [there for there in found if not isinstance(there, Exception)]
    taken = [claim for claim, there, (_, _, old) in zip(claims, found, free, strict=True) if there == old]
    beaten = {claim.partition for claim in claims} - {claim.partition for claim in taken}
    return ClaimResult(taken, held + [Holder(partition, "", 0) for partition in sorted(beaten)])


def release(claims: Sequence[Claim], also: Sequence[Call[Any]] = ()) -> Steps[None]:
    """Release claims. Claims that others have taken are not changed. ``also``: calls that are sent afterwards."""
    for claim in claims:
        claim.lost = True
    freed = [strings.set_equal(each.key, b"||%d" % each.epoch, each.value) for each in claims]
    for each, reply in zip(claims, (yield [*freed, *also]), strict=False):  # the replies to ``also`` don't matter
        if isinstance(reply, Exception):
            if is_retryable(reply) or is_denied(reply):
                raise reply
            _unreadable.report(each.key, reply)  # it is no longer a claim


def check(claims: Sequence[Claim]) -> Steps[list[Claim]]:
    """Compare claims with the server. Those that no longer exist become lost and are returned."""
    if not claims:
        return []
    (values,) = checked((yield [strings.mget(*[claim.key for claim in claims])]))
    gone = [claim for claim, value in zip(claims, values, strict=True) if value != claim.value]
    for claim in gone:
        claim.lost = True
    return gone


def reclaim(lease: Lease, claim: Claim) -> Steps[bool]:
    """Replace a claim of this process by one with a new epoch. Returns False if the claim is lost.

    After that, a transaction that watched the key with the old epoch has either been executed or will fail.
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
        old = there or b""  # the value of an earlier attempt whose reply was lost
    return claim.held


def _swap(claim: Claim, old: bytes | None) -> Call[bytes | None]:
    if old is None:
        return strings.set_absent(claim.key, claim.value)
    return strings.set_equal(claim.key, claim.value, old)


def _name(lease_key: str, tenure: Tenure) -> bytes:
    return b"%s|%s" % (lease_key.encode(), tenure.value)


def _lease_of(key: str, value: bytes | None) -> bytes:
    """Return the part of a claim that names a tenure; ``|`` if the key is free. An invalid claim is reported."""
    if value is None:
        return b"|"
    name, _, epoch = value.rpartition(b"|")
    try:
        if name.count(b"|") == 1 and epoch.isdigit() and (name == b"|" or name.decode()[0] != "|"):
            return name
    except UnicodeDecodeError:
        pass
    _unreadable.report(key, f"{value[:60]!r} is not a claim")
    return b"|"


def _living(names: Sequence[bytes]) -> Steps[dict[bytes, int]]:
    """Return the tenures whose leases have not expired, with their remaining milliseconds."""
    if not names:
        return {}
    found = yield from read_leases([name.partition(b"|")[0].decode() for name in names])
    return {
        name: left if left >= 0 else UNENDING
        for name, (there, left) in zip(names, found, strict=True)
        if there == name.partition(b"|")[2]
    }
