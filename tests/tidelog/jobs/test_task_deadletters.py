"""Which entries go to the dead letters, and which errors are not theirs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow here (pip install 'tidelog[spark]')")
pytest.importorskip("pyspark", reason="no pyspark here (pip install 'tidelog[spark]')")

from tests.tidelog.jobs.statekit import (  # noqa: E402
    calls,
    count,
    counted,
    fresh,
    send,
)
from tests.tidelog.jobs.taskkit import Bench, changed  # noqa: E402 - needs pyarrow
from tidelog.jobs import MicroBatch  # noqa: E402
from tidelog.jobs.state import State  # noqa: E402
from tidelog.jobs.store import StateStore, StoreFullError  # noqa: E402
from tidelog.testing import Server  # noqa: E402
from tidelog.topics.failureactions import DeadLetter  # noqa: E402


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    fresh()
    yield
    fresh()


@pytest.fixture
def bench(tidelog_server: Server, tmp_path: Path) -> Bench:
    return Bench(tidelog_server, tmp_path / "a", count, 1)


# -- dead letters --------------------------------------------------------------------------------------------
@pytest.fixture
def poisoned(bench: Bench) -> Bench:
    bench.use(changed(count, on_error=[DeadLetter()]))
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
    assert "2 dead letters replayed" in said.output
    assert poisoned.client.tlen("clicks:0") == 13


def test_a_queue_with_a_name_of_its_own_is_replayed(bench: Bench) -> None:
    from tidelog.client.alone import run_alone
    from tidelog.topics import deadletters

    bench.use(changed(count, on_error=[DeadLetter("failures")]))
    send(bench, "a", "poison")
    bench.epoch()
    done = run_alone(bench.client, deadletters.replay("failures"))
    assert (done.letters, done.refused) == (1, ())


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
        (bad, "tidelog.codecs.recordtypes.UndecodableError")
    }
    assert poisoned.markers()[0].skipped["clicks"][0] == str(bad)
    poisoned.lose_state()
    (result,) = poisoned.tasks()
    assert result.recovered == 1


def test_a_row_that_can_not_be_written_goes_there(bench: Bench) -> None:
    def nulls(batch: MicroBatch, state: State[int]) -> Any:
        users = [None if user == "poison" else user for user in batch.table["user"].to_pylist()]
        state.put_many(batch.table["user"], [1] * len(users))
        return pa.table({"user": pa.array(users, pa.string()), "count": [1] * len(users)})

    bench.use(changed(count, function=nulls, on_error=[DeadLetter()]))
    send(bench, "a", "poison", "b")
    (result,) = bench.epoch()
    assert result.dead == 1
    assert bench.state() == {b"a": 1, b"b": 1}  # what the failing call did to the state is dropped
    assert counted(bench) == {"a": 1, "b": 1}


def test_what_is_wrong_with_the_function_is_no_matter_of_entries(bench: Bench) -> None:
    def wrong(batch: MicroBatch, state: State[int]) -> Any:
        return pa.table({"nobody": [1]})

    bench.use(changed(count, function=wrong, on_error=[DeadLetter()]))
    send(bench, "a", "b")
    bench.failed("FunctionError")
    assert bench.client.tlen("clicks.dead:0") == 0


def test_a_state_used_wrongly(bench: Bench) -> None:
    def wrong(batch: MicroBatch, state: State[int]) -> None:
        state.put_many(["a"], ["text"])

    bench.use(changed(count, function=wrong))
    send(bench, "a")
    assert "StateValueError" in bench.failed("FunctionError")


def test_a_state_that_was_kept_is_of_no_use(bench: Bench) -> None:
    kept: list[State[int]] = []

    def keeps(batch: MicroBatch, state: State[int]) -> None:
        kept.append(state)
        kept[0].get_many(["a"])

    bench.use(changed(count, function=keeps))
    send(bench, "a")
    bench.epoch()
    send(bench, "a")
    assert "StateError" in bench.failed("FunctionError")


# -- errors that are not the rows' ---------------------------------------------------------------------------------
def careless(batch: MicroBatch, state: State[int]) -> Any:
    """Takes every error of its state for one of its entries."""
    try:
        state.get_many(batch.table["user"])
        list(state.scan())
    except Exception as error:
        raise ValueError("an entry that can't be counted") from error


def thoughtless(batch: MicroBatch, state: State[int]) -> Any:
    """Takes a state that can't be read for an empty one."""
    try:
        before = [number or 0 for number in state.get_many(batch.table["user"])]
    except Exception:  # noqa: BLE001
        before = [0] * len(batch)
    state.put_many(batch.table["user"], [number + 1 for number in before])


@pytest.mark.parametrize("function", [count.function, careless, thoughtless])
@pytest.mark.parametrize("error", [lmdb.DiskError("mdb_get: Input/output error"), OSError(28, "No space left")])
def test_a_disk_that_fails_is_no_matter_of_entries(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, function: Any, error: Exception
) -> None:
    """The task fails, and is tried again, whatever the function made of the error; though it has passed by then."""
    bench.use(changed(count, function=function, on_error=[DeadLetter()]))
    send(bench, "a", "b")
    read, failed = StateStore._read, []

    class Broken:
        def cursor(self, db: object) -> Any:
            failed.append(db)
            raise error

    with monkeypatch.context() as faulty:
        faulty.setattr(StateStore, "_read", lambda store: read(store) if failed else Broken())
        assert "can't be written" in bench.failed("")
    assert failed
    assert bench.client.tlen("clicks.dead:0") == 0


def test_a_disk_that_fails_under_a_scan(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(store: StateStore, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        raise StoreFullError("the disk does not answer")
        yield

    bench.use(changed(count, function=careless, on_error=[DeadLetter()]))
    send(bench, "a", "b")
    monkeypatch.setattr(StateStore, "walk", walk)
    assert "the disk does not answer" in bench.failed("")


def test_a_stored_value_of_another_type_is_no_matter_of_entries(bench: Bench) -> None:
    """The job stops: else all that comes would be put aside."""

    def texts(batch: MicroBatch, state: State[int]) -> None:
        state.space("names", str).put_many(batch.table["user"], ["x"] * len(batch))

    def numbers(batch: MicroBatch, state: State[int]) -> None:
        state.space("names", int).get_many(batch.table["user"])

    bench.use(changed(count, function=texts, on_error=[DeadLetter()]))
    send(bench, "a", "b")
    bench.epoch()
    bench.use(changed(count, function=numbers, on_error=[DeadLetter()]))
    send(bench, "b", "c")
    assert "StateError" in bench.failed("FunctionError")
    assert bench.client.tlen("clicks.dead:0") == 0


def test_a_key_or_a_value_that_can_not_be_stored_is_a_matter_of_its_entry(bench: Bench) -> None:
    def odd(batch: MicroBatch, state: State[int]) -> None:
        users = batch.table["user"].to_pylist()
        values = [None if user == "value" else 1 for user in users]
        state.put_many([None if user == "key" else user for user in users], values)

    bench.use(changed(count, function=odd, on_error=[DeadLetter()]))
    send(bench, "a", "key", "b", "value", "c")
    (result,) = bench.epoch()
    assert result.dead == 2
    assert bench.state() == {b"a": 1, b"b": 1, b"c": 1}
