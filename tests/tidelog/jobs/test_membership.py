"""Rendezvous hashing, and the document that says which engines there are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog import Client
from tidelog.client.steps import run
from tidelog.jobs import JobError, keys
from tidelog.jobs.engine import membership
from tidelog.jobs.engine.membership import EngineMember, EngineMembers, chosen

JOBS = [f"job-{at}" for at in range(200)]
names = st.text("abcdefgh0123", min_size=1, max_size=6)


@given(st.sets(names, min_size=1, max_size=8), names)
def test_who_joins_takes_only_what_is_its_own(engines: set[str], new: str) -> None:
    before = {job: chosen(job, engines) for job in JOBS}
    after = {job: chosen(job, engines | {new}) for job in JOBS}
    assert {after[job] for job in JOBS if after[job] != before[job]} <= {new}
    assert set(after.values()) <= engines | {new}


@given(st.sets(names, min_size=2, max_size=8), st.data())
def test_who_leaves_gives_up_only_what_it_had(engines: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(engines)))
    for job in JOBS:
        if chosen(job, engines) != gone:
            assert chosen(job, engines - {gone}) == chosen(job, engines)


def test_jobs_are_spread() -> None:
    engines = ["e1", "e2", "e3", "e4"]
    shares = [sum(chosen(job, engines) == engine for job in JOBS) for engine in engines]
    assert sum(shares) == len(JOBS)
    assert min(shares) > len(JOBS) / 4 / 2
    assert chosen("job", []) is None


def test_changes_at_the_same_time_are_all_made(client: Client) -> None:
    def join(at: int) -> None:
        run(client, membership.change(lambda there: there.joined(f"e{at}", EngineMember(at))))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(join, range(40)))
    assert sorted(run(client, membership.read()).engines) == sorted(f"e{at}" for at in range(40))
    left = run(client, membership.change(lambda there: there.without({"e1": 1, "e2": 99})))
    assert "e1" not in left.engines
    assert "e2" in left.engines  # under another epoch: that is another one


def test_what_is_no_document(client: Client) -> None:
    for text in (b"[]", b"\xff", b"[" * 100_000, b'{"engines": {"e": 7}}'):
        client.redis.set(keys.ENGINES, text)
        assert run(client, membership.read()) == EngineMembers()
        run(client, membership.change(lambda there: there.joined("e1", EngineMember(1))))
        assert list(run(client, membership.read()).engines) == ["e1"]
    client.redis.set(keys.ENGINES, '{"version": 9}')
    with pytest.raises(JobError, match="has version 9, this program supports 1: it is too old"):
        run(client, membership.read())
    assert membership.decoded(None) == EngineMembers()
