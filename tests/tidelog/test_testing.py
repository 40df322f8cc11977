"""The test kit for users: a server as a process, and the pytest fixtures."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import tidelog
from tidelog.testing import Server, ServerError, free_port, running_server

CHECKOUT = Path(tidelog.__file__).parent.parent


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_runs_at_its_address_and_is_removed_afterwards() -> None:
    with running_server(appendfsync="everysec", node_cache_size=1 << 20) as server:
        assert server.running
        with server.client() as client:
            assert client.redis.config_get("appendfsync") == {"appendfsync": "everysec"}
            assert client.redis.config_get("dir")["dir"] == str(server.directory)
            assert client.redis.info("server")["process_id"] == server.pid
        pid, directory = server.pid, server.directory
        assert any("Ready to accept connections" in line for line in server.output)
    assert not alive(pid)
    assert not directory.exists()
    assert not server.running


def test_it_is_removed_after_a_failing_test() -> None:
    seen: list[Server] = []

    def failing() -> None:
        with running_server() as server:
            seen.append(server)
            pid.append(server.pid)
            raise KeyError

    pid: list[int] = []
    with pytest.raises(KeyError):
        failing()
    assert not alive(pid[0])
    assert not seen[0].directory.exists()


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, server.client() as client:
        client.tappend("k", {"n": 1})
    assert any(tmp_path.iterdir())
    with running_server(tmp_path) as server, server.client() as client:
        assert client.tlen("k") == 1


def test_kill_and_restart_keep_address_and_data(tidelog_server: Server) -> None:
    url, first = tidelog_server.url, tidelog_server.pid
    with tidelog_server.client() as client:
        client.tappend("k", {"n": 1})
        tidelog_server.kill()
        assert not tidelog_server.running
        assert not alive(first)
        with pytest.raises(redis.ConnectionError):
            client.tlen("k")
        with pytest.raises(ServerError):
            _ = tidelog_server.pid
        tidelog_server.start()
        tidelog_server.start()  # it runs: nothing happens
        assert client.tlen("k") == 1
        second = tidelog_server.pid
        tidelog_server.restart()
        assert client.tlen("k") == 1
        assert len({first, second, tidelog_server.pid}) == 3
        assert tidelog_server.url == url


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"did not start(.|\n)*no-such-thing"), running_server(no_such_thing=1):
        pass
    script = "import sys; print('about to fail'); sys.exit(3)"
    with (
        pytest.raises(ServerError, match="about to fail"),
        running_server(tmp_path, command=[sys.executable, "-c", script]),
    ):
        pass


CONFTEST = 'pytest_plugins = ["tidelog.testing"]\n'
USERS_TEST = """
def test_first(tidelog_server):
    with tidelog_server.client() as client:
        client.tappend("k", {"n": 1})
        assert client.tlen("k") == 1

def test_second_finds_it_empty_also_after_a_crash(tidelog_server):
    with tidelog_server.client() as client:
        assert client.tlen("k") == 0
        client.tappend("k", {"n": 1})
    tidelog_server.kill()

def test_third_finds_it_running(tidelog_server):
    with tidelog_server.client() as client:
        assert client.tlen("k") == 0
"""


def pytest_run(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", str(directory)],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_port_that_somebody_takes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr("tidelog.testing.free_port", lambda: next(ports))
        with running_server() as server, server.client() as client:
            assert server.port != taken
            assert client.tlen("k") == 0


def test_the_fixture_in_a_project_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    result = pytest_run(tmp_path)
    assert result.returncode == 0, result.stdout
    assert "3 passed" in result.stdout


def test_without_the_plugin_there_is_no_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TEST)
    result = pytest_run(tmp_path)
    assert "fixture 'tidelog_server' not found" in result.stdout


def test_the_kit_needs_no_pytest() -> None:
    script = "import sys; sys.modules['pytest'] = None; from tidelog.testing import running_server; print('fine')"
    result = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert result.stdout == "fine\n"
