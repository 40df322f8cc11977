"""The files that the console serves: vendored ones are those of npm, and all are in an installation."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tidelog.console import assets, rendering
from tidelog.console.assets import FILES, FOLDER, Assets
from tidelog.console.errors import ConsoleError

ROOT = Path(__file__).parents[3]
VENDOR = FOLDER / "vendor"


def test_vendored_files_have_the_pinned_hashes() -> None:
    pinned, hashes = json.loads((VENDOR / "vendor.json").read_text()), json.loads((VENDOR / "hashes.json").read_text())
    names = {name for each in pinned for name in each["files"].values()}
    assert names == set(hashes) == {path.name for path in VENDOR.iterdir()} - {"vendor.json", "hashes.json"}
    for name, digest in hashes.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    for each in pinned:
        assert re.fullmatch(r"\d+\.\d+\.\d+", each["version"])
        algorithm, _, digest = each["integrity"].partition("-")
        assert algorithm == "sha512"
        assert len(base64.b64decode(digest)) == 64
        assert any("LICENSE" in name for name in each["files"].values())


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "static")
    Assets(tmp_path / "static")
    with (tmp_path / "static/vendor/htmx.min.js").open("a") as file:
        file.write("alert(1)")
    with pytest.raises(ConsoleError, match="was changed"):
        Assets(tmp_path / "static")
    (tmp_path / "static/console.css").unlink()
    with pytest.raises(ConsoleError, match="can't be read"):
        Assets(tmp_path / "static")


def test_an_installation_has_all_files() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["tidelog.console"]
    folder = Path(assets.__file__).parent
    for path in (*FOLDER.rglob("*"), *rendering.FOLDER.rglob("*")):
        if path.is_file():
            assert any(fnmatch(str(path.relative_to(folder)), pattern) for pattern in data), path
    assert {path.name for path in FOLDER.iterdir() if path.is_file()} == {name for name in FILES if "/" not in name}


def test_no_template_turns_escaping_off() -> None:
    for path in rendering.FOLDER.glob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe|autoescape|Markup|\son\w+=|\sstyle=|<style|javascript:", text), path
    for path in FOLDER.glob("*.js"):
        text = path.read_text()
        assert not re.search(r"innerHTML\s*=|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
