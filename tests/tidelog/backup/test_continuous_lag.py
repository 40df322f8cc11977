"""How far a continuous backup is behind: --lag is kept, the process reports when it is not, and it ends in time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.replication.cluster import Cluster, Node, new_port, wait_until
from tests.replication.proxy import Proxy
from tests.tidelog.backup.continuouskit import Follower, stored
from tests.tidelog.backup.kit import manifests, url
from tests.tidelog.jobs.s3kit import s3_bucket
from tidelog.backup import ranges, source, supervised
from tidelog.backup.continuous import ContinuousBackup, ContinuousOptions
from tidelog.backup.lagmonitor import LONGEST, SLACK, LagMonitor
from tidelog.backup.supervised import AbandonedError
from tidelog.backup.targets import target_at

LAG = 1.5  # seconds
LATE = 1.5  # seconds by which a busy machine may exceed it


class Running:
    """A backup in this process. ``lag`` is shorter than the command allows, so that reports come soon."""

    def __init__(self, place: str, target: str) -> None:
        self.said: list[str] = []
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        options = ContinuousOptions(0.1, None)
        self.backup = ContinuousBackup(place, target, options, self.said.append, lambda *_: None, self.stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            supervised.run(self.backup, self.stop)
        except BaseException as error:  # noqa: BLE001 - examined by the tests
            self.failed = error

    def reported(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.said), f"{text}: {self.said}")

    def end(self) -> float:
        """Stop it as a signal does, and return the seconds until it has ended."""
        began = time.monotonic()
        self.stop.set()
        self._thread.join()
        return time.monotonic() - began


@contextmanager
def running(place: str, target: str) -> Iterator[Running]:
    made = Running(place, target)
    try:
        yield made
    finally:
        made.end()
    assert made.failed is None


@contextmanager
def connected(node: Node) -> Iterator[tuple[Proxy, str]]:
    """A proxy to a server, and the URL for a backup."""
    with Proxy(new_port(), node.port) as proxy:
        yield proxy, f"redis://127.0.0.1:{proxy.port}"


def has(target: str, node: Node) -> None:
    """Wait until the log up to the current end of the server is at the target."""
    end, place = node.offset, target_at(target)
    wait_until(lambda: max(each.end for each in ranges.ranges(place)) >= end, "the log is at the target")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_bucket() as bucket:
        yield bucket


@pytest.mark.slow
def test_lag_is_kept(servers: Cluster, tmp_path: Path) -> None:
    """With a write each 100 ms, what can be restored lacks at most the writes of the last --lag seconds."""
    leader, target = servers.node(), tmp_path / "target"
    written: list[tuple[float, int]] = []
    worst = 0.0
    with Follower(target, leader, "--lag", LAG):
        wait_until(lambda: manifests(target), "a base backup")
        began = time.monotonic()
        while (now := time.monotonic()) < began + 2 * LAG:
            leader("TAPPEND", "s", "n", len(written))
            written.append((now, leader.offset))
            end = stored(target)
            missing = [at for at, offset in written if offset > end]
            worst = max(worst, time.monotonic() - missing[0] if missing else 0)
            time.sleep(max(0.0, now + 0.1 - time.monotonic()))
    assert stored(target) == leader.offset
    assert LAG / 4 < worst < LAG + LATE  # not much less: a file for each write would be useless


@pytest.mark.slow
def test_a_connection_that_hangs_or_is_lost(servers: Cluster, tmp_path: Path) -> None:
    leader, target = servers.node(), str(tmp_path / "target")
    with connected(leader) as (proxy, place), running(place, target) as backup:
        backup.reported("base backup")
        proxy.down.hold()
        leader("SET", "k", "1")
        backup.reported("s behind the server (--lag 0.1): waiting for the log of the server")
        proxy.calm()
        backup.reported("the target has caught up")
        has(target, leader)
        backup.said.clear()
        proxy.refuse()
        proxy.cut()
        leader("SET", "k", "2")
        backup.reported("connecting to the server again")
        backup.reported("s behind the server (--lag 0.1): ")
        proxy.accept()
        backup.reported("the target has caught up")
        has(target, leader)


@pytest.mark.slow
def test_a_store_that_hangs(servers: Cluster, s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from s3fs import S3FileSystem

    port = int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2])
    leader, target = servers.node(), f"{s3}/{uuid4()}"
    with Proxy(new_port(), port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        S3FileSystem.clear_instance_cache()  # an instance that does not use the proxy
        backup = Running(url(leader), target)
        backup.reported("base backup")
        leader("SET", "k", "1")
        has(target, leader)
        proxy.down.hold()
        leader("SET", "k", "2")
        backup.reported(f"s behind the server (--lag 0.1): waiting for a write to {target}")
        proxy.calm()
        backup.reported("the target has caught up")
        has(target, leader)
        monkeypatch.setattr(supervised, "MOST_STOPPING", 1.0)
        proxy.down.hold()
        end = leader.offset
        leader("SET", "k", "3")
        time.sleep(0.5)  # the write must have begun; nothing shows that
        assert backup.end() < 3
        assert isinstance(backup.failed, AbandonedError)
        assert f"The log after offset {end:,} was not written" in str(backup.failed)
        proxy.calm()


@pytest.mark.slow
def test_a_signal_while_the_server_hangs(servers: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the handshake, before a base backup, and during it."""
    monkeypatch.setattr(source, "HANDSHAKE", 1.0)
    leader = servers.node()
    leader("SET", "k", "x" * 1_000_000)
    with connected(leader) as (proxy, place):
        for number, after in enumerate((1, 4500, 500_000)):
            proxy.calm()
            proxy.down.swallow(after)
            backup = Running(place, str(tmp_path / f"{number}"))
            assert proxy.down.fired.wait(10)
            assert backup.end() < supervised.MOST_STOPPING
            assert not list(tmp_path.glob(f"{number}/locks/*"))


