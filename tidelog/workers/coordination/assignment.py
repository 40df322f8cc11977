"""The assignment of partitions to members.

Rule 1: shares are proportional to capacity. With P partitions, a member of capacity c out of C gets P * c / C of them,
        rounded up or down. Capacity 0 gets none.
Rule 2: no other assignment that satisfies Rule 1 moves fewer partitions. A member that joins n others of the same
        capacity takes P // (n + 1) partitions, and no other partition moves.
Rule 3: the result depends on the arguments only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def assign(previous: Sequence[str | None], members: Mapping[str, int], partitions: int) -> list[str | None]:
    """Return the owner of each partition; None only if no member has any capacity.

    ``previous``: the previous owners; it may be shorter or longer, and may name owners that are not members any more.
    ``members``: their capacities. Raises ValueError if one is negative.
    """
    if any(capacity < 0 for capacity in members.values()):
        raise ValueError(f"a capacity can't be negative: {dict(members)!r}")
    owners = [owner if members.get(owner or "") else None for owner in previous[:partitions]]
    owners += [None] * (partitions - len(owners))
    if not any(members.values()):
        return owners
    room = _shares(owners, members, partitions)
    result: list[str | None] = []
    for owner in owners:
        retained = owner if owner is not None and room[owner] else None
        if retained is not None:
            room[retained] -= 1
        result.append(retained)
    takers = iter([name for name in sorted(room) for _ in range(room[name])])
    return [next(takers) if owner is None else owner for owner in result]


def _shares(owners: Sequence[str | None], members: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Return how many partitions each member gets."""
    total = sum(members.values())
    shares = {name: partitions * capacity // total for name, capacity in members.items()}
    uneven = [name for name, capacity in members.items() if partitions * capacity % total]
    has = {name: owners.count(name) for name in uneven}
    # The remainder goes first to members that own more than their share already, which saves one move for each.
    uneven.sort(key=lambda name: (has[name] <= shares[name], -(partitions * members[name] % total), name))
    for name in uneven[: partitions - sum(shares.values())]:
        shares[name] += 1
    return shares
