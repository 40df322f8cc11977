"""The words of XREADGROUP, parsed once for each consumer that repeats its call."""

from __future__ import annotations

import pytest

from commands.redis_streams.readargs import MOST, NO_BLOCK, read_args
from resp.errors import CommandError


def call(consumer: str, *more: str, key: str = "s") -> list[bytes]:
    words = ["XREADGROUP", "GROUP", "g", consumer, *more, "STREAMS", key, ">"]
    return [word.encode() for word in words]


def test_consumers_that_take_turns_have_their_words_parsed_once() -> None:
    calls = [call(f"consumer{n}", "COUNT", "10", "BLOCK", "5") for n in range(3)]
    first = [read_args(argv) for argv in calls]
    for argv, before in zip(calls, first, strict=True):
        read = read_args(argv.copy())
        assert read.keys is before.keys, "not parsed again"
        assert (read.group, read.consumer, read.count, read.block) == (b"g", argv[3], 10, 5)
        assert (read.first, read.ids, read.noack) == (10, [], False)


def test_who_changes_its_arguments_changes_them_for_nobody_else() -> None:
    argv = call("one")
    for _ in range(3):
        read = read_args(argv)
        assert (read.count, read.ids) == (0, [])
        read.count = 7
        read.ids.append(1)


def test_other_words_of_a_consumer_are_parsed() -> None:
    read_args(call("one", "BLOCK", "5"))
    assert read_args(call("one")).block == NO_BLOCK
    assert read_args(call("one", key="other")).keys == [b"other"]
    for _ in range(2):
        with pytest.raises(CommandError):
            read_args([*call("one"), b"more"])


def test_what_is_kept_is_bounded() -> None:
    argv = call("x" * 2000)
    assert read_args(argv).keys is not read_args(argv).keys
    argv = call("one")
    keys = read_args(argv).keys
    for n in range(MOST + 1):
        read_args(call(f"consumer{n}"))
    assert read_args(argv).keys is not keys
