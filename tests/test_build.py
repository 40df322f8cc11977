"""What setup.py decides, that it says so, and where compiled modules go.

A replacement of mypyc makes two extensions in no time. What mypyc makes of the hot modules is tested by the server's
tests, in a compiled copy (scripts/test-compiled).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
C_SOURCES = [
    path.relative_to(ROOT)
    for package in ("commands", "persistence", "respserver", "storage", "tidelog")
    for path in sorted((ROOT / package).rglob("*.[ch]"))
]
C_MODULES = tuple(f"/{path.stem}" for path in C_SOURCES if path.suffix == ".c")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As much of the sources as a build wants before it compiles anything."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "storage", tmp_path / "storage", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in C_SOURCES:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
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


# -- names -----------------------------------------------------------------------------------------------------------
MYPYC = """\
from pathlib import Path
from setuptools import Extension

SOURCE = '''#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "NAME"};
PyMODINIT_FUNC PyInit_NAME(void) { return PyModule_Create(&module); }
'''

def mypycify(arguments, *, group_name, **options):
    made = []
    for name in ("storage.streams.stream", f"{group_name}__mypyc"):  # a module, and the library that all modules share
        path = Path(f"{name}.c")
        path.write_text(SOURCE.replace("NAME", name.rpartition(".")[2]))
        made.append(Extension(name, [str(path)]))
    Path("arguments").write_text("\\n".join(arguments))
    return made
"""
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def mypyc(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with a ``mypyc.build`` that is quick."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here (Debian: apt-get install gcc)")
    place = tmp_path_factory.mktemp("place")
    (place / "mypyc").mkdir()
    (place / "mypyc" / "__init__.py").touch()
    (place / "mypyc" / "build.py").write_text(MYPYC)
    return str(place)


def built(folder: Path) -> list[str]:
    """Compiled files in it, without the build's own and without the C modules."""
    found = [str(path.relative_to(folder)).removesuffix(SUFFIX) for path in folder.rglob(f"*{SUFFIX}")]
    return sorted(name for name in found if not name.startswith("build/") and not name.endswith(C_MODULES))


def test_an_ordinary_build_puts_everything_into_the_private_package(checkout: Path, mypyc: str) -> None:
    done = build(checkout, "--build-lib", "lib", TIDELOG_COMPILE="1", PYTHONPATH=mypyc)
    assert done.returncode == 0, done.stdout
    assert built(checkout) == ["lib/_tidelog_server/storage/streams/stream", "lib/_tidelog_server/tidelog__mypyc"]
    home = checkout / "lib" / "_tidelog_server"  # which the server's process has on its path
    code = "import storage.streams.stream, tidelog__mypyc; print(storage.streams.stream.__file__)"
    found = subprocess.check_output([sys.executable, "-c", code], cwd=home, text=True)
    assert found == f"{home}/storage/streams/stream{SUFFIX}\n"


def test_a_build_in_place_puts_each_beside_its_source(checkout: Path, mypyc: str) -> None:
    done = build(checkout, "--inplace", TIDELOG_COMPILE="1", PYTHONPATH=mypyc)
    assert done.returncode == 0, done.stdout
    assert built(checkout) == ["storage/streams/stream", "tidelog__mypyc"]


def test_an_editable_install_can_be_compiled(checkout: Path, mypyc: str) -> None:
    command = [sys.executable, "setup.py", "editable_wheel", "--dist-dir", "dist"]
    environment = os.environ | {"TIDELOG_COMPILE": "1", "PYTHONPATH": mypyc}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert built(checkout) == ["storage/streams/stream", "tidelog__mypyc"]


def test_the_hot_modules_are_there(checkout: Path, mypyc: str) -> None:
    assert build(checkout, "--build-lib", "lib", TIDELOG_COMPILE="1", PYTHONPATH=mypyc).returncode == 0
    hot = [name for name in (checkout / "arguments").read_text().splitlines() if not name.startswith("--")]
    assert len(hot) == len(set(hot))
    assert [name for name in hot if not (ROOT / name).is_file()] == []
    assert {"storage/keyspace/keyspace.py", "respserver/server.py"} <= set(hot)
