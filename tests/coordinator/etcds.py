"""Real etcd processes: one, or a cluster."""

from __future__ import annotations

import shutil
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.waiting import eventually


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Etcds:
    """A cluster of etcd processes of this machine's package."""

    def __init__(self, directory: Path, count: int = 1, tls: Path | None = None) -> None:
        program = shutil.which("etcd")
        if program is None:
            pytest.skip("no etcd here (Debian: apt-get install etcd-server)")
        ports = free_ports(2 * count)
        self.ports, peers = ports[:count], ports[count:]
        cluster = ",".join(f"n{n}=http://127.0.0.1:{port}" for n, port in enumerate(peers))
        self._commands: list[tuple[list[str], Path]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        for n, (port, peer) in enumerate(zip(self.ports, peers, strict=True)):
            command = [program, "--name", f"n{n}", "--data-dir", str(directory / f"n{n}")]
            scheme = "https" if tls else "http"
            command += [f"--{name}-client-urls={scheme}://127.0.0.1:{port}" for name in ("listen", "advertise")]
            if tls:  # clients need a certificate
                command += [f"--cert-file={tls}/cert.pem", f"--key-file={tls}/key.pem"]
                command += ["--client-cert-auth", f"--trusted-ca-file={tls}/ca.pem"]
            command += ["--bcrypt-cost=4"]  # the lowest: each session of a user costs 1 ms of CPU, not 70
            command += [f"--listen-peer-urls=http://127.0.0.1:{peer}"]
            command += [f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}", f"--initial-cluster={cluster}"]
            self._commands.append((command, directory / f"n{n}.log"))
            self.processes.append(self._started(n))
        ready = self.listens if tls else self.healthy
        eventually(lambda: all(ready(port) for port in self.ports))

    def _started(self, n: int) -> subprocess.Popen[bytes]:
        command, path = self._commands[n]
        with path.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, n: int) -> None:
        """Kill one of them. Its data remains."""
        self.processes[n].kill()
        self.processes[n].wait(20)

    def start(self, n: int) -> None:
        """Start one of them again, unless it runs."""
        if self.processes[n].poll() is not None:
            self.processes[n] = self._started(n)

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def listens(self, port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
            return True
        except OSError:
            return False

    def healthy(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as reply:
                return b'"true"' in reply.read()
        except OSError:
            return False

    def close(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait(20)
