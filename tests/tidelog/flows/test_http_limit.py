"""How many requests are under way: grows, halves, holds, never exceeds its cap. And templates, statuses, auth."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.flows.api.tokens import OK, REJECT, RETRY
from tidelog.flows.connectors.http.concurrency import FAILURES, ConcurrencyLimit
from tidelog.flows.connectors.http.options import HttpAuth, StatusCodeOptions
from tidelog.flows.connectors.http.requests import retry_after
from tidelog.flows.testing.virtualloop import simulate


def _run(scenario: Coroutine[Any, Any, None], seed: int = 1) -> None:
    """With a virtual clock."""
    simulate(lambda _: scenario, seed)


def _limit(cap: int, target: float | None = None) -> ConcurrencyLimit:
    return ConcurrencyLimit(cap, target, lambda: None)


async def _request(limit: ConcurrencyLimit, seconds: float, *, good: bool = True, wait: float | None = None) -> None:
    began = await limit.begin()
    try:
        await asyncio.sleep(seconds)
        if good:
            limit.good(began)
        else:
            limit.bad(began, "no", wait)
    finally:
        limit.end()


def test_it_grows_to_its_cap_and_no_further() -> None:
    async def scenario() -> None:
        limit = _limit(8)
        for expected in (2, 3, 4, 5, 6, 7, 8, 8, 8):
            await _request(limit, 0.01)
            assert limit.now == expected

    _run(scenario())


def test_a_bad_answer_halves_it_once_for_all_that_were_under_way() -> None:
    async def scenario() -> None:
        limit = _limit(16)
        for _ in range(20):
            await _request(limit, 0.01)
        assert limit.now == 16
        await asyncio.gather(*(_request(limit, 0.01, good=False) for _ in range(2)))
        assert limit.now == 8
        for _ in range(7):
            await _request(limit, 0.01)
        assert limit.now == 8  # from now on one more for each round
        await _request(limit, 0.01)
        assert limit.now == 9

    _run(scenario())


def test_an_answer_that_took_long_is_a_bad_one() -> None:
    async def scenario() -> None:
        for target, slow in ((None, 0.5), (0.2, 0.3)):
            limit = _limit(8, target)
            for _ in range(20):
                await _request(limit, 0.1)
            await _request(limit, 0.15)  # a little longer is not slow
            assert limit.now == 8
            await _request(limit, slow)
            assert limit.now == 4

    _run(scenario())


def test_after_failures_in_a_row_nothing_is_begun_for_a_while_that_grows() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        limit = _limit(4)
        for _ in range(FAILURES):
            await _request(limit, 0, good=False)
        waits = []
        for _ in range(9):
            assert limit.held
            begun = loop.time()
            await _request(limit, 0, good=False)  # the probe
            waits.append(round(loop.time() - begun, 3))
        assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
        await _request(limit, 0)
        assert not limit.held
        await _request(limit, 0, good=False)
        assert not limit.held  # one failure is none in a row

    _run(scenario())


def test_what_the_peer_asks_for_is_kept_within_bounds() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for said, kept in ((7.0, 7.0), (1e9, 300.0)):
            limit = _limit(4)
            await _request(limit, 0, good=False, wait=said)
            begun = loop.time()
            await _request(limit, 0)
            assert round(loop.time() - begun, 3) == kept

    _run(scenario())


def test_those_who_give_up_waiting_take_no_turn() -> None:
    async def scenario() -> None:
        limit = _limit(1)
        first = asyncio.ensure_future(_request(limit, 1))
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(_request(limit, 1)) for _ in range(3)]
        await asyncio.sleep(0.5)
        others[0].cancel()
        await first
        others[1].cancel()  # its turn has just come
        await asyncio.gather(*others, return_exceptions=True)
        assert limit.in_flight == 0
        await _request(limit, 0)

    _run(scenario())


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.booleans(), st.floats(0, 2), st.sampled_from([None, None, 0.5]), st.booleans()), max_size=40),
    st.integers(0, 1000),
)
def test_never_more_than_the_cap_and_all_get_their_turn(cap: int, requests: Any, seed: int) -> None:
    async def scenario() -> None:
        limit = _limit(cap)
        now = 0

        async def one(good: bool, seconds: float, wait: float | None) -> None:
            nonlocal now
            began = await limit.begin()
            try:
                now += 1
                assert now <= limit.in_flight <= cap
                await asyncio.sleep(seconds)
                if good:
                    limit.good(began)
                else:
                    limit.bad(began, "no", wait)
            finally:
                now -= 1
                limit.end()

        tasks = []
        for good, seconds, wait, cancelled in requests:
            tasks.append(asyncio.ensure_future(one(good, seconds, wait)))
            await asyncio.sleep(seconds / 8)
            if cancelled:
                tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(each.cancelled() or each.exception() is None for each in tasks)
        assert limit.in_flight == now == 0
        assert 1 <= limit.now <= cap
        limit.release()

    _run(scenario(), seed)


# -- statuses, auth -------------------------------------------------------------------------------
def test_the_narrowest_status_counts() -> None:
    table = StatusCodeOptions(ok=["2xx", 404], retry=["4xx", 500], reject=["400-404", "5xx"]).table()
    assert [table[each] for each in (200, 400, 403, 404, 405, 500, 501, 302)] == [
        OK, REJECT, REJECT, OK, RETRY, RETRY, REJECT, REJECT,
    ]  # fmt: skip


def test_who_is_admitted() -> None:
    bearer, basic = HttpAuth(bearer="sécret"), HttpAuth(username="me", password="a:b")
    assert bearer.admits("Bearer sécret")
    assert bearer.admits("bearer  sécret ")
    assert basic.admits(basic.header)
    for wrong in ("", "sécret", "Basic sécret", "Bearer", "Bearer sécre", "Bearer \udce9", basic.header):
        assert not bearer.admits(wrong)
    assert not basic.admits(bearer.header)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert (retry_after({"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}) or 0) > 1e9
    for nothing in ("", "soon", "-1", "1.5", "1" * 20, "Wed, 99 Oct 2015"):
        assert retry_after({"retry-after": nothing}) is None
    assert retry_after({}) is None
