"""What scripts/ do by themselves: find circles of imports, make .venv, choose tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


# -- scripts/acyclic.py -------------------------------------------------------------------------------------------
def acyclic(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "acyclic.py"), "--root", str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of one package in two folders, without circles."""
    (tmp_path / "pyproject.toml").write_text('[tool.importlinter]\nroot_packages = ["parts"]\n')
    for package in ("_tidelog_server", "benchmarks", "parts", "parts/inner"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "parts" / "top.py").write_text("from parts.inner import low\nfrom parts import other\n")
    (tmp_path / "parts" / "other.py").write_text("from parts.inner.low import name\n")
    (tmp_path / "parts" / "inner" / "low.py").write_text("name = 1\n")
    return tmp_path


def test_imports_without_circles_pass(project: Path) -> None:
    done = acyclic(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "7 modules, 0 circles of imports\n"


def test_folders_may_import_each_other_where_modules_form_no_circle(project: Path) -> None:
    (project / "parts" / "inner" / "high.py").write_text("import parts.top\n")
    assert acyclic(project).returncode == 0


@pytest.mark.parametrize(
    "code",
    [
        "from parts import top\n",
        "import parts.top\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from parts.top import Top\n",
        "def later():\n    import parts.top\n",
    ],
)
def test_each_circle_is_shown_with_its_imports(project: Path, code: str) -> None:
    low = project / "parts" / "inner" / "low.py"
    low.write_text(code)
    done = acyclic(project)
    assert done.returncode == 1
    assert "Circle of 2: parts.inner.low -> parts.top -> parts.inner.low\n" in done.stdout
    assert f"    parts.inner.low:{code.count(chr(10))}: {code.splitlines()[-1].strip()}\n" in done.stdout
    assert "    parts.top:1: from parts.inner import low\n" in done.stdout
    assert "Circle of 3: parts.inner.low -> parts.top -> parts.other -> parts.inner.low\n" in done.stdout
    assert done.stdout.endswith("7 modules, 2 circles of imports\n")


# -- scripts/venv.sh ----------------------------------------------------------------------------------------------
PIP = """\
#!/bin/sh
echo "$*" >>.venv/calls
echo 'Collecting click<9,>=8.5 (from tidelog==0.1.0)'
echo '  Downloading click-8.5.1-py3-none-any.whl (126 kB)'
echo '  Downloading pyspark-4.3.0.tar.gz (434.1 MB)'
echo '  Building wheel for pyspark (pyproject.toml): started'
echo '  Building wheel for pyspark (pyproject.toml): still running...'
echo 'ERROR: what went wrong' >&2
exit $(cat .venv/status)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of a checkout as scripts/venv.sh looks at, with a pip that only says what it is told to do."""
    c = (
        "persistence/_frame.c", "persistence/_overflow.c", "respserver/clients/_sockets.c", "storage/model/_ids.c",
        "storage/keyspace/_prefetch.c", "storage/model/_records.c", "storage/nodes/_coded.c",
        "storage/nodes/_codedread.h", "tidelog/arrow/_rows.c", "tidelog/arrow/_words.h",
    )  # fmt: skip
    for name in ("scripts/venv.sh", "scripts/pytest.sh", "pyproject.toml", "setup.py", *c):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    pip = tmp_path / ".venv" / "bin" / "pip"
    pip.write_text(PIP)
    pip.chmod(0o755)
    (tmp_path / ".venv" / "status").write_text("0")
    return tmp_path


def venv(checkout: Path, extras: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f"set -eu; . scripts/venv.sh; venv {extras}; echo made"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)


def calls(checkout: Path) -> list[str]:
    path = checkout / ".venv" / "calls"
    return [line.split(" off ")[1] for line in path.read_text().splitlines()] if path.exists() else []


def test_the_checkout_is_installed_once_and_says_what_takes_long(checkout: Path) -> None:
    done = venv(checkout, "test,spark")
    assert done.stdout == "made\n"
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Installing tidelog's needs for test,spark into .venv: some 600 MB")
    assert lines[1] == "+ .venv/bin/pip install --editable .[test,spark]"
    assert [line.strip() for line in lines[2:]] == [
        "Downloading pyspark-4.3.0.tar.gz (434.1 MB)",
        "Building wheel for pyspark (pyproject.toml): started",
        "Building wheel for pyspark (pyproject.toml): still running...",
    ]
    assert venv(checkout, "test,spark").stderr == ""
    assert calls(checkout) == ["--editable .[test,spark]"]


def test_new_requirements_are_installed(checkout: Path) -> None:
    venv(checkout, "test")
    os.utime(checkout / ".venv" / "made-for-test", (0, 0))
    venv(checkout, "test")
    assert calls(checkout) == ["--editable .[test]"] * 2


def test_an_ordinary_installation_stays_what_it_is(checkout: Path) -> None:
    (checkout / ".venv/lib/python3.11/site-packages/_tidelog_server/respserver").mkdir(parents=True)
    assert venv(checkout, "demo").stdout == "made\n"
    assert calls(checkout) == ["tidelog[demo]"]


def test_an_installation_that_fails_shows_everything(checkout: Path) -> None:
    (checkout / ".venv" / "status").write_text("1")
    done = venv(checkout, "test")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Collecting click" in done.stderr
    assert "ERROR: what went wrong" in done.stderr
    assert not (checkout / ".venv" / "made-for-test").exists()


# -- scripts/test -------------------------------------------------------------------------------------------------
# scripts/test installs what is missing: the real apt-get downloads Debian's lists first, 30 s in each of these tests.
PROGRAMS = ["apt-get", *re.findall(r"([\w-]+):[\w-]+(?=[\s\"])", (ROOT / "scripts" / "programs.sh").read_text())]


def scripts_test(checkout: Path, python: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/test where .venv/bin/python is this shell script."""
    for name in ("test", "programs.sh"):
        shutil.copy(ROOT / "scripts" / name, checkout / "scripts")
    programs = checkout / "programs"
    programs.mkdir()
    for program in (checkout / ".venv/bin/python", *(programs / name for name in PROGRAMS)):
        program.write_text(f"#!/bin/sh\n{python}\n")
        program.chmod(0o755)
    env = {"PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "PYTHON": sys.executable} | environment
    command = [str(checkout / "scripts" / "test"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


APT = """\
echo "$*" >>apt-calls
case "$*" in
*update | *"install -y "*" "* | *chromium) exit 100 ;;
esac
"""


def test_programs_are_installed_together_or_one_by_one(checkout: Path) -> None:
    """A package that does not exist does not prevent the others, nor the tests."""
    if os.getuid():
        pytest.skip("only root installs programs")
    (checkout / "scripts" / "programs.sh").write_text(
        (ROOT / "scripts" / "programs.sh").read_text().replace("/usr/sbin/policy-rc.d", "policy")
    )
    programs = checkout / "programs"
    programs.mkdir()
    for name, text in (("apt-get", APT), ("id", "echo 0"), *((name, "") for name in ("chmod", "rm"))):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    command = ["/bin/sh", "-c", "set -eu; . scripts/programs.sh; programs; echo goes on"]
    done = subprocess.run(
        command, cwd=checkout, env={"PATH": str(programs)}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "goes on\n", done.stderr
    calls = (checkout / "apt-calls").read_text().splitlines()
    assert calls[0] == "-qq update"
    assert calls[1].startswith("-qq install -y redis-tools redis-server redis-sentinel chromium ")
    assert calls[2:4] == ["-qq install -y redis-tools", "-qq install -y redis-server"]
    assert "-qq install -y rsyslog" in calls
    assert "NOTE: no chromium here: the tests that need it will be SKIPPED" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        ([], "-n 4 --dist worksteal"),
        (["tests/x", "-k", "y"], "-n 4 --dist worksteal tests/x -k y"),
        (["quick"], "-n 4 --dist worksteal -m not slow --durations=5 --durations-min=3"),
        (["long", "-k", "y"], "-n 4 --dist worksteal -m long -n 1 -rP -k y"),
        (["quick", "-k", "y"], "-n 4 --dist worksteal -m not slow --durations=5 --durations-min=3 -k y"),
    ],
)
def test_arguments_go_to_pytest(checkout: Path, arguments: list[str], passed: str) -> None:
    done = scripts_test(checkout, 'echo "$*"', *arguments)
    assert done.stdout == f"-m pytest {passed}\n", done.stderr


FAILING = """
case "$*" in
*last-failed*) echo alone; exit {alone} ;;
esac
mkdir -p .pytest_cache/v/cache
printf '{{\\n{failed}\\n}}\\n' >.pytest_cache/v/cache/lastfailed
exit 1
"""


@pytest.mark.parametrize("alone", [0, 1])
def test_what_failed_is_run_once_more_alone(checkout: Path, alone: int) -> None:
    failed = ",\\n".join(f'  "tests/test_x.py::test_{number}": true' for number in range(5))
    done = scripts_test(checkout, FAILING.format(alone=alone, failed=failed))
    assert (done.stdout, done.returncode) == ("alone\n", alone)
    assert '    "tests/test_x.py::test_0"\n    "tests/test_x.py::test_1"\n' in done.stderr


def test_many_failures_are_no_chance(checkout: Path) -> None:
    failed = ",\\n".join(f'  "tests/test_x.py::test_{number}": true' for number in range(6))
    done = scripts_test(checkout, FAILING.format(alone=0, failed=failed))
    assert (done.stdout, done.returncode) == ("", 1)


def test_arguments_say_what_is_run_and_it_is_run_once(checkout: Path) -> None:
    failing = FAILING.format(alone=0, failed='  "tests/test_x.py::test_0": true')
    done = scripts_test(checkout, failing, "tests/test_x.py")
    assert (done.stdout, done.returncode) == ("", 1)


@pytest.mark.parametrize("variable", ["", "PYTHONDONTWRITEBYTECODE"])
def test_bytecode_is_kept(checkout: Path, variable: str) -> None:
    environment = {variable: "1"} if variable else {}
    done = scripts_test(checkout, 'echo "${PYTHONDONTWRITEBYTECODE-kept}"', **environment)
    assert done.stdout == "kept\n", done.stderr


COMPILED = """\
#!/bin/sh
echo "$COMPILED $EXTRAS" >>stages
if [ "$COMPILED" = only ]; then echo compiling; exit %d; fi
echo "compiled tests"
"""


@pytest.mark.parametrize(
    ("tests", "compiler", "status", "stages"),
    [(0, 0, 0, ["only", "before"]), (1, 0, 1, ["only"]), (0, 1, 1, ["only"])],
)
def test_a_build_machine_compiles_beside_the_tests_and_then_tests_that(
    checkout: Path, tests: int, compiler: int, status: int, stages: list[str]
) -> None:
    program = checkout / "scripts" / "test-compiled"
    program.write_text(COMPILED % compiler)
    program.chmod(0o755)
    waiting = "while ! [ -e stages ]; do sleep 0.01; done"
    done = scripts_test(checkout, f"{waiting}; echo interpreted; exit {tests}", CI="1")
    assert done.returncode == status, done.stderr
    assert [line.split()[0] for line in (checkout / "stages").read_text().splitlines()] == stages
    assert {line.split()[1] for line in (checkout / "stages").read_text().splitlines()} <= {"test", "test,jobs"}
    assert done.stdout.splitlines() == ["interpreted", *["compiled tests"] * (status == 0)]
    assert "-m pytest -n 6 --dist worksteal" in done.stderr
    assert ("compiling" in done.stderr) == (compiler == 1)  # what it says matters only if it fails


@pytest.mark.parametrize("alone", [0, 1])
def test_a_build_machine_tests_what_is_compiled_if_what_failed_passes_alone(checkout: Path, alone: int) -> None:
    program = checkout / "scripts" / "test-compiled"
    program.write_text(COMPILED % 0)
    program.chmod(0o755)
    done = scripts_test(checkout, FAILING.format(alone=alone, failed='  "tests/test_x.py::test_0": true'), CI="1")
    assert done.returncode == alone, done.stderr
    assert done.stdout.splitlines() == ["alone", *["compiled tests"] * (alone == 0)]
