"""The checks of a storm in a cluster, with replies that break the rules."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.storm.routing import key_of
from tests.storm.slotworks import Counts, SlotRecord, String


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (b"3", ""), (b"4", ""), (None, ""), (b"1", "is there, and call 3 was acknowledged or seen"),
        (b"2", "was never sent, or was refused"), (b"6", "was never sent, or was refused"),
    ],
)  # fmt: skip
def test_strings(found: bytes | None, message: str) -> None:
    """Calls 1, 3 and 4 set the string, 2 and 5 delete it, 6 was refused. 3 was acknowledged, 4 and 5 are under way."""
    string = String("s")
    string.calls += [True, False, True, True, False, None]
    string.acked = 3
    if message:
        with pytest.raises(AssertionError, match=message):
            string.check(found, 3, 0)
    else:
        string.check(found, 3, 0)
        assert string.shown == (5 if found is None else int(found))


def test_a_string_that_is_gone() -> None:
    string = String("s")
    string.calls += [True]
    with pytest.raises(AssertionError, match="it is gone, and call 1 of 1 was acknowledged or seen"):
        string.check(None, 1, 0)
    with pytest.raises(AssertionError, match="it is gone"):
        string.check(None, 0, 1)


class Server:
    """Replies with fixed numbers."""

    def __init__(self, *replies: int) -> None:
        self.replies = list(replies)

    async def __call__(self, *_: Any) -> int:
        return self.replies.pop(0)


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ((1, 2, 3), ""),
        ((1, 2, 2), "have returned 2"),
        ((1, 3), "n. is 3"),
        ((2,), "n. is 2"),
        ((1, 2, 1), "returned 1"),
    ],
)
def test_counters(replies: tuple[int, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two owners would return the same number."""
    work = Counts(0, SlotRecord("r", 1), random.Random(1))
    monkeypatch.setattr(work.random, "choice", lambda some: some[0])
    monkeypatch.setattr(work.random, "random", lambda: 0.9)  # no reads
    server: Any = Server(*replies)

    async def story() -> None:
        for _ in replies:
            await work.step("", server)

    if message:
        with pytest.raises(AssertionError, match=message):
            asyncio.run(story())
    else:
        asyncio.run(story())


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("GET", "k"), b"k"), (("XREAD", "COUNT", 5, "BLOCK", 5, "STREAMS", "k", "0"), b"k"),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "k", ">"), b"k"), (("XGROUP", "CREATE", "k", "g", "0"), b"k"),
    ],
)  # fmt: skip
def test_keys(words: tuple[str | int, ...], key: bytes) -> None:
    assert key_of(words) == key
