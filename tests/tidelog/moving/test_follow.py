"""--follow: what programs write meanwhile arrives, and nothing is lost when they change over."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.tidelog.moving.movekit import Peer, fill, running_redis, start, state
from tests.waiting import eventually
from tidelog.moving.errors import MovingError
from tidelog.moving.following import SourceFollower
from tidelog.moving.move import Plan, move
from tidelog.moving.outcome import CopyOutcome
from tidelog.moving.streams import CopiedStream


class Quiet:
    """A watch that counts rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self.lines: list[str] = []

    def copying(self, key: bytes, done: int, total: int) -> None: ...
    def copied(self, moved: CopiedStream) -> None: ...
    def verifying(self, key: bytes, done: int, total: int) -> None: ...

    def following(self, lag: int, streams: int) -> None:
        self.rounds += 1

    def report(self, text: str) -> None:
        self.lines.append(text)


class Following(threading.Thread):
    """A move that follows, in a thread."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.watch = Quiet()
        self.plan = plan
        self.outcome: CopyOutcome | None = None
        self.error: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            self.outcome = move(self.plan, self.watch, self.stopping.is_set)
        except BaseException as error:  # noqa: BLE001 - it is raised by end()
            self.error = error

    def rounds(self, number: int = 2) -> None:
        """Wait until so many more rounds were begun."""
        until = self.watch.rounds + number
        eventually(lambda: self.watch.rounds >= until or not self.is_alive())

    def end(self) -> CopyOutcome:
        self.stopping.set()
        self.join(60)
        if self.error is not None:
            raise self.error
        assert self.outcome is not None
        return self.outcome


@contextmanager
def following(source: Peer, target: Peer, **options: Any) -> Iterator[Following]:
    thread = Following(Plan(source.url, target.url, follow=True, page=50, **options))
    thread.start()
    try:
        eventually(lambda: thread.watch.rounds or not thread.is_alive())
        yield thread
    finally:
        thread.stopping.set()
        thread.join(60)


@contextmanager
def programs(stop: threading.Event, *functions: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Run them until the block's end, or until what it is given is called."""
    threads = [threading.Thread(target=function) for function in functions]

    def end() -> None:
        stop.set()
        for thread in threads:
            thread.join(30)

    for thread in threads:
        thread.start()
    try:
        yield end
    finally:
        end()


def writer(peer: Peer, key: str, stop: threading.Event, sent: list[bytes]) -> Callable[[], None]:
    def run() -> None:
        number = 0
        while not stop.is_set():
            value = f"{key}:{peer.port}:{number}".encode()
            peer.client.xadd(key, {"n": value}, maxlen=300 if key == "bounded" else None, approximate=False)
            sent.append(value)
            number += 1

    return run


def reader(peer: Peer, key: str, name: str, stop: threading.Event, done: list[bytes]) -> Callable[[], None]:
    """Takes messages, and acknowledges two of three; the others stay pending."""

    def run() -> None:
        while not stop.is_set():
            for _, rows in peer.client.xreadgroup("workers", name, {key: ">"}, count=7, block=20):
                for at, fields in rows:
                    if int(at.rpartition(b"-")[0]) % 3 or int(at.rpartition(b"-")[2]) % 2:
                        peer.client.xack(key, "workers", at)
                        done.append(fields[b"n"])

    return run


def test_a_service_changes_over_and_loses_nothing(source: Peer, target: Peer) -> None:
    keys = ["a", "b"]
    sent: list[bytes] = []
    done: list[bytes] = []
    stop = threading.Event()
    for key in keys:
        source.client.xgroup_create(key, "workers", "0", mkstream=True)
    service = [writer(source, key, stop, sent) for key in [*keys, "bounded"]]
    service += [reader(source, key, name, stop, done) for key in keys for name in ("ann", "bob")]
    with programs(stop, *service) as stopped:
        eventually(lambda: len(sent) > 500)
        with following(source, target) as move:
            eventually(lambda: len(sent) > 2000)
            move.rounds(3)
            for stream in keys:  # at no time is a group past what is there
                for group in target.client.xinfo_groups(stream):
                    assert group["last-delivered-id"] <= target.client.xinfo_stream(stream)["last-generated-id"]
            stopped()
            outcome = move.end()
    assert outcome.verdict == "same", outcome.to_dict()
    for key in [*keys, "bounded"]:
        assert state(target.client, key) == state(source.client, key)
    # The programs go on at the target: what was pending, then what is new.
    for key in keys:
        for name in ("ann", "bob"):
            for _, rows in target.client.xreadgroup("workers", name, {key: "0"}):
                done += [fields[b"n"] for _, fields in rows]
        for _, rows in target.client.xreadgroup("workers", "ann", {key: ">"}) or []:
            done += [fields[b"n"] for _, fields in rows]
    assert Counter(done) == Counter(value for value in sent if not value.startswith(b"bounded"))


