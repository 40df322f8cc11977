"""An installation beside a user's own packages: tidelog keeps its names to itself, and finds its own server.

The server's parts are named storage, commands and so on. A user's project may have packages of all of these names: its
imports get its own, and the server that tidelog.testing starts, or the program tidelog-server, gets tidelog's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from tests.wheels import Installation, install, wheel

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
PARTS = ["commands", "coordinator", "persistence", "replication", "resp", "respserver", "storage"]
PACKAGES = ["_tidelog_server", "pyspark_tidelog", "tidelog"]

#: A package of the user's: it writes down which process imports it.
PACKAGE = """
import os
with open(os.environ["IMPORTED"], "a") as file:
    file.write(f"{os.getpid()} {__name__}\\n")
OWNER = "the user"
"""
PROGRAM = f"""
import importlib, os
import tidelog
from tidelog import calls
from tidelog.testing import running_server
import storage
with running_server(appendfsync="no") as server, server.client() as client:
    client.tappend("k", {{"n": 1}})
    server.kill()
    server.start()
    assert client.together(calls.tlen("k"), calls.tcount("k")) == [1, 1]
    for name in {PARTS}:
        assert importlib.import_module(name).OWNER == "the user"
    kind = "compiled" if client.redis.info("server")["tidelog_compiled"] else "interpreted"
    print(kind, os.getpid(), tidelog.__path__[0])
"""
USERS_TEST = """
import storage

def test_with_a_server(tidelog_server):
    import commands
    assert commands.OWNER == storage.OWNER == "the user"
    with tidelog_server.client() as client:
        assert client.tappend("k", {"n": 1}) is not None
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(wheel("plain", tmp_path_factory), tmp_path_factory.mktemp("installed"))


@pytest.fixture(params=["installed", "checkout"])
def place(request: pytest.FixtureRequest) -> Installation:
    """Both kinds: a checkout is found by PYTHONPATH."""
    if request.param == "installed":
        installation: Installation = request.getfixturevalue("installed")
        return installation
    return Installation(sys.executable, ROOT, Path(sys.executable).parent, dict(os.environ))


class Project:
    """A user's project with packages of all the names that the server's parts have."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "imported"
        for name in PARTS:
            (directory / name).mkdir(parents=True)
            (directory / name / "__init__.py").write_text(PACKAGE)
        (directory / "program.py").write_text(PROGRAM)
        (directory / "conftest.py").write_text('pytest_plugins = ["tidelog.testing"]\n')
        (directory / "test_users.py").write_text(USERS_TEST)

    def run(self, place: Installation, *command: str, cwd: Path | None = None, path: bool = True) -> str:
        """Run something; ``path``: with the project in PYTHONPATH."""
        folders = [str(self.directory)] if path else []
        if place.packages == ROOT:
            folders.append(str(ROOT))
        environment = place.environment | {"IMPORTED": str(self.log), "PYTHONPATH": os.pathsep.join(folders)}
        done = subprocess.run(
            command, env=environment, cwd=cwd or self.directory, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def imported(self) -> list[tuple[int, str]]:
        """Process IDs and packages of all imports so far."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(pid), name) for pid, name in (line.split() for line in lines)]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def modules(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for kind in ("*.py", "*.pyi", "py.typed") for path in folder.rglob(kind)}


def test_what_site_packages_has_afterwards(installed: Installation) -> None:
    there = {path.name for path in installed.packages.iterdir()} - {"dependencies.pth"}
    assert there == {*PACKAGES, f"tidelog-{tidelog.__version__}.dist-info"}
    assert {"tidelog", "tidelog-server"} <= {path.name for path in installed.bin.iterdir()}


def test_it_is_complete(installed: Installation) -> None:
    for name in PACKAGES:
        assert modules(ROOT / name) <= modules(installed.packages / name)
    for name in PARTS:
        assert modules(installed.packages / "_tidelog_server" / name) == modules(ROOT / name)


@pytest.mark.parametrize("cwd", ["project", "elsewhere"])
@pytest.mark.parametrize("path", [True, False], ids=["with PYTHONPATH", "without"])
def test_a_program_of_the_project(place: Installation, project: Project, tmp_path: Path, cwd: str, path: bool) -> None:
    folder = {"project": project.directory, "elsewhere": tmp_path}[cwd]
    program = str(project.directory / "program.py")
    kind, pid, found = project.run(place, place.python, program, cwd=folder, path=path).split()
    assert found == str(place.packages / "tidelog")
    assert place.packages == ROOT or kind == "interpreted"
    assert sorted(project.imported()) == [(int(pid), name) for name in PARTS], "each by the program, none by the server"


def test_tests_of_the_project(place: Installation, project: Project) -> None:
    assert "1 passed" in project.run(place, place.python, "-m", "pytest", "-p", "no:cacheprovider", "test_users.py")
    assert sorted(name for _, name in project.imported()) == ["commands", "storage"]


def test_programs_of_tidelog_run_within_the_project(installed: Installation, project: Project) -> None:
    for command in (
        [str(installed.bin / "tidelog-server"), "--version"],
        [installed.python, "-m", "_tidelog_server", "--version"],
        [str(installed.bin / "tidelog"), "--version"],
        [installed.python, "-m", "tidelog.cli", "--version"],
    ):
        assert tidelog.__version__ in project.run(installed, *command)
    assert project.imported() == []
