"""Epochs with rows on two groups of a cluster: published exactly once, whatever step a program ends before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.replication.clusters import Groups
from tests.tidelog.client.rediscluster import keys_of_both
from tidelog import Client, calls
from tidelog.client.dividedcommit import DividedCommit, DividedStager, StageExpiredError
from tidelog.client.publish import Publisher, StagedRows
from tidelog.client.steps import Steps
from tidelog.transport.access import Access
from tidelog.transport.errors import ConflictError, StaleEpochError

A, B = keys_of_both(40)
TTL = 600_000


class KilledError(Exception):
    pass


@pytest.fixture
def access(groups: Groups) -> Access:
    return Access((f"redis://127.0.0.1:{groups.nodes[0].port}",), retry_ms=10)


@pytest.fixture
def by(access: Access) -> Iterator[Publisher]:
    with Publisher(access, "test-driver") as by:
        yield by


def rows(key: str, *numbers: int) -> StagedRows:
    texts = [b"%d" % number for number in numbers]
    return StagedRows(key.encode(), (b"n",), len(texts), b"".join(b"$%d\r\n%b\r\n" % (len(t), t) for t in texts))


def staged(access: Access, *parts: StagedRows, ttl: int = TTL) -> dict[str, list[str]]:
    with closing(DividedStager(access, "test-task", "app", "query", ttl)) as stager:
        for part in parts:
            stager.stage([part])
        return stager.stages


def found(by: Publisher, *keys: str) -> list[list[int]]:
    return [[int(entry["n"]) for entry in reply] for reply in by.ask(*map(calls.trange, keys))]


def stages(groups: Groups) -> int:
    return sum(int(node.redis.info("streams")["stages"]) for node in groups.nodes)


def killed(steps: Steps[Any], after: int) -> Steps[Any]:
    """Run some steps, and end."""
    wanted = next(steps)
    for _ in range(after):
        replies = yield wanted
        wanted = steps.send(replies)
    raise KilledError


@pytest.mark.parametrize("after", range(15))
def test_a_program_is_killed_after_each_step(groups: Groups, access: Access, by: Publisher, after: int) -> None:
    a, b, fence = A[after], B[after], f"kill{after}"
    before = stages(groups)
    commit = DividedCommit("app", fence)
    assert by.run(commit.commit(1, "c1", staged(access, rows(a, 1), rows(b, 1), rows(a, 2))))
    other = staged(access, rows(a, 3), rows(b, 2))
    with pytest.raises(KilledError):
        by.run(killed(DividedCommit("app", fence).commit(2, "c2", other), after))
    left = found(by, a, b)
    assert left[0] in ([1, 2], [1, 2, 3])
    assert left[1] in ([1], [1, 2])
    (intents,) = by.ask(calls.tlen(commit._intents))
    # The same batch is written again, as by Spark after a restart.
    by.run(DividedCommit("app", fence).commit(2, "c2", staged(access, rows(b, 2), rows(a, 3))))
    assert found(by, a, b) == [[1, 2, 3], [1, 2]]
    by.run(DividedCommit("app", fence).commit(3, "c3", staged(access, rows(b, 3))))
    assert found(by, a, b) == [[1, 2, 3], [1, 2, 3]]
    if not intents:  # the stages expire if the program has ended before the intent, or were published
        by.run(commit.drop(other))
    assert stages(groups) == before


def test_repetitions_and_other_batches(groups: Groups, access: Access, by: Publisher) -> None:
    a, b = A[30], B[30]
    commit = DividedCommit("app", "repeat")
    assert by.run(commit.commit(5, "c", staged(access, rows(a, 1), rows(b, 1))))
    assert not by.run(commit.commit(5, "c", staged(access, rows(a, 1), rows(b, 1))))
    with pytest.raises(ConflictError):
        by.run(commit.commit(5, "d", staged(access, rows(a, 9))))
    with pytest.raises(StaleEpochError):
        by.run(commit.commit(4, "c", staged(access, rows(a, 9))))
    assert found(by, a, b) == [[1], [1]]
    assert by.ask(calls.tlen(commit.log), calls.tlen(commit._intents)) == [1, 0]


def test_two_programs_write_the_same_epoch(groups: Groups, access: Access, by: Publisher) -> None:
    """One of them pauses after each of its steps in turn, while the other one writes the epoch and the next one."""
    for pause in range(1, 7):
        a, b, fence = A[30 + pause], B[30 + pause], f"two{pause}"
        slow = DividedCommit("app", fence).commit(1, "c", staged(access, rows(a, 1), rows(b, 1)))

        def meanwhile(slow: Steps[Any], pause: int, then: Callable[[], None]) -> Steps[Any]:
            wanted, sent = next(slow), 0
            while True:
                replies = yield wanted
                sent += 1
                if sent == pause:
                    then()
                try:
                    wanted = slow.send(replies)
                except StopIteration as end:
                    return end.value

        def others(a: str = a, b: str = b, fence: str = fence) -> None:
            with Publisher(access, "other") as other:
                other.run(DividedCommit("app", fence).commit(1, "c", staged(access, rows(a, 1), rows(b, 1))))
                other.run(DividedCommit("app", fence).commit(2, "d", staged(access, rows(a, 2))))

        try:
            by.run(meanwhile(slow, pause, others))
        except (StaleEpochError, StageExpiredError):
            pass
        by.run(DividedCommit("app", fence).commit(3, "e", staged(access, rows(b, 3))))
        assert found(by, a, b) == [[1, 2], [1, 3]]


def test_rows_that_have_expired(groups: Groups, access: Access, by: Publisher) -> None:
    names = staged(access, rows(A[38], 1), rows(B[38], 1))
    with Client(access) as client:
        assert client.tdrop(*names["{" + B[38] + "}"]) == 1
    with pytest.raises(StageExpiredError):
        by.run(DividedCommit("app", "expired").commit(1, "c", names))
    assert found(by, A[38], B[38]) == [[], []]
    assert by.run(DividedCommit("app", "expired").commit(1, "c", staged(access, rows(A[38], 1), rows(B[38], 1))))
    assert found(by, A[38], B[38]) == [[1], [1]]


def test_keys_with_one_hash_tag_are_published_together(groups: Groups, access: Access, by: Publisher) -> None:
    keys = "{tag}1", "{tag}2"
    assert by.run(DividedCommit("app", "tags").commit(1, "c", staged(access, *[rows(key, 1) for key in keys])))
    assert found(by, *keys) == [[1], [1]]
