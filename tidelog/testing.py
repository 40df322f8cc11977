"""A real tidelog-server for tests: a separate process on a free port, with its own data directory.

With pytest, one line in the ``conftest.py`` at the top of your tests::

    pytest_plugins = ["tidelog.testing"]

and then::

    def test_orders(tidelog_server):
        with tidelog_server.client() as client:
            client.tappend("orders", {"item": "tea"})
            tidelog_server.kill()     # SIGKILL: acknowledged writes survive it
            tidelog_server.start()
            assert client.tlen("orders") == 1

Without that line there are no fixtures: the package does not register itself with pytest. Without pytest::

    with running_server() as server:
        server.client().tappend("orders", {"item": "tea"})
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from tidelog.client.client import Client
from tidelog.serverprogram import server_command, server_environment

READY = "Ready to accept connections"
SETTLE = 30.0  # seconds that a start or a regular stop may take
_RANDOM = random.SystemRandom()  # processes of one test run choose different ports


class ServerError(Exception):
    """The server did not start, did not stop, or is not running. The text ends with the last lines of its output."""


class Server:
    """A tidelog-server process and its data directory. ``running_server()`` creates it and removes it.

    Address and directory are the same after a restart, so clients reconnect and the data still exists.
    """

    def __init__(self, directory: Path, config: dict[str, str | int], command: Sequence[str] | None = None) -> None:
        self.directory = directory
        self.config = config
        self.host = "127.0.0.1"
        self.port = free_port()
        self.output: list[str] = []  # lines of the current process, including standard error
        self._command = list(command or server_command())
        self._process: subprocess.Popen[str] | None = None
        self._reader = threading.Thread()  # reads the output of the process
        self._ready = threading.Event()  # set by the line READY, or by the end of the output

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process ID. Raises ServerError if the server is not running."""
        if self._process is None:
            raise ServerError("the server is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: Any) -> Client:
        """Return a new client of this server. ``options`` are those of Client."""
        return Client(self.url, **options)

    def start(self) -> None:
        """Start the server unless it is running, and return when it accepts connections. Raises ServerError."""
        if self.running:
            return
        flags = {"bind": self.host, "port": self.port, "dir": str(self.directory), **self.config}
        command = self._command + [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        self._ready.clear()
        self.output = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=server_environment() | {"PYTHONFAULTHANDLER": "1"},
        )
        lines = self._process.stdout
        self._reader = threading.Thread(target=self._follow, args=(lines, self.output), daemon=True)
        self._reader.start()
        if not self._ready.wait(SETTLE) or not any(READY in line for line in self.output):
            self.kill()
            raise self._error("the server did not start")

    def stop(self) -> None:
        """Stop the server (SIGTERM). Raises ServerError if this takes longer than SETTLE or fails."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            status = self._process.wait(SETTLE)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGABRT)  # it writes the stacks of its threads, unless it was stopped
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
            self.kill()
            raise self._error("the server did not stop", lines=80) from None
        self._gone()
        if status != 0:
            raise self._error(f"the server ended with status {status}")

    def kill(self) -> None:
        """Kill the server (SIGKILL), as in a crash."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._gone()

    def wait(self, timeout: float = SETTLE) -> int:
        """Wait until the server ends by itself, and return its exit status. Raises ServerError after ``timeout`` s."""
        if self._process is None:
            raise self._error("the server is not running")
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._error(f"the server did not end within {timeout:g} s") from None
        self._gone()
        return status

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def _gone(self) -> None:
        self._reader.join()
        self._process = None

    def _follow(self, lines: IO[str], output: list[str]) -> None:
        with lines:
            for line in lines:
                output.append(line.rstrip("\n"))
                if READY in line:
                    self._ready.set()
        self._ready.set()

    def _error(self, what: str, lines: int = 20) -> ServerError:
        return ServerError("\n".join([f"{what}; its last lines:", *self.output[-lines:]]))


def free_port() -> int:
    """Return a local TCP port that is currently unused.

    Systems do not take ports of this range for sockets without a given port. No such socket takes the port while the
    server on it restarts.
    """
    while True:
        port = _RANDOM.randrange(20_000, 32_000)  # Linux begins at 32768, macOS and Windows at 49152
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def _start_somewhere(server: Server) -> None:
    """Start the server for the first time, on another port if its port is in use by now. Raises ServerError."""
    for attempts_left in (2, 1, 0):
        try:
            server.start()
            return
        except ServerError:
            if not attempts_left or not any("listening socket" in line for line in server.output):
                raise
            server.port = free_port()


@contextmanager
def running_server(
    directory: str | Path | None = None, command: Sequence[str] | None = None, **config: str | int
) -> Iterator[Server]:
    """Run a server. It is stopped at the end, and its directory is removed unless you passed one.

    ``config`` has directives of the server, with underscores for dashes: ``running_server(appendfsync="everysec")``.
    A replica is ``running_server(replicaof=f"{leader.host} {leader.port}")``. ``command`` replaces the tidelog-server
    that is installed with this package; the flags are appended to it. Raises ServerError if the server does not start,
    or does not stop at the end.
    """
    settings = {name.replace("_", "-"): value for name, value in config.items()}
    where = Path(tempfile.mkdtemp(prefix="tidelog-")) if directory is None else Path(directory)
    server = Server(where, settings, command)
    try:
        _start_somewhere(server)
        yield server
        server.stop()
    finally:
        server.kill()
        if directory is None:
            shutil.rmtree(where)


try:
    import pytest
except ImportError:  # running_server() needs no pytest
    pass
else:

    @pytest.fixture(scope="session")
    def tidelog_process() -> Iterator[Server]:
        """A server for the whole test session. Tests use ``tidelog_server``, which deletes its data first."""
        with running_server() as server:
            yield server

    @pytest.fixture
    def tidelog_server(tidelog_process: Server) -> Server:
        """A running tidelog-server without data: a ``Server`` that the tests of a session share.

        Tests may stop, kill and restart it.
        """
        tidelog_process.start()
        with tidelog_process.client() as client:
            client.redis.flushall()
        return tidelog_process
