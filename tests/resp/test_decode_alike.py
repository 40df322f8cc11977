"""Calls that begin with the same words as those before them become one Alike object."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resp.decode import MOST_ALIKE, OTHERS, Alike, Call, RequestDecoder, SharedDecoding, expanded
from tests.resp.test_decode import pack

A = [b"ADD", b"k", b"field", b"value"]
B = [b"ADD", b"k", b"field", b"a longer value"]


def head(words: int) -> Callable[[list[bytes]], int]:
    return lambda argv: words if len(argv) > words else 0


def decoder_of(words: int = 2, *names: bytes) -> RequestDecoder:
    return RequestDecoder(SharedDecoding({name: head(words) for name in names or (b"ADD",)}))


def alike(words: int, *calls: list[bytes]) -> tuple[list[bytes], list[bytes], bytes]:
    """The first call, what follows so many words in each, from the CRLF before it on, and the bytes before that."""
    begin = [len(pack(argv[:words])) - len(b"*%d" % words) + len(b"*%d" % len(argv)) - 2 for argv in calls]
    bodies = [pack(argv)[at:] for argv, at in zip(calls, begin, strict=True)]
    return calls[0], bodies, pack(calls[0])[: begin[0]]


def shown(calls: list[Call]) -> list[object]:
    return [(call.argv, call.bodies, call.head) if isinstance(call, Alike) else call for call in calls]


def test_similar_calls_become_one_object() -> None:
    decoder, commands = decoder_of(), [A, A, B, B, A]
    found = decoder.calls(b"".join(map(pack, commands)))
    assert shown(found) == [alike(2, *commands)]
    assert expanded(found) == commands


def test_other_calls_end_a_row() -> None:
    other_key, more, get = [b"ADD", b"j", b"f", b"v"], [*A, b"x"], [b"GET", b"k"]
    decoder, commands = decoder_of(), [more, A, B, other_key, other_key, more, get, get, A]
    found = decoder.calls(b"".join(map(pack, commands)))
    assert shown(found) == [more, alike(2, A, B), alike(2, other_key, other_key), more, get, get, A]
    assert expanded(found) == commands
    assert expanded(found, 2) == commands[3:]


def test_after_another_command_some_calls_are_not_compared() -> None:
    decoder = decoder_of()
    found = decoder.calls(pack([b"GET", b"k"]) + pack(A) * (OTHERS + 2))
    assert shown(found) == [[b"GET", b"k"], *[A] * (OTHERS - 1), alike(2, A, A, A)]


@pytest.mark.parametrize("words", [0, 2, 3, 4, 5])
def test_the_head_says_how_much_is_shared(words: int) -> None:
    found = decoder_of(words).calls(pack(A) + pack(B))
    if not words or words > 3:
        assert found == [A, B]
    elif words == 3:
        assert shown(found) == [alike(3, A, B)]
    assert expanded(found) == [A, B]


def test_rows_are_bounded() -> None:
    found = decoder_of().calls(pack(A) * (2 * MOST_ALIKE + 1))
    assert [len(call.bodies) if isinstance(call, Alike) else 1 for call in found] == [MOST_ALIKE, MOST_ALIKE, 1]


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
    plain, lazy = RequestDecoder(SharedDecoding()), decoder_of()
    expected = plain.calls(pack(A) * 3 + rest)
    found = lazy.calls(pack(A) * 3 + rest)
    assert isinstance(found[0], Alike)
    assert (expanded(found), str(lazy.error), lazy.buffered) == (expected, str(plain.error), plain.buffered)
    assert lazy.calls(b"\r\nvalue\r\n") == plain.calls(b"\r\nvalue\r\n")


def test_a_chunk_that_begins_inside_a_call() -> None:
    decoder = decoder_of()
    assert decoder.calls(pack(A)[:9]) == []
    assert shown(decoder.calls(pack(A)[9:] + pack(A) * 2)) == [A, alike(2, A, A)]


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
        found = decoder.calls(data[a:b])
        for call in found:
            if isinstance(call, Alike):
                assert (call.argv, call.bodies, call.head) == alike(shared, *call.calls())
        taken += expanded(found)
    assert taken == commands


# -- chunks that are repeated ----------------------------------------------------------------------------------------
def test_a_chunk_that_is_repeated_is_the_same_command() -> None:
    shared = SharedDecoding()
    one, other = RequestDecoder(shared), RequestDecoder(shared)
    for _ in range(4):
        assert one.calls(pack(A)) == [A]
        assert other.calls(pack(A)) == [A]


def test_who_changes_its_arguments_changes_them_for_nobody_else() -> None:
    decoder = RequestDecoder(SharedDecoding())
    for _ in range(4):
        (argv,) = decoder.calls(pack(A))
        assert argv == A
        expanded([argv])[0].append(b"more")


def test_chunks_of_one_length_do_not_meet() -> None:
    decoder, others = RequestDecoder(SharedDecoding()), [[b"ADD", b"k", b"field", bytes((n,)) * 5] for n in range(3)]
    for _ in range(3):
        for argv in [A, A, A, *others, A, *others]:
            assert decoder.calls(pack(argv)) == [argv]


def test_a_known_chunk_in_the_middle_of_a_command_is_a_part_of_it() -> None:
    decoder, inner = RequestDecoder(SharedDecoding()), pack(A)
    for _ in range(3):
        assert decoder.calls(inner) == [A]
    outer = pack([b"SET", b"k", inner])
    at = outer.index(inner)
    assert decoder.calls(outer[:at]) == []
    assert decoder.calls(inner) == []
    assert decoder.calls(outer[at + len(inner) :]) == [[b"SET", b"k", inner]]


def test_a_known_chunk_is_refused_where_limits_are_tighter() -> None:
    argv, shared = [b"ADD", b"k", b"f", b"v" * 100], SharedDecoding()
    decoder, tight = RequestDecoder(shared), RequestDecoder(shared, max_bulk=50)
    for _ in range(3):
        assert decoder.calls(pack(argv)) == [argv]
    assert tight.calls(pack(argv)) == []
    assert tight.error is not None


def test_a_known_chunk_after_an_error_is_not_read() -> None:
    decoder = RequestDecoder(SharedDecoding())
    for _ in range(3):
        assert decoder.calls(pack(A)) == [A]
    decoder.calls(b"*x\r\n")
    assert decoder.error is not None
    assert decoder.calls(pack(A)) == []


@pytest.mark.parametrize(
    "words", ["AUTH a secret", "hello 3 AUTH a secret", "ACL SETUSER a >secret", "CONFIG SET b secret"]
)
def test_chunks_with_passwords_are_not_remembered(words: str) -> None:
    shared, argv = SharedDecoding(), [word.encode() for word in words.split()]
    decoder = RequestDecoder(shared)
    for _ in range(3):
        assert decoder.calls(pack(argv)) == [argv]
    assert not any(shared.recent)
