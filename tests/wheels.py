"""The wheels that ``scripts/wheels`` builds, once in a test session, and installations of them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KINDS = ["plain", "compiled"]
#: The directories whose modules are compiled, without optimization: half of the CPU time of all hot modules.
#: scripts/test-compiled compiles and tests all of them, and scripts/test long builds the complete wheel.
COMPILED = ("storage",)
HERE = sysconfig.get_paths()["purelib"]  # what tidelog depends on is there


@dataclass
class Installation:
    """Where tidelog lies, and the interpreter that finds it there."""

    python: str
    packages: Path  # the folder that has the package tidelog
    bin: Path
    environment: dict[str, str]


def require(kind: str) -> None:
    """Skip the test if wheels of this kind can't be built here."""
    if kind != "compiled":
        return
    if not os.environ.get("CI"):
        pytest.skip("compiles for minutes: on the build machine only (CI=1)")
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")


def wheel(kind: str, factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of this kind for this Python."""
    require(kind)
    shared = factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent  # of all processes of this session
    directory = shared / f"wheels-{kind}"
    with open(shared / f"wheels-{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            settings = clean() | {
                "PYTHONS": sys.executable, "TOOLS": str(Path(sys.executable).parent), "DIST": f"{directory}.new",
            }  # fmt: skip
            if not os.environ.get("TIDELOG_LONG"):
                settings |= {"CC": str(unoptimized(shared)), "TIDELOG_HOT": " ".join(COMPILED)}
            run(str(ROOT / "scripts/wheels"), kind, environment=settings)
            Path(f"{directory}.new").rename(directory)
    (found,) = directory.iterdir()
    return found


def unoptimized(directory: Path) -> Path:
    """Return a compiler that does not optimize, which takes a quarter of the time."""
    compiler = directory / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CC", "cc")} "$@" -O0\n')
    compiler.chmod(0o755)
    return compiler


def install(found: Path, directory: Path) -> Installation:
    """Install a wheel in an environment that has tidelog's dependencies and pytest."""
    run(sys.executable, "-m", "venv", "--without-pip", str(directory / "venv"), environment=clean())
    python = directory / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", "--python", str(python)]
    run(*pip, "install", "--no-deps", "--no-index", str(found), environment=clean())
    (packages,) = (directory / "venv").glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(f"{HERE}\n")
    return Installation(str(python), packages, python.parent, clean())


def clean() -> dict[str, str]:
    """Return this environment without settings of Python and tidelog."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDELOG", "PIP_NO_"))}


def run(*command: str, environment: dict[str, str], cwd: Path | None = None) -> None:
    """Run a command, which must succeed."""
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