def test_what_happens_to_streams_meanwhile(source: Peer, target: Peer) -> None:
    fill(source.client)
    ask = source.client.execute_command
    with following(source, target) as move:
        move.rounds()
        ask("XDEL", "orders", "22-1")
        ask("XTRIM", "orders", "MINID", "4-0")
        ask("XACK", "orders", "workers", "7-1")
        ask("XGROUP", "CREATE", "orders", "late", "9-0")
        ask("XGROUP", "DESTROY", "orders", "ahead")
        ask("DEL", "made")
        ask("XADD", "new", "1-1", "a", "b")
        ask("PERSIST", "trimmed")
        ask("DEL", "emptied")
        ask("XADD", "emptied", "1-1", "made", "anew")
        move.rounds(3)
        ask("SET", "counter", "42")
        ask("DEL", "lock")
        ask("SET", "fresh", "1")
        outcome = move.end()
    assert outcome.verdict == "same", outcome.to_dict()
    for key in ("bare", "emptied", "orders", "trimmed", "new"):
        assert state(target.client, key) == state(source.client, key), key
    assert sorted(target.client.keys()) == sorted(source.client.keys())
    assert target.client.get("counter") == b"42"


def test_a_claim_alone_is_carried_over(source: Peer, target: Peer) -> None:
    for n in range(1, 9):
        source.client.xadd("s", {"a": n}, id=f"{n}-0")
    source.client.xgroup_create("s", "g", "0")
    source.client.xreadgroup("g", "ann", {"s": ">"}, count=4)
    with following(source, target) as move:
        source.client.xclaim("s", "g", "bob", 0, ["2-0"])
        eventually(lambda: target.client.xpending("s", "g")["consumers"] == [
            {"name": b"ann", "pending": 3}, {"name": b"bob", "pending": 1}
        ])  # fmt: skip
        source.client.xack("s", "g", "1-0")
        eventually(lambda: target.client.xpending("s", "g")["pending"] == 3)
        assert move.end().verdict == "same"


def test_until_idle(source: Peer, target: Peer) -> None:
    source.client.xadd("s", {"a": "1"})
    assert move(Plan(source.url, target.url, follow=True, until_idle=0.2), Quiet(), lambda: False).verdict == "same"


