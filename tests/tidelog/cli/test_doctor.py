"""tidelog doctor: each check with good and bad values, and real servers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidelog
from tidelog.cli import machinechecks
from tidelog.cli.diagnosis import Finding
from tidelog.cli.doctor import doctor
from tidelog.cli.machinechecks import compiled_finding, machine_findings
from tidelog.cli.program import main
from tidelog.cli.serverchecks import parse_info, server_findings
from tidelog.testing import Server, free_port, running_server
from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection

KERNEL = {
    "proc/sys/vm/max_map_count": ("memory maps", "65530", "1024"),
    "proc/sys/vm/overcommit_memory": ("memory overcommit", "0", "2"),
    "sys/kernel/mm/transparent_hugepage/enabled": ("huge pages", "always [madvise] never", "[always] madvise never"),
    "sys/devices/system/clocksource/clocksource0/current_clocksource": ("clock source", "tsc", "hpet"),
}
PLAIN = "27 1 8:1 / / rw - ext4 /dev/sda rw\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine without problems, as far as its files tell."""
    there = tmp_path / "root"
    for name, (_, good, _) in KERNEL.items():
        write(there / name, good)
    write(there / "proc/self/mountinfo", PLAIN)
    write(there / "sys/dev/block/8:1/queue/rotational", "0")
    return there


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting the server's program takes a third of a second: once is enough."""
    if "real" not in request.node.name:
        monkeypatch.setattr(machinechecks, "_program", lambda: Finding("server program", "ok", "as it was"))


def check(directory: Path, root: Path, name: str) -> Finding:
    (found,) = [finding for finding in machine_findings(directory, root) if finding.check == name]
    assert bool(found.action) is (found.status == "problem")
    return found


def run(*args: str, ok: bool) -> dict[str, Finding]:
    result = CliRunner().invoke(main, ["doctor", "--json", *args], env={"TIDELOG_URL": None})
    assert result.exit_code == (0 if ok else 1), result.output
    document: dict[str, Any] = json.loads(result.output)
    found = [Finding(**each) for each in document["checks"]]
    assert document["problems"] == sum(each.status == "problem" for each in found)
    assert (document["problems"] == 0) is ok
    return {each.check: each for each in found}


# -- the machine ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KERNEL)
def test_settings_of_the_kernel(root: Path, tmp_path: Path, name: str) -> None:
    title, _, bad = KERNEL[name]
    assert check(tmp_path, root, title).status == "ok"
    write(root / name, bad)
    assert check(tmp_path, root, title).status == "problem"
    (root / name).unlink()
    assert check(tmp_path, root, title).status == "unknown"


def test_limits(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (256, 1024), resource.RLIMIT_AS: (1 << 30, 1 << 31)}
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    assert check(tmp_path, root, "open files").value == "256, at most 1,024 (of this shell)"
    assert check(tmp_path, root, "address space").value == "1.0 GiB"
    for each in ("open files", "address space"):
        assert check(tmp_path, root, each).status == "problem"
    limits = dict.fromkeys(limits, (resource.RLIM_INFINITY,) * 2)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    for each in ("open files", "address space"):
        assert check(tmp_path, root, each).status == "ok"


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "9p", "tmpfs", "overlay"])
def test_file_systems(root: Path, tmp_path: Path, kind: str) -> None:
    assert check(tmp_path, root, "file system").value == "ext4 at /, solid state or virtual disk"
    data = tmp_path / "my dáta"
    data.mkdir()
    mount = f"30 27 0:99 / {str(data).replace(' ', chr(92) + '040')} rw - {kind} x rw\n"
    write(root / "proc/self/mountinfo", PLAIN + mount)
    assert check(tmp_path, root, "file system").status == "ok"
    for directory in (data, data / "not" / "yet"):
        assert check(directory, root, "file system").status == "problem"
        assert check(directory, root, "file system").value == f"{kind} at {data}"


