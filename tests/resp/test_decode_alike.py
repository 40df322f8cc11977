"""Calls that begin with the same words as the one before them: their arguments are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.decode import MOST_ALIKE, OTHERS, RequestDecoder, _chunks
from tests.resp.test_decode import pack

A = [b"ADD", b"k", b"field", b"value"]
B = [b"ADD", b"k", b"field", b"a longer value"]


def head(words: int) -> Callable[[list[bytes]], int]:
    return lambda argv: words if len(argv) > words else 0


def decoder_of(words: int = 2, *names: bytes) -> RequestDecoder:
    decoder = RequestDecoder()
    decoder.heads = {name: head(words) for name in names or (b"ADD",)}
    return decoder


def bodies_of(words: int, *calls: list[bytes]) -> list[bytes]:
    """What comes after so many words, from the CRLF before it on."""
    begin = [len(pack(argv[:words])) - len(b"*%d" % words) + len(b"*%d" % len(argv)) - 2 for argv in calls]
    return [pack(argv)[at:] for argv, at in zip(calls, begin, strict=True)]


def test_arguments_are_made_when_they_are_asked_for() -> None:
    decoder = decoder_of()
    found = decoder.feed(b"".join(map(pack, [A, A, B, B, A])))
    assert found == [A, [], [], [], []]
    assert decoder.bodies == {0: bodies_of(2, A, A, B, B, A)}
    decoder.complete(found, 1)
    assert found == [A, A, B, B, A]
    decoder.forget()
    assert decoder.bodies == {}


def test_what_is_not_alike_ends_a_row() -> None:
    other_key, more, get = [b"ADD", b"j", b"f", b"v"], [*A, b"x"], [b"GET", b"k"]
    decoder = decoder_of()
    found = decoder.feed(b"".join(map(pack, [more, A, B, other_key, other_key, more, get, get, A])))
    assert found == [more, A, [], other_key, [], more, get, get, A]
    assert decoder.bodies == {1: bodies_of(2, A, B), 3: bodies_of(2, other_key, other_key)}
    decoder.complete(found, 4)
    assert found == [more, A, [], other_key, other_key, more, get, get, A]
    decoder.complete_all(found)
    assert found == [more, A, B, other_key, other_key, more, get, get, A]


def test_what_was_done_is_not_made() -> None:
    other_key, block = [b"ADD", b"j", b"f", b"v"], [b"BLOCK", b"k"]
    decoder = decoder_of()
    found = decoder.feed(b"".join(map(pack, [A, B, A, block, other_key, other_key, other_key])))
    assert list(decoder.bodies) == [0]  # after another command some calls are not looked at
    decoder.complete_all(found, 4)
    assert found == [A, [], [], block, other_key, other_key, other_key]
    decoder.complete_all(found, 3)
    assert found == [A, [], [], block, other_key, other_key, other_key]
    decoder.complete_all(found, 2)
    assert found == [A, B, A, block, other_key, other_key, other_key]


def test_after_another_command_some_calls_are_not_looked_at() -> None:
    decoder = decoder_of()
    found = decoder.feed(pack([b"GET", b"k"]) + pack(A) * (OTHERS + 2))
    assert found == [[b"GET", b"k"], *[A] * OTHERS, [], []]


@pytest.mark.parametrize("words", [0, 2, 3, 4, 5])
def test_the_head_says_how_much_is_shared(words: int) -> None:
    decoder = decoder_of(words)
    found = decoder.feed(pack(A) + pack(B))
    if not words or words > 3:
        assert found == [A, B]
        assert decoder.bodies == {}
    elif words == 3:
        assert decoder.bodies == {0: bodies_of(3, A, B)}
    decoder.complete_all(found)
    assert found == [A, B]


def test_rows_are_bounded() -> None:
    decoder = decoder_of()
    found = decoder.feed(pack(A) * (2 * MOST_ALIKE + 1))
    assert [at for at, argv in enumerate(found) if argv] == [0, MOST_ALIKE, 2 * MOST_ALIKE]
    assert [len(bodies) for bodies in decoder.bodies.values()] == [MOST_ALIKE, MOST_ALIKE]


START = pack(A)[: -len(b"$5\r\nvalue\r\n")]


@pytest.mark.parametrize(
    "rest",
    [
        START, START + b"$5\r\nvalue", START + b"$5\r\nvalue\r", START + b"$9\r\nvalue\r\n", START + b"$4\r\nvalue\r\n",
        START + b"$05\r\nvalue\r\n", START + b"$-1\r\n", START + b":5\r\n", START + b"$5\r\nvaluexx", b"PING\r\n",
        START + b"$12345678\r\n", START + b"$5xx\r\nvalue\r\n",
    ],
)  # fmt: skip
def test_what_is_not_canonical_is_left_to_others(rest: bytes) -> None:
    plain, lazy = RequestDecoder(), decoder_of()
    expected = plain.feed(pack(A) * 3 + rest)
    found = lazy.feed(pack(A) * 3 + rest)
    assert found[1:3] == [[], []]
    lazy.complete_all(found)
    assert (found, str(lazy.error), lazy.buffered) == (expected, str(plain.error), plain.buffered)
    lazy.forget()
    assert lazy.feed(b"\r\nvalue\r\n") == plain.feed(b"\r\nvalue\r\n")


def test_a_chunk_that_begins_inside_a_call_has_all_arguments() -> None:
    decoder = decoder_of()
    assert decoder.feed(pack(A)[:9]) == []
    assert decoder.feed(pack(A)[9:] + pack(A) * 2) == [A] * 3


words = st.sampled_from([b"", b"a", b"b", b"\r\n", b"$1\r\na", pack([b"ADD", b"a"]), b"x" * 12, b"y" * 130])
calls = st.builds(
    lambda name, rest: [name, *rest], st.sampled_from([b"ADD", b"ADD", b"ADD", b"X", b""]), st.lists(words, max_size=5)
)
rows = st.lists(st.tuples(calls, st.integers(1, 4)), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(rows=rows, shared=st.sampled_from([0, 2, 3, 4]), places=st.lists(st.integers(0, 1 << 16), max_size=3))
def test_commands_come_back(rows: list[tuple[list[bytes], int]], shared: int, places: list[int]) -> None:
    commands = [argv for argv, times in rows for _ in range(times)]
    data = b"".join(map(pack, commands))
    decoder = decoder_of(shared, b"ADD", b"")
    taken: list[list[bytes]] = []
    for a, b in pairwise([0, *sorted(place % (len(data) + 1) for place in places), len(data)]):
        found = decoder.feed(data[a:b])
        groups = dict(decoder.bodies)
        decoder.complete_all(found)
        for at, bodies in groups.items():
            assert bodies == bodies_of(shared, *found[at : at + len(bodies)])
        taken += found
        decoder.forget()
    assert taken == commands


# -- chunks that come again ------------------------------------------------------------------------------------------
def test_a_chunk_that_comes_again_is_the_same_command() -> None:
    one, other = RequestDecoder(), RequestDecoder()
    for _ in range(4):
        assert one.feed(pack(A)) == [A]
        assert other.feed(pack(A)) == [A]


def test_who_changes_its_arguments_changes_them_for_nobody_else() -> None:
    decoder = RequestDecoder()
    for _ in range(4):
        (argv,) = decoder.feed(pack(A))
        assert argv == A
        argv.append(b"more")


def test_chunks_of_one_length_do_not_meet() -> None:
    decoder, others = RequestDecoder(), [[b"ADD", b"k", b"field", bytes((n,)) * 5] for n in range(3)]
    for _ in range(3):
        for argv in [A, A, A, *others, A, *others]:
            assert decoder.feed(pack(argv)) == [argv]


def test_a_known_chunk_in_the_middle_of_a_command_is_a_part_of_it() -> None:
    decoder, inner = RequestDecoder(), pack(A)
    for _ in range(3):
        assert decoder.feed(inner) == [A]
    outer = pack([b"SET", b"k", inner])
    at = outer.index(inner)
    assert decoder.feed(outer[:at]) == []
    assert decoder.feed(inner) == []
    assert decoder.feed(outer[at + len(inner) :]) == [[b"SET", b"k", inner]]


def test_a_known_chunk_is_refused_where_limits_are_tighter() -> None:
    argv = [b"ADD", b"k", b"f", b"v" * 100]
    decoder, tight = RequestDecoder(), RequestDecoder(max_bulk=50)
    for _ in range(3):
        assert decoder.feed(pack(argv)) == [argv]
    assert tight.feed(pack(argv)) == []
    assert tight.error is not None


def test_a_known_chunk_after_an_error_is_not_read() -> None:
    decoder = RequestDecoder()
    for _ in range(3):
        assert decoder.feed(pack(A)) == [A]
    decoder.feed(b"*x\r\n")
    assert decoder.error is not None
    assert decoder.feed(pack(A)) == []


@pytest.mark.parametrize(
    "words", ["AUTH a secret", "hello 3 AUTH a secret", "ACL SETUSER a >secret", "CONFIG SET b secret"]
)
def test_chunks_with_passwords_are_not_remembered(words: str) -> None:
    decoder, argv = RequestDecoder(), [word.encode() for word in words.split()]
    for _ in range(3):
        assert decoder.feed(pack(argv)) == [argv]
    assert not [chunk for chunk in _chunks if b"secret" in chunk]
