"""Jobs from their modules, and modules that have changed since they were imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tidelog.jobs import JobError
from tidelog.jobs.loading import load

TARGET = "shop_jobs_of_test:count"
CODE = """
from tidelog.jobs import job
from tidelog.topics import Topic

clicks = Topic("clicks", dict, partitions=2)

@job(inputs=[clicks])
def count(batch):
    return {}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    path = tmp_path / "shop_jobs_of_test.py"
    path.write_text(CODE)
    yield path
    sys.modules.pop("shop_jobs_of_test", None)


def test_a_module_that_has_changed_is_imported_anew_for_another_version(module: Path) -> None:
    folder = [str(module.parent)]
    first = load(TARGET, folder)
    assert first(None) == {}
    module.write_text(CODE.replace("return {}", "return {'much': 'longer'}"))
    assert load(TARGET, folder) is first  # no version is asked for
    assert load(TARGET, folder, first.version) is first
    second = load(TARGET, folder, "another")
    assert second(None) == {"much": "longer"}
    assert second.version != first.version
    assert load(TARGET, folder, second.version) is second


def test_what_a_function_uses_of_its_module_is_part_of_its_version(module: Path) -> None:
    folder = [str(module.parent)]
    module.write_text("FACTOR = 1\n" + module.read_text())
    first = load(TARGET, folder)
    module.write_text(module.read_text().replace("FACTOR = 1", "FACTOR = 100"))
    spec = load_anew(TARGET, folder)
    assert spec != first.version
    second = load(TARGET, folder, spec)
    assert second is not first
    assert second.function.__globals__["FACTOR"] == 100


def test_the_version_is_that_of_what_was_imported_not_of_the_file_as_it_is_later(module: Path) -> None:
    """Another job of the module was loaded before the file was changed."""
    folder = [str(module.parent)]
    other = CODE[CODE.index("@job") :].replace("count", "other")
    module.write_text(f"FACTOR = 1\n{CODE}\n{other}")
    load("shop_jobs_of_test:other", folder)
    module.write_text(module.read_text().replace("FACTOR = 1", "FACTOR = 100"))
    assert load(TARGET, folder, load_anew(TARGET, folder)).function.__globals__["FACTOR"] == 100


def test_what_a_module_imports_from_its_directory_is_part_of_the_version(module: Path) -> None:
    folder = [str(module.parent)]
    package = module.parent / "shop_helpers_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rates.py").write_text("FACTOR = 1\n")
    (package / "same.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Same: ...\n")
    (package / "deep.py").write_text("from .rates import FACTOR\nfrom . import same\n")
    module.write_text(f"from shop_helpers_of_test import deep\n{CODE}".replace("return {}", "return deep.FACTOR"))
    first = load(TARGET, folder)
    same = sys.modules["shop_helpers_of_test.same"]
    try:
        assert (first(None), first.version) == (1, load_anew(TARGET, folder))
        (package / "rates.py").write_text("FACTOR = 100\n")
        version = load_anew(TARGET, folder)
        assert version != first.version
        second = load(TARGET, folder, version)
        assert (second(None), second.version) == (100, version)
        assert sys.modules["shop_helpers_of_test.same"] is same  # what has not changed stays, with its classes
    finally:
        for name in [each for each in sys.modules if each.startswith("shop_helpers_of_test")]:
            del sys.modules[name]


def test_a_job_that_is_added_to_a_module_that_was_imported(module: Path) -> None:
    folder = [str(module.parent)]
    first = load(TARGET, folder)
    with pytest.raises(JobError, match="has no 'other'"):
        load("shop_jobs_of_test:other", folder, "v1")
    other = CODE[CODE.index("@job") :].replace("count", "other")
    module.write_text(f"{CODE}\n{other}")
    assert load("shop_jobs_of_test:other", folder, load_anew("shop_jobs_of_test:other", folder)).name == "other"
    assert first(None) == {}


def test_installed_packages_are_not_part_of_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "site-packages"
    for package, text in (("mine_of_test", "import other_of_test\n" + CODE), ("other_of_test", "x = 1\n")):
        (root / package).mkdir(parents=True)
        (root / package / "__init__.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    version = load_anew("mine_of_test:count", [str(root)])
    (root / "other_of_test" / "__init__.py").write_text("x = 2\n")
    assert load_anew("mine_of_test:count", [str(root)]) == version
    (root / "mine_of_test" / "part.py").write_text("")
    (root / "mine_of_test" / "__init__.py").write_text("import mine_of_test.part\n" + CODE)
    assert load_anew("mine_of_test:count", [str(root)]) != version


def load_anew(target: str, folder: list[str]) -> str:
    """The version that a program of its own finds."""
    code = f"from tidelog.jobs.loading import load; print(load({target!r}, {folder!r}).version)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_version_that_is_not_there_costs_one_import(module: Path) -> None:
    folder = [str(module.parent)]
    load(TARGET, folder)
    found = load(TARGET, folder, "nowhere")
    assert load(TARGET, folder, "nowhere") is found


def test_a_module_that_changes_back_and_forth(module: Path) -> None:
    folder = [str(module.parent)]
    other = CODE.replace("return {}", "return {'much': 'longer'}")
    versions: list[str] = []
    for text in (CODE, other):
        module.write_text(text)
        versions.append(load(TARGET, folder, f"not yet known {len(versions)}").version)
    for text, version in [(CODE, versions[0]), (other, versions[1])] * 3:
        module.write_text(text)
        assert load(TARGET, folder, version).version == version


def test_a_module_that_comes_late(module: Path) -> None:
    """The job was added elsewhere before its code was brought to this machine."""
    folder = [str(module.parent)]
    other = CODE.replace("return {}", "return {'much': 'longer'}")
    old = load(TARGET, folder).version
    module.write_text(other)
    new = load(TARGET, folder, "unknown").version
    module.write_text(CODE)
    assert load(TARGET, folder, old).version == old
    assert load(TARGET, folder, new).version == old  # not there yet
    module.write_text(other)
    assert load(TARGET, folder, new).version == new
