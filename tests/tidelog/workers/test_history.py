"""What judges storms finds what is wrong."""

from __future__ import annotations

import pytest

from tests.tidelog.workers.history import History, Id

STREAM: list[tuple[str, Id]] = [("k1", (1, 0)), ("k2", (1, 1)), ("k1", (1, 2)), ("k2", (1, 3))]


def judged(lines: str, ordering: str = "partition", pauses: int = 0) -> History:
    """Of words like ``b0@1``: the event of that place, and the epoch; ``a2``: what is before it is acknowledged."""
    history = History({0: STREAM, 1: []}, ordering, pauses)
    written = []
    for word in lines.split():
        kind, (place, _, epoch) = word[0], word[1:].partition("@")
        key, (ms, seq) = STREAM[int(place)]
        written.append(f"a 0 {ms}.{seq}" if kind == "a" else f"{kind} 0 {key} {ms}.{seq} {epoch} 7")
    history.check(written)
    return history


@pytest.mark.parametrize(
    "lines",
    [
        "b0@1 e0@1 b1@1 e1@1 b2@1 e2@1 b3@1 e3@1",
        "b0@1 b0@1 b0@1 e0@1 b1@1 e1@1",  # failed, and tried again
        "b0@1 e0@1 b1@1 e1@1 b0@2 e0@2 b1@2",  # killed before it had acknowledged
        "b0@1 e0@1 a1@ b1@1 b1@2 e1@1 e1@2 b2@2",  # paused in the function, and went on too late
    ],
)
def test_what_is_allowed(lines: str) -> None:
    history = judged(lines)
    assert (history.wrong, history.late) == ([], [])


def test_keys_are_lines_of_their_own() -> None:
    assert judged("b1@1 e1@1 b0@1 b3@1 e0@1 b2@1", "key").wrong == []
    assert len(judged("b1@1 e1@1", "partition").wrong) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("b1@1", "rule 3, the 1 before it were left out"),
        ("b0@1 e0@1 b1@1 b2@2", "rule 3, the 1 before it were left out"),
        ("b0@1 e0@1 b2@1", "rule 2, 2 from the one before"),
        ("b0@1 e0@1 b1@1 e1@1 b0@1", "rule 2, -1 from the one before"),
        ("b0@1 b1@1", "rule 2, the one before is not through"),
        ("b0@1 e0@1 a1@ b0@2", "rule 4, it was acknowledged before"),
        ("b0@1 a1@", "rule 5, nobody was through with"),
    ],
)
def test_what_is_wrong(lines: str, message: str) -> None:
    (wrong,) = judged(lines).wrong
    assert wrong.startswith(message)


def test_what_is_wrong_within_a_key() -> None:
    (wrong,) = judged("b1@1 e1@1 b0@1 b3@1 b2@1", "key").wrong
    assert wrong.startswith("rule 2, the one before is not through 5: b 0 k1")
    (wrong,) = judged("b0@1 e0@1 b3@2", "key").wrong
    assert wrong.startswith("rule 3, the 1 before it were left out 3: b 0 k2")


def test_late_calls_need_pauses() -> None:
    lines = "b0@1 e0@1 b1@1 b1@2 e1@2 b2@1"
    assert judged(lines, pauses=1).wrong == []
    (wrong,) = judged(lines).wrong
    assert wrong.startswith("1 late calls after 0 pauses: ['6: b 0 k1 1.2 1 7']")


def test_what_nobody_was_through_with() -> None:
    history = judged("b1@0 e1@0 b0@0 e0@0 b3@0 e3@0 b2@0", "none")
    assert history.wrong == []
    assert history.unfinished() == [(0, (1, 2))]