def test_a_disk_that_is_nearly_full(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    for total, free, status in [(100, 0.5, "problem"), (10, 1.5, "ok"), (100, 4, "problem"), (10_000, 20, "ok")]:
        seen = usage._replace(total=total << 30, free=int(free * 2**30))
        monkeypatch.setattr(shutil, "disk_usage", lambda _, seen=seen: seen)
        assert check(tmp_path, root, "free space").status == status


def test_slow_syncs(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(machinechecks.sync_times(tmp_path)) in range(1, machinechecks.SYNCS + 1)
    assert list(tmp_path.iterdir()) == [root]
    monkeypatch.setattr(machinechecks, "sync_times", lambda _: [0.001, 0.03, 0.02])
    assert check(tmp_path, root, "sync").value == "20.00 ms (median of 3), 30.00 ms at most"
    assert check(tmp_path, root, "sync").status == "problem"


def test_data_directories(root: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert check(data, root, "data directory").value == f"{data} does not exist yet"
    data.mkdir()
    assert check(data, root, "data directory").value == f"{data} is empty"
    write(data / "thesis.tex", "")
    assert check(data, root, "data directory").status == "problem"
    write(data / "tidelog.format", "")
    assert check(data, root, "data directory").status == "ok"
    assert check(data / "thesis.tex", root, "data directory").value == f"{data}/thesis.tex is not a directory"


def test_a_server_on_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files in ./data of this machine are not its data."""
    given: list[Path | None] = []

    def noted(directory: Path | None) -> list[Finding]:
        given.append(directory)
        return [found for found in machine_findings(directory) if found.check == "data directory"]

    monkeypatch.setattr("tidelog.cli.doctor.machine_findings", noted)
    with running_server() as server:
        monkeypatch.setattr("tidelog.cli.serverchecks._directory", lambda _: None)
        result = CliRunner().invoke(main, ["doctor", "--json", "--url", server.url])
        assert '"unknown"' in result.output
    assert given == [None]


def test_a_directory_of_another_user(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    for directory in (tmp_path, tmp_path / "new"):
        assert check(directory, root, "data directory").status == "problem"


def test_compiled() -> None:
    assert compiled_finding("server", "x", "1", "1").status == "ok"
    for compiled, coded in ("01", "10", "00"):
        assert compiled_finding("server", "x", compiled, coded).status == "problem"


# -- servers ----------------------------------------------------------------------------------------------------------
def seen(info: str, **changes: str) -> dict[str, Finding]:
    return {each.check: each for each in server_findings("redis://a", parse_info(info) | changes)}


def test_a_real_server(tidelog_server: Server) -> None:
    """The data directory is the server's. Whether there are problems depends on this machine."""
    found = CliRunner().invoke(main, ["doctor", "--json", "--url", tidelog_server.url])
    checks = {each["check"]: each for each in json.loads(found.output)["checks"]}
    assert checks["data directory"]["value"].startswith(f"{tidelog_server.directory}, ")
    assert checks["server program"]["value"].startswith(f"tidelog-server {tidelog.__version__}, ")
    assert checks[f"server {tidelog_server.url}"]["value"].startswith(f"tidelog {tidelog.__version__}, Python ")
    assert checks["replication"]["value"] == "leader of 0 replicas"
    text = CliRunner().invoke(main, ["doctor", "--url", tidelog_server.url]).output
    assert text.splitlines()[0].startswith("ok       versions ")
    assert text.splitlines()[-1].endswith(("problem", "problems"))


def test_what_info_reports(tidelog_server: Server) -> None:
    connection = BlockingConnection(Access.of(tidelog_server.url), tidelog_server.url, "test")
    text = connection.ask("INFO").decode()
    connection.close()
    good = {"tidelog_compiled": "1", "tidelog_coded_nodes": "1"}
    assert {each.status for each in seen(text, **good).values()} == {"ok"}
    replica = {"role": "slave", "master_host": "b", "master_port": "1", "master_link_status": "up"}
    assert seen(text, **good, **replica)["replication"].status == "ok"
    group = {"group_members": "3", "group_in_sync": "3", "group_leader": "m1"}
    assert seen(text, **good, **group)["server group"].status == "ok"
    for check, bad in [
        ("server redis://a", {"tidelog_version": "0.0.1"}),
        ("server redis://a", {"tidelog_compiled": "0"}),
        ("clients", {"connected_clients": "9500"}),
        ("memory", {"maxmemory": "100", "used_memory": "95"}),
        ("persistence", {"aof_last_write_status": "err"}),
        ("persistence", {"rdb_last_bgsave_status": "err"}),
        ("persistence", {"scrub_damaged": "1"}),
        ("replication", replica | {"master_link_status": "down", "master_link_down_since_seconds": "9"}),
        ("replication", replica | {"master_sync_refused": "1"}),
        ("replication", {"slave0": "ip=c,port=7,state=online,offset=0,lag=60"}),
        ("replication", {"withheld_ms": "60000"}),
        ("server group", group | {"group_in_sync": "2"}),
        ("server group", group | {"group_leader": ""}),
    ]:
        found = seen(text, **(good | bad))
        assert [name for name, each in found.items() if each.status == "problem"] == [check], bad
        assert found[check].action


def test_a_replica_without_its_leader() -> None:
    with running_server(replicaof=f"127.0.0.1 {free_port()}") as server:
        found = run("--url", server.url, ok=False)
    assert found["replication"].status == "problem"


def test_a_password_is_required() -> None:
    with running_server(requirepass="secret") as server:
        assert run("--url", server.url, ok=False)[f"server {server.url}"].value.startswith("the server replied: NOAUTH")
        result = CliRunner().invoke(main, ["doctor", "--url", server.url.replace("//", "//:secret@")])
        assert "leader of 0 replicas" in result.output
        assert "secret" not in result.output


def test_no_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a problem only if the user names it."""
    url = f"redis://127.0.0.1:{free_port()}"
    monkeypatch.setattr("tidelog.cli.doctor.machine_findings", lambda _: [Finding("machine", "ok", "")])
    assert run("--url", url, ok=False)[f"server {url}"].action
    monkeypatch.setattr("tidelog.cli.connect.DEFAULT_URL", url)
    default = next(each for each in doctor.params if each.name == "url")
    monkeypatch.setattr(default, "default", url)
    assert run(ok=True)[f"server {url}"].status == "unknown"


def test_an_invalid_url() -> None:
    result = CliRunner().invoke(main, ["doctor", "--url", "localhost"])
    assert result.exit_code == 2


def test_nothing_but_the_result_is_written_to_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, text=True, check=False, timeout=60)
    assert done.stderr == ""
    json.loads(done.stdout)
