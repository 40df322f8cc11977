"""Texts of exceptions whose own code fails; what goes on failing is logged once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from tidelog.operating.errortexts import FailureLog, summary_of, text_of, traceback_of


class StrFailsError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class ReprFailsError(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")


class StrExitsError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class StrIsNoneError(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class StrRecursesError(Exception):
    def __str__(self) -> str:
        return str(self)


class NotesFailError(Exception):
    __notes__: Any = 7


class ArgumentFailsError(Exception):
    def __init__(self) -> None:
        super().__init__(StrFailsError())


ALL = [
    StrFailsError, ReprFailsError, StrExitsError, StrIsNoneError, StrRecursesError, NotesFailError, ArgumentFailsError,
]  # fmt: skip


@pytest.mark.parametrize("kind", ALL)
def test_nothing_raises(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        raise kind() from kind()
    error = caught.value
    assert kind.__name__ in summary_of(error)
    assert isinstance(text_of(error), str)
    assert kind.__name__ in traceback_of(error)
    assert "test_nothing_raises" in traceback_of(error)


def test_what_is_said() -> None:
    assert summary_of(ValueError("five")) == "ValueError: five"
    assert summary_of(ValueError("five:")) == "ValueError: five:"
    assert summary_of(KeyError()) == "KeyError"
    assert summary_of(redis.ResponseError("MISCONF no space")) == "ResponseError: MISCONF no space"
    assert len(summary_of(ValueError("x" * 10**6))) < 20_000


def test_once(caplog: pytest.LogCaptureFixture) -> None:
    once = FailureLog(logging.getLogger("tidelog.once"))
    for text in ("a", "a", "b", "a"):
        once.warn(text)
    assert [record.getMessage() for record in caplog.records] == ["a", "b"]
    assert once.succeeded()
    assert not once.succeeded()
    once.warn("a")
    assert len(caplog.records) == 3


def test_once_with_a_quiet_time(caplog: pytest.LogCaptureFixture) -> None:
    """One that is well for a moment only has not come to its end."""
    once = FailureLog(logging.getLogger("tidelog.once"), quiet=3600)
    for _ in range(3):
        once.warn("a 1", "a")
        once.warn("a 2", "a")
        once.succeeded()
    assert [record.getMessage() for record in caplog.records] == ["a 1"]