def test_no_stream_yet(source: Peer, target: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.moving.following.SCAN_EVERY", 0.0)
    with following(source, target) as move:
        source.client.xadd("late", {"a": "1"})
        eventually(lambda: target.client.exists("late"))
        assert move.end().verdict == "same"


def test_writers_that_do_not_stop_are_told(source: Peer, target: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is written between each round and the look at what it has left."""
    source.client.xadd("s", {"a": "1"})

    its: Callable[..., None] = SourceFollower.round

    def round_and_write(self: SourceFollower, exact: bool = False) -> None:
        its(self, exact)
        source.client.xadd("s", {"a": "1"})

    monkeypatch.setattr(SourceFollower, "round", round_and_write)
    with following(source, target) as move:
        outcome = move.end()
    assert outcome.verdict == "source changed"
    assert all(not each.found.differences for each in outcome.streams if each.found is not None)


def test_a_lost_connection_is_made_again(source: Peer, target: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.moving.following.RETRY", 0.01)
    sent: list[bytes] = []
    stop = threading.Event()
    with programs(stop, writer(source, "s", stop, sent)) as stopped, following(source, target) as move:
        for peer in (source, target, source, target):
            move.rounds(1)
            for row in peer.client.client_list():
                if row["name"] == "tidelog-moving":
                    peer.client.client_kill_filter(_id=row["id"])
        move.rounds(2)
        stopped()
        outcome = move.end()
    assert outcome.verdict == "same"
    assert any("trying again" in line for line in move.watch.lines)
    assert state(target.client, "s") == state(source.client, "s")


def test_what_others_write_at_the_target_is_not_deleted(source: Peer, target: Peer) -> None:
    source.client.xadd("s", {"a": "1"}, id="1-0")
    source.client.xadd("t", {"a": "1"}, id="1-0")
    with following(source, target) as move:
        move.rounds()
        target.client.xadd("s", {"a": "2"}, id="5-0")
        target.client.xadd("t", {"a": "2"}, id="5-0")
        source.client.xadd("s", {"a": "3"}, id="2-0")
        source.client.delete("t")
        with pytest.raises(MovingError, match="was written to at the target, by somebody else"):
            move.end()
    assert [at for at, _ in target.client.xrange("s")] == [b"1-0", b"5-0"]
    assert [at for at, _ in target.client.xrange("t")] == [b"1-0", b"5-0"]


def test_a_source_that_comes_back_without_its_data(
    target: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.moving.following.RETRY", 0.01)
    with running_redis(tmp_path) as source:
        source.client.xadd("s", {"a": "1"}, id="1-0")
        with following(source, target) as move:
            move.rounds()
            source.kill()
            with running_redis(tmp_path, port=source.port):
                move.join(30)
                with pytest.raises(MovingError, match="was restarted: what is at the target was left as it is"):
                    move.end()
    assert target.client.xlen("s") == 1


def test_streams_and_groups_that_come_and_go_all_the_time(source: Peer, target: Peer) -> None:
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"k{number % 3}"
            for n in range(20):
                source.client.xadd(key, {"n": n})
            source.client.xgroup_create(key, f"g{number % 2}", "0")
            source.client.xreadgroup(f"g{number % 2}", "ann", {key: ">"}, count=10)
            source.client.xgroup_destroy(key, f"g{number % 2}")
            source.client.delete(key)
            source.client.set(key, "text")
            source.client.delete(key)

    with programs(stop, churn) as stopped, following(source, target) as move:
        move.rounds(8)
        stopped()
        source.client.xadd("last", {"a": "1"})
        outcome = move.end()
    assert outcome.verdict == "same", outcome.to_dict()
    assert sorted(target.client.keys()) == sorted(source.client.keys())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_an_exact_pass(source: Peer, target: Peer, number: signal.Signals) -> None:
    fill(source.client)
    with start("import", source.url, "--url", target.url, "--follow", "--json") as process:
        eventually(lambda: target.client.exists("orders") and target.client.exists("trimmed"))
        source.client.xadd("trimmed", {"a": "1"})
        eventually(lambda: target.client.xinfo_stream("trimmed")["entries-added"] == 78)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert json.loads(output)["verdict"] == "same"
    assert b"following: stop the writers" in errors


def kill_in_the_middle(source: Peer, target: Peer, number: signal.Signals, entries: int) -> bytes:
    with start("import", source.url, "--url", target.url, "--page", "100") as process:
        eventually(lambda: target.client.exists("s") and target.client.xlen("s") > entries // 10)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert target.client.xlen("s") < entries, "it was over before it was killed"
    return errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_copy_is_resumed(source: Peer, target: Peer, number: signal.Signals) -> None:
    entries = 30_000
    pipeline = source.client.pipeline(transaction=False)
    for n in range(1, entries + 1):
        pipeline.xadd("s", {"n": n, "text": "x" * 100}, id=f"{n}-0")
    pipeline.xgroup_create("s", "g", "0")
    for n in range(10):
        pipeline.xreadgroup("g", f"c{n}", {"s": ">"}, count=50)
    pipeline.execute()
    errors = kill_in_the_middle(source, target, number, entries)
    if number != signal.SIGKILL:
        assert errors.startswith(b"Error: stopped")
        assert b"--resume" in errors
    with start("import", source.url, "--url", target.url, "--resume", "--json") as process:
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    (report,) = json.loads(output)["streams"]
    assert report["verdict"] == "same"
    assert 0 < report["copied"] < entries
    assert state(target.client, "s") == state(source.client, "s")


def test_a_target_that_goes_away(source: Peer, tmp_path: Path) -> None:
    pipeline = source.client.pipeline(transaction=False)
    for n in range(1, 30_001):
        pipeline.xadd("s", {"n": n}, id=f"{n}-0")
    pipeline.execute()
    with running_redis(tmp_path) as target:
        with start("import", source.url, "--url", target.url, "--page", "100") as process:
            eventually(lambda: target.client.exists("s"))
            target.kill()
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert errors.startswith(b"Error: no answer")
        assert b"--resume" in errors
