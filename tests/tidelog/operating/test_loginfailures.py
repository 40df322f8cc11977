"""Limits of failed logins."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.operating import loginfailures
from tidelog.operating.loginfailures import FAILURES, LoginFailures

A = "192.0.2.1"


async def logged_in(failures: LoginFailures, seconds: float, correct: bool) -> bool:
    """Return whether a login was attempted."""
    if not await failures.admits(A):
        return False
    try:
        with failures.attempt(A, ValueError):
            await asyncio.sleep(seconds)
            if not correct:
                raise ValueError
    except ValueError:
        pass
    return True


def test_simultaneous_logins() -> None:
    async def main() -> None:
        failures = LoginFailures()
        found = await asyncio.gather(*(logged_in(failures, 0, n >= FAILURES // 2) for n in range(100)))
        assert all(found)
        found = await asyncio.gather(*(logged_in(failures, 0, False) for _ in range(100)))
        assert sum(found) == FAILURES - FAILURES // 2
        assert await failures.admits("192.0.2.2")
        assert not failures._attempts
        assert not failures._ended

    asyncio.run(main())


def test_a_login_does_not_wait_long_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loginfailures, "PATIENCE", 0.05)

    async def main() -> None:
        failures = LoginFailures()
        others = [asyncio.create_task(logged_in(failures, 60, True)) for _ in range(FAILURES)]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await failures.admits(A)
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert await failures.admits(A)

    asyncio.run(main())
