"""What setup.py decides, and that it says so. Compiled modules are tested by the server's tests, in a compiled copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of the sources as a build wants before it compiles anything."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "storage", tmp_path / "storage", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "tidelog" / "spark").mkdir(parents=True)
    shutil.copy(ROOT / "tidelog" / "spark" / "_rows.c", tmp_path / "tidelog" / "spark")
    return tmp_path


def build(checkout: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "-v", "build_ext", *options], cwd=checkout, env=os.environ | environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


def test_without_a_compiler_everything_runs_interpreted(checkout: Path) -> None:
    done = build(checkout, TIDELOG_COMPILE="", CC="/nonexistent/cc")
    assert done.returncode == 0, done.stdout
    assert "tidelog: the hot modules run interpreted (no C compiler" in done.stdout
    assert not list(checkout.rglob("*.so"))


def test_it_can_be_forbidden(checkout: Path) -> None:
    done = build(checkout, TIDELOG_COMPILE="0")
    assert done.returncode == 0, done.stdout
    assert "tidelog: the hot modules run interpreted (TIDELOG_COMPILE=0)" in done.stdout
    assert not list(checkout.rglob("*.so"))


def test_an_editable_install_runs_what_is_edited(checkout: Path) -> None:
    done = build(checkout, "--inplace", TIDELOG_COMPILE="", CC="/nonexistent/cc")
    assert done.returncode == 0, done.stdout
    assert "interpreted (an editable install runs what is edited)" in done.stdout


def test_who_insists_is_told_why_it_cannot_be(checkout: Path) -> None:
    done = build(checkout, TIDELOG_COMPILE="1", CC="/nonexistent/cc")
    assert done.returncode != 0
    assert "TIDELOG_COMPILE=1, but nothing can be compiled here: no C compiler" in done.stdout


def test_another_wish_is_refused(checkout: Path) -> None:
    done = build(checkout, TIDELOG_COMPILE="yes")
    assert done.returncode != 0
    assert "TIDELOG_COMPILE is 'yes': it can be 1 (compile, or fail), 0 (don't), or empty" in done.stdout
