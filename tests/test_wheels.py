"""Wheels on a machine without a compiler: a server, a worker, and a flow run from each of them.

The programs have an empty PATH, so that they find no compiler, no other Python, and no program of the system.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

import tidelog
from tests import test_installation
from tests.test_build import C_MODULES, SUFFIX
from tests.waiting import eventually
from tests.wheels import COMPILED, KINDS, ROOT, Installation, clean, install, run, wheel
from tidelog import Client
from tidelog.testing import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # compiling takes minutes
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
APP = """
import os

import msgspec
from tidelog.workers import App

class Order(msgspec.Struct):
    n: int

app = App("shop", url=os.environ["TIDELOG_URL"])
orders = app.topic("orders", Order, partition_by="n", partitions=1)
bills = app.topic("bills", Order, partition_by="n", partitions=1)

@app.each(orders)
async def bill(order: Order) -> None:
    await bills.send(order)
"""
FLOW = """
flows:
  copy:
    connectors:
      in: {type: stream, key: "bills:0", group: audit}
      out: {type: stream, key: audited}
    connect: [in -> out]
"""


def shipped() -> list[Path]:
    """Return the files of the packages that users import, without those of a build."""
    left_out = {".c", ".h", ".so", ".pyc"}
    files = [path for name in ("tidelog", "pyspark_tidelog", "_tidelog_server") for path in (ROOT / name).rglob("*")]
    return [path for path in files if path.is_file() and path.suffix not in left_out]


def check_contents(found: Path, kind: str) -> None:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tags = "py3-none-any" if kind == "plain" else rf"{python}-{python}-manylinux[\w.]+"  # auditwheel's tag
    assert re.fullmatch(rf"tidelog-{re.escape(tidelog.__version__)}-{tags}\.whl", found.name)
    with zipfile.ZipFile(found) as archive:
        names = archive.namelist()
        metadata = archive.read(f"tidelog-{tidelog.__version__}.dist-info/METADATA").decode()
    compiled = [name.removesuffix(SUFFIX) for name in names if name.endswith(".so")]
    assert not [name for name in names if name.endswith((".c", ".h"))]
    assert {str(path.relative_to(ROOT)) for path in shipped()} <= set(names), "templates, pages, types"
    if kind == "plain":
        assert compiled == []
    else:
        assert all(any(name.endswith(module) for name in compiled) for module in C_MODULES)
        assert "_tidelog_server/tidelog__mypyc" in compiled
        hot = [path for folder in COMPILED for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py"]
        assert {f"_tidelog_server/{path.relative_to(ROOT).with_suffix('')}" for path in hot} <= set(compiled)
    extras = re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE)
    assert sorted(extras) == sorted(PROJECT["optional-dependencies"])


@contextmanager
def running(command: list[str], environment: dict[str, str], directory: Path) -> Iterator[None]:
    """Run a program until the block ends. It must then end with 0 on SIGTERM."""
    output = directory / f"{command[1].strip('-')}.log"
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
        process.terminate()
        assert process.wait(30) == 0, output.read_text()
    finally:
        process.kill()
        process.wait()


def check_programs(here: Installation, directory: Path, *, compiled: bool) -> None:
    """Run the server, a worker, and a flow from an installation, and send a record through all of them."""
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    environment = here.environment | {"PATH": "", "TIDELOG_URL": url}
    server, program = str(here.bin / "tidelog-server"), str(here.bin / "tidelog")
    (directory / "shop.py").write_text(APP)
    (directory / "flows.yaml").write_text(FLOW)
    with (
        running([server, "--port", str(port), "--dir", str(directory / "data")], environment, directory),
        Client(url) as client,
    ):
        eventually(lambda: answers(client), "the server does not answer")
        info = client.redis.info("server")
        assert (info["tidelog_compiled"], info["tidelog_coded_nodes"]) == (int(compiled), int(compiled))
        with (
            running([program, "worker", "shop:app"], environment, directory),
            running([program, "flow", "run", "flows.yaml", "--listen", "none"], environment, directory),
        ):
            run(program, "send", "shop:orders", '{"n": 7}', environment=environment, cwd=directory)
            eventually(lambda: client.tlen("audited"), "the record did not arrive")
        (entry,) = client.trange("audited")
        assert entry.text()["n"] == "7"


def answers(client: Client) -> bool:
    try:
        return bool(client.redis.ping())
    except redis.ConnectionError:
        return False


def test_the_plain_wheel(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = wheel("plain", tmp_path_factory)
    check_contents(found, "plain")
    check_programs(install(found, tmp_path), tmp_path, compiled=False)


def test_the_compiled_wheel(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One test, so that only one of pytest's processes waits for the compiler."""
    found = wheel("compiled", tmp_path_factory)
    check_contents(found, "compiled")
    here = install(found, tmp_path)
    check_programs(here, tmp_path, compiled=True)
    project = test_installation.Project(tmp_path / "project")
    kind, pid, _ = project.run(here, here.python, str(project.directory / "program.py")).split()
    assert kind == "compiled"
    assert sorted(project.imported()) == [(int(pid), name) for name in test_installation.PARTS]
    test_installation.test_what_site_packages_has_afterwards(here)
    test_installation.test_tests_of_the_project(here, test_installation.Project(tmp_path / "another"))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_pip_installs_it_with_its_dependencies(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """From the index, without a compiler, and in less than a minute of CPU time."""
    found = wheel(kind, tmp_path_factory)
    run(sys.executable, "-m", "venv", str(tmp_path / "venv"), environment=clean())
    python = tmp_path / "venv/bin/python"
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", f"{found}[flows,workers]"]
    run(*command, environment=clean() | {"PATH": ""})
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime + used.ru_stime - began.ru_utime - began.ru_stime < 60
    (packages,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    here = Installation(str(python), packages, python.parent, clean())
    check_programs(here, tmp_path, compiled=kind == "compiled")
