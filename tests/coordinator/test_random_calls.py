"""Random calls of two members against a reference: each result is what the reference says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.interface import Coordinator, Lease, LeaseGoneError, Versioned
from tests.coordinator.conftest import Place

KEYS = ("a", "b")
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.sampled_from(KEYS)),
        st.tuples(st.just("swap"), st.sampled_from(KEYS), st.sampled_from([0, "current", "older", "newer"]),
                  st.one_of(st.none(), st.binary(max_size=5)), st.integers(-1, 2)),
        st.tuples(st.just("grant")),
        st.tuples(st.just("keep"), st.integers(0, 2)),
        st.tuples(st.just("revoke"), st.integers(0, 2)),
    ),
    min_size=5, max_size=40,
)  # fmt: skip
RUNS = itertools.count()  # an example's keys have names of their own: a server keeps those of the last one


@dataclass
class Reference:
    """What the members should see."""

    keys: dict[str, tuple[bytes, int, Lease | None]] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)  # the last version of each key
    leases: list[Lease] = field(default_factory=list)
    live: set[str] = field(default_factory=set)

    def lease(self, number: int) -> Lease | None:
        return self.leases[-1 - number] if 0 <= number < len(self.leases) else None


async def check(reference: Reference, member: Coordinator, prefix: str, call: tuple[object, ...]) -> None:
    match call:
        case ("get", str(key)):
            found = reference.keys.get(key)
            assert await member.get(prefix + key) == (Versioned(found[0], found[1]) if found else None)
        case ("swap", str(key), which, (bytes() | None) as value, int(number)):
            found = reference.keys.get(key)
            current = found[1] if found else 0
            last = reference.last.get(key, 0)
            version = {0: 0, "current": current, "older": max(last - 1, 0), "newer": last + 1}[which]
            lease = reference.lease(number)
            if value is None and version == 0:
                return
            try:
                new = await member.swap(prefix + key, value, version, lease)
            except LeaseGoneError:
                assert version == current
                assert lease is not None
                assert lease.id not in reference.live
                return
            if version != current:
                assert new is None
                return
            assert new is not None
            assert new > last
            assert value is None or lease is None or lease.id in reference.live
            reference.last[key] = new
            if value is None:
                del reference.keys[key]
            else:
                reference.keys[key] = value, new, lease
        case ("grant",):
            lease = await member.grant(60_000)
            reference.leases.append(lease)
            reference.live.add(lease.id)
        case ("keep", int(number)) if lease := reference.lease(number):
            assert await member.keep(lease) == (lease.id in reference.live)
        case ("revoke", int(number)) if lease := reference.lease(number):
            await member.revoke(lease)
            reference.live.discard(lease.id)
            bound = [key for key, found in reference.keys.items() if found[2] == lease]
            for key in bound:
                del reference.keys[key]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=CALLS)
def test_random_calls(place: Place, calls: list[tuple[object, ...]]) -> None:
    async def story() -> None:
        members, reference, prefix = [place.connect(), place.connect()], Reference(), f"{next(RUNS)}/"
        for number, call in enumerate(calls):
            await check(reference, members[number % 2], prefix, call)
        for key in KEYS:
            await check(reference, members[0], prefix, ("get", key))

    place.run(story())


def test_the_reference_finds_a_wrong_result(place: Place) -> None:
    async def story() -> None:
        member, reference = place.connect(), Reference()
        await check(reference, member, "x/", ("swap", "a", 0, b"1", -1))
        reference.keys["a"] = b"2", reference.keys["a"][1], None
        with pytest.raises(AssertionError):
            await check(reference, member, "x/", ("get", "a"))

    place.run(story())
