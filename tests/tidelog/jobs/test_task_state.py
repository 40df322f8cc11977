"""Invariant: whatever was on the disk, a task goes on from the state that was published last, or says why it can't."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.taskkit import Bench, changed, texts  # noqa: E402 - needs pyarrow
from tidelog.client.client import ConflictError  # noqa: E402
from tidelog.jobs import (  # noqa: E402
    Batch,
    job,
    keys,
    snapshots,
)
from tidelog.jobs import recovery as recovering  # noqa: E402
from tidelog.jobs.state import State  # noqa: E402
from tidelog.jobs.store import Store  # noqa: E402
from tidelog.jobs.task import run  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics import Topic  # noqa: E402


class Click(msgspec.Struct):
    user: str
    n: int


class Total(msgspec.Struct):
    user: str
    count: int


clicks: Topic[Click] = Topic("clicks", Click, partition_by="user", partitions=1)
others: Topic[Click] = Topic("others", Click, partition_by="user", partitions=1)
totals: Topic[Total] = Topic("totals", Total, partition_by="user", partitions=1)
calls: list[tuple[str, int]] = []  # topic and rows of each call


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    calls.clear()
    yield
    for topic in (clicks, others, totals):
        topic.__dict__.update(_facts=None, _check_at=0.0, _sender=None)


@job(inputs=[clicks, others], outputs=[totals], state=int)
def count(batch: Batch, state: State[int]) -> Any:
    assert batch.topic is not None
    calls.append((batch.topic.name, len(batch)))
    users = batch.table["user"].to_pylist()
    mine = Counter(users)
    if "poison" in mine:
        raise ValueError(f"poison among {len(batch)}")
    names = list(mine)
    before = state.get_many(names)
    after = [(old or 0) + mine[name] for name, old in zip(names, before, strict=True)]
    state.put_many([*names, "calls", "last"], [*after, len(calls_of(state)), len(batch)])
    return {totals: pa.table({"user": names, "count": after})}


def calls_of(state: State[int]) -> range:
    """One more than there were: so the state depends on where calls end."""
    (number,) = state.get_many(["calls"])
    return range((number or 0) + 1)


def send(bench: Bench, *users: str, to: Topic[Click] = clicks) -> None:
    to.sync.send_many([Click(user, n) for n, user in enumerate(users)])


@pytest.fixture
def bench(tidelog_server: Server, tmp_path: Path) -> Bench:
    return Bench(tidelog_server, tmp_path / "a", count, 1)


def counted(bench: Bench) -> dict[str, int]:
    """The totals that were published last, by user."""
    return {row["user"]: int(row["count"]) for row in texts(bench.client, totals)[0]}


# -- going on ------------------------------------------------------------------------------------------------
def test_state_goes_on_from_epoch_to_epoch(bench: Bench) -> None:
    for _ in range(3):
        send(bench, "a", "b", "a")
        results = bench.epoch()
    assert results[0].recovered == 0
    assert (results[0].keys, results[0].bytes > 0) == (4, True)
    assert counted(bench) == {"a": 6, "b": 3}
    assert bench.version() == (3, bench.run)
    assert {marker.digest for marker in bench.markers()} != {""}


def test_an_epoch_that_was_not_published_is_taken_back(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    send(bench, "a")
    bench.tasks()
    assert bench.version()[0] == 2
    results = bench.tasks()
    assert bench.version()[0] == 2
    bench.publish(results)
    assert counted(bench) == {"a": 2}
    assert results[0].recovered == 0
    assert bench.state()[b"a"] == 2


def test_the_first_epoch_is_taken_back_too(bench: Bench) -> None:
    send(bench, "a")
    bench.tasks()
    bench.epoch()
    assert bench.state()[b"a"] == 1


@pytest.mark.parametrize("ruin", ["deleted", "truncated", "rubbish"])
def test_a_state_that_is_gone_is_replayed(bench: Bench, ruin: str) -> None:
    for _ in range(5):
        send(bench, "a", "b")
        send(bench, "c", to=others)
        bench.epoch()
    before = bench.state()
    made = list(calls)
    if ruin == "deleted":
        bench.lose_state()
    else:
        path = next(bench.folder.rglob("data.mdb"))
        path.write_bytes(path.read_bytes()[:5000] if ruin == "truncated" else b"\xff" * path.stat().st_size)
    send(bench, "a")
    calls.clear()
    (result,) = bench.epoch()
    assert result.recovered == 5
    assert calls == [*made, ("clicks", 1)]
    assert bench.state() == before | {b"a": 6, b"calls": 11, b"last": 1}
    assert counted(bench) == {"a": 6, "b": 5, "c": 5}


def test_a_state_that_is_behind_follows(bench: Bench, tidelog_server: Server, tmp_path: Path) -> None:
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    for _ in range(3):
        send(bench, "a")
        rival.epoch()
    (result,) = bench.epoch()
    assert result.recovered == 3
    assert bench.state()[b"a"] == 4


def test_a_zombie_drops_what_another_run_has_published(bench: Bench, tmp_path: Path) -> None:
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    send(bench, "a")
    stale = bench.tasks()  # epoch 2, not published: it was stopped here
    send(bench, "b")
    rival.epoch()  # another epoch 2, with more in it
    with pytest.raises(ConflictError):
        bench.publish(stale)
    assert bench.version() == (2, bench.run)
    send(bench, "c")
    (result,) = bench.epoch()
    assert result.recovered == 1
    assert bench.state() == {b"a": 2, b"b": 1, b"c": 1, b"calls": 3, b"last": 1}
    assert bench.version() == (3, bench.run)


def test_a_zombie_that_is_behind_after_its_own_epoch(bench: Bench, tmp_path: Path) -> None:
    """Its state is at an epoch that was published by another, and more have followed."""
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    send(bench, "x")
    bench.tasks()
    for user in ("b", "c", "d"):
        send(bench, user)
        rival.epoch()
    (result,) = bench.epoch()
    assert result.recovered == 3
    assert bench.state() == rival.state() | bench.state()
    assert {name for name in bench.state() if len(name) == 1} == {b"a", b"x", b"b", b"c", b"d"}


def test_a_task_that_comes_late_leaves_the_state_alone(bench: Bench) -> None:
    """Spark had begun it before others ran: it wakes when later epochs were published."""
    send(bench, "a")
    late = bench.plan(0)
    for user in ("b", "c", "d"):
        bench.epoch()
        send(bench, user)
    failure = run(late).failure
    assert failure is not None
    assert failure.kind == "SupersededError"
    assert "epoch 3 was published" in failure.text
    assert bench.version() == (3, bench.run)
    (result,) = bench.epoch()
    assert result.recovered == 0


def test_a_leader_that_lacks_an_epoch_is_not_read(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    failure = run(replace(bench.plan(0), epoch=3)).failure
    assert failure is not None
    assert failure.kind == ""
    assert bench.version() == (1, bench.run)


def test_a_generation_begins_with_nothing(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    bench.generation = 2
    send(bench, "b")
    (result,) = bench.epoch()
    assert result.recovered == 0
    assert bench.state() == {b"a": 1, b"b": 1, b"calls": 1, b"last": 2}
    bench.lose_state()
    (result,) = bench.epoch()
    assert result.recovered == 1  # the markers of the former one don't count


def test_a_store_that_is_held_by_a_stopped_task_is_left_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, "a")
    bench.epoch()
    monkeypatch.setattr(recovering, "PATIENCE", 0.1)
    with Store.open(bench.folder / "count" / "1" / "0" / "0"):
        send(bench, "a")
        (result,) = bench.epoch()
        assert result.recovered == 1
        began = time.monotonic()
        (result,) = bench.epoch()
        assert result.recovered == 0
        assert time.monotonic() - began < 0.1  # the lock is not waited for again
    with Store.open(bench.folder / "count" / "1" / "0" / "1") as store:
        assert store.version == (3, bench.run)


# -- the same calls ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("merge", ["inputs", "time"])
def test_a_replay_makes_the_same_calls_though_the_job_is_declared_otherwise(bench: Bench, merge: Any) -> None:
    bench.use(changed(count, max_rows=4, merge=merge))
    for n in range(12):
        send(bench, "a", to=clicks if n % 3 else others)
        send(bench, "b", "c")
    bench.drain()
    before, made = bench.state(), list(calls)
    epochs = len(bench.markers())
    assert max(rows for _, rows in made) <= 4
    bench.use(changed(count, max_rows=100, merge="time" if merge == "inputs" else "inputs", inputs=(others, clicks)))
    bench.lose_state()
    calls.clear()
    (result,) = bench.tasks()
    assert result.recovered == epochs
    assert calls == made
    assert bench.state() == before


def test_an_input_that_the_job_does_not_read_any_more(bench: Bench) -> None:
    send(bench, "a", to=others)
    bench.epoch()
    bench.use(changed(count, inputs=(clicks,)))
    bench.epoch()  # it goes on
    bench.lose_state()
    text = bench.failed("JobError")
    assert "the epoch has read topic 'others', which the job does not read any more" in text


def test_a_function_that_is_not_deterministic_is_named(bench: Bench) -> None:
    dice = random.Random(7)

    def rolls(batch: Batch, state: State[int]) -> None:
        state.put_many(["x"], [dice.randrange(1 << 40)])

    bench.use(changed(count, function=rolls))
    for _ in range(3):
        send(bench, "a")
        bench.epoch()
    bench.lose_state()
    text = bench.failed("NotDeterministicError")
    assert "job 'count', partition 0, epoch 1: the function is not deterministic" in text
    assert "read: clicks:0 after 0.0 up to" in text


def test_new_code_may_make_another_state(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    send(bench, "a")
    bench.epoch()

    def doubles(batch: Batch, state: State[int]) -> None:
        state.put_many(batch.table["user"], [2] * len(batch))

    bench.use(changed(count, function=doubles))
    bench.lose_state()
    bench.epoch()
    assert bench.state() == {b"a": 2}
    assert "changes the state in another way than version" in caplog.text


def test_new_code_that_fails_with_old_entries_says_so(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()

    def fails(batch: Batch, state: State[int]) -> None:
        raise ValueError("not any more")

    bench.use(changed(count, function=fails))
    bench.lose_state()
    text = bench.failed("FunctionError")
    assert "ValueError: not any more" in text
    assert "That was in recovery" in text


# -- what can't be recovered ---------------------------------------------------------------------------------
def test_inputs_that_a_replay_needs_were_evicted(bench: Bench) -> None:
    for _ in range(3):
        send(bench, "a", "b")
        bench.epoch()
    bench.client.ttrim("clicks:0", count=3)
    bench.epoch()  # with its state, it needs none of them
    bench.lose_state()
    text = bench.failed("InputsLostError")
    assert "job 'count', partition 0, epoch 1: 2 of 2 entries of 'clicks:0' after 0.0 up to" in text
    assert "there is no snapshot" in text
    assert "overflow='protect' for topic 'clicks'" in text
    assert "tidelog jobs reset count" in text


def test_a_log_that_does_not_begin_at_the_beginning(bench: Bench) -> None:
    for _ in range(3):
        send(bench, "a")
        bench.epoch()
    bench.client.ttrim(keys.log("count", 0), count=1)
    bench.epoch()
    bench.lose_state()
    text = bench.failed("InputsLostError")
    assert "the replay log begins with epoch 3, and there is no snapshot" in text


def test_progress_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        send(bench, "a")
        bench.epoch()
    bench.lose_state()
    bench.tasks()
    key = keys.recovery("count", 0)
    assert bench.client.redis.get(key) == b'{"from":0,"epoch":1,"to":3,"rows":1}'  # then not before a second is over
    assert 0 < bench.client.redis.pttl(key) <= 10_000
    monkeypatch.setattr(recovering, "TELL", 0.0)
    bench.lose_state()
    bench.tasks()
    assert bench.client.redis.get(key) == b'{"from":0,"epoch":3,"to":3,"rows":3}'


def test_a_long_log_is_read_in_pages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "PAGE", 4)
    for _ in range(11):
        send(bench, "a")
        bench.epoch()
    bench.lose_state()
    (result,) = bench.tasks()
    assert result.recovered == 11
    assert bench.version()[0] == 12


# -- snapshots -----------------------------------------------------------------------------------------------
def wait_for_snapshots(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 30
    while len(list(folder.rglob("*.json"))) < number:
        assert time.monotonic() < deadline, [path.read_text() for path in folder.parent.rglob("snapshot.log")]
        time.sleep(0.02)


def test_what_is_before_the_snapshot_is_not_needed(bench: Bench, tmp_path: Path) -> None:
    bench.store = str(tmp_path / "objects")
    for _ in range(3):
        send(bench, "a", "b")
        bench.epoch()
    bench.snapshot = True
    bench.epoch()
    wait_for_snapshots(tmp_path / "objects", 1)
    bench.snapshot = False
    for _ in range(4):
        send(bench, "a")
        bench.epoch()
    before = bench.state()
    bench.client.ttrim("clicks:0", count=4)
    bench.lose_state()
    (result,) = bench.tasks()
    assert 4 <= result.recovered <= 5  # the snapshot is of epoch 3 or 4
    assert bench.state() == before
    bench.client.ttrim("clicks:0", count=2)
    bench.lose_state()
    text = bench.failed("InputsLostError")
    assert "the newest good snapshot is of epoch" in text


def test_a_snapshot_of_an_epoch_that_another_run_has_published_is_taken_back(bench: Bench, tmp_path: Path) -> None:
    bench.store = str(tmp_path / "objects")
    rival = bench.other(tmp_path / "b")
    send(bench, "a")
    bench.epoch()
    send(bench, "x")
    bench.snapshot = True
    bench.tasks()  # epoch 2, not published; the copy has it, or is of epoch 1
    wait_for_snapshots(tmp_path / "objects", 1)
    send(bench, "b")
    rival.epoch()
    bench.lose_state()
    bench.snapshot = False
    (result,) = bench.epoch()
    assert result.recovered == 1
    assert bench.state() == {b"a": 1, b"x": 1, b"b": 1, b"calls": 2, b"last": 2}


def test_an_object_store_that_does_not_answer_is_asked_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bench, "a")
    bench.epoch()
    bench.lose_state()
    bench.store = str(tmp_path / "objects")

    def refuse(*args: Any, **options: Any) -> bool:
        raise snapshots.SnapshotError("503 Slow Down")

    with monkeypatch.context() as faulty:
        faulty.setattr(snapshots, "restore", refuse)
        text = bench.failed("")
        assert "job 'count', partition 0: its state is not recovered yet: 503 Slow Down" in text
    (result,) = bench.tasks()
    assert result.recovered == 1


def test_an_object_store_that_can_not_be_used_here(bench: Bench) -> None:
    send(bench, "a")
    bench.epoch()
    bench.lose_state()
    bench.store = "nosuch://bucket/objects"
    bench.failed("JobError")


def test_at_random_it_is_as_if_nothing_had_happened(bench: Bench, tmp_path: Path) -> None:
    """Rivals take turns, publish or not, lose their disks, and declare other limits."""
    dice = random.Random(4711)
    benches = [bench, bench.other(tmp_path / "b"), bench.other(tmp_path / "c")]
    sent: Counter[str] = Counter()
    for _ in range(120):
        mine = dice.choice(benches)
        mine.use(changed(count, max_rows=dice.choice([1, 3, 100]), merge=dice.choice(["inputs", "time"])))
        users = dice.choices("abcdef", k=dice.randrange(6))
        if users:
            send(bench, *users, to=dice.choice([clicks, others]))
            sent.update(users)
        if dice.random() < 0.1:
            mine.lose_state()
        if dice.random() < 0.05:
            mine.run = mine.run[::-1]
        results = mine.tasks()
        if dice.random() < 0.6:
            mine.publish(results)
    benches[0].drain()
    assert counted(bench) == dict(sent)
    state = benches[0].state()
    assert {name.decode(): number for name, number in state.items() if len(name) == 1} == dict(sent)
    for other in benches[1:]:
        other.tasks()
        assert other.state() == state


# -- dead letters --------------------------------------------------------------------------------------------
@pytest.fixture
def poisoned(bench: Bench) -> Bench:
    bench.use(changed(count, on_error="deadletter"))
    send(bench, *"abc", "poison", *"defgh", "poison", "i")
    return bench


def letters(bench: Bench) -> list[Any]:
    from tidelog.topics import deadletters

    return [deadletters.read(entry) for entry in bench.client.trange("clicks.dead:0")]


def test_the_entry_that_fails_goes_to_the_dead_letters(poisoned: Bench) -> None:
    (result,) = poisoned.epoch()
    assert result.dead == 2
    assert counted(poisoned) == dict.fromkeys("abcdefghi", 1)
    entries = poisoned.client.trange("clicks:0")
    dead = [entry for entry in entries if entry["user"] == b"poison"]
    (marker,) = poisoned.markers()
    assert marker.skipped == {"clicks": [str(entry.id) for entry in dead]}
    assert marker.inputs["clicks"].rows == 11
    found = letters(poisoned)
    assert [letter.event_id for letter in found] == [entry.id for entry in dead]
    assert [letter.flat for letter in found] == [entry.flat for entry in dead]
    first = found[0]
    assert (first.topic, first.partition, first.key) == ("clicks", 0, b"poison")
    assert (first.processor, first.error, first.message) == ("job.count", "ValueError", "poison among 1")
    assert "Counter" in first.traceback or "raise ValueError" in first.traceback


def test_letters_are_published_with_the_epoch_only(poisoned: Bench) -> None:
    poisoned.tasks()
    poisoned.tasks()
    assert letters(poisoned) == []
    poisoned.epoch()
    assert len(letters(poisoned)) == 2


def test_the_program_finds_and_replays_them(poisoned: Bench) -> None:
    from click.testing import CliRunner

    from tidelog.cli.program import main

    poisoned.epoch()
    said = CliRunner().invoke(main, ["dlq", "list", "clicks", "--processor", "job.count", "--url", poisoned.server.url])
    assert said.exit_code == 0, said.output
    assert said.output.count("job.count") == 2
    said = CliRunner().invoke(main, ["dlq", "replay", "clicks", "--all", "--url", poisoned.server.url])
    assert "2 letters replayed" in said.output
    assert poisoned.client.tlen("clicks:0") == 13


def test_a_replay_leaves_out_what_was_left_out(poisoned: Bench) -> None:
    poisoned.epoch()
    before = poisoned.state()
    poisoned.use(count)  # it stops on errors now
    poisoned.lose_state()
    calls.clear()
    (result,) = poisoned.tasks()
    assert result.recovered == 1
    assert poisoned.state() == before
    assert sum(rows for _, rows in calls) == 9
    assert len(calls) > 1  # where the halves ended


def test_values_that_are_not_of_their_type_go_there_too(poisoned: Bench) -> None:
    bad = poisoned.client.tappend("clicks:0", {"user": "z", "n": "x"})
    (result,) = poisoned.epoch()
    assert result.dead == 3
    assert {(letter.event_id, letter.error) for letter in letters(poisoned)} >= {
        (bad, "tidelog.codecs.shapes.UndecodableError")
    }
    assert poisoned.markers()[0].skipped["clicks"][0] == str(bad)
    poisoned.lose_state()
    (result,) = poisoned.tasks()
    assert result.recovered == 1


def test_a_row_that_can_not_be_written_goes_there(bench: Bench) -> None:
    def nulls(batch: Batch, state: State[int]) -> Any:
        users = [None if user == "poison" else user for user in batch.table["user"].to_pylist()]
        state.put_many(batch.table["user"], [1] * len(users))
        return pa.table({"user": pa.array(users, pa.string()), "count": [1] * len(users)})

    bench.use(changed(count, function=nulls, on_error="deadletter"))
    send(bench, "a", "poison", "b")
    (result,) = bench.epoch()
    assert result.dead == 1
    assert bench.state() == {b"a": 1, b"b": 1}  # what the failing call did to the state is dropped
    assert counted(bench) == {"a": 1, "b": 1}


def test_what_is_wrong_with_the_function_is_no_matter_of_entries(bench: Bench) -> None:
    def wrong(batch: Batch, state: State[int]) -> Any:
        return pa.table({"nobody": [1]})

    bench.use(changed(count, function=wrong, on_error="deadletter"))
    send(bench, "a", "b")
    bench.failed("FunctionError")
    assert bench.client.tlen("clicks.dead:0") == 0


def test_a_state_used_wrongly(bench: Bench) -> None:
    def wrong(batch: Batch, state: State[int]) -> None:
        state.put_many(["a"], ["text"])

    bench.use(changed(count, function=wrong))
    send(bench, "a")
    assert "StateError" in bench.failed("FunctionError")


def test_a_state_that_was_kept_is_of_no_use(bench: Bench) -> None:
    kept: list[State[int]] = []

    def keeps(batch: Batch, state: State[int]) -> None:
        kept.append(state)
        kept[0].get_many(["a"])

    bench.use(changed(count, function=keeps))
    send(bench, "a")
    bench.epoch()
    send(bench, "a")
    assert "StateError" in bench.failed("FunctionError")
