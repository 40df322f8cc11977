"""Functions that tests of the operator python name, and hand to processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from tidelog.flows import RejectError, RetryError, To, operator


def double(value: int) -> int:
    return value * 2


def where(value: Any) -> tuple[int, str]:
    return os.getpid(), threading.current_thread().name


def moody(value: str) -> Any:
    if value == "reject":
        raise RejectError("never")
    if value == "retry":
        raise RetryError("later")
    if value == "error":
        raise KeyError("k")
    if value == "odd":
        raise OddError(1, 2)
    if value == "unsendable":
        return lambda: 1
    return None if value == "none" else value


class OddError(Exception):
    """One that can't be pickled back."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def letters(value: str) -> Iterator[str]:
    yield from value


def dies_once(path: str) -> str:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "alive"
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Numbers:
    """Keeps a number."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, value: Any) -> list[Any]:
        self.seen += 1
        return [self.seen, value]


@operator(ports=["large"])
def sized(value: int) -> Any:
    return To("large", value) if value > 10 else value
