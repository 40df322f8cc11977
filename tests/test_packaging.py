"""packaging/: the files with which tidelog is installed on machines. Their commands run here."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
import yaml

from persistence.history import BOOT_ID
from tests.waiting import eventually
from tidelog import Client
from tidelog.cli.program import main
from tidelog.serverprogram import server_command, server_environment
from tidelog.testing import Server, free_port, running_server

pytestmark = pytest.mark.slow  # each test starts programs
ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
UNITS = sorted((PACKAGING / "systemd").glob("*.service"))
EXPOSURE = 1.5  # the limit of "systemd-analyze security", of 10; servers that need the network have 1.2 at least
INSTALLED = "/opt/tidelog/bin"


# -- systemd ----------------------------------------------------------------------------------------------------------
class Unit:
    """A unit file for the instance ``a``."""

    def __init__(self, path: Path) -> None:
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read_string(path.read_text())
        self.service = dict(parser["Service"])
        self.command = self.service["ExecStart"].replace("%i", "a").split()


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The units as instances, with a program that exists."""
    program = tmp_path / "bin"
    program.mkdir()
    for name in ("tidelog", "tidelog-server"):
        (program / name).write_text("#!/bin/sh\n")
        (program / name).chmod(0o755)
    for unit in UNITS:
        (tmp_path / unit.name.replace("@", "@a")).write_text(unit.read_text().replace(INSTALLED, str(program)))
    return tmp_path


