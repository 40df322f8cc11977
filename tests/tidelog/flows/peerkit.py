"""Real servers of other projects as child processes: killed, stopped, continued, and started again on the same port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

PATIENCE = 30.0  # s until a server must accept connections


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return cast("int", found.getsockname()[1])


def program(name: str, package: str, *directories: str) -> str:
    """The path of a program; the test is skipped where it is not installed. directories: where it may be."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", *directories)))
    if found is None:
        pytest.skip(f"{name} is not installed (Debian: apt-get install {package})")
    return found


class PeerServer:
    """A server process. ``ready``: raises OSError as long as the server does not answer."""

    def __init__(
        self, command: Sequence[str], port: int, ready: Callable[[], Any] | None = None, user: str | None = None,
        **environment: str,
    ) -> None:  # fmt: skip
        self.port = port
        self._command = command
        self._ready = ready or self._accepts
        self._user = user if os.geteuid() == 0 else None
        self._environment = os.environ | environment
        self._process: subprocess.Popen[bytes] | None = None

    def _accepts(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=self._user,
            start_new_session=True, env=self._environment,
        )  # fmt: skip
        try:
            self.wait()
        except BaseException:
            self.kill()
            raise

    def wait(self) -> None:
        """Wait until the server answers."""
        process = self._process
        assert process is not None
        deadline = time.monotonic() + PATIENCE
        while True:
            assert process.poll() is None, f"{self._command[0]} has ended with status {process.returncode}"
            try:
                self._ready()
            except OSError:
                assert time.monotonic() < deadline, f"{self._command[0]} does not answer"
                time.sleep(0.02)
            else:
                return

    def signal(self, number: int) -> None:
        """Send a signal to the server and all processes that it has started."""
        if self._process is not None:
            for each in (self._process.pid, *_descendants(self._process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(each, number)

    def kill(self) -> None:
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The server does not react, and its kernel still accepts connections."""
        self.signal(signal.SIGSTOP)
        assert self._process is not None
        while any(_runs(each) for each in (self._process.pid, *_descendants(self._process.pid))):
            time.sleep(0.001)  # on a busy machine, threads continue for a moment, and answer
        try:
            yield
        finally:
            self.signal(signal.SIGCONT)


def _runs(process: int) -> bool:
    """Whether a thread of a process is not stopped."""
    try:
        states = [each.read_text().rpartition(") ")[2][0] for each in Path(f"/proc/{process}/task").glob("*/stat")]
    except OSError:  # a thread has ended meanwhile
        return True
    return any(each not in "TtZX" for each in states)


def _descendants(process: int) -> list[int]:
    """The processes that a process has started, and theirs. Some are in a process group of their own."""
    try:
        children = [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []
    return children + [each for child in children for each in _descendants(child)]


@contextmanager
def server_directory(user: str) -> Iterator[Path]:
    """A directory that belongs to ``user``, if this is root. It has ``server.pem``, ``server.key``, and ``ca.pem``."""
    path = Path(tempfile.mkdtemp(prefix="tidelog-peer-"))
    try:
        path.chmod(0o755)
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        authority.cert_pem.write_to_path(path / "ca.pem")
        certificate.private_key_pem.write_to_path(path / "server.key")
        (path / "server.key").chmod(0o600)
        for blob in certificate.cert_chain_pems:
            blob.write_to_path(path / "server.pem", append=True)
        if os.geteuid() == 0:
            for each in (path, *path.iterdir()):
                shutil.chown(str(each), user)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
