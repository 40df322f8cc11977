"""Contracts of the project as a whole: what no single module can keep."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import respserver
import tidelog
from tests.conftest import SLOW_FOLDERS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [*PROJECT["tool"]["importlinter"]["root_packages"], "_tidelog_server"]
SCRIPTS = [
    "scripts/check", "scripts/test", "scripts/test-compiled", "scripts/demo", "scripts/bench", "scripts/peers",
    "scripts/cpu-tables", "scripts/wheels", "scripts/pictures", ".ci/run",
]  # fmt: skip
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks/README.md"]
FOLDERS = sorted({path.parent for name in (*PACKAGES, "benchmarks") for path in (ROOT / name).rglob("*.py")})


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short_executable_shell(name: str) -> None:
    script = ROOT / name
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/bin/sh"
    assert len(lines) <= 40
    subprocess.run(["sh", "-n", str(script)], check=True)


def test_versions_agree() -> None:
    version = PROJECT["project"]["version"]
    assert tidelog.__version__ == version
    assert respserver.__version__ == version
    newest = re.search(r"^## (\S+?),", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_packages_are_those_of_the_project() -> None:
    with_init = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert with_init == set(PACKAGES)
    assert (ROOT / "tidelog/py.typed").exists()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_folders_list_their_modules(folder: Path) -> None:
    """In the docstring of ``__init__.py``, one a line: four blanks, the name, two blanks or more, what it is.

    All Python modules are listed; folders and C modules may be; nothing else is.
    """
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()), clean=False) or ""
    listed = re.findall(r"^    (\w+)/?  +\S", docstring, re.MULTILINE)
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    others = {path.parent.name for path in folder.glob("*/__init__.py")} | {path.stem for path in folder.glob("*.c")}
    assert modules - set(listed) == set()
    assert set(listed) - modules - others == set()
    assert len(listed) == len(set(listed))


def test_folders_of_slow_tests_exist() -> None:
    assert {path.name for path in (ROOT / "tests").rglob("*") if path.is_dir()} >= SLOW_FOLDERS


def test_each_dependency_has_a_reason() -> None:
    text = (ROOT / "docs/internals/dependencies.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)
    extras = PROJECT["project"]["optional-dependencies"]
    needed = PROJECT["project"]["dependencies"] + [name for extra in extras.values() for name in extra]
    names = {re.split(r"[^\w-]", requirement)[0] for requirement in needed} - {"tidelog"}
    assert sorted(rows) == sorted(names)


def test_architecture_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 200


def test_dependencies_are_bounded_above() -> None:
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+,<[\d.]+", requirement), requirement


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    pictures = [(target, "") for target in re.findall(r' src(?:set)?="([^"]+)"', text)]
    for target, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#?([^)]*)\)", text) + pictures:
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), f"{target}#{anchor}"


def test_every_ignored_rule_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    ignored = text[text.index("ignore = [") : text.index("[tool.ruff.lint.isort]")].splitlines()[1:-2]
    assert len(ignored) > 5
    assert all("  # " in line for line in ignored), ignored


def test_each_directory_of_modules_has_a_layers_contract() -> None:
    linter = PROJECT["tool"]["importlinter"]
    layered = {name for contract in linter["contracts"] for name in contract.get("containers", ())}
    for top in linter["root_packages"]:
        for folder in (path.parent for path in (ROOT / top).rglob("__init__.py")):
            modules = [path for path in folder.glob("*.py") if not path.name.startswith("__")]
            if len(modules) + len(list(folder.glob("*/__init__.py"))) > 1:
                assert ".".join(folder.relative_to(ROOT).parts) in layered


# Both classes of each name are established terms of their part.
SHARED_NAMES = {"Command", "Event", "Lease", "Positions"}


def test_public_classes_have_different_names() -> None:
    homes: dict[str, set[Path]] = {}
    for top in PROJECT["tool"]["importlinter"]["root_packages"]:
        for path in (ROOT / top).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, set()).add(path)
    assert {name for name, paths in homes.items() if len(paths) > 1} <= SHARED_NAMES