@pytest.mark.slow
def test_a_signal_to_a_process_whose_server_hangs(servers: Cluster, tmp_path: Path) -> None:
    leader = servers.node()
    backup = Follower(tmp_path / "target", leader)
    wait_until(lambda: manifests(tmp_path / "target"), "a base backup")
    leader.freeze()
    try:
        began = time.monotonic()
        with backup:
            backup.process.send_signal(signal.SIGTERM)
        assert time.monotonic() - began < 10
    finally:
        leader.thaw()
    assert not list((tmp_path / "target").glob("locks/*"))


# -- without servers -----------------------------------------------------------------------------------------
class Times:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_reports_become_rarer() -> None:
    times, said = Times(), list[str]()
    monitor = LagMonitor(5.0, said.append, times)
    monitor.activity = "waiting"
    monitor.check()  # no log is followed yet
    monitor.begin(10)
    reported = list[int]()
    for second in range(1, 4 * int(LONGEST)):
        times.now += 1
        monitor.check()
        if len(said) > len(reported):
            reported.append(second)
    assert reported == [12, 25, 51, 103, 207, 415, 831, 1663, 3327, 6655, 10256, 13857]
    assert said[0] == "the target is 12 s behind the server (--lag 5): waiting"


def test_it_is_up_to_date_as_of_the_last_end_of_the_log() -> None:
    times, said = Times(), list[str]()
    monitor = LagMonitor(5.0, said.append, times)
    monitor.begin(10)
    for end in (20, 30, 30, 40):
        times.now += 1
        monitor.arrived(end)
    assert monitor.behind == 4
    monitor.stored(25)
    assert monitor.behind == 3
    monitor.stored(30)  # the log still ended there one second later
    assert monitor.behind == 1
    monitor.stored(40)
    assert monitor.behind == 0
    times.now += 5
    monitor.arrived(40)
    assert monitor.behind == 0
    times.now += 5 * 2 + SLACK + 1
    monitor.check()
    monitor.arrived(40)
    monitor.check()
    assert said[1] == "the target has caught up: it is 0.0 s behind the server"
    monitor.pause()
    times.now += 1000
    monitor.check()
    assert (monitor.behind, len(said)) == (0, 2)
