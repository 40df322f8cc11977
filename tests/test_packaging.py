"""packaging/: the files with which tidelog is installed on machines. Their commands run here."""

from __future__ import annotations

import configparser
import shutil
import socket
import subprocess
from pathlib import Path

import click
import pytest

from tidelog.cli.program import main
from tidelog.serverprogram import server_command, server_environment
from tidelog.testing import free_port

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


@pytest.mark.parametrize("name", ["tidelog-worker@.service", "tidelog-flows@.service"])
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