@pytest.mark.parametrize(
    "check", [["verify", "--man=no"], ["security", "--offline=yes", "--no-pager", f"--threshold={10 * EXPOSURE:.0f}"]],
    ids=lambda check: check[0],
)  # fmt: skip
def test_systemd_accepts_the_units(check: list[str], copied: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (Debian: apt-get install systemd)")
    assert UNITS
    files = sorted(map(str, copied.glob("*.service")))
    done = subprocess.run(["systemd-analyze", *check, *files], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


def test_the_server_starts_as_its_units_start_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ready for systemd, and the watchdog is notified."""
    port = free_port()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "120000000")
        for name in ("tidelog-server.service", "tidelog-member@.service"):
            unit = Unit(PACKAGING / "systemd" / name)
            assert unit.service["Type"] == "notify"
            program, file, *rest = unit.command
            assert program == f"{INSTALLED}/tidelog-server"
            assert file.startswith("/etc/tidelog/")
            assert rest[-1] == f"/var/lib/{unit.service['StateDirectory'].replace('%i', 'a')}"
            command = [*server_command(), str(PACKAGING / "tidelog.conf"), *rest]
            command[-1] = str(tmp_path / name)
            command += ["--port", str(port), "--metrics-port", "0"]
            process = subprocess.Popen(command, env=server_environment(), stdout=subprocess.DEVNULL)
            try:
                assert systemd.recv(4096).startswith(b"READY=1\n")
                assert systemd.recv(4096) == b"WATCHDOG=1\n"
                process.terminate()
                assert systemd.recv(4096) == b"STOPPING=1\n"
                assert process.wait(30) == 0
            finally:
                process.kill()
                process.wait()


def test_a_continuous_backup_starts_as_its_unit_starts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = Unit(PACKAGING / "systemd/tidelog-backup@.service")
    assert unit.service["Type"] == "notify"
    words = [str(tmp_path / "target") if word == "$TARGET" else word for word in unit.command if word != "$OPTIONS"]
    with running_server() as server, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        command = [sys.executable, "-m", "tidelog.cli", *words[1:], "--url", server.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert systemd.recv(4096).startswith(b"READY=1\nSTATUS=")
                while systemd.recv(4096) != b"STATUS=0 s behind":
                    pass
                process.terminate()
                while systemd.recv(4096) != b"STOPPING=1":
                    pass
                assert process.wait(30) == 0
            finally:
                process.kill()


@pytest.mark.parametrize("name", ["tidelog-server.service", "tidelog-member@.service", "tidelog-backup@.service"])
def test_programs_that_need_the_boot_id_can_read_it(name: str) -> None:
    """The replication ID of a leader, a coordinator ``file:``, and the lock of a backup depend on it.

    ProcSubset=pid hides /proc/sys.
    """
    assert not BOOT_ID.is_relative_to("/proc/self")
    assert Unit(PACKAGING / "systemd" / name).service.get("ProcSubset", "all") == "all"


CLIENTS = ("worker@", "flows@", "console", "gateway", "backup@")


@pytest.mark.parametrize("name", [f"tidelog-{client}.service" for client in CLIENTS])
def test_units_of_clients_use_options_that_exist(name: str) -> None:
    program, *words = Unit(PACKAGING / "systemd" / name).command
    assert program == f"{INSTALLED}/tidelog"
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    command.make_context("unit", [word for word in words if word != "$OPTIONS"])


def test_the_configuration_file() -> None:
    command = [*server_command(), str(PACKAGING / "tidelog.conf"), "--test-config"]
    done = subprocess.run(command, env=server_environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"Configuration OK: port 6379, data in {ROOT / 'data'}\n")


# -- containers -------------------------------------------------------------------------------------------------------
PREFIX = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
UNSHARE = ["unshare", *PREFIX, "--pid", "--fork", "--mount-proc", "--kill-child"]
HEALTHCHECK = [sys.executable, str(PACKAGING / "healthcheck.py")]
APP = """
import os

import msgspec
from tidelog.workers import App

class Order(msgspec.Struct):
    n: int

app = App("shop", url=os.environ["TIDELOG_URL"])
orders = app.topic("orders", Order, partition_by="n", partitions=1)

@app.each(orders)
async def bill(order: Order) -> None: ...
"""
FLOW = """
flows:
  copy:
    connectors:
      in: {type: stream, key: orders, group: audit}
      out: {type: stream, key: audited}
    connect: [in -> out]
"""


def instructions() -> dict[str, str]:
    """The last instruction of each name in the Containerfile."""
    text = (PACKAGING / "Containerfile").read_text().replace("\\\n", " ")
    pairs = (line.split(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: rest for name, rest in pairs}  # noqa: C416 - dict() does not accept lists


@contextmanager
def first_process(command: list[str], log: Path, **environment: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a command as process 1 of a PID namespace, as an engine of containers does. Yields its PID outside of it."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not create PID namespaces (unshare --pid)")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*UNSHARE, *command], cwd=log.parent, env=server_environment() | environment, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        yield int(eventually(lambda: process.poll() is None and children.read_text().split())[0]), process
    finally:
        process.kill()
        process.wait()


def test_the_image() -> None:
    found = instructions()
    assert found["USER"].isdecimal()
    assert int(found["USER"]) > 0
    assert f"--uid {found['USER']} " in found["RUN"]
    assert found["VOLUME"] == found["WORKDIR"] == "/data"
    assert "healthcheck.py" in found["HEALTHCHECK"]
    copied = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages < copied, "the installation needs all packages"


def test_the_server_as_process_1(tmp_path: Path) -> None:
    """The entry point of the image: healthy, with and without a password. SIGTERM stops it without a loss of data."""
    port = free_port()
    program, *words = json.loads(instructions()["ENTRYPOINT"])
    assert program == "tidelog-server"
    words = [str(tmp_path / "data") if word == "/data" else word for word in words]
    command = [*server_command(), *words, "--port", str(port)]
    health = [*HEALTHCHECK, str(port)]
    for password in ("", "secret"):
        log = tmp_path / f"log{password}"
        with first_process([*command, *(["--requirepass", password] if password else [])], log) as (pid, process):
            eventually(lambda: subprocess.run(health, capture_output=True, check=False).returncode == 0, "not healthy")
            with Client(f"redis://:{password}@127.0.0.1:{port}" if password else f"redis://127.0.0.1:{port}") as client:
                client.tappend("k", {"n": 1})
                assert client.tlen("k") == (2 if password else 1)
                assert client.redis.info("server")["process_id"] == 1
            os.kill(pid, signal.SIGTERM)
            assert process.wait(30) == 0
        assert "bye bye" in log.read_text()
        assert subprocess.run(health, capture_output=True, check=False).returncode == 1


@pytest.fixture(scope="module")
def peer() -> Iterator[Server]:
    with running_server() as server:
        yield server


@pytest.mark.parametrize(
    ("words", "key"), [
        (["worker", "shop:app"], b"app:shop:"), (["worker", "shop:app", "--workers", "2"], b"app:shop:"),
        (["flow", "run", "flows.yaml", "--listen", "none"], b"flows:default"),
    ], ids=["worker", "two workers", "flows"],
)  # fmt: skip
def test_a_client_as_process_1(words: list[str], key: bytes, tmp_path: Path, peer: Server) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "flows.yaml").write_text(FLOW)
    command = [sys.executable, "-m", "tidelog.cli", *words]
    with peer.client() as client:
        client.redis.flushall()
        with first_process(command, tmp_path / "log", TIDELOG_URL=peer.url) as (pid, process):
            eventually(lambda: any(each.startswith(key) for each in client.redis.scan_iter()), "not ready")
            os.kill(pid, signal.SIGTERM)
            assert process.wait(60) == 0, (tmp_path / "log").read_text()


def test_the_console_as_process_1(tmp_path: Path, peer: Server) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "tidelog.cli", "console", "--listen", address]

    def serves() -> bool:
        try:
            with urllib.request.urlopen(f"http://{address}/login", timeout=20) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    with first_process(command, tmp_path / "log", TIDELOG_URL=peer.url) as (pid, process):
        eventually(serves, "the console does not answer")
        os.kill(pid, signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_a_command_without_a_handler_as_process_1(tmp_path: Path, peer: Server) -> None:
    """The kernel discards signals to process 1 that have no handler."""
    command = [sys.executable, "-m", "tidelog.cli", "tail", "k"]
    with first_process(command, tmp_path / "log", TIDELOG_URL=peer.url) as (pid, process), peer.client() as client:
        eventually(lambda: client.redis.info("clients")["blocked_clients"], "it does not wait for entries")
        os.kill(pid, signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM


def test_a_server_that_does_not_serve_is_not_healthy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        health = [*HEALTHCHECK, str(listener.getsockname()[1])]
        with subprocess.Popen(health, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as check:
            client, _ = listener.accept()
            with client:
                assert client.recv(100) == b"PING\r\n"
                client.sendall(b"-LOADING tidelog is loading the dataset in memory\r\n")
            check.communicate()
        assert check.returncode == 1


# -- compose ----------------------------------------------------------------------------------------------------------
def test_the_services(tmp_path: Path) -> None:
    """Their commands are valid, their files exist, and Prometheus and Grafana find what they need."""
    text = (PACKAGING / "compose.yaml").read_text()
    assert re.findall(r"\$\{(\w+):\?", text) == ["TIDELOG_PASSWORD", "GRAFANA_PASSWORD"], "passwords have no default"
    compose = yaml.safe_load(re.sub(r"\$\{\w+(:\?[^}]*)?\}", "secret", text))
    services = compose["services"]
    entry = json.loads(instructions()["ENTRYPOINT"])[1:]
    for name in ("server", "replica"):
        command = [*server_command(), *entry, *shlex.split(services[name]["command"]), "--test-config"]
        done = subprocess.run(command, env=server_environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "Configuration OK: port 6379, data in /data\n"), done.stderr
    for name in ("worker", "console"):
        main.make_context(name, shlex.split(services[name]["command"]))
    assert (ROOT / "examples/workers_readings.py").exists()
    for service in services.values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (PACKAGING / source).is_dir()
    prometheus = yaml.safe_load((PACKAGING / "prometheus/prometheus.yml").read_text())
    assert [(PACKAGING / "prometheus" / file).exists() for file in prometheus["rule_files"]] == [True]
    targets = [
        each for job in prometheus["scrape_configs"] for group in job["static_configs"] for each in group["targets"]
    ]
    for host, port in (target.split(":") for target in targets):
        said = services[host]["command"]
        assert f"--metrics-port {port}" in said or f"--metrics {port}" in said or port == "9465"
    dashboards = yaml.safe_load((PACKAGING / "grafana/provisioning/dashboards/tidelog.yml").read_text())
    assert f"./grafana:{dashboards['providers'][0]['options']['path']}:ro" in services["grafana"]["volumes"]
